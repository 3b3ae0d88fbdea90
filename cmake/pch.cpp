// The translation unit whose precompiled header the other targets reuse.

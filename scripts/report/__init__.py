"""Reports of what was measured: records -> figures -> claims, plots -> pages. scripts/*.py call it."""

"""Bytes as people read them."""


def unit_of(count: float) -> tuple[int, str]:
    """The largest unit that count reaches: how many bytes it has, and its name."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB")):
        if count >= size:
            return size, name
    return 1024, "KiB"


def human_bytes(count: float) -> str:
    size, name = unit_of(count)
    return f"{count / size:,.0f} {name}" if name == "KiB" else f"{count / size:.2f} {name}"

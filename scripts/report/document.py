"""A page as a list of blocks. rendering.py writes them as HTML and Markdown; tables go to a terminal as well."""
import collections
import dataclasses
import re
from collections.abc import Callable

LONG = 48  # characters; a longer cell is a passage


@dataclasses.dataclass(frozen=True)
class Heading:
    level: int
    text: str
    anchor: str = ""  # see with_anchors


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph in Markdown: **bold**, `code` and [links](page.md)."""

    text: str


@dataclasses.dataclass(frozen=True)
class Items:
    texts: list[str]


@dataclasses.dataclass(frozen=True)
class Table:
    """The first column and those named in `wordy` are words, the others numbers. Caption and cells are in Markdown, as
    in Text."""

    caption: str
    headings: list[str]
    rows: list[list[str]]
    wordy: tuple[str, ...] = ()

    def is_wordy(self, heading: str) -> bool:
        return heading == self.headings[0] or heading in self.wordy

    @property
    def has_long_names(self) -> bool:
        """Whether the first column is too wide to stay in sight while the others are scrolled."""
        return any(is_long(row[0]) for row in self.rows)


@dataclasses.dataclass(frozen=True)
class Point:
    """What is known of one point of a picture. Facts are in Markdown, as in Text."""

    title: str
    facts: list[str]
    command: str = ""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A PNG beside Markdown, SVG inside HTML: drawn once for phones and once for wider pages, or for wider pages alone
    where it is `large`, to be scrolled on a phone. `points` say what the points of the SVG are, numbered as there."""

    name: str  # no two pictures of a page share one
    alternative: str
    caption: str
    drawing: Callable  # from a Theme to a figure, see plots/images.py
    points: list[Point] = dataclasses.field(default_factory=list)
    large: bool = False

    @property
    def file(self) -> str:
        return f"{self.name}.png"


@dataclasses.dataclass(frozen=True)
class Commands:
    """Folded in HTML under the summary, and left out on paper."""

    lines: list[str]
    summary: str = "All commands"  # in Markdown, as in Text


@dataclasses.dataclass(frozen=True)
class Fold:
    """Blocks under a summary that opens them; what links to `anchor` opens them too. elsewhere: Markdown leaves them out,
    because another page beside it has them."""

    summary: str  # in Markdown, as in Text
    blocks: list
    anchor: str = ""
    elsewhere: bool = False


def pictures(blocks: list) -> list[Picture]:
    """Those of the page, folded ones too."""
    return [found for block in blocks for found in
            ([block] if isinstance(block, Picture) else pictures(block.blocks) if isinstance(block, Fold) else [])]


def slug(text: str) -> str:
    """The name under which a heading is linked to, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", plain(text).lower()).replace(" ", "-")


def with_anchors(blocks: list, given: collections.Counter | None = None) -> list:
    """The blocks, each heading with the id that GitHub gives it: a slug that was given before gets a number."""
    given = collections.Counter() if given is None else given
    found = []
    for block in blocks:
        if isinstance(block, Heading):
            name = slug(block.text)
            block = dataclasses.replace(block, anchor=f"{name}-{given[name]}" if given[name] else name)
            given[name] += 1
        elif isinstance(block, Fold):
            block = dataclasses.replace(block, blocks=with_anchors(block.blocks, given))
        found.append(block)
    return found


def plain(text: str) -> str:
    """Without the marks of bold and code."""
    return text.replace("**", "").replace("`", "")


def is_long(cell: str) -> bool:
    return len(plain(cell)) > LONG


def table_plain(table: Table) -> str:
    """For a terminal: columns as wide as they need be, words to the left and numbers to the right."""
    rows = [[plain(cell) for cell in row] for row in (table.headings, *table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if table.is_wordy(heading) else cell.rjust(width)
                 for heading, cell, width in zip(table.headings, row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])

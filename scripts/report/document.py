"""A page as a list of blocks, and how they read as HTML and as Markdown."""
import dataclasses
import functools
import html
import re

from .page_style import SCRIPT, STYLE
from .plots import theme


@dataclasses.dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph; **bold**, `code` and a [link](page.md) to another page mean what they do in Markdown."""

    text: str


@dataclasses.dataclass(frozen=True)
class Items:
    texts: list[str]


@dataclasses.dataclass(frozen=True)
class Table:
    """The first column and those named in `wordy` are words, the others numbers. Cells are like Text."""

    caption: str
    headings: list[str]
    rows: list[list[str]]
    wordy: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Point:
    """What is known of one point of a picture; texts are like Text."""

    title: str
    facts: list[str]
    command: str = ""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A PNG beside Markdown. In HTML it is drawn once for phones and once for wider pages, or for the latter alone where
    it is `large`, to be scrolled on a phone; there its points, numbered as in the drawing, say what they are."""

    name: str  # its own on the page
    alternative: str
    caption: str
    drawing: theme.Drawing
    points: list[Point] = dataclasses.field(default_factory=list)
    large: bool = False

    @property
    def file(self) -> str:
        return f"{self.name}.png"

    @functools.cached_property
    def png(self) -> bytes:
        return theme.png(self.drawing)


@dataclasses.dataclass(frozen=True)
class Commands:
    lines: list[str]


LONG = 48  # characters from which on a cell is a passage
COLORS = {"holds": "green", "holds when": "amber", "does not hold": "red", "its own arithmetic is wrong": "red",
          "failed": "red", "green": "green", "amber": "amber", "red": "red"}


def inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    escaped = re.sub(r"\[([^][]+)\]\((\w+\.md)\)", r'<a href="\2">\1</a>', escaped)
    return re.sub(r"\*\*([^*]+)\*\*", lambda bold: f"<strong{colored(bold[1])}>{bold[1]}</strong>", escaped)


def colored(word: str) -> str:
    return f' class="{COLORS[word]}"' if word in COLORS else ""


def is_long(text: str) -> bool:
    return len(plain(text)) > LONG


def cell(tag: str, heading: str, text: str, table: Table) -> str:
    kinds = []
    if heading == table.headings[0] or heading in table.wordy:
        kinds = ["word", "long"] if is_long(text) and tag == "td" else ["word"]
    scope = ' scope="col"' if tag == "th" else ""
    return f'<{tag}{scope} class="{" ".join(kinds)}">{inline(text)}</{tag}>' if kinds else \
        f"<{tag}{scope}>{figure_html(text)}</{tag}>"


def figure_html(text: str) -> str:
    """A number, and what stands behind it in brackets or after a comma: on paper, lines end between these alone."""
    if not re.match(r"[-+]?\d", text):
        return inline(text)
    return " ".join(f"<span>{inline(part)}</span>" for part in re.split(r" (?=\()|(?<=,) ", text))


def table_html(table: Table) -> str:
    head = "".join(cell("th", heading, heading, table) for heading in table.headings)
    rows = "\n".join("<tr>" + "".join(cell("td", heading, text, table) for heading, text in zip(table.headings, row))
                     + "</tr>" for row in table.rows)
    label = html.escape(table.caption.partition(".")[0])
    # names stay in sight while their figures are scrolled by
    kind = "scroll" if any(is_long(row[0]) for row in table.rows) else "scroll led"
    return (f'<p class="about">{inline(table.caption)}</p>\n'
            f'<div class="{kind}" tabindex="0" role="region" aria-label="{label}"><table>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>")


def drawn(picture: Picture, look: theme.Dress) -> str:
    return theme.svg(picture.drawing, look, picture.name, picture.alternative, [point.title for point in picture.points])


def point_html(picture: Picture, number: int, point: Point) -> str:
    facts = "".join(f"<p>{inline(fact)}</p>" for fact in point.facts)
    command = f"<pre>{html.escape(point.command, quote=False)}</pre>" if point.command else ""
    return (f'<template id="{picture.name}-{number}"><p><strong>{html.escape(point.title)}</strong></p>{facts}{command}'
            "</template>")


def picture_html(picture: Picture) -> str:
    if picture.large:
        body = f'<div class="scroll large" tabindex="0">{drawn(picture, theme.WIDE)}</div>'
    else:
        body = "".join(f'<div class="{look.place}">{drawn(picture, look)}</div>' for look in (theme.WIDE, theme.NARROW))
    if picture.points:
        points = "".join(point_html(picture, number, point) for number, point in enumerate(picture.points))
        body += f'<div class="details" aria-live="polite"><p>Point at a mark, touch it, or press Tab and the arrow keys: ' \
                f"here stands what it is.</p></div>{points}"
    kind = ' class="pointed"' if picture.points else ""
    return f"<figure{kind}>{body}<figcaption>{inline(picture.caption)}</figcaption></figure>"


def commands_html(lines: list[str]) -> str:
    return ("<details><summary>All commands</summary><pre>" + html.escape("\n".join(lines), quote=False)
            + "</pre></details>")


def block_html(block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{inline(text)}</p>"
        case Items(texts):
            return "<ul>" + "".join(f"<li>{inline(text)}</li>" for text in texts) + "</ul>"
        case Commands(lines):
            return commands_html(lines)
        case Table():
            return table_html(block)
        case Picture():
            return picture_html(block)
    raise TypeError(block)


def to_html(title: str, blocks: list) -> str:
    """One file that needs no other: style, pictures and the script are inside."""
    body = "\n".join(map(block_html, blocks))
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n"
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n")


def markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table_markdown(table: Table) -> str:
    def row(cells: list[str]) -> str:
        return "| " + " | ".join(map(markdown_cell, cells)) + " |"
    rules = [":--" if heading == table.headings[0] or heading in table.wordy else "--:" for heading in table.headings]
    return "\n".join([table.caption + "\n", row(table.headings), row(rules), *map(row, table.rows)])


def block_markdown(block) -> str:
    match block:
        case Heading(level, text):
            return "#" * level + " " + text
        case Text(text):
            return text
        case Items(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Commands(lines):
            return "```\n" + "\n".join(lines) + "\n```"
        case Table():
            return table_markdown(block)
        case Picture():
            return f"![{block.alternative}]({block.file})\n\n{block.caption}"
    raise TypeError(block)


def plain(text: str) -> str:
    return text.replace("**", "").replace("`", "")


def table_plain(table: Table) -> str:
    """For a terminal: columns as wide as they need be, words to the left and numbers to the right."""
    rows = [[plain(cell) for cell in row] for row in (table.headings, *table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if heading == table.headings[0] or heading in table.wordy else cell.rjust(width)
                 for heading, cell, width in zip(table.headings, row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def to_markdown(blocks: list) -> str:
    """The pictures lie beside it, under their names."""
    return "\n\n".join(map(block_markdown, blocks)) + "\n"

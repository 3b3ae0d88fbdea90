"""A page as a list of blocks, and how they read as HTML and as Markdown."""
import base64
import dataclasses
import html
import re


@dataclasses.dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph; **bold** and `code` mean what they do in Markdown."""

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
class Picture:
    file: str
    alternative: str
    caption: str
    light: bytes
    dark: bytes


@dataclasses.dataclass(frozen=True)
class Commands:
    lines: list[str]


STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1f24;--soft:#5b6470;--line:#d9dce1;--band:#f5f6f8;--good:#11703c;
--fair:#8a5a00;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--paper:#16191f;--ink:#e6e8eb;--soft:#a3abb6;--line:#3a3f48;--band:#1e222a;
--good:#5ad08d;--fair:#f0b84a;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.3rem;margin-top:2.5rem;border-bottom:1px solid var(--line)}
h3{font-size:1.05rem;margin-top:2rem}
figure{margin:1.5rem 0}figcaption,.about{color:var(--soft);font-size:.85rem}.about{margin:1.5rem 0 .4rem}
img{display:block;width:100%;max-width:46rem;height:auto}
.scroll{overflow-x:auto;margin:0 0 1rem}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .7rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th{border-bottom-width:2px;vertical-align:bottom}tbody tr:nth-child(even){background:var(--band)}
.word{text-align:left}td.word{white-space:normal;min-width:8rem}td.long{min-width:16rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--band);padding:.7rem;border-radius:4px}
.confirmed{color:var(--good)}.partly{color:var(--fair)}.refuted,.failed{color:var(--bad)}
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--soft:#444;--line:#bbb;--band:#f5f6f8;
--good:#11703c;--fair:#8a5a00;--bad:#b3261e}
@page{margin:14mm}body{max-width:none;padding:0;font-size:10pt}.scroll{overflow:visible}
table{font-size:7.5pt;width:100%}th,td{white-space:normal;padding:2pt 4pt}td.word,td.long{min-width:0}
figure,tr,pre{break-inside:avoid}h2,h3,.about{break-after:avoid}thead{display:table-header-group}img{max-width:150mm}}
"""
COLORED = ("confirmed", "partly", "refuted", "failed")


def inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", lambda bold: f"<strong{colored(bold[1])}>{bold[1]}</strong>", escaped)


def colored(word: str) -> str:
    return f' class="{word}"' if word in COLORED else ""


def data(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def cell(tag: str, heading: str, text: str, table: Table) -> str:
    kinds = []
    if heading == table.headings[0] or heading in table.wordy:
        kinds = ["word", "long"] if len(text) > 40 and tag == "td" else ["word"]
    scope = ' scope="col"' if tag == "th" else ""
    return f'<{tag}{scope} class="{" ".join(kinds)}">{inline(text)}</{tag}>' if kinds else \
        f"<{tag}{scope}>{inline(text)}</{tag}>"


def table_html(table: Table) -> str:
    head = "".join(cell("th", heading, heading, table) for heading in table.headings)
    rows = "\n".join("<tr>" + "".join(cell("td", heading, text, table) for heading, text in zip(table.headings, row))
                     + "</tr>" for row in table.rows)
    label = html.escape(table.caption.partition(".")[0])
    return (f'<p class="about">{inline(table.caption)}</p>\n'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>")


def picture_html(picture: Picture) -> str:
    return (f'<figure><picture><source media="screen and (prefers-color-scheme:dark)" srcset="{data(picture.dark)}">'
            f'<img src="{data(picture.light)}" alt="{html.escape(picture.alternative)}"></picture>'
            f"<figcaption>{inline(picture.caption)}</figcaption></figure>")


def block_html(block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{inline(text)}</p>"
        case Items(texts):
            return "<ul>" + "".join(f"<li>{inline(text)}</li>" for text in texts) + "</ul>"
        case Commands(lines):
            return "<pre>" + html.escape("\n".join(lines), quote=False) + "</pre>"
        case Table():
            return table_html(block)
        case Picture():
            return picture_html(block)
    raise TypeError(block)


def to_html(title: str, blocks: list) -> str:
    """One file that needs no other: style and pictures are inside, and there is no script."""
    body = "\n".join(map(block_html, blocks))
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n")


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

"""Writes the blocks of a document as HTML and as Markdown, by the templates beside this file."""
import pathlib
import re

import jinja2
import markdown_it
import markupsafe
from markdown_it.common.utils import escapeHtml

from . import document
from .plots import images, theme

TEMPLATES = pathlib.Path(__file__).parent / "templates"
# Classes of page.css for words that are printed bold.
COLORS = {"right": "green", "right in part": "amber", "overstated": "red", "understated": "amber", "off both ways": "red",
          "wrong": "red", "failed": "red", "holds": "green", "does not hold": "red", "fits": "green",
          "fits tightly": "amber", "too large": "red", "better": "green", "worse": "red", "the seeds can't tell": "grey"}


def strong_open(renderer, tokens, index: int, options, environment) -> str:
    """A rule of markdown-it's renderer that gives verdicts their colours."""
    word = tokens[index + 1].content
    return f'<strong class="{COLORS[word]}">' if word in COLORS else "<strong>"


def text(renderer, tokens, index: int, options, environment) -> str:
    """A rule of markdown-it's renderer that keeps numbers and their percent signs on one line."""
    return escapeHtml(tokens[index].content).replace(" %", "\N{NO-BREAK SPACE}%")


MARKDOWN = markdown_it.MarkdownIt("zero").enable(["backticks", "emphasis", "link"])
MARKDOWN.add_render_rule("strong_open", strong_open)
MARKDOWN.add_render_rule("text", text)


def inline(text: str) -> markupsafe.Markup:
    return markupsafe.Markup(MARKDOWN.renderInline(text))


def number_parts(cell: str) -> list[str]:
    """A number, and what stands behind it in brackets or after a comma; [] for a cell that is no number."""
    return re.split(r" (?=\()|(?<=,) ", cell) if re.match(r"[-+]?\d", cell) else []


def drawn(picture: document.Picture, place: str) -> markupsafe.Markup:
    return markupsafe.Markup(images.svg(picture.drawing, theme.PLACES[place], picture.name, picture.alternative,
                                        [point.title for point in picture.points]))


def environment() -> jinja2.Environment:
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=jinja2.select_autoescape(["html"]),
                              trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    made.filters |= {"kind": lambda block: type(block).__name__.lower(), "inline": inline, "drawn": drawn,
                     "number_parts": number_parts, "is_long": document.is_long,
                     "cell": lambda text: text.replace("|", "\\|").replace("\n", " ")}
    return made


ENVIRONMENT = environment()


def source(name: str) -> markupsafe.Markup:
    return markupsafe.Markup((TEMPLATES / name).read_text())


def to_html(title: str, blocks: list) -> str:
    """One file that needs no other: style, pictures and the script are inside."""
    return ENVIRONMENT.get_template("page.html").render(title=title, page=document.with_anchors(blocks), style=source("page.css"),
                                                        script=source("page.js"))


def to_markdown(blocks: list) -> str:
    """The pictures lie beside it, under their names."""
    here = [block for block in blocks if not getattr(block, "elsewhere", False)]
    return ENVIRONMENT.get_template("page.md").render(page=here).rstrip("\n") + "\n"

"""Drawings as files: PNGs for Markdown, SVG elements that stand inside HTML in the colours of the page."""
import io
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib.pyplot as plt

from .theme import POINT, PRINTED, STAND_INS, Theme, style

DPI = 180
SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
LEFT_OUT = (f"{SVG}metadata", f"{SVG}style")  # the page has a style of its own

Drawing = Callable[[Theme], plt.Figure]


def saved(drawing: Drawing, theme: Theme, **options) -> bytes:
    out = io.BytesIO()
    with plt.rc_context(style(theme)):
        figure = drawing(theme)
        figure.savefig(out, **options)
        plt.close(figure)
    return out.getvalue()


def png(drawing: Drawing) -> bytes:
    return saved(drawing, PRINTED, dpi=DPI, metadata={"Software": None})


def svg(drawing: Drawing, theme: Theme, name: str, alternative: str, labels: list[str]) -> str:
    """An SVG element for HTML. Its ids begin with `name`-at-`theme.place`, so that no two pictures of a page share one.
    Marks whose id is POINT and a number become points with that label. The Tab key reaches the first point, arrow keys
    the others."""
    root = ElementTree.fromstring(saved(drawing, theme, format="svg", metadata={"Date": None, "Creator": None}))
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in LEFT_OUT]:
            parent.remove(child)
    points = [element for element in root.iter() if element.get("id", "").startswith(POINT)]
    for order, element in enumerate(points):
        make_point(element, name, labels, order == 0)
    for element in root.iter():
        make_inline(element, f"{name}-at-{theme.place}-")
    root.attrib = {"viewBox": root.get("viewBox"), "role": "group" if points else "img", "aria-label": alternative}
    return ElementTree.tostring(root, encoding="unicode")


def make_point(element: ElementTree.Element, name: str, labels: list[str], is_first: bool) -> None:
    number = element.get("id").removeprefix(POINT)
    element.attrib = {"class": "point", "role": "button", "tabindex": "0" if is_first else "-1",
                      "aria-label": labels[int(number)], "data-point": f"{name}-{number}"}


def make_inline(element: ElementTree.Element, prefix: str) -> None:
    """Without namespaces, which HTML has not, with ids of its own and the colours of the page."""
    element.tag = element.tag.removeprefix(SVG)
    element.attrib = {key.removeprefix(XLINK): inline_value(key, value, prefix) for key, value in element.items()}
    for text in ("text", "tail"):
        if not (getattr(element, text) or "").strip():
            setattr(element, text, None)


def inline_value(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return prefix + value
    if key == f"{XLINK}href":
        return f"#{prefix}{value.removeprefix('#')}"
    value = value.replace("url(#", f"url(#{prefix}")
    for colour, variable in STAND_INS.items():
        value = value.replace(colour, variable)
    return value

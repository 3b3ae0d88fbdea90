"""Which table of which guide has which claim."""
import pathlib

import yaml

from ..document import slug

TABLES = yaml.safe_load((pathlib.Path(__file__).parent / "tables.yaml").read_text())
GUIDES_PAGE = "guides.md"  # beside the folders of results


def places(claim: str) -> dict[str, str]:
    """The tables that have the claim, with where they are, from the page of claims in a folder of results."""
    return {spec["title"]: f"../{GUIDES_PAGE}#{slug(spec['title'])}" for spec in TABLES if claim in spec["rows"].values()}


def links(claim: str) -> str:
    """To these tables; "" where none has it."""
    return ", ".join(f"[{title}]({place})" for title, place in places(claim).items())

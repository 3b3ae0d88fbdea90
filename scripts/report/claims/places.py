"""Which table of which guide has which claim."""
import pathlib

import yaml

from ..document import slug

TABLES = yaml.safe_load((pathlib.Path(__file__).parent / "tables.yaml").read_text())
GUIDES_PAGE = "guides.md"  # beside the folders of results


def links(claim: str) -> str:
    """To the tables that have the claim, from the page of claims in a folder of results; "" where none has it."""
    return ", ".join(f"[{spec['title']}](../{GUIDES_PAGE}#{slug(spec['title'])})" for spec in TABLES if claim in spec["rows"].values())

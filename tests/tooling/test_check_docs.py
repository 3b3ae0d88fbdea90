"""The README check finds what is wrong, and nothing else, in small made-up pages."""
import pytest

from check_docs import Facts, check

HELP = """usage: moelab train --config NAME [key=value …]
  --config NAME   settings
  --device NAME   cpu, cuda
  model.layers    number of blocks
  memory.limit    budget
"""


@pytest.fixture
def facts(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup.sh").write_text("case $1 in --cuda) ;; esac\n")
    program = tmp_path / "moelab"
    program.write_text(f"#!/bin/sh\n[ $1 = train ] || exit 2\ncat <<'TEXT'\n{HELP}TEXT\n")
    program.chmod(0o755)
    return Facts(str(program), tmp_path)


@pytest.mark.parametrize("text", [
    "Run `scripts/setup.sh --cuda none`.",
    "```\nmoelab train --config moe-micro \\\n  model.layers=4 memory.limit=8GiB  # --none such\n```",
    "```\ntorchrun --no-python build/ci/bin/moelab train --device cuda\ncmake --preset dev\n```",
    "`--device` or `memory.limit`; see [the script](scripts/setup.sh), `https://a.org/train.html`",
    "`runs/x/memory.json`",
    "`model.py`, `train.bin` and prose about model.color are no settings",
])
def test_true_pages_pass(facts, text):
    assert check(text, facts) == []


@pytest.mark.parametrize("text, word", [
    ("`scripts/gone.sh`", "scripts/gone.sh"),
    ("[a](docs/none.md)", "docs/none.md"),
    ("`scripts/setup.sh --cud`", "--cud"),
    ("```\nmoelab train --conf x\n```", "--conf"),
    ("```\nmoelab train \\\n  --devices cpu\n```", "--devices"),
    ("```\nmoelab tain\n```", "tain"),
    ("`model.layer=4`", "model.layer"),
    ("`--devise`", "--devise"),
])
def test_false_pages_are_named(facts, text, word):
    complaints = check(text, facts)
    assert len(complaints) == 1 and word in complaints[0]

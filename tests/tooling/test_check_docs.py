"""The check of pages finds what is wrong, and nothing else, in small made-up pages."""
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
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/other.md").write_text("# Other things\n\n## What it `is`: a part\n")
    (tmp_path / "scripts/setup.sh").write_text("case $1 in --cuda) ;; esac\n")
    program = tmp_path / "moelab"
    program.write_text(f"#!/bin/sh\n[ $1 = train ] || exit 2\ncat <<'TEXT'\n{HELP}TEXT\n")
    (tmp_path / "bench_tradeoff").write_text("#!/bin/sh\necho '  --quick  a quick sweep'\n")
    for file in (program, tmp_path / "bench_tradeoff"):
        file.chmod(0o755)
    return Facts(str(program), tmp_path)


def complaints_of(facts, name: str, text: str) -> list[str]:
    page = facts.root / name
    page.write_text(text)
    return check(page, facts)


@pytest.mark.parametrize("text", [
    "Run `scripts/setup.sh --cuda none`.",
    "```\nmoelab train --config moe-micro \\\n  model.layers=4 memory.limit=8GiB  # --none such\n```",
    "```\ntorchrun --no-python build/ci/bin/moelab train --device cuda\ncmake --preset dev\n```",
    "`--device` or `memory.limit`; see [the script](../scripts/setup.sh), `https://a.org/train.html`",
    "`runs/x/memory.json`, `tests/test_NAME.cpp`",
    "`bench_tradeoff --quick`, `--quick`",
    "`model.py`, `train.bin` and prose about model.color are no settings",
    "[above](#other), [a page](other.md), [a part](other.md#what-it-is-a-part)\n# Other",
])
def test_true_pages_pass(facts, text):
    assert complaints_of(facts, "docs/page.md", text) == []


def test_comments_of_a_yaml_file_are_commands_where_they_are_indented(facts):
    text = "# Sets model.color.\n#   moelab train --config x model.layers=1\nmodel: {layers: 1}\n"
    assert complaints_of(facts, "docs/a.yaml", text) == []
    complaints = complaints_of(facts, "docs/a.yaml", text.replace("layers=1", "layer=1"))
    assert len(complaints) == 1 and "model.layer" in complaints[0]


@pytest.mark.parametrize("text, word", [
    ("`scripts/gone.sh`", "scripts/gone.sh"),
    ("[a](none.md)", "none.md"),
    ("[a](scripts/setup.sh)", "scripts/setup.sh"),
    ("[a](other.md#none)", "other.md#none"),
    ("[a](#none)", "#none"),
    ("`scripts/setup.sh --cud`", "--cud"),
    ("```\nmoelab train --conf x\n```", "--conf"),
    ("```\nmoelab train \\\n  --devices cpu\n```", "--devices"),
    ("```\nmoelab tain\n```", "tain"),
    ("`model.layer=4`", "model.layer"),
    ("See `moelab train\n--devices cpu` and `--device`.", "--devices"),
    ("`--devise`", "--devise"),
    ("`build/x/bin/bench_tradeoff --quik`", "--quik"),
])
def test_false_pages_are_named(facts, text, word):
    complaints = complaints_of(facts, "docs/page.md", text)
    assert len(complaints) == 1 and word in complaints[0]

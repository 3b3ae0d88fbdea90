"""quickstart_best.py: the fastest of what was measured that fits, whatever its name promises."""
import json
import pathlib
import subprocess
import sys

import pytest
import sweep_records as made

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/quickstart_best.py"
FAST = {"settings": {"precision.compute": "bf16", "run.threads": "2", "train.steps": "9"}}


@pytest.mark.parametrize("gib, said", [
    (4, "of moe-micro within 4.00 GiB: bf16, 4,096 tokens/s in 900.00 MiB.\nSet: precision.compute=bf16\n"),
    (0.6, "of moe-micro within 614.40 MiB: guides_stack, 2,048 tokens/s in 500.00 MiB.\nSet: precision.compute=fp32\n"),
    (0.1, "Nothing that was measured of moe-micro fits 102.40 MiB.\n")])
def test_the_fastest_that_fits_is_proposed_with_its_settings(tmp_path, gib, said):
    records = [record for round in (1, 2) for record in (
        made.record("baseline", round, 1000, 800, 400), made.record("bf16", round, 500, 500, 400, **FAST),
        made.record("guides_stack", round, 1000, 100, 400))]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    done = subprocess.run([sys.executable, SCRIPT, path, "--budget-gib", str(gib)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(said)

"""scripts/check_speed.py with a program whose plan and speed are known."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

FAKE = '''#!{python}
import json, pathlib, sys
if sys.argv[1] == "plan":
    probe = {{"agrees": "moe-micro" not in sys.argv}}
    command = f"{{sys.argv[0]}} train --config pico train.micro_batch=2 data.path=x"
    rows = [{{"command": command, "tokens_per_second": 800.0}}, {{"command": "", "tokens_per_second": 1.0}}]
    print(json.dumps({{"rows": rows, "probe": probe}}))
else:
    assert sys.argv[1:5] == ["train", "--config", "pico", "train.micro_batch=2"] and "--overwrite" in sys.argv
    folder = pathlib.Path(next(word for word in sys.argv if word.startswith("run.dir="))[8:])
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({{"tokens_per_second": {{"median": 1000.0}}, "commit": "abc", "machine": {{}}}}))
'''


def test_what_was_predicted_stands_beside_what_was_trained(tmp_path):
    program = tmp_path / "moelab"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    done = subprocess.run([sys.executable, ROOT / "scripts/check_speed.py", "--program", program, "--data", tmp_path, "--rounds", "2",
                           "--case", "moe-pico", "--case", "moe-micro", "--out", tmp_path / "out.jsonl"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == ("moe-micro: predicted 800 tokens/s, measured 1,000; error -20 % (-20 to -20 in 2 rounds, "
                                           "2 of them on a busy machine)")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["case"] for one in records] == 2 * ["moe-pico", "moe-micro"] and records[0]["error"] == 800 / 1000 - 1

"""bench/peers: the training step beside PyTorch models: what they compute, who takes part, memory, ratios, the table."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench/peers"), str(ROOT / "scripts")]

import hf_mixtral  # noqa: E402
import padded_moe  # noqa: E402
import peers  # noqa: E402
from peer_records import HEAD, SOURCE, mixtral_runs  # noqa: E402
from report import peer_tables, step_figures  # noqa: E402
from report.rendering import to_markdown  # noqa: E402


@pytest.fixture(name="mixtral", scope="module")
def tiny_mixtral():
    """transformers' Mixtral with one expert that most tokens take, so that the others' rows are padded."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(11)
    config = transformers.MixtralConfig(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, num_local_experts=5, num_experts_per_tok=2, max_position_embeddings=40,
        tie_word_embeddings=True, rope_theta=500.0, rms_norm_eps=1e-3, sliding_window=None, use_cache=False)
    model = transformers.MixtralForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
            if name.endswith("gate.weight"):
                parameter[3] += 2 * torch.sign(parameter[3])
    return model


def loss_and_gradients(model, logits_of, tokens):
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(logits_of(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


# Both in fp32, where sums in another order differ; wrong capacity, places or weights are off by far more.
@pytest.mark.parametrize("rounding", [1, 128])
def test_the_padded_moe_is_mixtral(mixtral, rounding, monkeypatch):
    monkeypatch.setattr(padded_moe, "ROUND", rounding)
    padded = padded_moe.PaddedMoe(mixtral.config.to_dict())
    padded.load_state_dict(padded_moe.from_mixtral(mixtral.state_dict()))
    tokens = torch.randint(50, (3, 31), generator=torch.Generator().manual_seed(1))
    wanted, theirs = loss_and_gradients(mixtral, lambda ids: mixtral(input_ids=ids).logits, tokens)
    found, gradients = loss_and_gradients(padded, padded, tokens)
    assert found == pytest.approx(wanted, rel=1e-6)
    for name, gradient in padded_moe.from_mixtral(theirs).items():
        assert gradient.norm() > 0, name
        assert (gradients[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_ratios_are_of_the_same_round():
    """The machine is half as fast in the second round and twice in the third: no ratio is of two rounds."""
    runs = mixtral_runs({"moelab fp32": [1000, 500, 2000], "moelab bf16": [2000, 1050, 3600],
                         "Mixtral eager fp32": [500, 250, 700], "Mixtral eager bf16": [1000, 500, 2000],
                         "padded bf16": [1500, 400, 900], "padded compiled bf16": [1900]})
    assert step_figures.by_round(runs)["moelab bf16"] == pytest.approx([2000, 1050, 3600])
    assert step_figures.ratios(runs, "moelab bf16", "Mixtral eager bf16") == pytest.approx([2.0, 2.1, 1.8])
    found = step_figures.figures(runs)
    # medians of rounds: eager 1000, padded 900; the compiled one was fast in the one round it ran in
    assert found["ours"] == "moelab bf16" and found["best_peer"] == "Mixtral eager bf16"
    assert found["speed"] == pytest.approx(2.0) and found["memory"] == 1
    assert found["by_precision"]["fp32"]["best_peer"] == "Mixtral eager fp32"
    assert found["by_precision"]["fp32"]["speed"] == pytest.approx(2.0)
    row = found["table"]["Mixtral eager bf16"]
    assert row["tokens_per_second"] == pytest.approx(1000) and row["fastest"] == pytest.approx(4000)
    assert (row["steady_rss"], row["peak_rss"], row["rounds"]) == (2 << 20, 4 << 20, 3)


def test_compile_time_is_what_warm_up_takes_beyond_the_steps():
    run = {"milliseconds": [40_000, 3_000, 2_000, 1_000, 900, 1_100]}
    assert step_figures.compile_seconds(run) == pytest.approx(42)
    assert step_figures.compile_seconds({"milliseconds": [800, 900, 900, 1_000]}) == 0


def test_r_is_the_ratio_of_all_products():
    one = {"w13 forward": {"moelab": [9, 10, 90], "library": [20, 20, 20]},
           "w2 forward": {"moelab": [30, 30, 30], "library": [31, 40, 99]}}
    assert step_figures.product_ratios([one, one]) == pytest.approx([1.5, 1.5])


class Side:
    """An opponent with a given loss and speed; without a loss its process fails."""

    def __init__(self, name, loss, rate):
        self.name, self.loss, self.rate, self.precision = name, loss, rate, name.split()[-1]

    def run(self, folder, data, steps):
        if self.loss is None:
            raise hf_mixtral.Failed("step_peer.py\nended with 1:\nTraceback\nRuntimeError: no compiler\n")
        return mixtral_runs({"it": [self.rate]})["it"][0] | {"losses": [self.loss]}


def test_opponents_that_fail_or_disagree_are_named_and_the_fastest_go_on(monkeypatch):
    monkeypatch.setattr(hf_mixtral, "Peer", Side)
    sides = [Side(f"padded {rate} fp32", 5.0, rate) for rate in (100, 400, 200, 300)]
    sides += [Side("wrong fp32", 5.0001, 900), Side("wrong bf16", 5.03, 900), Side("rounded bf16", 5.01, 50),
              Side("broken fp32", None, 900)]
    rounds = hf_mixtral.Rounds(sides, 5.0, {"slow bf16": "emulated"})
    rounds.add("", "", 8)
    rounds.keep_fastest()
    rounds.add("", "", 8)
    assert {name: len(runs) for name, runs in rounds.runs.items()} == {
        "padded 100 fp32": 1, "padded 400 fp32": 2, "padded 200 fp32": 2, "padded 300 fp32": 2, "rounded bf16": 2}
    assert rounds.skipped == {"slow bf16": "emulated", "broken fp32": "RuntimeError: no compiler",
                              "wrong fp32": "loss 5.0001000 on the common batch, not 5.0000000",
                              "wrong bf16": "loss 5.0300000 on the common batch, not 5.0000000"}


@pytest.mark.parametrize("why", [
    "torch._inductor.exc.InductorError: CppCompileError: C++ compile error\n\nOutput:\nx.cpp:1:10: fatal error: Python.h",
    "Traceback\nKeyError: 'a'\n\ntorch._inductor.exc.InductorError: no sizes\n\nSet TORCHDYNAMO_VERBOSE=1 for more",
    "moelab: bad\ndouble free"])
def test_the_reason_is_the_line_that_names_it(why):
    wanted = {"Output": "x.cpp:1:10: fatal error: Python.h", "KeyErr": "torch._inductor.exc.InductorError: no sizes"}
    assert hf_mixtral.reason_of(hf_mixtral.Failed(f"step_peer.py\nended with 1:\n{why}\n")) == \
        next((line for key, line in wanted.items() if key in why), "double free")


def test_opponents_with_emulated_products_are_left_out_with_the_rates():
    every, none = hf_mixtral.opponents(["fp32", "bf16"], {"fp32": 140.0, "bf16": 500.0})
    assert len(every) == 18 and none == {} and len({side.name for side in every}) == 18
    kept, skipped = hf_mixtral.opponents(["fp32", "bf16"], {"fp32": 140.0, "bf16": 0.6})
    assert len(kept) == 9 and len(skipped) == 9
    assert skipped["Mixtral grouped_mm max-autotune bf16"] == \
        "LibTorch's bf16 product makes 0.6 GFLOP/s here, its fp32 product 140"


# Takes 300 MiB and gives them back, then 100 MiB.
ALLOCATE = """
import mmap, sys
def touch(mib):
    m = mmap.mmap(-1, mib << 20)
    for at in range(0, mib << 20, 4096):
        m[at] = 1
    m.close()
    print("done", flush=True)
    sys.stdin.readline()
touch(300)
touch(100)
"""


def test_the_peak_after_warm_up_leaves_out_what_was_before():
    process = subprocess.Popen([sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        process.stdout.readline()
        assert 300 << 20 < peers.resident_peak(process.pid) < 400 << 20
        peers.reset_peak(process.pid)
        assert peers.resident_peak(process.pid) < 100 << 20
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert 100 << 20 < peers.resident_peak(process.pid) < 200 << 20
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert peers.resident_peak(process.pid) is None


# As `moelab train` leaves them: a line of metrics each step.
FAKE_PROGRAM = """#!{python}
import json, mmap, pathlib, sys, time
settings = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
run = pathlib.Path(settings["run.dir"])
run.mkdir()
with open(run / "metrics.jsonl", "w") as file:
    for step in range(int(settings["train.steps"])):
        size = (300 if step == 0 else 100) << 20
        memory = mmap.mmap(-1, size)
        for at in range(0, size, 4096):
            memory[at] = 1
        memory.close()
        file.write(json.dumps({{"loss": 5.0, "step_ms": 7.0}}) + "\\n")
        file.flush()
        time.sleep(0.2)
"""


def test_our_peak_after_warm_up_is_of_the_steps_after_it(tmp_path):
    program = tmp_path / "moelab"
    program.write_text(FAKE_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    run = hf_mixtral.Ours(program, "fp32").run(tmp_path, tmp_path, 5)
    assert run["losses"] == [5.0] * 5 and run["milliseconds"] == [7.0] * 5
    assert run["rss"] > 300 << 20 and 100 << 20 < run["steady_rss"] < 200 << 20


def test_a_process_that_fails_or_takes_too_long_says_so(monkeypatch):
    with pytest.raises(hf_mixtral.Failed, match="ValueError: three"):
        hf_mixtral.measured([sys.executable, "-c", "raise ValueError('three')"])
    monkeypatch.setattr(hf_mixtral, "LIMIT", 0.2)
    with pytest.raises(hf_mixtral.Failed, match="not done after 0.2 s"):
        hf_mixtral.measured([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_cpu_that_plays_avx2_compiles_for_avx2(monkeypatch, tmp_path):
    for name in peers.avx2_limits():
        monkeypatch.delenv(name, raising=False)
    assert not peers.plays_avx2() and "(" not in peers.cpu_class()
    for name, value in peers.avx2_limits().items():
        monkeypatch.setenv(name, value)
    assert peers.plays_avx2() and "ONEDNN_MAX_CPU_ISA=AVX2" in peers.cpu_class()
    assert f"class {peers.cpu_class()}, torch" in peers.machine()
    compiler = peers.write_avx2_compiler(tmp_path)
    done = subprocess.run([compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull], capture_output=True,
                          text=True, check=True)
    assert "__AVX2__" in done.stdout and "__AVX512F__" not in done.stdout


def test_the_tables_ratios_are_of_what_was_measured(tmp_path, capsys):
    runs = mixtral_runs({"padded bf16": [1000, 500, 2000], "moelab bf16": [2500, 1150, 4800]})
    products = [{"w2 forward": {"moelab": [10], "library": [ms]}} for ms in (12, 13, 16)]
    hf_mixtral.show({"losses": {}, "runs": runs, "skipped": {"padded compiled bf16": "no compiler"},
                     "products": products}, "0123456789ab", tmp_path / "out.jsonl")
    shown = capsys.readouterr().out
    assert "moelab bf16 beside padded bf16 of the same round: 2.40 x its tokens/s (2.30 to 2.50 in 3 rounds), 1.00 x its " \
        "peak resident memory after warm-up" in shown
    assert "padded compiled bf16               left out: no compiler" in shown
    assert "r = 1.30 (1.20 to 1.60)" in shown
    stored = json.loads((tmp_path / "out.jsonl").read_text())
    assert stored["commit"] == "0123456789ab"
    step = stored | HEAD
    layer = HEAD | {"kind": "moe_layer", "dtype": "float32", "T": 8, "d": 4, "F": 2, "E": 3, "k": 1, "load": "even",
                    "median": {"moelab": 10.0, "eager": 32.0}, "gflops": {"moelab": 50.0}, "gemm_gflops": 100.0}
    other = layer | {"median": {"moelab": 20.0, "grouped_mm": 30.0}}
    again = layer | {"command": ["again"]}
    page = to_markdown(peer_tables.report([step, layer, other, layer | {"status": "disagrees"}, again])).splitlines()
    first = next(index for index, line in enumerate(page) if line.startswith("## A training step: "))
    assert page[first].endswith(", bf16")
    lines = page[first + 2:]
    assert lines[2] == "| moelab bf16 | 2,500 | 575 to 9,600 | 2.40 × (2.30 to 2.50) | 3 |  | 2 MiB | 4 MiB |"
    assert lines[3] == "| padded bf16 | 1,000 | 250 to 4,000 |  | 3 |  | 2 MiB | 4 MiB |"
    assert lines[5].startswith("moelab bf16 has 2.40 × (2.30 to 2.50) the tokens/s of padded bf16, the fastest opponent, "
                               "and 1.00 × its peak after warm-up: the median of 3 rounds")
    assert lines[7].startswith("The fastest opponents of the first round"), "what bf16 has beside itself is said once"
    assert lines[9:11] == ["Left out:", "- padded compiled bf16: no compiler"]
    assert lines[12] == "At the experts' shapes our fp32 matrix product runs at 1.30 × (1.20 to 1.60) the rate of LibTorch's."
    assert lines[14] == SOURCE
    # another command: another table, the latest first and the other folded
    layers = page[page.index("## One MoE layer") + 2:]
    assert layers[4] == SOURCE.replace("run 'a b'", "again") and "Measured before: 1" in layers[6]
    start = layers.index("| float32 8, 4, 2, 3, 1 | 10 | 32 (3.20 ×) | – | 50% |")
    assert layers[start:start + 4] == ["| float32 8, 4, 2, 3, 1 | 10 | 32 (3.20 ×) | – | 50% |",
                                       "| float32 8, 4, 2, 3, 1 | 20 | – | 30 (1.50 ×) | 50% |", "", SOURCE]

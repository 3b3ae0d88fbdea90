"""`moelab techniques --pairs` and `moelab fits` as programs: beside what `moelab estimate` says of the same runs."""
import json

import programs
import pytest

CONTEXT = 400_000_000  # bytes that CUDA's context takes, by the estimator's constant
SHORT = ["train.sequence=64", "train.steps=2", "eval.batches=0", "run.threads=1"]


def moelab(*words, code: int = 0):
    done = programs.run([programs.moelab(), *words])
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def rows() -> dict:
    return {row["name"]: row for row in json.loads(moelab("techniques", "--json").stdout)["techniques"]}


@pytest.fixture(scope="module")
def predictions() -> dict:
    return json.loads(moelab("techniques", "--pairs", "--json", "--config", "moe-pico", *SHORT).stdout)


def estimate(*settings: str) -> dict:
    return json.loads(programs.run([programs.moelab(), "estimate", "--json", *settings]).stdout)


def test_every_two_techniques_of_a_step_are_there_once(predictions, rows):
    singles = [name for name, row in rows.items() if not row["parts"] and name != "baseline"]
    named = [tuple(case["techniques"]) for case in predictions["cases"]]
    beside = {"packing", "dynamic_batch", "host_reference", "thresholds", "read_ahead", "jemalloc", "tcmalloc", "sampling",
              "empty_cache"}
    of_a_step = [name for name in singles if name not in beside]
    pairs = [(one, two) for i, one in enumerate(of_a_step) for two in of_a_step[i + 1:]]
    assert named == [(), *((name,) for name in singles), *pairs]
    assert (predictions["schema"], predictions["model"]) == (1, "moe-pico")


def test_what_contradicts_itself_is_refused_with_a_reason(predictions, rows):
    reason = {}
    for case in predictions["cases"]:
        settings = [rows[name]["settings"] for name in case["techniques"]]
        contradicts = len(settings) == 2 and any(settings[1].get(key, value) != value
                                                 for key, value in settings[0].items())
        if case["status"] == "refused":
            assert set(case) == {"techniques", "status", "reason"} and case["reason"].count("\n") == 0
            reason[tuple(case["techniques"])] = case["reason"]
        else:
            assert case["status"] == "ok" and case["peak"] > case["activations"] >= 0, case
        assert case["status"] == "refused" or not contradicts, case
    assert reason["bf16", "fp16"] == "both set precision.compute"
    assert "in_backward" in reason["accumulation", "step_in_backward"]
    assert all(len(names) == 2 for names in reason), "single techniques stand alone"


@pytest.mark.parametrize("names", [[], ["bf16"], ["bf16", "recompute_full"], ["int8_activations", "host_optimizer"],
                                   ["accumulation", "nvme_optimizer"], ["zero_1"], ["bf16", "zero_3"]])
def test_a_prediction_is_the_estimate_of_those_settings(predictions, rows, names):
    settings = dict(rows["baseline"]["settings"])
    for name in names:
        settings |= rows[name]["settings"]
    run = estimate("--config", "moe-pico", *SHORT, *(f"{key}={value}" for key, value in settings.items()))
    case = next(case for case in predictions["cases"] if case["techniques"] == names)
    assert (case["peak"], case["activations"]) == (run["peak_bytes"], run["peak_bytes_by_kind"]["activations"])
    assert (case["host"], case["nvme"]) == (run["host_bytes"], run["nvme_bytes"])
    assert case["ranks"] == max(rows[name]["ranks"] for name in ["baseline", *names])


def test_predictions_as_text_begin_with_the_smallest():
    text = moelab("techniques", "--pairs", "--config", "moe-pico", *SHORT).stdout.splitlines()
    peaks = [line for line in text[1:] if "refused" not in line]
    assert any("  baseline" in line for line in peaks) and any("both set" in line for line in text)
    assert text[-1].startswith("   refused  "), "after all that can be combined"
    units = {"KiB": 1 / 1024, "MiB": 1}
    sizes = [float(line.split()[0]) * units[line.split()[1]] for line in peaks]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("words, expected", [
    (["techniques", "--pairs", "train.stesp=3"], "did you mean train.steps?"),
    (["techniques", "--pairs", "--config", "moe-pic"], "did you mean moe-pico?"),
    (["techniques", "--config", "moe-pico"], "--pairs"),
    (["fits", "--config", "moe-pic"], "did you mean moe-pico?"),
    (["fits", "--jsn"], "did you mean --json?"),
    (["fits", "--techniques", "bf16,bf61"], "did you mean bf16?"),
    (["fits", "--techniques", "zero_1", "train.micro_batch=0"], "train.micro_batch"),
])
def test_mistakes_are_named(words, expected):
    programs.expect_mistake(programs.run([programs.moelab(), *words]), expected)


@pytest.fixture(scope="module")
def fits() -> list[dict]:
    answer = json.loads(moelab("fits", "--json", "--config", "moe-nano", "run.threads=1").stdout)
    assert answer["schema"] == 1
    return answer["rows"]


def stack_settings(rows: dict, stack: str, **changes: int) -> list[str]:
    settings = rows["baseline"]["settings"] | (rows[stack]["settings"] if stack != "baseline" else {})
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return ["run.device=cuda", "run.threads=1", *(f"{key}={value}" for key, value in settings.items())]


def test_each_card_has_both_stacks_and_more_memory_never_fits_less(fits):
    cards = [("8GB", "RTX 4060", "8.9"), ("12GB", "RTX 4070", "8.9"), ("16GB", "RTX 4080", "8.9"),
             ("24GB", "RTX 4090", "8.9"), ("24GB", "RTX 3090", "8.6"), ("40GB", "A100 40 GB", "8.0"),
             ("80GB", "A100 80 GB", "8.0"), ("80GB", "H100 80 GB", "9.0")]  # fmt: skip
    assert [(row["size"], row["card"], row["compute_capability"], row["stack"]) for row in fits] == [
        (*card, stack) for card in cards for stack in ("baseline", "guides_stack")]
    for row in fits:
        assert row["limit"] == int(row["size"][:-2]) << 30
        share = row["peak"] / row["limit"]
        red = share > 0.95 or row["on_card"] > row["limit"]
        assert row["status"] == ("red" if red else "green" if share <= 0.9 else "amber"), row
        assert row["on_card"] - CONTEXT == row["reserved"] >= row["peak"]
    for stack in ("baseline", "guides_stack"):
        own = [row for row in fits if row["stack"] == stack]
        for less, more in zip(own, own[1:]):
            if less["limit"] < more["limit"]:
                assert less["largest_layers"] <= more["largest_layers"]
                assert less["largest_batch"] <= more["largest_batch"]
        # the tensors are the same; a Hopper GPU's two workspaces are larger
        assert {row["peak"] - (2 << 25 if row["card"] == "H100 80 GB" else 2 * 8320 << 10) for row in own} == \
            {own[0]["peak"] - (2 * 8320 << 10)}


def holds(limit: int, run: dict) -> bool:
    held = run["peak_bytes"] + run["gpu"]["workspace_bytes"]
    return held <= 0.95 * limit and run["reserved_bytes"] + CONTEXT == run["on_card_bytes"] <= limit


def of_card(fits: list[dict], card: str, stack: str) -> dict:
    return next(row for row in fits if (row["card"], row["stack"]) == (card, stack))


# Without a preset, CUDA is a Hopper GPU.
@pytest.mark.parametrize("stack", ["guides_stack", "baseline"])
def test_one_more_does_not_fit(fits, rows, stack):
    row = of_card(fits, "H100 80 GB", stack)
    for key, value in (("model__layers", row["largest_layers"]), ("train__micro_batch", row["largest_batch"])):
        held = [holds(row["limit"], estimate("--config", row["model"], *stack_settings(rows, stack, **{key: count})))
                for count in (value, value + 1)]
        assert held == [True, False], (key, value)


@pytest.mark.parametrize("technique", ["bf16", "recompute_full"])
def test_the_longest_sequence_of_a_technique(rows, technique):
    found = json.loads(moelab("fits", "--json", "--config", "moe-pico", "--techniques", technique, "run.threads=1").stdout)["rows"]
    assert {row["stack"] for row in found} == {technique} and len(found) == 8
    assert all(less["largest_sequence"] <= more["largest_sequence"] for less, more in zip(found, found[1:]))
    row = of_card(found, "H100 80 GB", technique)
    held = [holds(row["limit"], estimate("--config", "moe-pico", *stack_settings(rows, technique, train__sequence=tokens)))
            for tokens in (row["largest_sequence"], row["largest_sequence"] + 64)]
    assert held == [True, False] and row["largest_sequence"] % 64 == 0


@pytest.mark.parametrize("card, preset", [("RTX 4060", "gpu-8gb"), ("A100 40 GB", "gpu-a100-40gb")])
def test_what_fits_on_a_card_is_what_estimate_lets_pass(fits, rows, card, preset, tmp_path):
    row = of_card(fits, card, "guides_stack")
    settings = stack_settings(rows, row["stack"], train__micro_batch=row["largest_batch"])
    text = moelab("estimate", "--config", row["model"], *settings, "--print-config").stdout
    run = tmp_path / "run.yaml"
    run.write_text(text.replace('\n  preset: ""\n', f"\n  preset: {preset}\n"))
    found = json.loads(moelab("estimate", "--json", "--config", run, f"memory.limit={row['limit']}").stdout)
    gpu = found["gpu"]
    assert (gpu["name"], gpu["compute_capability"], gpu["bytes"]) == (card, row["compute_capability"], row["limit"])
    assert found["fits"] and holds(row["limit"], found)


def test_the_largest_model_fits_and_no_larger_one_does(fits, rows):
    row = of_card(fits, "H100 80 GB", "guides_stack")
    sizes = {}
    for name in ("moe-nano", "moe-small", "moe-570m", "moe-740m", "olmoe-1b-7b"):
        run = estimate("--config", name, *stack_settings(rows, "guides_stack"))
        sizes[name] = (run["model"]["parameters"], holds(row["limit"], run))
    fitting = [name for name, (_, fits_it) in sizes.items() if fits_it]
    assert row["largest_model"] == max(fitting, key=lambda name: sizes[name][0])


def test_what_fits_as_text():
    text = moelab("fits", "--config", "moe-570m", "run.threads=1").stdout
    assert text.startswith("What fits") and text.count("guides_stack ") == 8 and "moe-570m" in text

"""Records of cases on ranks, made up: a model of 10 parameters at 16 bytes, 8 of which are the optimizer's."""
import sweep_records as made

REFERENCE = "baseline, {} micro-batches"


def of_ranks(name: str, ranks: int, number: int, milliseconds: float, link: str = "unlimited", peaks: tuple = (700, 600), **changes) -> dict:
    case = name if link == "unlimited" else f"{name} over {link}"
    optimizer = 80 if name == "data_parallel" else 80 // ranks
    by_rank = [{"peak_bytes": made.in_bytes(peak), "estimated_peak_bytes": made.in_bytes(peak) - 4,
                "state_bytes": {"parameters": 40, "gradients": 40, "optimizer": optimizer}} for peak in peaks]
    run = made.record(case, number, milliseconds, family="ranks", sweep=f"{ranks} ranks", techniques=[name],
                      against=REFERENCE.format(ranks), ranks=ranks, link=link, by_rank=by_rank,
                      settings={"parallel.zero": name.removeprefix("zero_")} if name.startswith("zero_") else {})
    run["summary"] |= {"steps": 9, "model": {"parameters": 10}, "communication": {
        "sent_bytes": {"data/gradients": 9 * 2**20, "data/updates": 9 * 2**20, "data/control": 5}, "hidden_share": 0.25}}
    return run | changes


def reference(ranks: int, number: int, milliseconds: float) -> dict:
    run = made.record(REFERENCE.format(ranks), number, milliseconds, family="ranks", sweep=f"{ranks} ranks", techniques=[], against=None)
    run["summary"] |= {"estimated_peak_bytes": run["summary"]["peak_bytes"], "model": {"parameters": 10},
                       "state_bytes": {"parameters": 40, "gradients": 40, "optimizer": 80},
                       "settings": {"train": {"micro_batch": 4, "sequence": 128}}}
    return run


def sweep() -> list[dict]:
    """Two rounds of two ranks, the second a tenth slower. ZeRO-1 takes as long as undivided ranks, over the slow link a third longer."""
    rows = []
    for number, slower in ((1, 1.0), (2, 1.1)):
        rows += [reference(2, number, 1000 * slower), of_ranks("data_parallel", 2, number, 1250 * slower),
                 of_ranks("zero_1", 2, number, 1250 * slower, peaks=(500, 600)),
                 of_ranks("data_parallel", 2, number, 1500 * slower, "1Gbit"), of_ranks("zero_1", 2, number, 2000 * slower, "1Gbit")]
    return rows

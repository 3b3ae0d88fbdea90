"""Records of bench/peers as the tests make them."""

HEAD = {"machine": "a CPU", "commit": "0123456789abcdef", "date": "2026-01-02T03:04:05Z", "command": ["run", "a b"],
        "status": "ok"}
SOURCE = "a CPU; commit 0123456789, 2026-01-02: `run 'a b'`"


def mixtral_runs(rounds_of):
    """For each side, rounds of three warm-up steps and five of this many tokens a second."""
    def one(rate, number):
        return {"milliseconds": [9e9] * 3 + [2048e3 / (rate * factor) for factor in (0.5, 1, 1, 1, 2)],
                "rss": 4 << 20, "steady_rss": (1 + number) << 20, "losses": [5.0]}
    return {side: [one(rate, number) for number, rate in enumerate(rates)] for side, rates in rounds_of.items()}

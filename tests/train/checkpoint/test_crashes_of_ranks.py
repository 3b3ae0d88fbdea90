"""Three ranks write a checkpoint together, and one of them is killed: at every file call of its part, or at random. After
each there must be a loadable checkpoint at most one interval old, none that is torn, and the next save must work."""

import itertools
import os
import random
import shutil
import signal
import time

import pytest
from crashes import FILE_CALLS, RANDOM_KILLS, Tool, assert_unharmed, assert_whole, calls_of_child, copied, inject, strace_child

RANKS = 3
stores = itertools.count()


@pytest.fixture
def servers(tool):
    servers = [Tool(tool) for _ in range(RANKS)]
    yield servers
    for server in servers:
        server.close()


def meet(servers, command, folder, step):
    """A child of each server, which have met and wait to be let go."""
    store = folder.parent / f"store-{next(stores)}"
    pids = [server.start(command, folder, step, rank, RANKS, store) for rank, server in enumerate(servers)]
    for server in servers:
        assert server.read() == "ready"
    return pids


def save(servers, folder, step):
    meet(servers, "rank_save", folder, step)
    for server in servers:
        server.tell("go")
    return [server.wait() for server in servers]


@pytest.fixture
def prepared(servers, tmp_path):
    folder = tmp_path / "prepared"
    for step in (1, 2):
        assert save(servers, folder, step) == [[f"saved {step}"]] * RANKS
    assert (folder / "step-2/model-2.safetensors").exists()
    return folder


def save_traced(servers, folder, step, victim, options, log):
    pids = meet(servers, "rank_save", folder, step)
    with strace_child(pids[victim], options, log):
        for server in servers:
            server.tell("go")
        return [server.wait() for server in servers]


@pytest.mark.parametrize("victim", range(RANKS))
def test_a_rank_is_killed_at_every_file_call(servers, prepared, strace, victim):
    log = prepared.parent / "log"
    said = save_traced(servers, copied(prepared, "count"), 3, victim, ["-y"], log)
    assert said == [["saved 3"]] * RANKS
    calls = [call for call in calls_of_child(log) if call.name in FILE_CALLS]
    assert len(calls) > (40 if victim == 0 else 8)
    reached, ends = 0, set()
    for call in calls:
        folder = copied(prepared, f"{call.name}-{call.number}")
        said = save_traced(servers, folder, 3, victim, inject(call, "signal=SIGKILL"), log)
        reached += said[victim] == []
        for rank, lines in enumerate(said):
            assert rank == victim or lines[0] == "saved 3" or lines[0].startswith("error: "), (call, said)
        ends.add(assert_unharmed(servers[0], folder, at_least=2))
        shutil.rmtree(folder)
    assert reached > 0.8 * len(calls)  # communication makes a few more of them, or fewer
    assert 2 in ends and (victim > 0 or 3 in ends)
    print(f"rank {victim} killed at {reached} of {len(calls)} file calls")


def test_random_ranks_are_killed_at_random_moments(servers, tmp_path):
    rng = random.Random(5)
    folder = tmp_path / "run"
    assert save(servers, folder, 1) == [["saved 1"]] * RANKS
    step, midway, kills = 1, 0, max(RANDOM_KILLS // 5, 1)
    for _ in range(kills):
        pids = meet(servers, "rank_loop", folder, step + 1)
        for server in servers:
            server.tell("go")
        time.sleep(rng.uniform(0, 0.06))
        victim = rng.randrange(RANKS)
        os.kill(pids[victim], signal.SIGKILL)
        said = [server.wait() for server in servers]
        saved = [[int(line.split()[1]) for line in lines if line.startswith("saved ")] for lines in said]
        midway += any(".tmp-" in path.name for path in folder.iterdir())
        assert_whole(folder)
        promised = max([step, *itertools.chain(*saved)])
        step = servers[0].latest(folder)
        assert promised <= step <= promised + 1
    assert_unharmed(servers[0], folder, step)
    assert midway > kills / 20
    print(f"{kills} kills, {midway} of them left a half-written folder, {step} steps")

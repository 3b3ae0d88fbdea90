"""A checkpoint survives whatever happens while it is written: the writer killed at random moments and at every
system call, every system call failing, a full disk, short writes. After each there must be a loadable checkpoint at
most one interval old, none that is damaged, and the next save must work."""

import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from crashes import FILE_CALLS, RANDOM_KILLS, Call, Tool, assert_unharmed, assert_whole, calls_of, copied, inject, traced


@pytest.fixture
def prepared(server, tmp_path) -> pathlib.Path:
    """Steps 1 and 2 are saved; saving a third deletes the first."""
    folder = tmp_path / "prepared"
    for step in (1, 2):
        assert server.run("save", folder, step) == [f"saved {step}"]
    return folder


def test_killed_at_random_moments(server, tmp_path):
    """One folder all the way: each start finds what the kill before it left."""
    rng = random.Random(3)
    folder = tmp_path / "run"
    assert server.run("save", folder, 1) == ["saved 1"]
    step, midway = 1, 0
    for _ in range(RANDOM_KILLS):
        pid = server.start("loop", folder, step + 1)
        server.tell("go")
        time.sleep(rng.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        saved = [int(line.removeprefix("saved ")) for line in server.wait()]
        midway += any(".tmp-" in path.name for path in folder.iterdir())
        assert_whole(folder)
        promised = saved[-1] if saved else step
        step = server.latest(folder)
        assert promised <= step <= promised + 1
    assert_unharmed(server, folder, step)
    assert midway > RANDOM_KILLS / 20  # else the kills missed what they are for
    print(f"{RANDOM_KILLS} kills, {midway} of them left a half-written folder, {step} steps")


@pytest.mark.parametrize("step", [3, 2])  # a new one, and one that replaces its like
def test_killed_at_every_system_call(server, prepared, strace, step):
    log = prepared.parent / "log"
    calls = calls_of(server, ("save", copied(prepared, "count"), step), log)
    assert len(calls) > 50
    reached = set()
    for call in calls:
        folder = copied(prepared, f"{call.name}-{call.number}")
        said = traced(server, ("save", folder, step), inject(call, "signal=SIGKILL"), log)
        assert said == [], f"{call} wasn't reached"
        reached.add(assert_unharmed(server, folder, at_least=2))
        shutil.rmtree(folder)
    assert reached == {2, step}
    print(f"killed at each of {len(calls)} system calls")


def harmless(call: Call, errno: str) -> bool:
    """Whether its failure needs no report: a look that the next call repeats, the end of listing a folder, or an
    interruption after which the call is made again."""
    if errno == "EINTR" and call.name in ("openat", "write"):
        return True
    listing = re.search(r"/(count|step-\d+|step-\d+\.pruned\.tmp-\d+)>", call.line)
    return call.name in ("stat", "newfstatat") or (call.name == "close" and listing is not None)


@pytest.mark.parametrize("errno", ["EIO", "ENOSPC", "EINTR"])
def test_every_system_call_fails(server, prepared, strace, errno):
    log = prepared.parent / "log"
    calls = [c for c in calls_of(server, ("save", copied(prepared, "count"), 3), log) if c.name in FILE_CALLS]
    assert len(calls) > 40
    for call in calls:
        folder = copied(prepared, f"{call.name}-{call.number}")
        said = traced(server, ("save", folder, 3), inject(call, f"error={errno}"), log)
        assert len(said) == 1, call
        if said[0].startswith("error"):
            assert f"({errno})" in said[0] and str(folder) in said[0], (call, said)
        else:
            assert harmless(call, errno), (call, said)
            assert server.latest(folder) == 3
        assert_unharmed(server, folder, at_least=2)
        shutil.rmtree(folder)
    print(f"{errno} at each of {len(calls)} system calls")


def test_everything_is_flushed_before_it_is_named(server, prepared, strace):
    """Kills don't lose what the kernel holds; a power cut does. So the order of the calls is checked."""
    calls = calls_of(server, ("save", prepared, 3), prepared.parent / "log")
    waiting = set()  # files written and not flushed, folders with names not flushed
    folders_named = 0
    for call in [call.line for call in calls]:
        paths = re.findall(r'"([^"]+)"', call)
        if call.startswith("fsync"):
            waiting.discard(re.search(r"fsync\(\d+<([^>]+)>", call)[1])
        elif call.startswith("openat") and "O_CREAT" in call:
            waiting |= {paths[0], os.path.dirname(paths[0])}
        elif call.startswith("mkdir"):
            waiting |= {paths[0], os.path.dirname(paths[0])}
        elif call.startswith("rename") and call.endswith("= 0"):
            if "pruned" not in paths[1]:
                folders_named += 1
                inside = {path for path in waiting if path != os.path.dirname(paths[0])}
                assert not inside, (call, inside)
                waiting.add(os.path.dirname(paths[1]))
    assert folders_named == 2  # step-3, LATEST
    assert str(prepared) not in waiting


def test_short_and_interrupted_writes(tool, short_writes, server, tmp_path):
    slow = Tool(tool, env={**os.environ, "LD_PRELOAD": short_writes})
    try:
        assert slow.run("save", tmp_path / "run", 1) == ["saved 1"]
    finally:
        slow.close()
    assert server.latest(tmp_path / "run") == 1


def test_limit_on_file_size(tool, server, prepared):
    """A write that the system cuts short, then refuses (EFBIG): as a full disk does."""
    limited = Tool(tool)
    resource.prlimit(limited.process.pid, resource.RLIMIT_FSIZE, (3000, 3000))
    try:
        (said,) = limited.run("save", prepared, 3)
    finally:
        limited.close()
    assert "model.safetensors: File too large (EFBIG)" in said
    assert_unharmed(server, prepared, at_least=2)


def test_full_disk(server, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", disk], capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs is not permitted here")
    try:
        folder = disk / "run"
        assert [server.run("save", folder, step) for step in (1, 2)] == [["saved 1"], ["saved 2"]]
        steps = set()
        for filler in range(48, -1, -4):  # the disk is full at another place each time
            (disk / "filler").write_bytes(bytes(filler * 1024))
            (said,) = server.run("save", folder, 3)
            if said == "saved 3":
                break
            assert "No space left on device (ENOSPC)" in said and str(folder) in said
            whole = server.latest(folder)  # 3 when LATEST alone found no room
            assert {path.name for path in folder.iterdir()} == {"LATEST"} | {f"step-{i}" for i in range(1, whole + 1)}
            steps.add(whole)
        assert said == "saved 3" and 2 in steps
        assert_unharmed(server, folder, at_least=3)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_medium_fails_on_reading(server, prepared, strace):
    """An unreadable newest checkpoint: the one before it is loaded. What isn't its fault is the user's to mend."""
    log = prepared.parent / "log"
    calls = calls_of(server, ("load", copied(prepared, "count")), log)
    reads = [call for call in calls if call.name == "read"]
    assert len(reads) > 10
    for call in reads:
        folder = copied(prepared, call.number)
        said = traced(server, ("load", folder), inject(call, "error=EIO"), log)
        assert said == ["loaded 1"], call
        assert (folder / "step-2.damaged").exists()
    folder = copied(prepared, "denied")
    manifest = next(call for call in calls if call.name == "openat" and "manifest.json" in call.line)
    (said,) = traced(server, ("load", folder), inject(manifest, "error=EACCES"), log)
    assert said.endswith("manifest.json: Permission denied (EACCES)")
    assert sorted(path.name for path in folder.iterdir()) == ["LATEST", "step-1", "step-2"]

"""What is built: which of its sources changed after the program that made some records."""
import collections
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATHS = re.search(r"set\(built ([^)]+)\)", (ROOT / "cmake/write_commit.cmake").read_text())[1].split()
FOLDERS = 4  # named at most


def git(*words: str) -> str | None:
    """What git says of what is built; None outside of a checkout, or where it doesn't know a commit."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *words, "--", *PATHS], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def last_commit() -> str:
    """The last that changed what is built, as records name it; "" outside of a checkout."""
    return (git("rev-list", "-1", "--abbrev-commit", "--abbrev=12", "HEAD") or "").strip()


def folder(path: str) -> str:
    """Its first two folders; its name where it lies in none."""
    return "/".join(pathlib.PurePath(path).parts[:-1][:2]) or path


def changed(commit: str, later: str) -> str:
    """How many files changed from one commit to the other, and in which folders most."""
    listed = git("diff", "--name-only", commit, later) if later else None
    if listed is None:
        return "what changed since is not known"
    files = listed.splitlines()
    if not files:
        return "nothing that is built changed since"
    counts = collections.Counter(map(folder, files)).most_common()
    named = ", ".join(f"{name} ({count})" for name, count in counts[:FOLDERS])
    return f"since then {len(files)} file{'s' if len(files) > 1 else ''} changed: {named}{' and others' if len(counts) > FOLDERS else ''}"

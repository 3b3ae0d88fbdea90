"""What a program prints, for scripts that call one."""
import pathlib
import subprocess
import sys


def printed(*command) -> str:
    """What the command prints. One that fails ends the script with what it says."""
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout

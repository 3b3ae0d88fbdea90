"""The classes of x86-64 CPUs that moelab is built for, as scripts/cpu_classes.sh lists them."""
import functools
import subprocess
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).resolve().parents[1] / "cpu_classes.sh"
LIST = 'source "$0"; for c in "${CPU_CLASSES[@]}"; do echo "$c|${TITLE[$c]}|${CPU_FLAGS[$c]}|${LOWERED[$c]}"; done'


class CpuClass(NamedTuple):
    name: str
    title: str  # in tables
    flags: list  # of /proc/cpuinfo
    environment: list  # arguments of env that keep LibTorch, oneDNN and MKL from using more than the class has

    @property
    def limits(self):
        """The variables that the environment sets, with their values."""
        return dict(argument.split("=") for argument in self.environment if "=" in argument)


@functools.cache
def cpu_classes():
    """By name, from the least to the best."""
    lines = subprocess.run(["bash", "-c", LIST, SCRIPT], check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split("|") for line in lines]
    return {name: CpuClass(name, title, flags.split(), environment.split()) for name, title, flags, environment in rows}

"""cmake/CudaArchitectures.cmake, where nvidia-smi lists GPUs of these compute capabilities."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = "80;86;89;90a;100;120"


@pytest.mark.parametrize("wanted, capabilities, expected", [
    ("native", "8.0", "80"), ("native", "8.6", "86"), ("native", "8.9", "89"), ("native", "9.0", "90a"),
    ("native", "10.0", "100"), ("native", "12.0", "120"), ("native", "9.0 9.0 8.0", "90a;80"), ("native", "", ALL),
    ("native", None, ALL), ("86;90a", "8.9", "86;90a"),
])  # fmt: skip
def test_the_architectures_of_a_build(tmp_path, wanted, capabilities, expected):
    smi = tmp_path / "nvidia-smi"  # None: it finds no driver
    smi.write_text("#!/bin/sh\nexit 9\n" if capabilities is None else f"#!/bin/sh\nprintf '%s\\n' {capabilities}\n")
    smi.chmod(0o755)
    (tmp_path / "print.cmake").write_text(f"include({ROOT}/cmake/CudaArchitectures.cmake)\n"
                                          'moelab_cuda_architectures(found "${WANTED}")\nmessage("${found}")\n')
    done = subprocess.run(["cmake", f"-DWANTED={wanted}", "-P", tmp_path / "print.cmake"], capture_output=True,
                          text=True, check=False, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})  # fmt: skip
    assert done.stderr.strip() == expected

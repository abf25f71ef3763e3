"""Our Triton kernels compile for an H100 or H200 and fit on it. Needs no GPU: ptxas comes with Triton."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import long_test

pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)

ROOT = Path(__file__).parents[2]
SHARED_BYTES = 227 * 1024  # what one program may have on sm_90
# the rest is in lab/benchmarks/results/aot-sm90.md; a case takes 15 s
CASES = [(128, "bfloat16", 0.1), (41, "float32", 0.0)]
KERNELS = {
    "queries",
    "forward",
    "deltas",
    "backward_queries",
    "backward_keys",
    "backward_places",
    "sum_parts",
}
KERNELS |= {"forward_split", "join"}  # of few queries over many keys
# of a backward pass that stores the gradient of the logits
KERNELS |= {"kept_keys", "kept_queries", "kept_places"}


@pytest.mark.slow
@long_test
@pytest.mark.parametrize(("H", "dtype", "dropout"), CASES)
def test_kernels_fit_on_sm_90_without_spills_that_matter(
    H: int, dtype: str, dropout: float, tmp_path: Path
) -> None:
    """At most 64 of a kernel's thousands of instructions store to local memory, by lab/benchmarks/aot.py."""
    out = compiled(tmp_path, "--head", str(H), "--dtype", dtype, "--dropout", str(dropout))
    assert_fits(out, KERNELS | ({"copy_rows"} if H == 41 else set()))
    assert "MMA" in out or dtype == "float32"


@pytest.mark.slow
@long_test
def test_the_kernels_of_a_layers_rows_fit_on_sm_90(tmp_path: Path) -> None:
    rows = {"add_norm", "add_norm_backward", "relu", "relu_backward"}
    assert_fits(compiled(tmp_path, "--rows", "1024", "4096", "--dropout", "0.1"), rows)


def compiled(folder: Path, *flags: str) -> str:
    """What lab/benchmarks/aot.py prints."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-m", "lab.benchmarks.aot", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True)
    return done.stdout


def assert_fits(out: str, expected: set[str]) -> None:
    kernels = re.findall(
        r"^(\w+) +\d+ +\d+ +\d+ \| +(\d+) +(\d+) +(\d+) \|(.*)$", out, re.MULTILINE
    )
    assert {name for name, *_ in kernels} == expected
    for name, _registers, stack, shared, instructions in kernels:
        assert int(shared) <= SHARED_BYTES, f"{name}: {shared} bytes of shared memory"
        spills = re.search(r"STL (\d+)", instructions)
        assert spills is None or int(spills[1]) <= 64, f"{name}: {spills[1]} spills, {stack} bytes"

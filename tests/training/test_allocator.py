"""Freed memory stays with the process."""

import subprocess
import sys

import pytest

CODE = """
import sys
from txl.runtime.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import torch

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
torch.ones(100 * 2**20 // 4)
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_large_tensor_leaves_its_pages() -> None:
    sizes = {
        how: int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "given back")
    }
    assert sizes["given back"] < 50 * 2**20 < 90 * 2**20 < sizes["kept"]

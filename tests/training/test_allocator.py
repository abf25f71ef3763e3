"""Freed memory stays with the process."""

import subprocess
import sys

import pytest

CODE = """
import os, sys, torch
from txl.runtime.allocator import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

for is_kept in (False, True):
    if os.fork() == 0:
        if is_kept:
            keep_freed_memory()
        before = resident()
        torch.ones(100 * 2**20 // 4)
        print(resident() - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_large_tensor_leaves_its_pages() -> None:
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    given_back, kept = map(int, out.split())
    assert given_back < 50 * 2**20 < 90 * 2**20 < kept

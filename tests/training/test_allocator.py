"""Freed memory stays with the process."""

import sys
from pathlib import Path

import pytest
import torch

from tests.forks import start
from txl.runtime.allocator import keep_freed_memory


def print_growth(keeps: bool) -> None:
    """Of the memory of this process by a large tensor that has been freed."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if keeps:
        keep_freed_memory()
    before = resident()
    torch.ones(100 * 2**20 // 4)
    print(resident() - before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_large_tensor_leaves_its_pages(tmp_path: Path) -> None:
    for keeps in (False, True):
        log = tmp_path / f"{keeps}"
        assert start(f"{__name__}:print_growth", log, keeps=keeps).wait() == 0, log.read_text()
        assert (int(log.read_text()) > 90 * 2**20) == keeps

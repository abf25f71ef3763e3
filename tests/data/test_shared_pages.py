"""Ids take the memory of their pages once for all processes, and none of a process's own."""

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.forks import start, wait_until
from txl.data_utils.store import mapped
from txl.data_utils.stream import SegmentStream

N_TOKEN = 8 << 20


def read_all(path: str) -> None:
    """Print how many kB of its own this process takes for all segments but the first, and wait to be killed."""

    def anonymous() -> int:
        return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]

    stream = SegmentStream(mapped(Path(path), "uint16"), batch_size=16, tgt_len=4096)
    next(iter(stream))
    before = anonymous()
    for _ in stream:
        pass
    print(anonymous() - before, flush=True)
    signal.pause()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_share_the_pages_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    np.arange(N_TOKEN, dtype=np.uint16).tofile(path)
    readers = [start(f"{__name__}:read_all", tmp_path / f"{i}", path=str(path)) for i in range(2)]
    for reader in readers:
        wait_until(lambda reader=reader: reader.log.exists() and reader.log.read_text().endswith("\n"), reader.log)
    grown = [int(reader.log.read_text()) for reader in readers]
    share = [shares(reader.pid, path) for reader in readers]
    for reader in readers:
        reader.kill()
        reader.wait()
    n_kb = N_TOKEN * 2 / 1024
    assert max(grown) < n_kb / 8  # of their own, in kB
    assert all(rss > 0.9 * n_kb and dirty == 0 for rss, _, dirty in share)
    assert sum(pss for _, pss, _ in share) < 1.2 * n_kb  # together they hold it once


def shares(pid: int, path: Path) -> tuple[int, int, int]:
    """kB of a mapped file that a process has resident, its share of them, and what it has changed."""
    blocks = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text())
    (block,) = (block for block in blocks if str(path) in block)
    found = (re.search(rf"^{name}:\s+(\d+)", block, re.MULTILINE) for name in ("Rss", "Pss", "Private_Dirty"))
    rss, pss, dirty = (int(one[1]) for one in found if one)
    return rss, pss, dirty

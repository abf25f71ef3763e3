"""Ids take the memory of their pages once for all processes, and none of a process's own."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

N_TOKEN = 8 << 20
READER = """
import re, sys
import numpy as np
from txl.data_utils.stream import SegmentStream
from txl.data_utils.store import mapped
anonymous = lambda: int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
ids = mapped(__import__("pathlib").Path(sys.argv[1]), "uint16")
stream = SegmentStream(ids, batch_size=16, tgt_len=4096)
next(iter(stream))
before = anonymous()
for segment in stream: pass
print(anonymous() - before, flush=True)
input()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_share_the_pages_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    np.arange(N_TOKEN, dtype=np.uint16).tofile(path)
    command = [sys.executable, "-c", READER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen(command, cwd=Path(__file__).parents[2], **pipes) for _ in range(2)]
    try:
        grown = [int(reader.stdout.readline()) for reader in readers]
        share = [shares(reader.pid, path) for reader in readers]
    finally:
        for reader in readers:
            reader.communicate("\n")
    n_kb = N_TOKEN * 2 / 1024
    assert max(grown) < n_kb / 8  # of their own, in kB
    assert all(rss > 0.9 * n_kb and dirty == 0 for rss, _, dirty in share)
    assert sum(pss for _, pss, _ in share) < 1.2 * n_kb  # together they hold it once


def shares(pid: int, path: Path) -> tuple[int, int, int]:
    """kB of a mapped file that a process has resident, its share of them, and what it has changed."""
    blocks = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text())
    (block,) = (block for block in blocks if str(path) in block)
    rss, pss, dirty = (
        int(re.search(rf"^{name}:\s+(\d+)", block, re.MULTILINE)[1]) for name in ("Rss", "Pss", "Private_Dirty")
    )  # type: ignore[index]
    return rss, pss, dirty

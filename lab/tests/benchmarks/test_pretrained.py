"""The benchmark of pretrained decoders: each memory has its row, and its picture is drawn."""

from argparse import Namespace
from pathlib import Path

import pytest

from lab.benchmarks import pretrained
from tests.convert.test_llama_journey import folder
from tests.data.tokenizer_files import TEXT

__all__ = ["folder"]


def test_a_row_for_each_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "MEM_LENS", (0, 4, 16))
    monkeypatch.setattr(pretrained, "TGT_LEN", 8)
    Path("file.txt").write_text(TEXT)
    found = [*pretrained.perplexities(Namespace(folder=folder, text="file.txt", n_token=60))]
    assert [(row["memory"], row["mem_len"]) for row in found] == [
        ("none", 0),
        ("fifo", 4),
        ("fifo", 16),
        ("fifo", 60),
        ("sinks", 4),
        ("sinks", 16),
    ]
    assert {row["tokens"] for row in found} == {59}
    assert [row["mib"] for row in found] == sorted(row["mib"] for row in found[:4]) + [
        row["mib"] for row in found[4:]
    ]
    n_float = 2 * 3 * 3 * 8  # layers, heads of keys, their size
    assert found[4]["mib"] == 4 * n_float * (4 + pretrained.N_SINK) / 2**20
    assert len({row["perplexity"] for row in found}) == 6
    pretrained.plot(found, Path("picture.png"))
    assert Path("picture.png").stat().st_size > 1000

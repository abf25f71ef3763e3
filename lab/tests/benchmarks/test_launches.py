"""What an update launches, moves and multiplies on a GPU; counted, so that no GPU is asked."""

import json
import sys

import pytest
import torch

from lab.benchmarks.launches import count, launches_on_lists, main
from lab.benchmarks.shapes import TRAINING


def counted(optim: str, *, graph: bool = False) -> dict[str, int]:
    return count(TRAINING["nvidia-base"], optim, graph=graph).total()


@pytest.mark.slow
def test_an_update_of_nvidias_base_stays_within_its_launches_bytes_and_flop() -> None:
    """At first there were 1,757 launches and 34.6 GB, in a graph 2,048 and 132 GB; Muon had 1,776 more."""
    adam, muon = counted("adam"), counted("muon")
    graph = counted("adam", graph=True)
    assert adam["launches"] <= 900
    assert adam["bytes"] <= 20e9
    assert muon["launches"] <= adam["launches"] + 250
    assert graph["launches"] <= 960
    assert graph["bytes"] <= 21e9
    assert graph["flop"] <= 1.05 * adam["flop"]
    assert [x["waits"] for x in (adam, muon, graph)] == [0, 0, 0]


def test_an_operator_on_lists_takes_blocks_and_tensors_of_a_limited_number() -> None:
    """110 tensors of one list, or 320 blocks of 65,536 numbers, are one launch."""
    small = torch.empty(10, device="meta")
    assert launches_on_lists([small] * 110, 1) == 1
    assert launches_on_lists([small] * 111, 1) == 2
    assert launches_on_lists([torch.empty(320 * 65_536, device="meta")], 4) == 1
    assert launches_on_lists([torch.empty(321 * 65_536, device="meta")], 4) == 2


def test_the_last_line_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["launches", "--shapes", "tiny", "--graph"])
    main()
    (totals,) = json.loads(capsys.readouterr().out.splitlines()[-1]).values()
    assert totals["launches"] > totals["waits"] == 0
    assert totals["bytes"] > 0
    assert totals["flop"] > 0

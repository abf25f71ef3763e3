"""What an update launches, moves and multiplies on a GPU; counted, so that no GPU is asked."""

import json
import os
import subprocess
import sys

import pytest
import torch

from lab.benchmarks.launches import count, launches_on_lists, main
from lab.benchmarks.shapes import TRAINING


def counted(optim: str, **how: bool) -> dict[str, int]:
    return count(TRAINING["nvidia-base"], optim, **how).total()


@pytest.mark.slow
def test_an_update_of_nvidias_base_stays_within_its_launches_bytes_and_flop() -> None:
    """At first there were 1,757 launches and 34.6 GB, in a graph 2,048 and 132 GB; Muon had 1,776 more."""
    adam, muon = counted("adam"), counted("muon")
    graph = counted("adam", graph=True)
    assert adam["launches"] <= 790
    assert adam["bytes"] <= 16.8e9
    assert muon["launches"] <= adam["launches"] + 130
    assert graph["launches"] <= 824
    assert graph["bytes"] <= 17.2e9
    assert graph["flop"] <= 1.05 * adam["flop"]
    assert [x["waits"] for x in (adam, muon, graph)] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="it counts by the internals of PyTorch 2.13"
)
def test_inductor_in_the_layers_launches_and_moves_more_than_their_own_kernels() -> None:
    """In a process of its own: Triton's interpreter is on in this one."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "lab.benchmarks.launches", "--graph", "--compile"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    (compiled,) = json.loads(done.stdout.splitlines()[-1]).values()
    plain = counted("adam", graph=True)
    assert compiled["flop"] == plain["flop"]
    assert 1.15 < compiled["launches"] / plain["launches"] < 1.3
    assert 1.1 < compiled["bytes"] / plain["bytes"] < 1.3


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

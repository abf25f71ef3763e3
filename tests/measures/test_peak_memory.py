"""Peak memory is that of the work since the beginning of the measurement."""

from pathlib import Path

import pytest
import torch

from txl.runtime import resources
from txl.runtime.resources import PeakMemory

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(PeakMemory(CPU).bytes() is None, reason="the peak cannot be measured here")
def test_a_large_tensor_shows_and_is_forgotten_afterwards() -> None:
    before = PeakMemory(CPU)
    at_rest = before.bytes()
    torch.ones(100 * MIB // 4)
    with_tensor = before.bytes()
    afterwards = PeakMemory(CPU).bytes()
    assert None not in (at_rest, with_tensor, afterwards)
    assert with_tensor - at_rest > 90 * MIB
    assert with_tensor - afterwards > 90 * MIB


def test_where_the_peak_cannot_be_forgotten_or_is_not_there_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_CLEAR", tmp_path / "missing" / "clear_refs")
    assert PeakMemory(CPU).bytes() is None
    monkeypatch.setattr(resources, "_CLEAR", tmp_path / "clear_refs")
    monkeypatch.setattr(
        resources, "resident_bytes", lambda peak=False: 900 * MIB if peak else 100 * MIB
    )
    assert PeakMemory(CPU).bytes() is None

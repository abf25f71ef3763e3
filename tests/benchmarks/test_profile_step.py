"""The profile of a step: what belongs where, backward pass included."""

import dataclasses

import pytest

from benchmarks.profile_step import events_of, milliseconds, of_host, our_steps
from benchmarks.shapes import TRAINING


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # of torch 2.11
def test_a_backward_operator_belongs_to_the_part_of_the_forward_operator() -> None:
    sizes = {"n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 16, "n_token": 30}
    shape = dataclasses.replace(TRAINING["small"], **sizes, batch_size=2, tgt_len=5, mem_len=5)
    events = events_of(our_steps(shape), 2, on_gpu=False)
    found = milliseconds(events, on_gpu=False)
    for part in ("attention", "projections", "feed-forward", "layers", "embedding", "head"):
        assert any(name.startswith("autograd::") for name in found[part]), part
    assert all(found[part].total() > 0 for part in ("clipping", "optimizer"))
    assert not {"aten::mm", "aten::bmm", "aten::addmm"} & set(found["rest"])
    assert of_host(events) == (pytest.approx(sum(times.total() for times in found.values())), 0)

"""The table of sinusoids against the definition."""

import copy
import pickle

import pytest
import torch

from txl.ops.numbers import sinusoid
from txl.ops.sinusoids import Sinusoids


@pytest.mark.parametrize("clamp_len", [-1, 1, 3, 6, 9])
def test_rows_are_those_of_the_distances(clamp_len: int) -> None:
    sinusoids = Sinusoids(6)
    for n_key in (3, 7, 5, 1, 20):
        distance_S = torch.arange(n_key - 1, -1, -1)
        if clamp_len > 0:
            distance_S = distance_S.clamp(max=clamp_len)
        for like in (torch.zeros(1), torch.zeros(1).double()):
            found_SD = sinusoids(n_key, like, clamp_len=clamp_len)
            torch.testing.assert_close(
                found_SD, sinusoid(distance_S, 6, like.dtype), rtol=0, atol=0
            )


def test_what_a_recording_reads_stays_while_the_table_grows() -> None:
    sinusoids = Sinusoids(6)
    like = torch.zeros(1)
    first = sinusoids(4, like)
    address = first.data_ptr()
    sinusoids(400, like)
    del first
    taken = [torch.empty(4, 6) for _ in range(50)]  # would get the memory, were it free
    assert address not in [x.data_ptr() for x in taken]


def test_training_reads_what_evaluation_has_made() -> None:
    sinusoids = Sinusoids(6)
    with torch.inference_mode():
        sinusoids(4, torch.zeros(1))
    weight = torch.ones(6, requires_grad=True)
    (sinusoids(3, torch.zeros(1)) @ weight).sum().backward()


def test_copies_and_files_are_without_the_table() -> None:
    sinusoids = Sinusoids(64)
    sinusoids(1000, torch.zeros(1))
    assert len(pickle.dumps(sinusoids)) < 1000
    torch.testing.assert_close(
        copy.deepcopy(sinusoids)(3, torch.zeros(1)), sinusoids(3, torch.zeros(1))
    )

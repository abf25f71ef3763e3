"""What is timed of each memory is a memory that is full, and stays so."""

import pytest
import torch

from lab.benchmarks.memories import SIZES, WINDOW, filled, held_bytes, rows, settings, table
from txl import Context, ModelConfig, TransformerXL
from txl.config import build
from txl.inference.frozen import Frozen
from txl.memory import MEMORIES

N = 200


@pytest.mark.parametrize("name", MEMORIES)
@torch.inference_mode()
def test_what_is_held_is_full_and_of_the_same_size_after_a_segment(name: str) -> None:
    asked = settings(name, N)
    model, context = TransformerXL(build(ModelConfig, asked, **SIZES)).eval(), build(Context, asked)
    memory = filled(model, context, N)
    _, after = Frozen(model)(torch.zeros(1, WINDOW, dtype=torch.long), memory, context)
    assert held_bytes(after) == held_bytes(memory)
    state = 4 * SIZES["d_model"]
    head = WINDOW * SIZES["n_layer"] * state
    n_layer = SIZES["n_layer"]
    assert held_bytes(memory) == {
        "fifo": 2 * N * n_layer * state,
        "none": 0,
        "sinks": 2 * (4 + WINDOW) * n_layer * state,
        "compressive": n_layer * (WINDOW + 3 + (N - WINDOW) // 4) * state,
        "expire_span": n_layer * N * (2 * state + 8 + 4),
        "infini": head + n_layer * 4 * (32 * 32 + 32) * 4,
        "knn": head + 2 * (N - WINDOW) * state + 8,
        "neural": head + n_layer * 4 * 2 * 32 * 32 * 4,
        "recurrent_tokens": 8 * state,
    }.get(name, -1)


def test_the_table_has_a_row_for_each_memory() -> None:
    found = list(rows(["none", "fifo"], [70, 80], 1))
    assert [(row["memory"], row["read"]) for row in found] == [
        (m, n) for n in (70, 80) for m in ("none", "fifo")
    ]
    assert all(row["ms_a_token_1"] > 0 for row in found)
    *_, none, fifo = table(found)
    assert none.startswith("| `none` | ")
    assert fifo.count("|") == 4

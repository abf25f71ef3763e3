"""An update of a small model, kernel by kernel and repeated as one CUDA graph (train.py --cuda_graph).

    python -m lab.benchmarks.graph [--updates 100] [--json FILE]

The model of lab/docs/results.md (4 x 256, SwiGLU, 20,000 words in clusters) reads random words in segments of 64 over a
memory of 192, and Muon updates it. Prints ms an update, after 40 that are not counted.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl.config import Context, ModelConfig
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.recording import recorded
from txl.training.config import TrainConfig
from txl.training.init import init_weights
from txl.training.step import TrainState

MODEL = ModelConfig(
    n_token=20_000, cutoffs=(3000, 10_000), div_val=2, n_layer=4, d_model=256, n_head=8, d_head=32, d_inner=683,
    activation="swiglu", pre_lnorm=True,
)  # fmt: skip
CONTEXT = Context(tgt_len=64, mem_len=192)
RECIPE: dict[str, Any] = {"optim": "muon", "lr": 0.005, "weight_decay": 0.1, "dropout": 0.1}
CASES = (
    {"dtype": "float32", "batch_size": 16, "cuda_graph": False},
    {"dtype": "float32", "batch_size": 16, "cuda_graph": True},
    {"dtype": "bfloat16", "batch_size": 16, "cuda_graph": False},
    {"dtype": "bfloat16", "batch_size": 16, "cuda_graph": True},
    {"dtype": "bfloat16", "batch_size": 64, "cuda_graph": False},
    {"dtype": "bfloat16", "batch_size": 64, "cuda_graph": True},
)


def state_of(case: dict[str, Any], device: torch.device) -> TrainState:
    """The beginning of a training."""
    torch.manual_seed(1)
    config = TrainConfig(**RECIPE, **case)
    model = TransformerXL(MODEL, dropout=config.dropout)
    init_weights(model, config)
    state = TrainState(model.to(device).train(), config, CONTEXT, Ranks(0, 1, device))
    if config.cuda_graph:
        sizes = MODEL.cluster_sizes
        state.repeat_update(recorded, [size / MODEL.n_token for size in sizes])
    return state


def batches(n: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """n segments of random words, with their targets."""
    ids = torch.randint(MODEL.n_token, (batch_size, CONTEXT.tgt_len * n + 1))
    for i in range(n):
        begin = CONTEXT.tgt_len * i
        end = begin + CONTEXT.tgt_len
        yield ids[:, begin:end], ids[:, begin + 1 : end + 1]


def measured(device: torch.device, n_first: int, n_update: int) -> Iterator[dict[str, Any]]:
    """One row per case."""
    for case in CASES:
        if case["cuda_graph"] and device.type != "cuda":
            continue
        state = state_of(case, device)
        start = time.perf_counter()
        for i, batch in enumerate(batches(n_first + n_update, case["batch_size"])):
            if i == n_first:
                state.check()  # waits for the device
                start = time.perf_counter()
            state.step(*batch)
        state.check()
        ms = 1000 * (time.perf_counter() - start) / n_update
        row = {**case, "ms": round(ms, 2)}
        print(row, flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument(
        "--first",
        type=positive,
        default=40,
        help="updates before them, in which the memory fills, kernels are compiled and the graph is recorded [40]",
    )
    parser.add_argument("--updates", type=positive, default=100, help="counted for each row [100]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    write_as_found(args.json, measured(torch.device(args.device), args.first, args.updates))


if __name__ == "__main__":
    main()

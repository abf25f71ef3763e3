"""Prints, a line a configuration, what two training steps took at most, and what was estimated, in MiB.

A program of its own, which forks for each configuration: what one has left in the process must not count for the next.
`python -m tests.training.memory_peaks all` measures the twenty of memory_peaks.json anew, which were drawn at random;
names of configurations measure these.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

from txl import Context, ModelConfig, TransformerXL
from txl.attention_rules import use_attention
from txl.runtime.distributed import Ranks
from txl.runtime.resources import keep_freed_memory
from txl.training.config import TrainConfig
from txl.training.estimate import training_bytes
from txl.training.init import init_weights
from txl.training.step import TrainState

SMALL = {"n_token": 2000, "n_layer": 4, "n_head": 4, "d_head": 32, "d_model": 128, "d_inner": 512}
WIDE = {"d_model": 512, "d_inner": 2048, "n_head": 8, "d_head": 64}
# shape, training, streams, tgt, mem
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, int, int]] = {
    "small": ({}, {}, 8, 128, 128),
    "wide": (WIDE, {}, 2, 16, 16),
    "clusters": (
        {"n_token": 90000, "cutoffs": (2000, 20000), "div_val": 2, "d_model": 256},
        {},
        4,
        64,
        64,
    ),
    "dense": ({}, {"dropout": 0.1, "dropatt": 0.1}, 16, 128, 128),
    "recompute": ({"n_layer": 8}, {"recompute": True}, 16, 128, 128),
    "memory": ({"n_layer": 8}, {"optim": "sgd"}, 8, 64, 1024),
    "neural": ({"memory": "neural", "neural_layers": 2}, {"memory_parts": 8}, 8, 256, 0),
    "infini": (
        {"memory": "infini", "n_layer": 8, "d_head": 64, "n_head": 8, "d_model": 256},
        {"memory_parts": 8, "recompute": True},
        8,
        128,
        0,
    ),
    "alibi": ({"position": "alibi", "activation": "swiglu"}, {}, 16, 128, 128),
}
DRAWN = {
    f"drawn_{i}": (row["shape"], row["training"], row["streams"], row["tgt_len"], row["mem_len"])
    for i, row in enumerate(json.loads(Path(__file__).with_suffix(".json").read_text()))
}
MEASURED_AGAIN = ("drawn_3", "drawn_7", "drawn_11")
"""Those furthest from the estimate: a large vocabulary in chunks, and clusters."""
LIBRARIES = 40
CPU = Ranks(0, 1, torch.device("cpu"))


def resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def prepared(
    shape: dict[str, Any], training: dict[str, Any], n_stream: int, tgt_len: int, mem_len: int
) -> tuple[TransformerXL, TrainConfig, Context, int]:
    """A model, its training, and the estimate without the program itself."""
    model = TransformerXL(
        ModelConfig(**shape), dropout=training.get("dropout", 0), dropatt=training.get("dropatt", 0)
    )
    config = TrainConfig(**training, batch_size=n_stream, dtype="float32")
    context = Context(tgt_len=tgt_len, mem_len=mem_len)
    init_weights(model, config)
    use_attention(model, config.attn_impl)
    needed = training_bytes(model, config, context, CPU, torch.float32)
    return model, config, context, sum(needed.values()) - needed["program"]


def steps(
    shape: dict[str, Any], training: dict[str, Any], n_stream: int, tgt_len: int, mem_len: int
) -> int:
    """Train until the memory is full; the estimate, without the program itself."""
    model, config, context, needed = prepared(shape, training, n_stream, tgt_len, mem_len)
    state = TrainState(model, config, context, CPU)
    model.train()
    for _ in range(2 + mem_len // tgt_len):
        # frequent words come first
        ids = (model.config.n_token ** torch.rand(n_stream, tgt_len + 1)).long() - 1
        state.step(ids[:, :-1], ids[:, 1:])
    return needed


def measure(name: str) -> None:
    shape, training, *sizes = (CASES | DRAWN)[name]
    tiny = {"n_token": 50, "n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 4, "d_inner": 4}
    # libraries
    steps(
        tiny | {k: v for k, v in shape.items() if k in ("position", "activation")},
        training,
        2,
        4,
        4,
    )
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    needed = steps(SMALL | shape, training, *sizes)
    peak = resident("VmHWM") - before
    print(name, peak >> 20, (needed >> 20) + LIBRARIES, flush=True)


def print_growth(keeps: bool) -> None:
    """Of the memory of this process by a large tensor that has been freed."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if keeps:
        keep_freed_memory()
    before = resident()
    torch.ones(100 * 2**20 // 4)
    print(resident() - before)


if __name__ == "__main__":
    import torch._dynamo  # optimizers import it: once for all forks

    torch.set_num_threads(1)
    keep_freed_memory()
    for case in DRAWN if "all" in sys.argv else sys.argv[1:] or (*CASES, *MEASURED_AGAIN):
        child = os.fork()
        if not child:
            measure(case)
            os._exit(0)
        os.waitpid(child, 0)

"""The code of kimiyoung/transformer-xl, from a checkout whose folder is the second argument. It is not part of ours.

Two things are adapted when it is loaded, for it was written for PyTorch 0.4: masks are made bool, which masked_fill
asks for today, and a version of CUDA is there to be read where PyTorch has none. It has no generation.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from lab.benchmarks.shapes import Shape
from lab.benchmarks.workers.serve import autocast, segments, serve_models, update


def load(folder: str) -> ModuleType:
    """Its `mem_transformer`."""
    path = Path(folder) / "pytorch" / "mem_transformer.py"
    if not path.is_file():
        sys.exit(f"{path}: no such file; give the folder of a checkout of kimiyoung/transformer-xl")
    sys.path.insert(0, str(path.parent / "utils"))
    version, torch.version.cuda = torch.version.cuda, torch.version.cuda or "0.0"
    module = ModuleType("mem_transformer")
    exec(
        compile(path.read_text().replace(".byte()", ".bool()"), str(path), "exec"), module.__dict__
    )
    torch.version.cuda = version
    return module


def model_of(shape: Shape, folder: str) -> nn.Module:
    """A model with random weights."""
    torch.manual_seed(0)
    model = load(folder).MemTransformerLM(
        shape.n_token,
        shape.n_layer,
        shape.n_head,
        shape.d_model,
        shape.d_head,
        shape.d_inner,
        shape.dropout,
        shape.dropatt,
        div_val=shape.div_val,
        tie_projs=[False] + [True] * len(shape.cutoffs),
        tgt_len=shape.tgt_len,
        ext_len=0,
        mem_len=shape.mem_len,
        cutoffs=list(shape.cutoffs),
        same_length=shape.same_length,
        clamp_len=shape.clamp_len,
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:  # some are memory that nobody has written to
            nn.init.normal_(parameter, 0.0, 0.02)
    return model.to(shape.device)


def ids(shape: Shape) -> Iterator[tuple[Tensor, Tensor]]:
    """`segments`, time first, where the model is."""
    for input_BT, target_BT in segments(shape):
        yield input_BT.T.contiguous().to(shape.device), target_BT.T.contiguous().to(shape.device)


@torch.no_grad()
def evaluate(shape: Shape, folder: str) -> Iterator[object]:
    """One segment at a time, over a full memory."""
    model = model_of(shape, folder).to(getattr(torch, shape.dtype)).eval()
    like = next(model.parameters())
    room = (shape.mem_len, shape.batch_size, shape.d_model)
    mems = [like.new_empty(room).normal_() for _ in range(shape.n_layer + 1)]
    nats = torch.zeros((), dtype=torch.float64, device=shape.device)
    for input_TB, target_TB in ids(shape):
        nll_TB, *mems = model(input_TB, target_TB, *mems)
        nats += nll_TB.double().sum()
        yield nats


def train(
    shape: Shape, folder: str, prepare: Callable[[nn.Module], None] | None = None
) -> Iterator[object]:
    """A step at a time. `prepare` is shown the model first."""
    model, mems = model_of(shape, folder).train(), []
    if prepare is not None:
        prepare(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.00025, fused=True)
    for input_TB, target_TB in ids(shape):
        with autocast(shape):
            nll_TB, *mems = model(input_TB, target_TB, *mems)
        loss = nll_TB.float().mean()
        update(model, optimizer, loss)
        yield loss.item()


if __name__ == "__main__":
    tasks = {"evaluate": evaluate, "train": train}
    serve_models(
        "kimiyoung/transformer-xl",
        {name: partial(task, folder=sys.argv[2]) for name, task in tasks.items()},
    )

"""Model shapes and tasks of the benchmarks."""

import argparse
import dataclasses
import json
from dataclasses import dataclass

TINY_FLAGS = "--n_layer 1 --d_model 16 --n_head 2 --d_head 8 --d_inner 16 --tgt_len 8 --mem_len 8 --batch_size 4"
"""Flags of train.py for a model of no weight, to try a program."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, the lengths it reads, and how; the same for all programs.

    Attributes:
        cutoffs: of the adaptive softmax; empty: a plain one.
        dtype: of the matrix products; other programs have their weights in it, too, in evaluation.
        compile, cuda_graph, attn_impl: ours alone.
    """

    n_layer: int
    n_head: int
    d_head: int
    d_model: int
    d_inner: int
    n_token: int
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    batch_size: int
    tgt_len: int
    mem_len: int
    same_length: bool = False
    clamp_len: int = -1
    dropout: float = 0.1
    dropatt: float = 0.0
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    cuda_graph: bool = False
    attn_impl: str = "auto"

    @classmethod
    def of_json(cls, text: str) -> "Shape":
        """The inverse of `to_json`."""
        values = json.loads(text)
        return cls(**(values | {"cutoffs": tuple(values["cutoffs"])}))

    def to_json(self) -> str:
        """The form passed to workers."""
        return json.dumps(dataclasses.asdict(self))


WT103 = {"n_token": 267_735, "cutoffs": (20_000, 40_000, 200_000)}
SMALL = {
    "n_layer": 4,
    "n_head": 8,
    "d_head": 32,
    "d_model": 256,
    "d_inner": 1024,
    "n_token": 10_000,
}
WT103_BASE = {"n_layer": 16, "n_head": 10, "d_head": 41, "d_model": 410, "d_inner": 2100} | WT103
NVIDIA = WT103 | {"cutoffs": (19_997, 39_997, 199_997)}
NVIDIA_BASE = {"n_layer": 16, "n_head": 8, "d_head": 64, "d_model": 512, "d_inner": 2048} | NVIDIA
NVIDIA_LARGE = {
    "n_layer": 18,
    "n_head": 16,
    "d_head": 64,
    "d_model": 1024,
    "d_inner": 4096,
    "div_val": 4,
} | NVIDIA
ENWIK8_LARGE = {"n_layer": 24, "n_head": 8, "d_head": 128, "d_model": 1024, "d_inner": 3072}

TINY = {
    "n_layer": 2,
    "n_head": 2,
    "d_head": 8,
    "d_model": 16,
    "d_inner": 32,
    "n_token": 100,
    "cutoffs": (20, 50),
}

TRAINING = {
    "tiny": Shape(**TINY, batch_size=2, tgt_len=8, mem_len=8),
    "small": Shape(**SMALL, batch_size=16, tgt_len=64, mem_len=64),
    "characters": Shape(**SMALL | {"n_token": 205}, batch_size=16, tgt_len=64, mem_len=64),
    "wt103-base": Shape(**WT103_BASE, batch_size=4, tgt_len=150, mem_len=150),
    "nvidia-base": Shape(**NVIDIA_BASE, batch_size=32, tgt_len=192, mem_len=192),
    "nvidia-large": Shape(
        **NVIDIA_LARGE, batch_size=32, tgt_len=384, mem_len=384, dropout=0.2, dropatt=0.2
    ),
    "enwik8-large": Shape(
        **ENWIK8_LARGE,
        n_token=204,
        batch_size=16,
        tgt_len=768,
        mem_len=768,
        dropout=0.15,
        dropatt=0.15,
    ),
}
"""One that costs nothing; small ones of words and of characters; the paper's for WikiText-103; NVIDIA's; the paper's
for enwik8, of whose 64 streams there are 16. Lengths are those of their training."""

READING = {
    "tiny": Shape(**TINY, batch_size=1, tgt_len=8, mem_len=16),
    "small": Shape(**SMALL, batch_size=1, tgt_len=64, mem_len=640),
    "wt103-base": Shape(
        **WT103_BASE, batch_size=1, tgt_len=64, mem_len=640, same_length=True, clamp_len=400
    ),
    "nvidia-base": Shape(
        **NVIDIA_BASE, batch_size=1, tgt_len=64, mem_len=640, same_length=True, clamp_len=400
    ),
    "nvidia-large": Shape(
        **NVIDIA_LARGE, batch_size=1, tgt_len=128, mem_len=1600, same_length=True, clamp_len=1000
    ),
}
"""The same as they are evaluated: shorter segments, a longer memory."""


def add_shape_flags(
    parser: argparse.ArgumentParser, shapes: dict[str, Shape], default: str
) -> None:
    """Flags for shapes, device and dtype."""
    parser.add_argument(
        "--shapes", nargs="+", choices=shapes, default=[default], help=f"[{default}]"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--attn_impl", default="auto", help="ours: how attention is computed [auto]"
    )
    parser.add_argument("--batch_sizes", nargs="+", type=int, help="in place of the shapes' own")


def asked_for(
    args: argparse.Namespace, shapes: dict[str, Shape], **changes: object
) -> dict[str, Shape]:
    """The shapes chosen by the flags of `add_shape_flags`, by a label that includes the batch size."""
    found = {}
    for name in args.shapes:
        for batch_size in args.batch_sizes or [shapes[name].batch_size]:
            found[f"{name} batch {batch_size}"] = dataclasses.replace(
                shapes[name],
                batch_size=batch_size,
                device=args.device,
                dtype=args.dtype,
                attn_impl=args.attn_impl,
                **changes,
            )
    return found

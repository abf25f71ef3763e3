"""Registers, spills and memory of our Triton kernels on an H100 or H200 (sm_90), compiled without a GPU.

    python -m lab.benchmarks.aot [--head 64 ...] [--dtype bfloat16 ...] [--dropout 0 ...] [--window -1]
                             [--tile SIDE WARPS STAGES] [--markdown]
    python -m lab.benchmarks.aot --rows 512 2048

The operators are called as a model calls them, on tensors that nobody reads; each launch compiles its kernel, as
specialised as on a GPU, and goes no further. ptxas and cuobjdump come with Triton.
"""

import argparse
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from txl.ops.rel_attention import launch
from txl.ops.rel_attention.fused import fused

INSTRUCTIONS = ("HGMMA", "HMMA", "FFMA", "SHFL", "LDGSTS", "LDG", "LDS", "STS", "STL", "LDL", "BAR")


class Report(NamedTuple):
    """One compiled kernel; bytes of stack and shared memory per thread and program, instructions by name."""

    kernel: str
    side: int
    warps: int
    stages: int
    registers: int
    stack: int
    shared: int
    instructions: Counter[str]


@contextmanager
def compiling_only() -> Iterator[list[Any]]:
    """A context in which kernel launches only compile for sm_90; yields the list of (name, constants, compiled)."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class NoDriver:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    compiled: list[Any] = []
    launch = JITFunction.run

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **constants)
        compiled.append((self.__name__, constants, kernel))
        return kernel

    driver.set_active(NoDriver())
    JITFunction.run = compile_instead
    try:
        yield compiled
    finally:
        JITFunction.run = launch


def compile_attention(
    head: int, dtype: torch.dtype, dropout: float = 0.0, *, window: int = -1
) -> list[Report]:
    """Every kernel of one forward and backward pass, with the tiles in `launch.TILES`, of a backward pass that keeps
    the gradient of the logits, and of a forward pass of few queries over many keys, which several programs share."""
    B, N, T, S = 2, 16, 384, 768

    def heads(B: int, L: int) -> torch.Tensor:
        return torch.empty(B, L, N, head, dtype=dtype).transpose(1, 2).requires_grad_()

    def shared(S: int) -> list[torch.Tensor]:
        both = torch.empty(S, N, head, dtype=dtype), torch.empty(N, head), torch.empty(N, head)
        return [x.requires_grad_() for x in both]

    with compiling_only() as compiled:
        args = [heads(B, T), heads(B, S), heads(B, S), *shared(S)]
        out = fused(*args, scale=1.0, dropout=dropout, window=window, keep_mib=0)
        torch.autograd.grad(out, args, torch.empty_like(out))
    with compiling_only() as compiled_kept:
        out = fused(*args, scale=1.0, dropout=dropout, window=window, keep_mib=32)
        torch.autograd.grad(out, args, torch.empty_like(out))
    with compiling_only() as compiled_split:
        few, many = 64, 4096
        fused(
            heads(1, few),
            heads(1, many),
            heads(1, many),
            *shared(many),
            scale=1.0,
            dropout=dropout,
            window=window,
        )
    kept = {
        "backward_keys": "kept_keys",
        "kept_queries": "kept_queries",
        "kept_places": "kept_places",
    }
    split = {"forward": "forward_split", "join": "join"}
    for names, those in ((kept, compiled_kept), (split, compiled_split)):
        compiled += [(names[name], *rest) for name, *rest in those if name in names]
    return [report(*each) for each in _distinct(compiled)]


def compile_rows(d_model: int, d_inner: int, dtype: torch.dtype, dropout: float) -> list[Report]:
    """The kernels between the products of a layer."""
    from txl.ops import triton_layer_rows

    x, weight = torch.empty(6, d_model), torch.empty(d_model)
    y, seed = x.to(dtype), torch.zeros(1, dtype=torch.int64)
    z = torch.empty(6, d_inner, dtype=dtype)
    with compiling_only() as compiled:
        _, _, stats = triton_layer_rows.add_norm(x, y, weight, weight, seed, 1e-5, dropout)
        triton_layer_rows.add_norm_backward(x, y, x, y, weight, seed, stats, dropout)
        triton_layer_rows.relu(z, seed, dropout)
        triton_layer_rows.relu_backward(z, z, dropout)
    return [report(name.lstrip("_"), *rest) for name, *rest in compiled]


def _distinct(compiled: list[Any]) -> list[Any]:
    """One kernel per name; `copy_rows` may have run for several tensors."""
    return list({name: (name, *rest) for name, *rest in reversed(compiled)}.values())[::-1]


def report(name: str, constants: dict[str, Any], kernel: Any) -> Report:
    """The report of a kernel, from its machine code."""
    tools = Path(__import__("triton").__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(tools / "cuobjdump"), "--dump-resource-usage", "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = dict(re.findall(r"(\w+):(\d+)", text.split("Resource usage")[-1]))
    names = Counter(
        re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?([A-Z0-9]+)", text, re.MULTILINE)
    )
    return Report(
        name,
        next(constants[key] for key in ("W", "ROWS", "BLOCK", "block") if key in constants),
        kernel.metadata.num_warps,
        kernel.metadata.num_stages,
        int(usage["REG"]),
        int(usage["STACK"]),
        kernel.metadata.shared,
        Counter({key: names[key] for key in INSTRUCTIONS if names[key]}),
    )


def plain(reports: list[Report]) -> Iterator[str]:
    """One line per kernel, with instruction counts."""
    yield f"{'kernel':20} side warps stages | registers stack shared | instructions"
    for r in reports:
        names = " ".join(f"{key} {count}" for key, count in r.instructions.items())
        yield f"{r.kernel:20} {r.side:4} {r.warps:5} {r.stages:6} | {r.registers:9} {r.stack:5} {r.shared:6} | {names}"


def markdown(label: str, reports: list[Report]) -> Iterator[str]:
    """Rows of a table."""
    for r in reports:
        spills = f"{r.instructions['STL']} | {r.instructions['LDL']}"
        launch = f"{r.side}, {r.warps}, {r.stages}"
        yield f"| {label} | `{r.kernel}` | {launch} | {r.registers} | {r.stack} | {spills} | {r.shared:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--head", type=int, nargs="+", default=[64])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"])
    parser.add_argument(
        "--dropout", type=float, nargs="+", default=[0.0], help="the second and later: what differs"
    )
    parser.add_argument("--window", type=int, default=-1)
    parser.add_argument(
        "--tile", type=int, nargs=3, metavar=("SIDE", "WARPS", "STAGES"), help="for every kernel"
    )
    parser.add_argument(
        "--rows", type=int, nargs=2, metavar=("D_MODEL", "D_INNER"), help="a layer's rows instead"
    )
    parser.add_argument("--markdown", action="store_true", help="print one table")
    args = parser.parse_args()
    if args.tile:
        launch.TILES.update(dict.fromkeys(launch.TILES, launch.Tile(*args.tile)))
    if args.markdown:
        print("| | kernel | side, warps, stages | registers | stack | STL | LDL | shared memory |")
        print("|---|---|---|---|---|---|---|---|")
    if args.rows:
        for dtype, dropout in product(args.dtype, args.dropout):
            reports = compile_rows(*args.rows, getattr(torch, dtype), dropout)
            show(f"{dtype}, rows of {args.rows}", reports, as_table=args.markdown)
        return
    for dtype, head in product(args.dtype, args.head):
        seen: list[Report] = []
        for dropout in args.dropout:
            reports = compile_attention(head, getattr(torch, dtype), dropout, window=args.window)
            label = f"{dtype}, head {head}" + f", dropout {dropout}" * (dropout > 0)
            show(label, [r for r in reports if r not in seen], as_table=args.markdown)
            seen += reports


def show(label: str, reports: list[Report], *, as_table: bool) -> None:
    """Print the reports as text or as table rows."""
    print(
        *(markdown(label, reports) if as_table else (label, *plain(reports))), sep="\n", flush=True
    )


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    main()

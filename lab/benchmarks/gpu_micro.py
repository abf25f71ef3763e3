"""Parts of a training step of nvidia-base alone on a GPU: what single changes could bring.

    python -m lab.benchmarks.gpu_micro [--seconds 75] [--json FILE]

Products by the width of the head, one by one and together, in 16 and 8 bits; the head's loss in
chunks; the table's gradient; clipping and the optimizer; what stands between a layer's products, by
PyTorch's operators, by one kernel of ours and compiled. Prints ms, TFLOP/s and GB/s of each, by
events of the device; the second-level cache keeps what fits into it, as in a step.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl.ops import layer_rows
from txl.ops import linear_cross_entropy as head
from txl.ops.dropout import Dropout

FLOAT8 = torch.float8_e4m3fn


class Part(NamedTuple):
    """A piece of work, with its FLOP and the bytes that it must read and write."""

    name: str
    work: Callable[[], object]
    flop: int = 0
    n_byte: int = 0


class Sizes(NamedTuple):
    """Of an update: tokens, d_model, d_inner, words of the head, of the largest cluster, of all."""

    n_token: int = 6144
    d_model: int = 512
    d_inner: int = 2048
    n_head_word: int = 20_000
    n_tail_word: int = 160_000
    n_word: int = 267_735
    n_layer: int = 16


TINY = Sizes(96, 32, 64, 304, 800, 1000, 2)


def randn(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape, device=device, dtype=dtype)


def product(name: str, a: Tensor, b: Tensor) -> Part:
    """a (M, K) times b (K, N)."""
    return Part(name, lambda: a @ b, 2 * a.shape[0] * a.shape[1] * b.shape[1])


def heads(of: Sizes, device: torch.device) -> Iterator[Part]:
    """The head by the number of its rows: begin they on 16 bytes or not?"""
    x = randn(device, of.n_token, of.d_model)
    for n in (of.n_head_word, of.n_head_word + 3, of.n_head_word + 8):
        weight, dlogit = randn(device, n, of.d_model), randn(device, of.n_token, n)
        yield product(f"head of {n}: logits", x, weight.T)
        yield product(f"head of {n}: gradient of hidden states", dlogit, weight)
        yield product(f"head of {n}: gradient of the weight", dlogit.T, x)


def products(of: Sizes, device: torch.device) -> Iterator[Part]:
    """Those of a layer, apart and together; of the features of all layers."""
    D, L = of.d_model, of.n_token
    widths = {"q": (D, D), "k, v of memory and segment": (D, 2 * D), "q, k, v": (D, 3 * D)}
    widths |= {"first of feed-forward": (D, of.d_inner), "second": (of.d_inner, D)}
    for name, (n_in, n_out) in widths.items():
        x, weight, grad = (
            randn(device, L, n_in),
            randn(device, n_out, n_in),
            randn(device, L, n_out),
        )
        yield product(name, x, weight.T)
        yield product(f"{name}: gradient of its input", grad, weight)
        yield product(f"{name}: gradient of its weight", grad.T, x)
    feats, weights = randn(device, 384, D), randn(device, of.n_layer * D, D)
    yield product("position features of all layers", feats, weights.T)
    one_by_one = partial(lambda: [feats @ weight.T for weight in weights.split(D)])
    yield Part("the same layer by layer", one_by_one, 2 * 384 * D * len(weights))
    if device.type == "cuda":
        one = torch.ones((), device=device)
        for n_in, n_out in ((D, of.d_inner), (of.d_inner, D)):
            a = torch.randn(L, n_in, device=device).to(FLOAT8)
            b = torch.randn(n_out, n_in, device=device).to(FLOAT8)
            scaled = partial(torch._scaled_mm, a, b.T, one, one, out_dtype=torch.bfloat16)
            yield Part(f"{n_in} x {n_out} in 8 bits", scaled, 2 * L * n_in * n_out)


def losses(of: Sizes, device: torch.device) -> Iterator[Part]:
    """Loss and gradients of the head, by how many logits are held at once."""
    hidden = torch.randn(of.n_token, of.d_model, device=device, requires_grad=True)
    weight = torch.randn(of.n_head_word + 3, of.d_model, device=device, requires_grad=True)
    bias = torch.zeros(len(weight), device=device, requires_grad=True)
    target = torch.randint(len(weight), (of.n_token,), device=device)

    def loss(budget: int, same_weight: bool) -> None:
        head.BUDGET[device.type] = budget
        with torch.autocast(device.type, torch.bfloat16):
            nats = head.linear_cross_entropy(hidden, weight, bias, target, same_weight=same_weight)
        torch.autograd.grad(nats.mean(), [hidden, weight, bias])

    n_logit = of.n_token * len(weight)
    flop = 6 * n_logit * of.d_model
    before = head.BUDGET[device.type]
    yield Part("loss of the head by autograd", partial(loss, 2 * n_logit, False), flop)
    for n_chunk in (1, 4, 16):
        name = f"loss with its gradients in {n_chunk} chunks"
        yield Part(name, partial(loss, max(len(weight), n_logit // n_chunk), True), flop)
    head.BUDGET[device.type] = before


def updates(of: Sizes, device: torch.device) -> Iterator[Part]:
    """The largest cluster, the gradient of the table, and the optimizer of all weights."""
    D = of.d_model
    tail = randn(device, of.n_tail_word, D)
    for n in (227, 384):
        x = randn(device, n, D)
        flop = 2 * n * tail.numel()
        yield Part(
            f"largest cluster, {n} words", partial(torch.mm, x, tail.T), flop, 2 * tail.numel()
        )
    ids = torch.randint(of.n_word, (of.n_token,), device=device)
    grad, table = (
        torch.randn(of.n_token, D, device=device),
        torch.zeros(of.n_word, D, device=device),
    )
    sort = torch.ops.aten.embedding_dense_backward
    yield Part("gradient of the table by sorted ids", lambda: sort(grad, ids, of.n_word, -1, False))
    yield Part("gradient added to the table", lambda: table.index_add_(0, ids, grad))
    yield Part("sum of two tables", lambda: table + table, 0, 12 * table.numel())
    shapes = [(D, D)] * 5 + [(of.d_inner, D)] * 2
    weights = [table, *(torch.zeros(*shape, device=device) for shape in shapes * of.n_layer)]
    parameters = [nn.Parameter(weight) for weight in weights]
    for p in parameters:
        p.grad = torch.randn_like(p)
    n = sum(p.numel() for p in parameters)
    adam = torch.optim.Adam(parameters, lr=1e-9, fused=True)
    yield Part("fused Adam", adam.step, 0, 28 * n)
    clip = partial(nn.utils.clip_grad_norm_, parameters, 0.25)
    yield Part("clip_grad_norm_", clip, 0, 12 * n)
    norm = partial(nn.utils.get_total_norm, [p.grad for p in parameters if p.grad is not None])
    yield Part("norm of the gradients", norm, 0, 4 * n)


def rows(of: Sizes, device: torch.device) -> Iterator[Part]:
    """What stands between the products of a layer."""
    x = torch.randn(of.n_token, of.d_model, device=device)
    y = randn(device, of.n_token, of.d_model)
    z, bias = randn(device, of.n_token, of.d_inner), torch.zeros(of.d_inner, device=device)
    norm, drop = nn.LayerNorm(of.d_model, device=device), Dropout(0.1)
    n_norm, n_relu = 12 * x.numel(), 4 * z.numel()

    def add_norm() -> Tensor:
        return norm(x + F.dropout(y, 0.1))

    def relu() -> Tensor:
        return F.dropout(F.relu(z), 0.1)

    yield Part("dropout, sum, norm by operators", add_norm, 0, n_norm)
    yield Part("ReLU, dropout by operators", relu, 0, n_relu)
    if device.type == "cuda":
        ours = partial(layer_rows.add_norm, x, y, drop, torch.add, norm)
        yield Part("dropout, sum, norm in one kernel", ours, 0, n_norm)
        yield Part(
            "ReLU, dropout in one kernel",
            partial(layer_rows.bias_relu, z, bias, drop),
            0,
            n_relu,
        )
        yield Part("dropout, sum, norm compiled", torch.compile(add_norm), 0, n_norm)
        yield Part("ReLU, dropout compiled", torch.compile(relu), 0, n_relu)


def measured(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each part, until the time is used."""
    begin = time.perf_counter()
    of = Sizes() if device.type == "cuda" else TINY
    for group in (heads, products, losses, rows, updates):
        for part in group(of, device):
            if time.perf_counter() - begin > seconds:
                print("no time for the rest", flush=True)
                return
            yield _row(part, device)


def _row(part: Part, device: torch.device) -> dict[str, Any]:
    try:
        ms = _ms(part.work, device)
    except RuntimeError as error:
        print(f"{part.name:42} failed: {str(error).splitlines()[0][:90]}", flush=True)
        return {"part": part.name, "error": str(error).splitlines()[0]}
    row = {
        "part": part.name,
        "ms": ms,
        "tflops": part.flop / ms / 1e9,
        "gb_per_s": part.n_byte / ms / 1e6,
    }
    print(
        f"{part.name:42} {ms:8.4f} ms {row['tflops']:7.1f} TFLOP/s {row['gb_per_s']:7.0f} GB/s",
        flush=True,
    )
    return row


def _ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call: of twenty on a GPU, after three."""
    if device.type == "cpu":
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 20


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=positive, default=75, help="for all of them [75]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    write_as_found(args.json, measured(torch.device(args.device), args.seconds))


if __name__ == "__main__":
    main()

"""Memories of agents: one step of many environments, and a learner's pass over a segment of them.

    python -m lab.benchmarks.agents [--ding CLONE] [--episodic CLONE] [--rounds 11] [--json FILE]

`txl` is `MemoryTransformer` with the GRU gate, `txl hidden` the same without `projected`; `gru` is PyTorch's GRU of as
many weights. `ding` is GTrXL of a clone of opendilab/DI-engine, `episodic` the transformer of a clone of
MarcoMeter/episodic-transformer-memory-ppo, with its gate. All have 4 layers of 128, 4 heads and a memory of 128 steps
that is full. The learner's pass is forward and backward over `--n_step` steps; `episodic` reads each of them with a
window of its own. They are asked in turn, and ratios are taken round by round.
"""

import argparse
import importlib
import math
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.benchmarks.attention import in_turn
from lab.benchmarks.peers import positive, ratio, say_machine, write_as_found
from txl import Context, MemoryTransformer, ModelConfig

N_LAYER, D, HEADS, MEMORY = 4, 128, 4, 128
Calls = dict[str, Callable[[], object]]
"""What a memory is asked for: "act", a step without gradients; "learn", a pass forward and backward."""


def learner(
    run: Callable[[Tensor], Tensor], module: nn.Module, x_BTD: Tensor
) -> Callable[[], object]:
    """Forward and backward over a segment."""
    return lambda: torch.autograd.grad(
        run(x_BTD).square().mean(), [*module.parameters()], allow_unused=True
    )


def without_gradients(run: Callable[[], object]) -> Callable[[], object]:
    return torch.no_grad()(run)


def ours(n_env: int, n_step: int) -> tuple[dict[str, Calls], int]:
    """`txl` and `txl hidden`, and the number of their weights."""
    shape = ModelConfig(
        n_layer=N_LAYER,
        n_head=HEADS,
        d_head=D // HEADS,
        d_model=D,
        d_inner=2 * D,
        pre_lnorm=True,
        gate="gru",
    )
    body = MemoryTransformer(shape)
    context = Context(tgt_len=n_step, mem_len=MEMORY, same_length=True)
    no_reset_BT, x_BTD = torch.zeros(n_env, n_step, dtype=torch.bool), torch.randn(n_env, n_step, D)
    with torch.no_grad():
        _, memory = body(
            torch.randn(n_env, MEMORY, D),
            None,
            context,
            torch.zeros(n_env, MEMORY, dtype=torch.bool),
        )
        acting = {"txl": body.projected(memory), "txl hidden": memory}

    def act(name: str) -> None:  # the memory moves on, as in a rollout
        _, acting[name] = body(x_BTD[:, :1], acting[name], context, no_reset_BT[:, :1])

    learn = learner(lambda x: body(x, memory, context, no_reset_BT)[0], body, x_BTD)
    calls: dict[str, Calls] = {
        "txl": {"act": without_gradients(lambda: act("txl")), "learn": learn},
        "txl hidden": {"act": without_gradients(lambda: act("txl hidden"))},
    }
    return calls, sum(p.numel() for p in body.parameters())


def recurrent(n_env: int, n_step: int, n_weight: int) -> Calls:
    """A GRU of as many weights, of two layers."""
    # layers of h from D and from h: 3 (D h + h^2) + 6 h and 6 h^2 + 6 h
    h = round((-(3 * D + 12) + math.sqrt((3 * D + 12) ** 2 + 36 * n_weight)) / 18)
    gru = nn.GRU(D, h, num_layers=2, batch_first=True)
    x_BTD, state = torch.randn(n_env, n_step, D), torch.zeros(2, n_env, h)
    act = without_gradients(lambda: gru(x_BTD[:, :1], state))
    return {"act": act, "learn": learner(lambda x: gru(x, state)[0], gru, x_BTD)}


def ding(clone: Path, n_env: int, n_step: int) -> Calls:
    """GTrXL of DI-engine, imported without the rest of its package."""
    for name in ("ding", "ding.torch_utils", "ding.torch_utils.network"):
        package = types.ModuleType(name)
        package.__path__ = [str(clone / name.replace(".", "/"))]
        sys.modules[name] = package
    compatibility = types.ModuleType("ding.compatibility")
    compatibility.__dict__["torch_ge_131"] = lambda: True
    sys.modules["ding.compatibility"] = compatibility
    model = importlib.import_module("ding.torch_utils.network.gtrxl").GTrXL(
        D, head_dim=D // HEADS, embedding_dim=D, head_num=HEADS, layer_num=N_LAYER, memory_len=MEMORY,
        use_embedding_layer=False,
    )  # fmt: skip
    x_TBD = torch.randn(n_step, n_env, D)
    model.reset_memory(n_env)
    start = model.get_memory().detach()

    def run(x: Tensor) -> Tensor:
        model.reset_memory(state=start)
        return model(x)["logit"]

    return {"act": without_gradients(lambda: model(x_TBD[:1])), "learn": learner(run, model, x_TBD)}


def episodic(clone: Path, n_env: int, n_step: int) -> Calls:
    """The transformer of episodic-transformer-memory-ppo, imported without its environments."""
    utils = types.ModuleType("utils")
    utils.__dict__["Module"] = nn.Module
    sys.modules["utils"] = utils
    sys.path.insert(0, str(clone))
    config = {"num_blocks": N_LAYER, "embed_dim": D, "num_heads": HEADS, "memory_length": MEMORY}
    config |= {
        "positional_encoding": "relative",
        "layer_norm": "pre",
        "gtrxl": True,
        "gtrxl_bias": 2.0,
    }
    model = importlib.import_module("transformer").Transformer(config, D, MEMORY)
    sys.path.pop(0)

    def run(x_LD: Tensor) -> Tensor:
        n = len(x_LD)
        mask, index = torch.ones(n, MEMORY, dtype=torch.bool), torch.arange(MEMORY).expand(n, -1)
        return model(x_LD, torch.zeros(n, MEMORY, N_LAYER, D), mask, index)[0]

    x_LD = torch.randn(n_env * n_step, D)
    return {"act": without_gradients(lambda: run(x_LD[:n_env])), "learn": learner(run, model, x_LD)}


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each program and question, printed one by one."""
    programs, n_weight = ours(args.n_env, args.n_step)
    programs["gru"] = recurrent(args.n_env, args.n_step, n_weight)
    for name, clone in (("ding", args.ding), ("episodic", args.episodic)):
        if clone is not None:
            programs[name] = globals()[name](clone, args.n_env, args.n_step)
    for question in ("act", "learn"):
        runs = {name: calls[question] for name, calls in programs.items() if question in calls}
        seconds = in_turn(runs, torch.device("cpu"), args.rounds)
        for name in runs:
            beside = vars(ratio(seconds["txl"], seconds[name]))
            ms = 1000 * statistics.median(seconds[name])
            print(
                f"{question:6} {name:12} {ms:9.2f} ms  txl is {beside['median']:5.2f} times as fast",
                flush=True,
            )
            yield {
                "question": question,
                "program": name,
                "ms": ms,
                "seconds": seconds[name],
                "txl_is_faster": beside,
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ding", type=Path, metavar="CLONE", help="of opendilab/DI-engine")
    parser.add_argument(
        "--episodic",
        type=Path,
        metavar="CLONE",
        help="of MarcoMeter/episodic-transformer-memory-ppo",
    )
    parser.add_argument("--n_env", type=positive, default=64, help="environments [64]")
    parser.add_argument(
        "--n_step", type=positive, default=32, help="steps of the learner's pass [32]"
    )
    parser.add_argument("--rounds", type=positive, default=11, help="times that each is asked [11]")
    parser.add_argument("--threads", type=positive, default=1, help="threads of PyTorch [1]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    say_machine()
    write_as_found(
        args.json, measured(args), threads=args.threads, n_env=args.n_env, n_step=args.n_step
    )


if __name__ == "__main__":
    main()

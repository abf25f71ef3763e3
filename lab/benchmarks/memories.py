"""Memories one token at a time, and in segments: time and what is held, by how much was read before.

    python -m lab.benchmarks.memories [--read 1000 10000 100000] [--rounds 7] [--json FILE]

A small model, one row, no gradients. A memory is as long as its settings allow to reach back so far, and full of random
values: `fifo` and `expire_span` (whose spans are endless here) hold all tokens, `compressive` one state for four, `knn`
all keys of one layer, the others what they hold of any text. Memories are asked in turn, and move on as they read.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.benchmarks.attention import in_turn
from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl import Context, Memory, ModelConfig, TransformerXL
from txl.config import build
from txl.inference.frozen import Frozen, fresh_memory
from txl.inference.key_value import KeyValue
from txl.inference.key_values import KeyValueMemory
from txl.memory import full_memory, n_kept_at_most
from txl.model.streams import of_named
from txl.registry import MEMORIES

SIZES: dict[str, Any] = {
    "n_token": 1000,
    "n_layer": 2,
    "n_head": 4,
    "d_head": 32,
    "d_model": 128,
    "d_inner": 256,
}
WINDOW, RATE, ENDLESS = 64, 4, 2**30


def settings(name: str, n_read: int) -> dict[str, Any]:
    """Of model and context, so that the memory reaches back `n_read` tokens if it can."""
    own: dict[str, dict[str, Any]] = {
        "fifo": {"mem_len": n_read},
        "none": {"mem_len": 0},
        "compressive": {"compressed_len": (n_read - WINDOW) // RATE, "compress_rate": RATE},
        "expire_span": {"mem_len": n_read, "max_span": ENDLESS},
        "knn": {"lookup_len": n_read - WINDOW},
        "recurrent_tokens": {"mem_len": 0},
    }
    return {"memory": name, "mem_len": WINDOW, "tgt_len": WINDOW} | own.get(name, {})


def filled(model: TransformerXL, context: Context, n_read: int) -> Memory | KeyValueMemory:
    """The memory after so many tokens, of random values."""
    memory, n_head, d_head = fresh_memory(model, 1), model.config.n_head, model.config.d_head
    n_kept = n_kept_at_most(model.config, context)
    if isinstance(memory, KeyValueMemory):
        empty = KeyValue.empty(1, n_head, d_head, like=torch.empty(0))
        k_BNMH, v_BNMH = torch.randn(2, 1, n_head, n_kept, d_head)
        of_rule = {
            "age": torch.arange(n_kept, 0, -1)[None],
            "span": torch.full((1, n_kept), float(ENDLESS)),
        }
        states = [
            empty.appended(k_BNMH, v_BNMH).with_extra({name: of_rule[name] for name in layer.extra})
            for layer in memory.layers
        ]
        return memory.of(states)
    of_name: dict[str, Callable[[Tensor], Tensor]] = {
        "n_own": lambda x: torch.full_like(x, context.lookup_len),
        "norm": lambda x: torch.rand_like(x) * n_read,
    }
    named = full_memory(model.config, context, 1, like=torch.empty(0)).named()
    return of_named(
        {
            name: of_name.get(name.partition(".")[2], torch.randn_like)(x)
            for name, x in named.items()
        }
    )


def held_bytes(memory: Memory | KeyValueMemory) -> int:
    """Of what is remembered, without spare room."""
    if isinstance(memory, Memory):
        return sum(x.numel() * x.element_size() for x in memory.named().values())
    tensors = [
        x for layer in memory.layers for x in (layer.k_BNMH, layer.v_BNMH, *layer.extra.values())
    ]
    return sum(x.numel() * x.element_size() for x in tensors)


def reader(name: str, n_read: int, n_new: int) -> tuple[Callable[[], object], int]:
    """Reads `n_new` more tokens at each call; and what it holds, in bytes."""
    torch.manual_seed(0)
    asked = settings(name, n_read)
    model = TransformerXL(build(ModelConfig, asked, **SIZES)).eval()
    context, frozen = build(Context, asked), Frozen(model)
    state = {"memory": filled(model, context, n_read)}
    token_BT = torch.randint(0, SIZES["n_token"], (1, n_new))

    @torch.inference_mode()
    def read() -> None:
        _, state["memory"] = frozen(token_BT, state["memory"], context)

    read()
    return read, held_bytes(state["memory"])


def rows(names: list[str], reads: list[int], n_round: int) -> Iterator[dict[str, Any]]:
    """A memory's figures at a length, one after the other."""
    for n_read in reads:
        found: dict[str, dict[str, Any]] = {
            name: {"memory": name, "read": n_read} for name in names
        }
        for n_new in (1, WINDOW):
            readers = {}
            for name in names:
                readers[name], n_byte = reader(name, n_read, n_new)
                found[name]["mib"] = n_byte / 2**20
            seconds = in_turn(readers, torch.device("cpu"), n_round)
            for name, each in seconds.items():
                found[name][f"seconds_{n_new}"] = each
                found[name][f"ms_a_token_{n_new}"] = 1000 * statistics.median(each) / n_new
        yield from found.values()


def table(found: list[dict[str, Any]]) -> list[str]:
    """A row a memory, in Markdown: ms a token alone, ms a token in segments, MiB, at each length."""
    reads = list(dict.fromkeys(row["read"] for row in found))
    lines = [
        f"| memory | {' | '.join(f'{n:,} tokens read' for n in reads)} |",
        "|---" * (len(reads) + 1) + "|",
    ]
    for name in dict.fromkeys(row["memory"] for row in found):
        cells = [
            f"{row['ms_a_token_1']:.1f}, {row[f'ms_a_token_{WINDOW}']:.2f}, {row['mib']:.2f}"
            for row in found
            if row["memory"] == name
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--memories", nargs="+", choices=list(MEMORIES), default=list(MEMORIES), help="[all]"
    )
    parser.add_argument(
        "--read",
        nargs="+",
        type=positive,
        default=[1000, 10_000, 100_000],
        help="tokens read before",
    )
    parser.add_argument(
        "--rounds", type=positive, default=7, help="times that each memory is asked [7]"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    say_machine()
    found = write_as_found(args.json, rows(args.memories, args.read, args.rounds), **SIZES)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()

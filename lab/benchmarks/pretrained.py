"""A pretrained decoder: the perplexity of a text by what is remembered, and its speed beside transformers' own.

    python -m lab.benchmarks.pretrained FOLDER --text FILE [--n_token 8192] [--json FILE] [--plot FILE]
    python -m lab.benchmarks.pretrained FOLDER --peer PYTHON [--mem_lens 512 2048 8192] [--pairs 7] [--json FILE]
    python -m lab.benchmarks.pretrained FOLDER --peer PYTHON --device cuda --dtypes bfloat16 float32

FOLDER is one of Hugging Face, such as lab/scripts/get_smollm2.sh writes. The text is read as it stands, without a
beginning token, in segments of 128 tokens, and every token but the first is scored. PYTHON is that of an environment
with torch and transformers.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import txl
from lab.benchmarks.peers import Peer, compare, positive, rows, say_machine, write_as_found
from txl.config import Context
from txl.data_utils.free_text import read_text
from txl.evaluation.score import score_text
from txl.language.model import LanguageModel
from txl.memory import full_memory
from txl.runtime.log import perplexity

TGT_LEN = 128
MEM_LENS = (0, 128, 512, 2048)
N_SINK = 4
UNITS = {"cpu": {"generate": 8, "score": 2}, "cuda": {"generate": 64, "score": 32}}
"""Of each task in one turn."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", metavar="FILE")
    parser.add_argument("--n_token", type=positive, default=8192, help="of the text [8192]")
    parser.add_argument("--peer", metavar="PYTHON", help="of an environment with transformers")
    parser.add_argument(
        "--mem_lens", type=positive, nargs="+", default=[512, 2048, 8192], help="[512 2048 8192]"
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32"], help="[float32]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of --peer")
    parser.add_argument("--pairs", type=positive, default=7, help="times that each is asked [7]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the perplexities there")
    args = parser.parse_args()
    if (args.text is None) == (args.peer is None):
        parser.error("give --text for perplexities, or --peer for speed")
    say_machine()
    if args.text is None:
        write_as_found(args.json, speeds(args))
        return
    found = write_as_found(args.json, perplexities(args), text=args.text)
    if args.plot is not None:
        plot(found, args.plot)


def perplexities(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each memory, printed as it is found."""
    lm = txl.load(args.folder)
    ids = lm.encode(read_text(args.text))[: args.n_token]
    print("| memory | mem_len | MiB of a text's memory | perplexity | CPU s |\n" + "|---" * 5 + "|")
    for memory, mem_len in [
        ("none", 0),
        *(("fifo", n) for n in (*MEM_LENS[1:], len(ids))),
        *(("sinks", n) for n in MEM_LENS[1:]),
    ]:
        row = perplexity_of(lm, ids, memory, mem_len)
        print(
            f"| {memory} | {mem_len} | {row['mib']:.1f} | {row['perplexity']:.2f} |"
            f" {row['cpu_seconds']:.0f} |",
            flush=True,
        )
        yield row


def perplexity_of(lm: LanguageModel, ids: list[int], memory: str, mem_len: int) -> dict[str, Any]:
    """Of all tokens but the first, and what is remembered as keys and values."""
    settings = {"n_sink": N_SINK} if memory == "sinks" else {}
    lm.model.remember(memory, **settings)
    config = lm.model.config
    context = Context(tgt_len=TGT_LEN, mem_len=mem_len)
    begin = time.process_time()
    nats_N = score_text(lm.model, np.array(ids), context, first=1)
    seconds = time.process_time() - begin
    like = torch.empty(0, device="meta")
    n_kept = full_memory(config, context, 1, like=like).length
    n_float = 2 * config.n_layer * config.n_key_head * config.d_head * n_kept
    return {
        "memory": memory,
        "mem_len": mem_len,
        "tokens": len(nats_N),
        "mib": 4 * n_float / 2**20,
        "perplexity": perplexity(float(nats_N.double().mean())),
        "cpu_seconds": seconds,
    }


def speeds(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Ours and theirs in turn: a token after so many, and a segment of 128."""
    for mem_len in args.mem_lens:
        for task, n in UNITS[args.device].items():
            peers = []
            for dtype in args.dtypes:
                how = json.dumps(
                    {
                        "folder": str(args.folder.resolve()),
                        "tgt_len": TGT_LEN,
                        "mem_len": mem_len,
                        "dtype": dtype,
                        "device": args.device,
                    }
                )
                peers.append(Peer("decoder", how, dtype=dtype))
                peers.append(Peer("decoder_huggingface", how, python=args.peer, dtype=dtype))
            try:
                compare(peers, task, n, pairs=args.pairs)
            finally:
                for peer in peers:
                    peer.close()
            n_token = {"generate": 1, "score": TGT_LEN}[task]
            yield from rows(peers, f"memory {mem_len}", task, n * n_token)


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Perplexity by the length of the memory, with the first tokens and without."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    n_token = found[0]["tokens"]
    of_whole = next(row for row in found if row["mem_len"] > n_token)["perplexity"]
    none = found[0]["perplexity"]
    for memory, label in (("fifo", "the last M tokens"), ("sinks", f"and the first {N_SINK}")):
        rows_of = [row for row in found if row["memory"] == memory and row["mem_len"] <= n_token]
        x = [row["mem_len"] for row in rows_of]
        y = [row["perplexity"] for row in rows_of]
        axes.plot(x, y, marker="o", label=label)
    axes.axhline(none, color="grey", linestyle=":", label="no memory")
    axes.axhline(of_whole, color="grey", linestyle="--", label="the whole text")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("M, tokens remembered")
    axes.set_ylabel("perplexity")
    axes.set_title("A pretrained model needs its first tokens", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()

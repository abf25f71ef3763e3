"""What each memory of a study of a pretrained decoder holds and takes, and the picture of the study.

    python -m lab.benchmarks.pretrained_memories models/smollm2 --text FILE [--study FILE] [--json FILE]
    python -m lab.benchmarks.pretrained_memories --results FILE [FILE ...] --costs FILE --plot FILE

A memory is given to the decoder as it is, with the lengths that a row of the study has at each size, and reads FILE one
segment after another, in float32 by one thread. Printed: milliseconds of CPU a token over a full memory, the softmax
left out, and MiB that the reader holds.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import txl
from lab.benchmarks.peers import say_machine, write_as_found
from lab.studies.plan import read_study
from txl.config import Context, names_of
from txl.data_utils.free_text import read_text
from txl.inference.reader import Reader
from txl.language.model import LanguageModel
from txl.memory.compressive import Compressive
from txl.model.parts import reads
from txl.registry import MEMORIES

SIZES = ("10 MiB", "50 MiB")
"""The last words of the evaluations of the study."""
N_TIMED = 3
"""Segments."""
MARKERS = "osv^DPX*<>"
"""Of memories."""
LINES = {"as loaded": ":", "its weights": "--", "all weights": "-"}
"""By what has learned, which a row of the study says after its memory."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a folder of Hugging Face")
    parser.add_argument("--text", metavar="FILE")
    parser.add_argument("--study", type=Path, default=Path("lab/study_files/pretrained.toml"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="study.json of the study; of several, a row is that of the last that has it",
    )
    parser.add_argument("--costs", type=Path, metavar="FILE", help="what --json has written")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the study there")
    args = parser.parse_args()
    if args.plot is not None and args.results is not None and args.costs is not None:
        plot(rows_of(args.results), json.loads(args.costs.read_text()), args.plot)
        return
    if args.model is None or args.text is None or args.plot is not None:
        parser.error("give a model and --text, or --results, --costs and --plot")
    say_machine()
    write_as_found(args.json, costs(args), text=args.text)


def costs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each memory and size, printed as it is found."""
    torch.set_num_threads(1)
    lm = txl.load(args.model, device="cpu")
    ids = lm.encode(read_text(args.text))
    study = read_study(args.study)
    seen = set()
    print("| memory | size | MiB held | ms a token |\n|---|---|---|---|")
    for (name, flags), size in itertools.product(study.variants.items(), SIZES):
        own = next(f for e, f in study.evaluations_of(name).items() if e.endswith(size))
        asked = {**flags, **own}
        if (asked["memory"], size) in seen:
            continue
        seen.add((asked["memory"], size))
        row = {"memory": asked["memory"], "size": size, **cost_of(lm, ids, asked)}
        print(f"| {row['memory']} | {size} | {row['mib']:.1f} | {row['ms']:.2f} |", flush=True)
        yield row


def cost_of(lm: LanguageModel, ids: list[int], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of a memory and its lengths, after as many tokens as fill it."""
    memory = asked["memory"]
    lm.model.remember(memory, **{k: v for k, v in asked.items() if k in reads(MEMORIES[memory])})
    lengths = {name: value for name, value in asked.items() if name in names_of(Context)}
    context = Context(**lengths)
    n_compressed = (context.compressed_len or 0) * lm.model.config.settings(
        Compressive.Settings
    ).compress_rate
    n_kept = context.mem_len + n_compressed + (asked.get("lookup_len") or 0)
    n_before = (-(-n_kept // context.tgt_len) + 2) * context.tgt_len  # whole segments
    n_timed = N_TIMED * context.tgt_len
    reader = Reader(lm.model.eval(), context, 1)
    with torch.inference_mode(), lm.computing():
        _read(reader, ids[:n_before], context.tgt_len)
        begin = time.process_time()
        _read(reader, ids[n_before : n_before + n_timed], context.tgt_len)
        seconds = time.process_time() - begin
    return {"ms": 1000 * seconds / n_timed, "mib": held_bytes(reader) / 2**20, **lengths}


def _read(reader: Reader, ids: list[int], tgt_len: int) -> None:
    for part_1T in torch.tensor([ids]).split(tgt_len, dim=1):
        reader.read(part_1T)


def held_bytes(reader: Reader) -> int:
    """Of all tensors that a reader holds besides those of its model."""
    of_storage: dict[int, int] = {}
    left: list[object] = [reader]
    known: set[int] = set()
    while left:
        one = left.pop()
        if id(one) in known or isinstance(one, nn.Module):
            continue
        known.add(id(one))
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            of_storage[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        else:
            left += getattr(one, "__dict__", {}).values()
    return sum(of_storage.values())


def plot(results: dict[str, Any], costs_of: dict[str, Any], path: Path) -> None:
    """Perplexity by what is held and by the time of a token: of each row at both sizes."""
    from matplotlib.figure import Figure

    cost = {(row["memory"], row["size"]): row for row in costs_of["rows"]}
    figure = Figure(figsize=(8, 4), layout="constrained")
    sides = figure.subplots(1, 2, sharey=True)
    memories = list(dict.fromkeys(memory for memory, _ in cost))
    for name, found in sorted(points(results).items()):
        memory, _, trained = name.partition(", ")
        i = memories.index(memory)
        for axes, what in zip(sides, ("mib", "ms"), strict=True):
            x = [cost[memory, size][what] for size in found]
            axes.plot(
                x,
                list(found.values()),
                color=f"C{i}",
                marker=MARKERS[i % len(MARKERS)],
                linestyle=LINES.get(trained, "-"),
                label=name,
                linewidth=1,
            )
    sides[0].set_xlabel("MiB held, float32")
    sides[0].set_xscale("log")
    sides[1].set_xlabel("ms of CPU a token")
    sides[0].set_yscale("log", base=2)
    sides[0].set_yticks([15, 20, 30, 40, 50], ["15", "20", "30", "40", "50"])
    sides[0].set_ylabel("perplexity of WikiText-103's test")
    sides[1].legend(bbox_to_anchor=(1.02, 1), loc="upper left", fontsize=7)
    figure.savefig(path, dpi=100)


MOST = 60.0
"""Perplexities beyond are those of a memory that has not learned, and are left out of the picture."""


def rows_of(paths: list[Path]) -> dict[str, Any]:
    """What one study.json would hold of the runs in several. Where it names the text and code of a
    row, because there are several, the row has the name of the study.
    """
    runs: dict[str, Any] = {}
    for path in paths:
        for name, of_row in json.loads(path.read_text())["runs"].items():
            if of_row:
                runs[name.removesuffix(f" ({of_row[0].get('source')})")] = of_row
    return {"runs": runs}


def points(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean perplexity of a row by size, those that can be drawn."""
    found: dict[str, dict[str, float]] = {}
    for name, runs in results["runs"].items():
        for size in SIZES:
            values = [
                run["values"].get(f"wiki, {size}, cut", run["values"].get(f"wiki, {size}"))
                for run in runs
            ]
            if values and max(values) <= MOST and not name.startswith("none"):
                found.setdefault(name, {})[size] = sum(values) / len(values)
    return found


if __name__ == "__main__":
    main()

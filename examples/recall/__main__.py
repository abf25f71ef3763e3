"""What memories recall: facts, a gap of noise, questions. Trains a small model with each memory and draws a picture:

python -m examples.recall --out runs/recall
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from txl import Context, ModelConfig, TransformerXL
from txl.config import SEED, SIZE, Checked, UsageError, build, option, require
from txl.files import written_whole
from txl.programs.run import run
from txl.runtime.records import read_json, require_fields
from txl.settings.flags import read_flags
from txl.training.config import TrainConfig
from txl.training.init import init_weights

N_KEY, N_VALUE, N_NOISE, N_FACT = 8, 8, 16, 4
N_TOKEN = N_KEY * N_VALUE + N_KEY + N_NOISE
SEGMENT, SHORTEST, N_WARMUP = 32, 10, 50
RECORD = {"settings": dict[str, Any], "rows": list[dict[str, Any]]}
"""What recall.json holds."""
MODELS: dict[str, dict[str, Any]] = {
    "none": {},
    "fifo": {"mem_len": 32},
    "sinks": {"mem_len": 28, "n_sink": 4},
    "compressive": {"mem_len": 32, "compressed_len": 32, "compress_rate": 4},
    "expire_span": {"mem_len": 512, "max_span": 2**14, "span_ramp": 128, "span_loss": 1e-4},
    "infini": {"mem_len": 32, "infini_update": "delta"},
    "knn": {"mem_len": 32, "lookup_len": 2**14, "lookup_k": 16},
    "neural": {"mem_len": 32},
    "recurrent_tokens": {"n_memory_token": 8},
    "recurrent_hidden": {
        "memory": "recurrent_tokens",
        "n_memory_token": 8,
        "tokens_of": "hidden",
    },
}
"""Settings of model and context for each memory, which has the name of the row unless it is among them."""


@dataclass(frozen=True, kw_only=True)
class RecallConfig(Checked):
    """The trainings and the questions."""

    out: str = option(
        "runs/recall",
        "folder of recall.json and recall.png; trainings that are there are not repeated",
    )
    memories: tuple[str, ...] = option(tuple(MODELS), "memories to train with")
    seeds: tuple[int, ...] = option((1, 2, 3), "random seeds", **SEED)
    n_step: int = option(400, "updates of each model", **SIZE)
    n_row: int = option(32, "rows of a batch", **SIZE)
    longest: int = option(
        256,
        "longest gap in training; they are drawn evenly on a logarithmic scale",
        minimum=SHORTEST,
    )
    gaps: tuple[int, ...] = option(
        (10, 30, 100, 300, 1000, 3000, 10_000), "gaps that are asked about", **SIZE
    )
    n_question: int = option(128, "questions for each gap", **SIZE)
    d_model: int = option(64, "size of the hidden states", minimum=2)
    lr: float = option(0.003, "learning rate, after a warm-up; it falls to 0", above=0)


class Episode(NamedTuple):
    """Rows of [facts, noise, questions] and the facts that are asked for.

    A fact is one token for a key and a value: one layer of attention finds it by its key, so memory is all that is
    tried. A question is one token for a key.
    """

    token_BT: Tensor
    answer_BF: Tensor


def episode(n_row: int, gap: int, generator: torch.Generator) -> Episode:
    """Rows with `gap` tokens of noise between the last fact and the first question; the keys of a row differ."""
    key_BF = torch.rand(n_row, N_KEY, generator=generator).argsort(1)[:, :N_FACT]
    fact_BF = key_BF * N_VALUE + torch.randint(N_VALUE, key_BF.shape, generator=generator)
    noise_BG = torch.randint(N_TOKEN - N_NOISE, N_TOKEN, (n_row, gap), generator=generator)
    order_BF = torch.rand(key_BF.shape, generator=generator).argsort(1)
    question_BF = N_KEY * N_VALUE + key_BF.gather(1, order_BF)
    return Episode(torch.cat([fact_BF, noise_BG, question_BF], dim=1), fact_BF.gather(1, order_BF))


class Read(NamedTuple):
    """Hidden states at the questions (B, n_fact, D), the memory's own loss, and the bytes that it holds of a row."""

    hidden_BFD: Tensor
    loss: Tensor
    bytes: float


def read(model: TransformerXL, token_BT: Tensor, context: Context) -> Read:
    """Read rows segment by segment. Gradients flow from segment to segment where the memory lets them."""
    memory, hiddens, losses = None, [], [torch.zeros(())]
    for segment_BT in token_BT.split(SEGMENT, dim=1):
        hidden_BTD, memory = model(segment_BT, memory, context)
        hiddens = [*hiddens[-1:], hidden_BTD]
        of_memory = memory.loss
        if of_memory is not None:
            losses.append(of_memory)
    held = sum(x.numel() * x.element_size() for x in memory.named().values())  # type: ignore[union-attr]
    return Read(
        torch.cat(hiddens, dim=1)[:, -N_FACT:], torch.stack(losses).mean(), held / len(token_BT)
    )


def trained(name: str, config: RecallConfig, seed: int) -> tuple[TransformerXL, Context]:
    """A model with this memory after all updates. All memories get the same episodes."""
    torch.manual_seed(seed)
    d = config.d_model
    sizes = {
        "n_layer": 2,
        "n_head": 2,
        "d_head": d // 2,
        "d_model": d,
        "d_inner": 2 * d,
        "n_token": N_TOKEN,
    }
    settings = {"memory": name} | MODELS[name]
    context = build(Context, settings, tgt_len=SEGMENT)
    model = TransformerXL(build(ModelConfig, settings, position="none", pre_lnorm=True, **sizes))
    init_weights(model, TrainConfig(init_std=0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(seed)
    for step in tqdm(range(config.n_step), f"{name}, seed {seed}", leave=False, disable=None):
        falling = 0.5 + 0.5 * math.cos(math.pi * step / config.n_step)
        optimizer.param_groups[0]["lr"] = config.lr * min((step + 1) / N_WARMUP, falling)
        share = torch.rand((), generator=generator).item()
        one = episode(
            config.n_row, round(SHORTEST * (config.longest / SHORTEST) ** share), generator
        )
        found = read(model, one.token_BT, context)
        loss = model.softmax.nll(found.hidden_BFD, one.answer_BF).mean() + found.loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval(), context


@torch.no_grad()
def recalled(
    model: TransformerXL, context: Context, gap: int, n_question: int
) -> tuple[float, float]:
    """The share of questions that get the right fact, and the KiB that are held of a row in the end. All models get
    the same questions."""
    generator = torch.Generator().manual_seed(gap)
    right, held = [], 0.0
    for _ in range(-(-n_question // (16 * N_FACT))):
        one = episode(16, gap, generator)
        found = read(model, one.token_BT, context)
        right.append(model.log_prob(found.hidden_BFD).argmax(-1) == one.answer_BF)
        held = max(held, found.bytes / 2**10)
    return torch.cat(right).float().mean().item(), held


def tried(name: str, config: RecallConfig, seed: int) -> dict[str, Any]:
    """A row of the record: what a training took, and for each gap what is recalled and held."""
    start = time.perf_counter()
    model, context = trained(name, config, seed)
    seconds = round(time.perf_counter() - start, 1)
    found = {str(gap): recalled(model, context, gap, config.n_question) for gap in config.gaps}
    print(
        f"| {name} | seed {seed} | {' '.join(f'{share:.0%}' for share, _ in found.values())}",
        flush=True,
    )
    shares, held = ({gap: both[i] for gap, both in found.items()} for i in range(2))
    return {"memory": name, "seed": seed, "seconds": seconds, "recall": shares, "kib": held}


def main(argv: Sequence[str]) -> None:
    config = build(RecallConfig, read_flags(argv, RecallConfig, description=__doc__ or ""))
    for name in config.memories:
        require(name in MODELS, f"--memories {name}: no such memory; there are {', '.join(MODELS)}")
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        key: value
        for key, value in asdict(config).items()
        if key not in ("out", "memories", "seeds")
    }
    record: dict[str, Any] = {"settings": json.loads(json.dumps(settings)), "rows": []}
    path = folder / "recall.json"
    if path.exists():
        try:
            before = require_fields(read_json(path), RECORD)
            was, _ = before["settings"], before["rows"]
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"{path}: damaged ({error}); remove it, or name another --out"
            ) from None
        other = f"--out {folder}: holds trainings with other settings; name another folder, or remove it"
        require(was == record["settings"], other)
        record = before
    done = {(row["memory"], row["seed"]) for row in record["rows"]}
    for name, seed in ((name, seed) for seed in config.seeds for name in config.memories):
        if (name, seed) not in done:
            record["rows"].append(tried(name, config, seed))
            with written_whole(path) as temporary:
                temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(record["rows"], config.gaps, folder / "recall.png")
    print("\n".join(table(record["rows"], config.gaps)))


def spread(rows: list[dict[str, Any]], name: str, gap: int) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds; None: there is one seed."""
    shares = [row["recall"][str(gap)] for row in rows if row["memory"] == name]
    return mean(shares), stdev(shares) if len(shares) > 1 else None


def in_percent(share: float, deviation: float | None) -> str:
    """A share with its standard deviation, if it has one."""
    return (
        f"{100 * share:.0f}" if deviation is None else f"{100 * share:.0f} ± {100 * deviation:.0f}"
    )


def names_in(rows: list[dict[str, Any]]) -> list[str]:
    """The memories of the rows, each once."""
    return list(dict.fromkeys(row["memory"] for row in rows))


def table(rows: list[dict[str, Any]], gaps: Sequence[int]) -> list[str]:
    """Recall by gap, and what is held at the longest, in Markdown."""
    lines = [f"| memory | {' | '.join(f'{gap:,}' for gap in gaps)} | KiB a row at {gaps[-1]:,} |"]
    lines.append("|---" * (len(gaps) + 2) + "|")
    for name in names_in(rows):
        cells = [in_percent(*spread(rows, name, gap)) for gap in gaps]
        kib = mean(row["kib"][str(gaps[-1])] for row in rows if row["memory"] == name)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {kib:,.0f} |")
    return lines


def draw(rows: list[dict[str, Any]], gaps: Sequence[int], path: Path) -> None:
    """Recall by gap: a line for each memory, with a band of one standard deviation over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for i, name in enumerate(names_in(rows)):
        spreads = [spread(rows, name, gap) for gap in gaps]
        at = torch.tensor([share for share, _ in spreads])
        by = torch.tensor([deviation or 0.0 for _, deviation in spreads])
        axes.plot(gaps, at, marker="os^vD<>P"[i % 8], markersize=4, label=name)
        axes.fill_between(gaps, (at - by).clamp(min=0), (at + by).clamp(max=1), alpha=0.15)
    axes.axhline(1 / N_VALUE, color="grey", linestyle=":", label="chance")
    axes.set(
        xscale="log", xlabel="tokens between facts and questions", ylabel="recall", ylim=(0, 1.03)
    )
    axes.legend(fontsize=8)
    with written_whole(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    run(main)

"""What an evaluation shows: a table, a picture, a JSON file."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.config import Context
from txl.evaluate import Score
from txl.files import naming, written_whole


@dataclass(frozen=True)
class Row:
    """One split scored with one look-back, its words counted.

    Attributes:
        added: what was added to the model at test time, in words.
    """

    split: str
    context: Context
    score: Score
    seconds: float
    added: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; `nats` is the sum over `tokens`, and so are the counts."""
        score = self.score
        return {
            "split": self.split,
            **dataclasses.asdict(self.context),
            "added": self.added,
            "perplexity": score.perplexity,
            **dataclasses.asdict(score),
            "nats_per_token": score.nats_per_token,
            "unknown_share": score.unknown / score.tokens,
            "bits_per_character": score.bits_per_character,
            "bits_per_byte": score.bits_per_byte,
            "word_perplexity": score.word_perplexity,
            "seconds": self.seconds,
        }


def table(rows: Sequence[Row]) -> str:
    """The rows as text, in columns."""
    lines = [f"{'split':<6} {'tgt_len':>8} {'mem_len':>8} {'tokens':>9} {'loss':>8} {'perplexity':>11} {'tokens/s':>9}"]
    for row in rows:
        score, context = row.score, row.context
        line = (
            f"{row.split:<6} {context.tgt_len:>8} {context.mem_len:>8} {score.tokens:>9} "
            f"{score.nats_per_token:>8.4f} {score.perplexity:>11.3f} {score.tokens / row.seconds:>9.0f}"
        )
        lines.append(f"{line}  {row.added}".rstrip())
    return "\n".join(lines)


def counted(row: Row) -> str:
    """What was counted in a split, in a line."""
    score = row.score
    text = (
        f"{row.split}: {score.tokens:,} tokens counted, {score.unknown / score.tokens:.2%} of them <unk>: "
        f"{score.words:,} words and {score.lines:,} line ends, {score.characters:,} characters, {score.bytes:,} bytes"
    )
    if score.tokens != score.words + score.lines:
        text += f"; perplexity per word {score.word_perplexity:.3f}"
    return text


def write_json(path: Path, rows: Sequence[Row], **extra: Any) -> None:
    """The rows as JSON, whole or not at all; what is no regular file, /dev/stdout for one, is written to as it is."""
    text = json.dumps({**extra, "rows": [row.as_dict() for row in rows]}, indent=1) + "\n"
    if path.exists() and not path.is_file():
        with naming(path):
            path.write_text(text)
        return
    with written_whole(path.resolve()) as temporary:
        temporary.write_text(text)


def require_writable(path: Path) -> None:
    """Raise `OSError` unless a file can be written there, before an hour is spent on what it shall hold."""
    if not path.exists() or path.is_file():
        with written_whole(path.resolve().with_name(f".{path.name}.writable")) as temporary:
            temporary.touch()
        path.resolve().with_name(f".{path.name}.writable").unlink()


def plot_context(path: Path, rows: Sequence[Row]) -> None:
    """A picture of perplexity against memory, a curve per split and addition."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for split, added in dict.fromkeys((row.split, row.added) for row in rows):
        mine = [row for row in rows if (row.split, row.added) == (split, added)]
        points = sorted((row.context.mem_len, row.score.perplexity) for row in mine)
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{split}, {added}" if added else split)
        for x, y in points:
            axes.annotate(f"{y:.1f}", (x, y), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8)
    lengths = sorted({row.context.mem_len for row in rows})
    axes.set_xscale("symlog", linthresh=min([m for m in lengths if m], default=1))
    axes.set_xticks(lengths, [str(m) for m in lengths], minor=False)
    axes.set_xticks([], minor=True)
    axes.margins(y=0.15)
    axes.set(xlabel="memory (tokens)", ylabel="perplexity", title="Perplexity as the memory grows")
    axes.grid(alpha=0.3)
    axes.legend()
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=120)

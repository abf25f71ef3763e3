"""What an evaluation shows: a table, a picture, a JSON file."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from txl.config import Context, EvalConfig
from txl.evaluate import Score
from txl.files import naming, written_whole
from txl.log import say

PICTURE = "context.png"


@dataclass(frozen=True)
class Row:
    """One split scored with one look-back, its words counted."""

    split: str
    context: Context
    score: Score
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; `nats` is the sum over `tokens`, and so are the counts."""
        score = self.score
        return {
            "split": self.split,
            **dataclasses.asdict(self.context),
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
        lines.append(
            f"{row.split:<6} {context.tgt_len:>8} {context.mem_len:>8} {score.tokens:>9} "
            f"{score.nats_per_token:>8.4f} {score.perplexity:>11.3f} {score.tokens / row.seconds:>9.0f}"
        )
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


def show(rows: Sequence[Row]) -> None:
    """Print the table, and what was counted in each split."""
    say(table(rows))
    for row in {row.split: row for row in rows}.values():
        say(counted(row))


def write_results(rows: Sequence[Row], config: EvalConfig, *, checkpoint: str) -> None:
    """The JSON, where asked for, and the picture, where there is something to plot."""
    if config.json:
        how = {"text": config.text} if config.text else {"convention": config.convention, "reset": config.reset}
        results = {"checkpoint": checkpoint, **how, "rows": [row.as_dict() for row in rows]}
        write_text(Path(config.json), json.dumps(results, indent=1) + "\n")
    if picture := picture_of(config):
        plot_context(picture, rows)
        say(f"| perplexity against memory: {picture}")


def picture_of(config: EvalConfig) -> Path | None:
    """Where perplexity is plotted against memory: for splits, at several lengths of it."""
    return Path(config.work_dir) / PICTURE if config.text is None and len(config.mem_len) > 1 else None


def require_outputs(config: EvalConfig) -> None:
    """Raise `OSError` unless all that shall be written can be, before an hour is spent on it."""
    per_token = None if config.per_token == "-" else config.per_token
    for path in (config.json, per_token, picture_of(config)):
        if path:
            _require_writable(Path(path))


class Token(NamedTuple):
    """One token of a text that was scored; `position` is its place in the text, `unk` says that it is `<unk>`."""

    position: int
    token: str
    id: int
    nats: float
    unk: bool


def tokens_of(words: Sequence[str], ids: Sequence[int], nats: Sequence[float], *, unk: int | None) -> list[Token]:
    """The tokens of a text, in order."""
    each = enumerate(zip(words, ids, nats, strict=True))
    return [Token(place, word, i, nat, i == unk) for place, (word, i, nat) in each]


def as_tsv(tokens: Sequence[Token]) -> str:
    """A line of names, then a line a token, tabs between."""
    lines = [f"{t.position}\t{t.token}\t{t.id}\t{t.nats!r}\t{int(t.unk)}" for t in tokens]
    return "\n".join(["\t".join(Token._fields), *lines]) + "\n"


def write_tokens(path: Path, tokens: Sequence[Token], **extra: Any) -> None:
    """The tokens in the format that the name of the file ends in: `.json`, or else TSV."""
    if path.suffix == ".json":
        text = json.dumps({**extra, "tokens": [token._asdict() for token in tokens]}, ensure_ascii=False, indent=1)
        write_text(path, text + "\n")
    else:
        write_text(path, as_tsv(tokens))


def write_text(path: Path, text: str) -> None:
    """Whole or not at all; what is no regular file, /dev/stdout for one, is written to as it is."""
    if path.exists() and not path.is_file():
        with naming(path):
            path.write_text(text, encoding="utf-8")
        return
    with written_whole(path.resolve()) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _require_writable(path: Path) -> None:
    if not path.exists() or path.is_file():
        probe = path.resolve().with_name(f".{path.name}.writable")
        with written_whole(probe) as temporary:
            temporary.touch()
        probe.unlink()


def plot_context(path: Path, rows: Sequence[Row]) -> None:
    """A picture of perplexity against memory, a curve per split."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for split in dict.fromkeys(row.split for row in rows):
        points = sorted((row.context.mem_len, row.score.perplexity) for row in rows if row.split == split)
        axes.plot(*zip(*points, strict=True), marker="o", label=split)
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

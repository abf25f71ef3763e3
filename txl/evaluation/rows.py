"""A row of the results: one text at one context setting, with score, time and memory."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from txl.config import Context
from txl.evaluation.measures.attention import AttentionByDistance, attention_by_distance
from txl.evaluation.measures.token_losses import TokenLosses, TokenLossWatch
from txl.evaluation.reading import Reading, ScoredRows, Segments
from txl.evaluation.score import Score, evaluate, require_finite, score_text
from txl.model.autocast import require_in_range
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import progress, ticking
from txl.runtime.resources import PeakMemory


@dataclass(frozen=True)
class Row:
    """One text scored at one context setting.

    Attributes:
        seconds: scoring time.
        peak_bytes: peak memory of a process during scoring; None if it cannot be measured.
        attention: attention by distance, if measured.
        tokens: the loss of each token, if kept.
        added: test-time methods in use; empty for the plain model.
        unlike: as in `Reading`.
        borders: cut: tokens stand anywhere in their segments; aside: late in them, see `--borders`.
        measured: what else is known of it, JSON-ready, by name.
    """

    split: str
    context: Context
    score: Score
    seconds: float
    peak_bytes: int | None = None
    attention: AttentionByDistance | None = None
    tokens: TokenLosses | None = None
    added: str = ""
    unlike: str = ""
    borders: str = "cut"
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def manner(self) -> str:
        """What differs from reading the plain model as the text is cut; empty: nothing."""
        return ", ".join(
            filter(None, [self.added, "borders aside" if self.borders == "aside" else ""])
        )

    @property
    def label(self) -> str:
        """Split, lengths and manner, for titles and legends."""
        parts = [
            self.split,
            f"tgt_len {self.context.tgt_len}",
            f"mem_len {self.context.mem_len}",
            self.manner,
        ]
        return ", ".join(filter(None, parts))

    @property
    def note_of_unknown(self) -> str:
        """A warning about figures per character if more than 1 % of the tokens are `<unk>`; else
        empty.
        """
        share = self.score.unknown / self.score.tokens
        if share <= 0.01:
            return ""
        return (
            f"{share:.2%} of the tokens are <unk>, whose spelling is not predicted: figures per"
            " word, character and byte are too low"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; `nats` and the counts are sums over `tokens`."""
        score = self.score
        return {
            "split": self.split,
            **dataclasses.asdict(self.context),
            "added": self.added,
            "borders": self.borders,
            "perplexity": score.perplexity,
            **dataclasses.asdict(score),
            "nats_per_token": score.nats_per_token,
            "unknown_share": score.unknown / score.tokens,
            **({"unlike": self.unlike} if self.unlike else {}),
            **({"note": self.note_of_unknown} if self.note_of_unknown else {}),
            "bits_per_character": score.bits_per_character,
            "bits_per_byte": score.bits_per_byte,
            "word_perplexity": score.word_perplexity,
            "seconds": self.seconds,
            "tokens_per_second": score.tokens / self.seconds,
            "peak_bytes": self.peak_bytes,
            **({"attention_by_distance": self.attention.as_dict()} if self.attention else {}),
            **self.measured,
        }


def row_of_split(
    split: str,
    streams: Sequence[ScoredRows],
    reading: Reading,
    model: TransformerXL,
    ranks: Ranks,
    *,
    counts: Mapping[str, int],
    borders: str = "cut",
    token_watch: TokenLossWatch | None = None,
    with_attention: bool = False,
) -> Row:
    """Score a split whose streams are distributed over processes.

    Args:
        streams: those of this process.
        counts: words, lines, ... of this process's targets; see `Score`.
        borders: how the streams are cut, as in `Row`.
        token_watch: keeps the loss of each token.
        with_attention: read the split a second time for attention by distance.
    """
    context = reading.context
    n_segment = sum(map(len, streams))
    start = time.perf_counter()
    peak = PeakMemory(ranks.device)
    name = f"{split} mem_len {reading.asked.mem_len}" + " borders aside" * (borders == "aside")
    with progress(name, n_segment, shown=ranks.is_main) as bar:
        shares = []
        for stream in streams:
            shares.append(_watched(stream, reading, model, token_watch, bar))
    score = dataclasses.replace(Score.total(shares), **counts).over(ranks)
    require_in_range(torch.tensor(score.nats), ranks.device)
    require_finite(score.nats, split)
    seconds = time.perf_counter() - start
    peaks = [n for n in ranks.gathered(peak.bytes()) if n is not None]
    attention = None
    if with_attention:
        with progress(f"{split} attention", n_segment, shown=ranks.is_main) as bar:
            segments = (ticking(stream, bar) for stream in streams)
            mine = attention_by_distance(model, segments, context, predictor=reading.predictor)
        attention = mine.over(ranks)
    return Row(
        split,
        reading.asked,
        score,
        seconds,
        peak_bytes=max(peaks) if len(peaks) == ranks.world else None,
        attention=attention,
        tokens=token_watch.over(ranks) if token_watch else None,
        added=reading.added,
        unlike=reading.unlike,
        borders=borders,
    )


def _watched(
    stream: ScoredRows,
    reading: Reading,
    model: TransformerXL,
    watch: TokenLossWatch | None,
    bar: tqdm,
) -> Score:
    """The score of a stream, whose segments and nats are shown to the watch."""
    segments: Segments = ticking(stream, bar)
    observe = None
    if watch is not None:
        segments = watch.segments(segments, stream.first_B)
        observe = watch.add
    return evaluate(model, segments, reading.context, predictor=reading.predictor, observe=observe)


def row_of_texts(
    texts: Sequence[np.ndarray],
    reading: Reading,
    model: TransformerXL,
    ranks: Ranks,
    *,
    firsts: Sequence[int],
    counts: Mapping[str, int],
) -> tuple[Row, list[Tensor]]:
    """Score texts in this process, each with the memory at its beginning that the predictor begins
    with; also the nats of each token of each text that is scored, on the CPU.

    Args:
        texts: ids.
        firsts: of each text, the first token to score.
        counts: words, lines, ... of these tokens; see `Score`.
    """
    start = time.perf_counter()
    peak = PeakMemory(ranks.device)
    nats_of = []
    for ids, first in zip(texts, firsts, strict=True):
        nats_of.append(
            score_text(
                model,
                ids,
                reading.context,
                first=first,
                predictor=reading.predictor,
                n_again=reading.n_again,
            )
        )
    nll_N = torch.cat(nats_of)
    require_in_range(nll_N, ranks.device)
    seconds = time.perf_counter() - start
    score = Score(float(nll_N.double().sum()), len(nll_N), **counts)
    require_finite(score.nats, "text")
    return Row("text", reading.asked, score, seconds, peak.bytes(), added=reading.added), nats_of

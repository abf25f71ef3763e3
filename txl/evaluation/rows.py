"""A row of an evaluation: a text read with one look-back; its score, what that took, and what was studied of it."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl.config import Context
from txl.evaluation.reading import Reading, ScoredRows
from txl.evaluation.score import Score, evaluate, require_finite, score_text
from txl.evaluation.study.attention_by_distance import AttentionByDistance, attention_by_distance
from txl.evaluation.study.loss_by_position import BinnedLoss, LossByPosition
from txl.evaluation.study.peak_memory import PeakMemory
from txl.model.autocast import require_in_range
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import progress, ticking


@dataclass(frozen=True)
class Row:
    """One split scored with one look-back, its words counted.

    Attributes:
        seconds: of the scoring alone.
        peak_bytes: the most memory that a process held meanwhile; None where that cannot be measured.
        losses: by name, `position` and `distance`, what `txl.evaluation.study.loss_by_position` has added up.
        attention: where each head looks.
        added: what was added to the model at test time, in words.
    """

    split: str
    context: Context
    score: Score
    seconds: float
    peak_bytes: int | None = None
    losses: dict[str, BinnedLoss] = field(default_factory=dict)
    attention: AttentionByDistance | None = None
    added: str = ""

    @property
    def note_of_unknown(self) -> str:
        """What has to be said beside figures per character where more than 1 % of the tokens are `<unk>`."""
        share = self.score.unknown / self.score.tokens
        if share <= 0.01:
            return ""
        return (
            f"{share:.2%} of the tokens are <unk>, whose spelling is not predicted: figures per word, character and "
            f"byte are too low"
        )

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
            **({"note": self.note_of_unknown} if self.note_of_unknown else {}),
            "bits_per_character": score.bits_per_character,
            "bits_per_byte": score.bits_per_byte,
            "word_perplexity": score.word_perplexity,
            "seconds": self.seconds,
            "tokens_per_second": score.tokens / self.seconds,
            "peak_bytes": self.peak_bytes,
            **{f"loss_by_{name}": losses.as_dicts() for name, losses in self.losses.items()},
            **({"attention_by_distance": self.attention.as_dict()} if self.attention else {}),
        }


def row_of_split(
    split: str,
    streams: Sequence[ScoredRows],
    reading: Reading,
    model: TransformerXL,
    ranks: Ranks,
    *,
    counts: Mapping[str, int],
    watch: LossByPosition | None = None,
    with_attention: bool = False,
) -> Row:
    """A split, whose streams are shared out over processes.

    Args:
        streams: this process's share.
        counts: words, lines, ... of the targets in this process's share; see `Score`.
        watch: adds up losses by position.
        with_attention: read the split once more for how far back each head looks.
    """
    context, n_segment = reading.context, sum(map(len, streams))
    start, peak = time.perf_counter(), PeakMemory(ranks.device)
    shares = []
    with progress(f"{split} mem_len {reading.asked.mem_len}", n_segment, shown=ranks.is_main) as bar:
        for stream in streams:
            segments, observe = ticking(stream, bar), None
            if watch:
                segments, observe = watch.segments(segments, stream.first_B), watch.add
            shares.append(evaluate(model, segments, context, predictor=reading.predictor, observe=observe))
    score = dataclasses.replace(Score.total(shares), **counts).over(ranks)
    require_in_range(torch.tensor(score.nats), ranks.device)
    require_finite(score.nats, split)
    seconds = time.perf_counter() - start
    peaks = ranks.gathered(peak.bytes())
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
        peak_bytes=None if None in peaks else max(peaks),
        losses=watch.over(ranks) if watch else {},
        attention=attention,
        added=reading.added,
    )


def row_of_text(
    ids: np.ndarray,
    reading: Reading,
    model: TransformerXL,
    ranks: Ranks,
    *,
    first: int,
    counts: Mapping[str, int],
) -> tuple[Row, Tensor]:
    """A text from token `first` on, read by this process alone; and the nats of each token, on the CPU.

    Args:
        counts: words, lines, ... of these tokens; see `Score`.
    """
    start, peak = time.perf_counter(), PeakMemory(ranks.device)
    nll_N = score_text(model, ids, reading.context, first=first, predictor=reading.predictor)
    require_in_range(nll_N, ranks.device)
    seconds = time.perf_counter() - start
    score = Score(float(nll_N.double().sum()), len(nll_N), **counts)
    require_finite(score.nats, "text")
    return Row("text", reading.asked, score, seconds, peak.bytes(), added=reading.added), nll_N

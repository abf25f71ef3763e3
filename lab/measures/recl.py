"""Relative effective context length (RECL), and the losses by context length that it is computed
from.

Source: Dai et al. 2019, sec. 4.3 and appendix C; after Khandelwal et al. 2018, whose effective
context length is the longest with a gain above a threshold, for a single model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from txl.config import Context
from txl.data_utils.segments import RowStream
from txl.evaluation.reading import Segments, hidden_segments
from txl.inference.frozen import Frozen
from txl.model.transformer import TransformerXL
from txl.runtime.log import perplexity

THRESHOLD = 0.01
SHARES = (0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Recl:
    """Gains from longer contexts for each model i of a group M.

        b(c, t)    = min over i of l_i(c, t)
        f_i(c, c') = mean over t in T of min(b(c, t), l_i(c', t))
        T          = the share r of positions with the largest b(c, t)
        g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)
        RECL_i     = the first c of c_0, c_0 + Delta, ... with g_i(c, c + Delta) < 0.01

    where l_i(c, t) is the loss of token t given the c tokens before it. Dai et al. 2019, appendix
    C; f_i(c, c) is the mean of b over T, the same for all models.

    Attributes:
        lengths: c_0, c_0 + Delta, ...
        shares: r.
        gains: g_i(c, c + Delta), (models, shares, lengths - 1).
        reductions: exp f_i(c, c) - exp f_i(c, c + Delta), of the same shape, as in figure 3 of the
            paper.
        nats_per_token: mean of l_i(c, t) over all positions, (models, lengths): figure 4.
        tokens: positions.
    """

    lengths: tuple[int, ...]
    shares: tuple[float, ...]
    gains: np.ndarray
    reductions: np.ndarray
    nats_per_token: np.ndarray
    tokens: int

    def of(self, model: int, share: int) -> int | None:
        """The RECL of a model at a share; None if the gain exceeds the threshold at all measured
        lengths.
        """
        below = np.flatnonzero(self.gains[model, share] < THRESHOLD)
        if len(below):
            return self.lengths[below[0]]
        return None

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """JSON-ready; `recl` is null where it is at least the longest length."""
        return {
            "lengths": list(self.lengths),
            "tokens": self.tokens,
            "threshold": THRESHOLD,
            "models": [
                {
                    "run": name,
                    "perplexity": [perplexity(nats) for nats in self.nats_per_token[i].tolist()],
                    "by_share": [
                        {
                            "r": share,
                            "recl": self.of(i, k),
                            "relative_gain": self.gains[i, k].tolist(),
                            "perplexity_reduction": self.reductions[i, k].tolist(),
                        }
                        for k, share in enumerate(self.shares)
                    ],
                }
                for i, name in enumerate(names)
            ],
        }


def recl(
    nats_MCP: Sequence[Sequence[np.ndarray]] | Sequence[np.ndarray] | np.ndarray,
    lengths: Sequence[int],
    shares: Sequence[float] = SHARES,
) -> Recl:
    """The relative effective context length of each model of a group. See `Recl` for the formulas.

    T holds r times the number of positions, rounded, at least one; ties go to the earlier position.

    Args:
        nats_MCP: l_i(c, t) by model, length and position.
        lengths: in equal steps, ascending, at least two.
    """
    n_model = len(nats_MCP)
    n_position = len(nats_MCP[0][0])
    gains = np.empty((n_model, len(shares), len(lengths) - 1))
    reductions = np.empty_like(gains)
    for c in range(len(lengths) - 1):
        baseline_P = np.min([nats_CP[c] for nats_CP in nats_MCP], axis=0).astype(np.float64)
        hardest_first_P = np.argsort(-baseline_P, kind="stable")
        for k, share in enumerate(shares):
            chosen = hardest_first_P[: max(1, round(share * n_position))]
            short = baseline_P[chosen].mean()
            for i in range(n_model):
                long = np.minimum(baseline_P[chosen], nats_MCP[i][c + 1][chosen]).mean(
                    dtype=np.float64
                )
                gains[i, k, c] = -np.expm1(long - short)  # cannot overflow
                reductions[i, k, c] = gains[i, k, c] and perplexity(short) * gains[i, k, c]
    means = np.array(
        [[nats_P.mean(dtype=np.float64) for nats_P in nats_CP] for nats_CP in nats_MCP]
    )
    return Recl(tuple(lengths), tuple(shares), gains, reductions, means, n_position)


def window_streams(
    ids: np.ndarray, *, length: int, every: int, batch_size: int, tgt_len: int, ext_len: int = 0
) -> list[RowStream]:
    """Windows of `length` tokens, one beginning at every `every`-th token, batch_size of them side
    by side, each group to be read with an empty memory.
    """
    last = len(ids) - 1
    streams = []
    for first in range(0, last, every * batch_size):
        first_B = np.arange(first, min(first + every * batch_size, last), every)
        last_B = np.minimum(first_B + length, last)
        streams.append(RowStream(ids, first_B, last_B, np.zeros_like(first_B), tgt_len, ext_len))
    return streams


def losses_by_context(
    model: TransformerXL,
    windows: Iterable[tuple[np.ndarray, Segments]],
    context: Context,
    *,
    lengths: Sequence[int],
    every: int,
    n_token: int,
) -> np.ndarray:
    """l(c, t): the loss of each token at several context lengths.

    A window with an empty memory starts at every `every`-th token and is read in segments of
    `context`; d tokens into it, a token is predicted from exactly d tokens. One pass over all
    windows therefore gives the losses at all lengths: that at length c uses the longest available
    context c' with c - every < c' <= c. `every` = 1 is exact; the cost is longest / every passes
    over the text. The softmax is computed for the needed losses only.

    Args:
        windows: groups of parallel windows: the start of each, first_B, and the segments.
        lengths: context lengths, ascending; windows are as long as the last.
        n_token: length of the text.
    Returns:
        Nats as float32, (lengths, positions), for the tokens with at least the longest context
        before them, in order; NaN for those that `windows` does not cover.
    """
    nats_CP = np.full((len(lengths), n_token - lengths[-1]), np.nan, dtype=np.float32)
    device = model.device
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for first_B, segments in windows:
            seen = 0  # tokens of the window before this segment
            for hidden_BTD, target_BT, _ in hidden_segments(Frozen(model), segments, context):
                n_new = target_BT.shape[1]
                column_W, length_W = _wanted(seen, n_new, lengths, every)
                if len(column_W):
                    hidden_BWD = hidden_BTD[:, torch.from_numpy(column_W).to(device)]
                    target_BW = target_BT[:, torch.from_numpy(column_W)]
                    nll_BW = model.softmax.nll(hidden_BWD, target_BW).float().cpu().numpy()
                    _place(
                        nats_CP,
                        nll_BW,
                        first_B[:, None] + seen + 1 + column_W,
                        length_W,
                        lengths[-1],
                    )
                seen += n_new
    model.train(was_training)
    return nats_CP


def _wanted(
    seen: int, n_new: int, lengths: Sequence[int], every: int
) -> tuple[np.ndarray, np.ndarray]:
    """The columns of a segment whose losses are needed, and the index of the length that each
    belongs to.
    """
    depth_T = seen + 1 + np.arange(n_new)  # context length of each target
    length_T = np.minimum(np.searchsorted(lengths, depth_T), len(lengths) - 1)
    short_T = np.asarray(lengths)[length_T] - depth_T
    column_W = np.flatnonzero((short_T >= 0) & (short_T < every))
    return column_W, length_T[column_W]


def _place(
    nats_CP: np.ndarray, nll_BW: np.ndarray, place_BW: np.ndarray, length_W: np.ndarray, first: int
) -> None:
    inside_BW = (place_BW >= first) & (place_BW < first + nats_CP.shape[1])
    length_BW = np.broadcast_to(length_W, place_BW.shape)
    nats_CP[length_BW[inside_BW], place_BW[inside_BW] - first] = nll_BW[inside_BW]


def table(result: Recl, names: Sequence[str]) -> str:
    """The RECL of each model as text; `>=` if the gain exceeds the threshold at all lengths."""
    width = max(len("run"), *map(len, names))
    lines = [f"{'run':<{width}} " + " ".join(f"{f'r = {share}':>9}" for share in result.shares)]
    for i, name in enumerate(names):
        found = []
        for k in range(len(result.shares)):
            found.append(result.of(i, k))
        cells = []
        for length in found:
            cells.append(str(length) if length is not None else f">= {result.lengths[-1]}")
        lines.append(f"{name:<{width}} " + " ".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)

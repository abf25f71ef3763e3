"""The nats of every token of a split, and a compressed file that keeps them."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from txl.config import Context, UsageError
from txl.evaluation.reading import Segments, of_counted
from txl.runtime.distributed import Ranks
from txl.runtime.outputs import Kind, output
from txl.runtime.records import parse_json

FORMAT = 1
"""Of the file; a reader refuses others."""


@dataclass(frozen=True)
class TokenLosses:
    """The nats of every token of a split at one context setting.

    Attributes:
        split, added: as in `txl.evaluation.rows.Row`.
        context: fields of `Context` as they were asked for.
        ids_N: the tokens of the split.
        nats_N: minus the log-likelihood of each, float32; NaN of those that were not scored, as the
            first.
        visible_N: tokens of its own segment that a token is predicted from, 1 to tgt_len; 0 of
            those that were not scored. The memory stands before them.
        how: what else the file says of the evaluation, such as the digest of the weights.
        borders: as in `txl.evaluation.rows.Row`.
    """

    split: str
    context: dict[str, Any]
    added: str
    ids_N: np.ndarray
    nats_N: np.ndarray
    visible_N: np.ndarray
    how: dict[str, Any] = field(default_factory=dict)
    borders: str = "cut"


class TokenLossWatch:
    """Keeps the nats of every token during an evaluation.

        watch = TokenLossWatch("test", ids_N, asked=context)
        evaluate(model, watch.segments(stream, stream.first_B), context, observe=watch.add)

    Args:
        split, added, borders: as in `TokenLosses`.
        ids_N: the text.
        asked: the context as it was asked for.
    """

    def __init__(
        self,
        split: str,
        ids_N: np.ndarray,
        *,
        asked: Context,
        added: str = "",
        borders: str = "cut",
    ) -> None:
        self._split = split
        self._ids_N = ids_N
        self._asked = asked
        self._added = added
        self._borders = borders
        self._nats_N = np.full(len(ids_N), np.nan, dtype=np.float32)
        self._visible_N = np.zeros(len(ids_N), dtype=np.int32)
        self._places: deque[tuple[np.ndarray, np.ndarray]] = deque()

    def segments(self, segments: Segments, first_B: np.ndarray) -> Segments:
        """The same segments, with the places of their targets noted in passing.

        Row b starts at token first_B[b].
        """
        n_read = 0
        for segment in segments:
            _, target_BT, counted_BT = segment
            visible_BT = 1 + torch.arange(target_BT.shape[1]).expand_as(target_BT)
            place_BT = torch.from_numpy(first_B)[:, None] + n_read + visible_BT
            place_N = of_counted(place_BT, counted_BT).numpy()
            visible_N = of_counted(visible_BT, counted_BT).numpy()
            self._places.append((place_N, visible_N))
            n_read += target_BT.shape[1]
            yield segment

    def add(self, nll_N: Tensor) -> None:
        """Keep the nats of the next segment's scored targets, row by row."""
        place_N, visible_N = self._places.popleft()
        self._nats_N[place_N] = nll_N.float().cpu().numpy()
        self._visible_N[place_N] = visible_N

    def over(self, ranks: Ranks) -> TokenLosses:
        """The losses of all ranks together."""
        nats_N = self._nats_N.copy()
        visible_N = self._visible_N.copy()
        for their_nats_N, their_visible_N in ranks.gathered((self._nats_N, self._visible_N)):
            scored_N = their_visible_N > 0
            nats_N[scored_N], visible_N[scored_N] = (
                their_nats_N[scored_N],
                their_visible_N[scored_N],
            )
        ids_N = np.asarray(self._ids_N, dtype=np.int32)
        asked = asdict(self._asked)
        return TokenLosses(
            self._split, asked, self._added, ids_N, nats_N, visible_N, borders=self._borders
        )


def _is_losses(path: Path) -> bool:
    try:
        with path.open("rb") as file, NpzFile(file) as arrays:
            about = parse_json(arrays["about"].tobytes())
    except (ValueError, KeyError, BadZipFile):
        return False
    return isinstance(about, dict) and {"format", "rows"} <= set(about)


LOSSES = Kind("txl eval --token_losses", _is_losses)


def write_losses(path: Path, losses: Sequence[TokenLosses], **how: Any) -> None:
    """Write a compressed .npz file, whole or not at all.

    Its arrays are `about` (JSON: `how` and what each row is), `ids_SPLIT`, and of row i `nats_i`
    and `visible_i`.
    """
    rows = []
    for one in losses:
        rows.append(
            {"split": one.split, "added": one.added, "borders": one.borders, "context": one.context}
        )
    about = json.dumps({"format": FORMAT, **how, "rows": rows})
    arrays: dict[str, np.ndarray] = {"about": np.frombuffer(about.encode(), dtype=np.uint8)}
    for i, one in enumerate(losses):
        arrays[f"ids_{one.split}"] = one.ids_N
        arrays |= {f"nats_{i}": one.nats_N, f"visible_{i}": one.visible_N}
    with output(path, LOSSES) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def read_losses(path: Path) -> list[TokenLosses]:
    """The rows of a file that `write_losses` has written. Raises `UsageError` if it is none."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = parse_json(arrays["about"].tobytes())
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']}, not {FORMAT}")
            how = {}
            for name, value in about.items():
                if name not in ("format", "rows"):
                    how[name] = value
            splits = {row["split"] for row in about["rows"]}
            # each access inflates an array anew
            ids = {}
            for split in splits:
                ids[split] = arrays[f"ids_{split}"]
            return [
                TokenLosses(
                    row["split"],
                    row["context"],
                    row["added"],
                    ids[row["split"]],
                    arrays[f"nats_{i}"],
                    arrays[f"visible_{i}"],
                    how,
                    row.get("borders", "cut"),
                )
                for i, row in enumerate(about["rows"])
            ]
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; name a file that eval.py --token_losses wrote"
        ) from None
    except (ValueError, KeyError, TypeError, BadZipFile) as error:
        raise UsageError(
            f"{path}: not a file of eval.py --token_losses ({error}); evaluate again"
        ) from None

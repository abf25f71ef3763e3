"""Compare how much context several runs use, by their relative effective context length:

python -m lab.recl RUN RUN ... --split test
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lab.measures import recl
from lab.plots import plot_recl
from txl.config import Context, ModelConfig, build, option, require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.segments import RowStream
from txl.evaluation.config import Lengths
from txl.evaluation.plots import drawable, picture_folder, unused
from txl.evaluation.score import require_finite
from txl.language.model import LanguageModel
from txl.model.autocast import dtype_on, require_in_range
from txl.model.transformer import TransformerXL
from txl.programs.run import run
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line, progress, ticking
from txl.runtime.outputs import inputs_of, json_kind, require_outputs, write_json
from txl.settings.flags import named, read_flags, refuse_idle_flags
from txl.settings.layers import Asked


@dataclass(frozen=True, kw_only=True)
class ReclConfig(Lengths):
    """Which runs are compared, and at which lengths."""

    recl: tuple[str, ...] = option(
        (),
        "relative effective context length of these runs or checkpoints on one split; a table and"
        " recl.png",
    )
    recl_step: int = option(
        100, "shortest context and step between context lengths, in tokens", minimum=1
    )
    recl_longest: int = option(1000, "longest context, in tokens", minimum=1)
    recl_every: int = option(
        8,
        "start a new window every so many tokens, E; a context of c tokens is an average over those"
        " of c - E + 1 to c, so 1 is exact, and slow",
        minimum=1,
    )
    split: Literal["valid", "test", "all"] = option("all", "split to measure on: valid or test")
    batch_size: int = option(10, "windows read in parallel", minimum=1)
    pictures: str | None = option(
        None,
        "directory for recl.png (default: that of --json; without --json the run's; of a model that"
        " is no run: none is drawn)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.split != "all",
            "--recl: is measured on one split; give --split valid or --split test",
        )
        self._require_one_length("--recl tries contexts of its own lengths")
        require(
            self.recl_every <= self.recl_step,
            f"--recl_every {self.recl_every}: must be at most --recl_step ({self.recl_step}), or"
            " contexts of two lengths would be equal",
        )
        require(
            self.recl_longest >= 2 * self.recl_step,
            f"--recl_longest {self.recl_longest}: at least two lengths are compared; use at least"
            f" {2 * self.recl_step}",
        )

    @property
    def context_lengths(self) -> tuple[int, ...]:
        """Context lengths of RECL."""
        return tuple(range(self.recl_step, self.recl_longest + 1, self.recl_step))


MOST_USED = ("recl", "split", "recl_longest", "recl_step", "data", "json")
RESULT = json_kind("lab.recl", ("split", "recl"), ("dtype",))


def main(argv: Sequence[str]) -> None:
    argv = named(argv, "recl")
    typed = read_flags(
        argv,
        ReclConfig,
        DataConfig,
        description=__doc__ or "",
        first=MOST_USED,
    )
    require("recl" in typed, "name the runs that are compared: python -m lab.recl RUN RUN ...")
    with process_group(timeout_s=3600, device=typed.get("device", "auto")) as ranks:
        compare_context_lengths(typed, ranks)


def compare_context_lengths(typed: Asked, ranks: Ranks) -> None:
    """The relative effective context length of several runs, on one split; rank 0 reports."""
    config = build(ReclConfig, typed)
    config = dataclasses.replace(config, dtype=dtype_on(ranks.device, config.dtype))
    sources = {"vocabulary": config.vocabulary, "dataset": typed.get("dataset")}

    def opened(
        run: str, device: str | torch.device = "cpu", dtype: str = "float32"
    ) -> LanguageModel:
        return LanguageModel.open(run, **sources, device=device, dtype=dtype)

    first = opened(config.recl[0])
    others = (opened(run) for run in config.recl[1:])  # one of them in RAM at a time
    shapes = [first.model_config, *(require_same_vocabulary(lm, first) for lm in others)]
    data = first.data_config(typed)
    refuse_idle_flags(typed, config, data, *shapes)
    corpus = ranks.main_first(lambda: first.corpus(data))
    ids = ranks.main_first(lambda: corpus.split(config.split))
    longest = config.context_lengths[-1]
    short = f"no token of the {config.split} split ({len(ids)} tokens) has {longest} before it"
    advice = f"use at most {len(ids) - 1}, or a longer text"
    require(len(ids) > longest, f"--recl_longest {config.recl_longest}: {short}; {advice}")
    pictures = []
    if ranks.is_main:
        inputs = inputs_of(typed, "json", "pictures")
        require_outputs({"--json": (config.json, RESULT)}, inputs)
        folder = picture_folder(config, first.run)
        if folder is not None:
            pictures = drawable([unused(folder / "recl.png")], config)
    nats_MCP = []
    for name in config.recl:
        model = opened(name, ranks.device, config.dtype)
        nats_MCP.append(context_losses(model, ids, config, ranks))
    if ranks.is_main:
        result = recl.recl(np.stack(nats_MCP), config.context_lengths)
        print_line(recl.table(result, config.recl))
        for picture in pictures:
            plot_recl(picture, result, config.recl)
            print_line(f"| picture: {picture}")
        if config.json:
            content = {
                "split": config.split,
                "dtype": config.dtype,
                "recl": result.as_dict(config.recl),
            }
            write_json(Path(config.json), content, RESULT)


def require_same_vocabulary(lm: LanguageModel, first: LanguageModel) -> ModelConfig:
    """The shape of a model. Raises `UsageError` if it has another vocabulary than the first."""
    same = lm.tokenizer.fingerprint() == first.tokenizer.fingerprint()
    require(
        same,
        f"--recl {lm.folder}: its vocabulary is not that of {first.folder}; leave out one of"
        " the two",
    )
    return lm.model_config


def context_losses(
    lm: LanguageModel, ids: np.ndarray, config: ReclConfig, ranks: Ranks
) -> np.ndarray:
    """Nats by context length and position of one run; the windows are shared out over processes."""
    (context,) = config.look_backs(lm.context)
    windows = recl.window_streams(
        ids,
        length=config.context_lengths[-1],
        every=config.recl_every,
        batch_size=config.batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
    )[ranks.rank :: ranks.world]
    with lm.used_as(config) as model:
        return losses_of(lm.folder.name, model, windows, context, config, ranks, n_token=len(ids))


def losses_of(
    name: str,
    model: TransformerXL,
    windows: Sequence[RowStream],
    context: Context,
    config: ReclConfig,
    ranks: Ranks,
    *,
    n_token: int,
) -> np.ndarray:
    """Nats of one run by context length and position, see `recl.losses_by_context`, over all
    processes, whose windows together cover every position. Raises `UsageError` on all of them if
    one has a loss that is not finite.
    """
    with progress(name, sum(map(len, windows)), shown=ranks.is_main) as bar:
        nats_CP = recl.losses_by_context(
            model,
            ((stream.first_B, ticking(stream, bar)) for stream in windows),
            context,
            lengths=config.context_lengths,
            every=config.recl_every,
            n_token=n_token,
        )
    # positions of other processes are NaN
    nats_CP = functools.reduce(np.fmax, ranks.gathered(nats_CP))
    # after `gathered`, or other processes would hang
    require_in_range(torch.from_numpy(nats_CP), ranks.device)
    require_finite(float(nats_CP.sum(dtype=np.float64)), name)
    return nats_CP


if __name__ == "__main__":
    sys.argv[0] = "lab.recl"
    run(main)

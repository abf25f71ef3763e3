"""eval.py --recl: the relative effective context length of several runs."""

from pathlib import Path

import numpy as np

from txl.checkpoint import Checkpoint
from txl.cli import Typed, build
from txl.commands.trained import loaded, open_corpus
from txl.data_utils.rows import window_streams
from txl.evaluation.config import EvalConfig, StudyConfig
from txl.evaluation.plots import drawable, picture_folder, plot_recl
from txl.evaluation.report import require_outputs, write_json
from txl.evaluation.study import recl
from txl.evaluation.study.comparison import comparable, losses_of, require_long_enough
from txl.model.settings import require_read_by_one
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line


def compare_context_lengths(typed: Typed, ranks: Ranks) -> None:
    """The relative effective context length of several runs, on one split; rank 0 reports."""
    config, study = build(EvalConfig, typed), build(StudyConfig, typed)
    checkpoints = comparable(typed, config, study)
    require_read_by_one(typed, [checkpoint.model_config for checkpoint in checkpoints])
    corpus = ranks.main_first(lambda: open_corpus(typed, checkpoints[0]))
    ids = ranks.main_first(lambda: corpus.split(config.split))
    require_long_enough(len(ids), config, study)
    pictures = []
    if ranks.is_main:
        require_outputs(config)
        pictures = drawable([picture_folder(config, Path(study.recl[0])) / "recl.png"], config)
    nats_MCP = [context_losses(checkpoint, ids, config, study, ranks) for checkpoint in checkpoints]
    if ranks.is_main:
        result = recl.recl(np.stack(nats_MCP), study.context_lengths)
        print_line(recl.table(result, study.recl))
        for picture in pictures:
            plot_recl(picture, result, study.recl)
            print_line(f"| picture: {picture}")
        if config.json:
            content = {"split": config.split, "dtype": config.dtype, "recl": result.as_dict(study.recl)}
            write_json(Path(config.json), content)


def context_losses(
    checkpoint: Checkpoint, ids: np.ndarray, config: EvalConfig, study: StudyConfig, ranks: Ranks
) -> np.ndarray:
    """Nats by context length and position of one run; the windows are shared out over processes."""
    (context,) = config.look_backs(checkpoint.context)
    windows = window_streams(
        ids,
        length=study.context_lengths[-1],
        every=study.recl_every,
        batch_size=config.batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
    )[ranks.rank :: ranks.world]
    with loaded(checkpoint, config, ranks.device) as model:
        return losses_of(checkpoint.folder.name, model, windows, context, study, ranks, n_token=len(ids))

"""Evaluate a trained Transformer-XL with one or several context lengths, in one process or many:

    python eval.py --work_dir RUN ...
    torchrun --nproc_per_node=4 eval.py --work_dir RUN ...

With --text FILE it is `txl score`; add --help to see its flags.
"""

from collections.abc import Sequence

from txl.data_utils.config import DataConfig
from txl.evaluation.config import EVAL, ScoreConfig
from txl.programs import score
from txl.programs.launch import ends_at_once
from txl.settings.flags import has_flag, read_flags

MOST_USED = ("work_dir", "data", "dataset", "split", "mem_len", "tgt_len", "json")
_ELSEWHERE = {"has no effect without --text": (ScoreConfig,)}


def main(argv: Sequence[str]) -> None:
    if has_flag(argv, "text"):
        score.main(argv)
        return
    asked = read_flags(
        argv,
        *EVAL,
        DataConfig,
        description=__doc__ or "",
        first=MOST_USED,
        elsewhere=_ELSEWHERE,
        presets="eval",
    )
    with ends_at_once():
        from txl.runs.evaluation import evaluate  # PyTorch, which --help does without

    evaluate(asked)

"""Score any text with a trained Transformer-XL, from its first token on:

    txl score FILE --work_dir RUN --per_token FILE.tsv
    python eval.py --text FILE --work_dir RUN ...

--each line scores each line alone.
"""

from collections.abc import Sequence

from txl.data_utils.config import DataConfig
from txl.errors import require
from txl.evaluation.config import EVAL, SCORE
from txl.programs.launch import ends_at_once
from txl.settings.flags import named, read_flags

MOST_USED = ("text", "work_dir", "each", "context", "tokenise", "per_token", "mem_len", "json")
_ELSEWHERE = {"has no effect with --text": EVAL}


def main(argv: Sequence[str]) -> None:
    asked = read_flags(
        named(argv, "text"),
        *SCORE,
        DataConfig,
        description=__doc__ or "",
        first=MOST_USED,
        elsewhere=_ELSEWHERE,
    )
    require("text" in asked, "name the file of the text: txl score FILE (-: standard input)")
    with ends_at_once():
        from txl.runs.text_scores import score_text  # PyTorch, which --help does without

    score_text(asked)

"""Draw a page, report.html: what memory is worth to a trained model, where in its text, and how it
was made:

    txl report RUN
    python -m txl report RUN RUN --out compared.html

The page is one file without network. What it shows is kept in report.json beside it, from which it
is drawn again without the model, by the same command or by txl report report.json.
"""

from collections.abc import Sequence

from txl.data_utils.config import DataConfig
from txl.errors import require
from txl.evaluation.config import ReportConfig
from txl.programs.launch import ends_at_once
from txl.settings.flags import read_flags

MOST_USED = ("runs", "out", "mem_len", "split", "measure", "tokens", "data")


def main(argv: Sequence[str]) -> None:
    words = with_runs(argv)
    typed = read_flags(words, ReportConfig, DataConfig, description=__doc__ or "", first=MOST_USED)
    require(bool(typed.get("runs")), "name what is drawn: txl report RUN, or a report.json")
    with ends_at_once():
        from txl.runs.pages import draw_runs  # PyTorch, which --help does without

    draw_runs(typed)


def with_runs(argv: Sequence[str]) -> Sequence[str]:
    """A command line whose first words may be runs, which are then named before them."""
    if argv and not argv[0].startswith("-"):
        return ["--runs", *argv]
    return argv

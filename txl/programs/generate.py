"""Generate text with a trained Transformer-XL, printed token by token."""

from collections.abc import Sequence

from txl.generation.config import GENERATE
from txl.programs.launch import ends_at_once
from txl.settings.flags import read_flags

MOST_USED = ("work_dir", "prompt", "length")


def main(argv: Sequence[str]) -> None:
    asked = read_flags(
        argv, *GENERATE, description=__doc__ or "", first=MOST_USED, presets="generate"
    )
    with ends_at_once():
        from txl.runs.generation import write_texts  # PyTorch, which --help does without

    write_texts(asked)

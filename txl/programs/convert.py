"""Turn a checkpoint of any kind that txl reads into a run folder, which eval.py and generate.py
take, or into the files of another program:

python -m txl.convert SOURCE FOLDER
python -m txl.convert RUN FOLDER --to huggingface
"""

from collections.abc import Sequence
from pathlib import Path

from txl.config import build, require
from txl.language.config import ConvertConfig
from txl.programs.launch import ends_at_once
from txl.settings.flags import read_flags, require_utf8


def main(argv: Sequence[str]) -> None:
    places = list(argv[:2])
    asks = {"--help", "-h"} & set(argv)
    good = len(places) == 2 and not any(place.startswith("-") for place in places)
    require(
        bool(asks) or good,
        "give a checkpoint and the folder to write: python -m txl.convert SOURCE FOLDER",
    )
    require_utf8(places)
    asked = read_flags(argv if asks else argv[2:], ConvertConfig, description=__doc__ or "")
    config: ConvertConfig = build(ConvertConfig, asked)
    with ends_at_once():
        from txl.runs.conversion import convert_model  # PyTorch, which --help does without

    convert_model(places[0], Path(places[1]), config, asked)

"""Train a Transformer-XL on a folder of text, in one process or in many:

python train.py --data FOLDER ...
torchrun --nproc_per_node=4 train.py --data FOLDER ...
"""

from collections.abc import Sequence

from txl.config import Context, ModelConfig
from txl.data_utils.config import DataConfig
from txl.programs.launch import ends_at_once
from txl.settings.flags import read_flags
from txl.settings.layers import Asked
from txl.training.config import TrainConfig

CONFIGS = (DataConfig, TrainConfig, ModelConfig, Context)
MOST_USED = (
    *(
        "data",
        "dataset",
        "work_dir",
        "resume",
        "overwrite",
        "max_step",
        "batch_size",
        "lr",
        "tgt_len",
        "mem_len",
    ),
    *("n_layer", "d_model", "n_head", "d_head", "d_inner", "dropout", "adaptive"),
)


def main(argv: Sequence[str]) -> int:
    asked = asked_of(argv)
    with ends_at_once():
        from txl.runs.training import train  # PyTorch, which --help does without

    return train(asked)


def asked_of(argv: Sequence[str]) -> Asked:
    """What flags and a settings file ask for."""
    return read_flags(argv, *CONFIGS, description=__doc__ or "", first=MOST_USED, presets="train")

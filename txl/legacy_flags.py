"""Flags of the 2019 code that are renamed, have no effect, or are refused."""

import argparse
import sys
from typing import Any, NamedTuple

from txl.config import UsageError


class Retired(NamedTuple):
    """A flag of the 2019 code without a counterpart."""

    n_value: int | str
    advice: str


_NO_EFFECT = {
    "cuda": Retired(0, "a GPU is used if there is one; --device cpu turns it off"),
    "multi_gpu": Retired("?", "start one process per GPU with: torchrun --nproc_per_node=N train.py"),
    "gpu0_bsz": Retired(1, "all devices get equal shares"),
    "emb_init": Retired(1, "the original never used it; --init covers the embeddings"),
    "emb_init_range": Retired(1, "the original never used it; --init_range covers the embeddings"),
    "clip_nonemb": Retired(0, "the original never used it; --clip covers all weights"),
    "debug": Retired(0, "the run directory is always written"),
    "no_log": Retired(0, "evaluation writes a file only with --json"),
    "static_loss_scale": Retired(1, "--dtype float16 finds its scale itself"),
    "dynamic_loss_scale": Retired(0, "--dtype float16 finds its scale itself"),
}
_RESUME = "use --resume, which continues the run in --work_dir from its last checkpoint"
_REFUSED = {
    "sample_softmax": Retired(1, "it never worked in the original; use --adaptive"),
    "finetune_v2": Retired(0, "it did nothing in the original"),
    "finetune_v3": Retired(0, "it did nothing in the original"),
    "restart": Retired("?", _RESUME),
    "restart_dir": Retired(1, _RESUME),
    "fp16": Retired(0, "use --dtype float16, or --dtype bfloat16, which needs no loss scaling"),
}
_HARMLESS = {"sample_softmax": "-1", "restart_dir": ""}
"""Values of refused flags that change nothing."""
_ATTN_TYPE = {"0": "rel_sinusoid", "1": "learned_relative", "2": "sinusoid_input", "3": "learned_per_layer"}
"""Values of --position for the numbers of --attn_type."""


def supported_dataset(name: str) -> str:
    """The value of --dataset. Names the data sets of the 2019 code that are not supported."""
    if name in ("enwik8", "text8", "lm1b"):
        raise argparse.ArgumentTypeError(
            f"{name} is not supported yet; there are wt103, wt2, text and pydoc; --dataset text takes any folder of "
            f"text"
        )
    return name


def add_legacy_flags(parser: argparse.ArgumentParser, known: set[str]) -> None:
    """Add the flags of the 2019 code that are not `known`; --help does not list them."""
    for name, retired in {**_NO_EFFECT, **_REFUSED}.items():
        if f"--{name}" not in known:
            given: dict[str, Any] = {"action": "store_true"} if retired.n_value == 0 else {"nargs": retired.n_value}
            if retired.n_value == "?":
                given["const"] = ""
            parser.add_argument(f"--{name}", dest=f"retired {name}", help=argparse.SUPPRESS, default=None, **given)
    if "--position" in known:
        parser.add_argument("--attn_type", choices=_ATTN_TYPE, help=argparse.SUPPRESS, default=None)


def answer_legacy_flags(values: dict[str, Any]) -> None:
    """Take the flags of the 2019 code out of the parsed values: translate them, print a note, or raise `UsageError`."""
    for key in [key for key in values if key.startswith("retired ")]:
        name, value = key.removeprefix("retired "), values.pop(key)
        value = value[0] if isinstance(value, list) else value
        if value is None:
            continue
        if name in _REFUSED and _HARMLESS.get(name) != value:
            raise UsageError(f"--{name}: {_REFUSED[name].advice}")
        if name in _NO_EFFECT:
            print(f"note: --{name} has no effect: {_NO_EFFECT[name].advice}", file=sys.stderr)
    _translate_attn_type(values)


def _translate_attn_type(values: dict[str, Any]) -> None:
    number = values.pop("attn_type", None)
    if number is None:
        return
    name = _ATTN_TYPE[number]
    if values.setdefault("position", name) != name:
        raise UsageError(
            f"--attn_type {number}: means --position {name}, but --position {values['position']} is given too; "
            f"drop one of them"
        )
    if number in "23":
        print(
            f"note: --attn_type {number} is --position {name}: positions are added to a token once, where the original "
            f"added them again at each segment",
            file=sys.stderr,
        )

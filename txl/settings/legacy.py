"""Flags of the 2019 code, of NVIDIA's and of our own past that are renamed, have no effect, or are
refused.
"""

import argparse
import sys
from typing import Any, NamedTuple

from txl.config import UsageError


class Retired(NamedTuple):
    """A flag without a counterpart."""

    n_value: int | str
    advice: str


_NO_EFFECT = {
    "cuda": Retired(0, "a GPU is used if there is one; --device cpu turns it off"),
    "multi_gpu": Retired(
        "?", "start one process per GPU with: torchrun --nproc_per_node=N train.py"
    ),
    "gpu0_bsz": Retired(1, "all devices get equal shares"),
    "emb_init": Retired(1, "the original never used it; --init covers the embeddings"),
    "emb_init_range": Retired(1, "the original never used it; --init_range covers the embeddings"),
    "clip_nonemb": Retired(0, "the original never used it; --clip covers all weights"),
    "debug": Retired(0, "the run directory is always written"),
    "no_log": Retired(0, "evaluation writes a file only with --json"),
    "static_loss_scale": Retired(1, "--dtype float16 finds its scale itself"),
    "dynamic_loss_scale": Retired(0, "--dtype float16 finds its scale itself"),
    # NVIDIA's
    "append_dataset": Retired(0, "--work_dir is used as given"),
    "append_time": Retired(0, "--work_dir is used as given"),
    "affinity": Retired(
        1, "threads are placed by the system; numactl or taskset place them otherwise"
    ),
    "amp": Retired(1, "--dtype chooses the precision"),
    "apex_amp_opt_level": Retired(1, "--dtype chooses the precision"),
    "dllog_file": Retired(
        1, "figures are in metrics.jsonl of --work_dir; eval.py writes them with --json"
    ),
    "txtlog_file": Retired(1, "send standard output to a file"),
    "log_all_ranks": Retired(0, "rank 0 reports for all"),
    "no_env": Retired(0, "the environment is noted in metrics.jsonl"),
    "no_test": Retired(0, "the test split is evaluated only with --eval_test"),
    "local_rank": Retired(1, "torchrun passes it in the environment"),
    "save_data": Retired(0, "eval.py writes its figures with --json"),
    "percentiles": Retired("+", "eval.py measures throughput, not latency"),
    "seed": Retired(1, "an evaluation draws nothing"),
    "log_interval": Retired(1, "a progress bar shows where an evaluation is"),
    "repeat": Retired(1, "the text is read once"),
    # our own
    "no_lookup_faiss": Retired(0, "there is no other search"),
}
_LAB = "moved to the laboratory, lab/ of a clone; type python -m lab."
_RESUME = "use --resume, which continues the run in --work_dir from its last checkpoint"
_REFUSED = {
    "sample_softmax": Retired(1, "it never worked in the original; use --adaptive"),
    "finetune_v2": Retired(0, "it did nothing in the original"),
    "finetune_v3": Retired(0, "it did nothing in the original"),
    "restart": Retired(
        "?", f"{_RESUME}; --init_from FOLDER begins a new run with the weights of another"
    ),
    "restart_dir": Retired(
        1,
        "--init_from FOLDER begins a new run with the weights of another, and --resume continues"
        " the run in --work_dir exactly",
    ),
    "fp16": Retired(0, "use --dtype float16, or --dtype bfloat16, which needs no loss scaling"),
    # NVIDIA's
    "save_all": Retired(0, "use --keep_last with a large number"),
    "no_eval": Retired(0, "use --eval_interval with a number above --max_step"),
    "model": Retired(1, "name the run or the checkpoint, also one of NVIDIA's, with --work_dir"),
    "type": Retired(1, "there is one way to run the model; TorchScript is not supported"),
    "target_perplexity": Retired(1, "train.py has it; compare the figures that --json writes"),
    "target_throughput": Retired(1, "train.py has it; compare the figures that --json writes"),
    "save_torchscript": Retired(1, "TorchScript is not supported"),
    "load_torchscript": Retired(1, "TorchScript is not supported"),
    "manual": Retired("+", "score any text with --text FILE --tokenise"),
    "manual_config": Retired(1, "the configuration is read off the checkpoint"),
    "manual_vocab": Retired(
        1, "the vocabulary is read off the checkpoint; --vocabulary names one that lies elsewhere"
    ),
    "vocab": Retired(1, "--dataset says how the text is cut into tokens"),
    # our own
    "lookup_faiss": Retired(
        0, "is gone, since it was hardly ever faster; leave it out, the result is the same"
    ),
    "recl": Retired("*", f"{_LAB}recl RUN RUN ..."),
    "recl_step": Retired(1, f"{_LAB}recl RUN RUN ..."),
    "recl_longest": Retired(1, f"{_LAB}recl RUN RUN ..."),
    "recl_every": Retired(1, f"{_LAB}recl RUN RUN ..."),
    "loss_by_position": Retired(0, f"{_LAB}loss_by_position --work_dir RUN ..."),
    "disturb": Retired(1, f"{_LAB}perturbed --work_dir RUN --disturb ..."),
    "disturb_beyond": Retired(1, f"{_LAB}perturbed --work_dir RUN --disturb_beyond ..."),
    "ids_dtype": Retired(
        1, "a .bin file holds uint16, as nanoGPT writes it; write other ids with numpy.save as .npy"
    ),
}
_HARMLESS = {
    **{
        "sample_softmax": "-1",
        "restart_dir": "",
        "restart": "",
        "model": "",
        "type": "pytorch",
    },
    **{"vocab": "word", "manual_vocab": "word", "ids_dtype": "uint16"},
}
"""Values of refused flags that change nothing."""
_RENAMED: dict[str, tuple[str, type]] = {
    "eval_max_steps": ("max_eval_steps", int),  # NVIDIA's
    "plot": ("pictures", str),
}
"""Other names of flags, and the types of their values."""
_RENAMED_VALUES = {("optim", "jitlamb"): "lamb"}
_ATTN_TYPE = {
    "0": "rel_sinusoid",
    "1": "learned_relative",
    "2": "sinusoid_input",
    "3": "learned_per_layer",
}
"""Values of --position for the numbers of --attn_type."""


def current_value(flag: str, value: str) -> str:
    """The value that a flag has here for one of NVIDIA's."""
    return _RENAMED_VALUES.get((flag, value), value)


def add_legacy_flags(parser: argparse.ArgumentParser, known: set[str]) -> None:
    """Add the flags that are not `known`; --help does not list them."""
    for name, retired in {**_NO_EFFECT, **_REFUSED}.items():
        if f"--{name}" not in known:
            if retired.n_value == 0:
                given: dict[str, Any] = {"action": "store_true"}
            else:
                given = {"nargs": retired.n_value}
            if retired.n_value == "?":
                given["const"] = "given"
            parser.add_argument(
                f"--{name}", dest=f"retired {name}", help=argparse.SUPPRESS, default=None, **given
            )
    for name, (now, kind) in _RENAMED.items():
        if f"--{now}" in known:
            parser.add_argument(
                f"--{name}", dest=now, type=kind, help=argparse.SUPPRESS, default=argparse.SUPPRESS
            )
    if "--position" in known:
        parser.add_argument("--attn_type", choices=_ATTN_TYPE, help=argparse.SUPPRESS, default=None)


def answer_legacy_flags(values: dict[str, Any]) -> None:
    """Take the flags of the 2019 code out of the parsed values: translate them, print a note, or
    raise `UsageError`.
    """
    for key in [key for key in values if key.startswith("retired ")]:
        name = key.removeprefix("retired ")
        value = values.pop(key)
        if isinstance(value, list):
            value = value[0]
        if value is None:
            continue
        if name == "fp16" and values.get("dtype") in ("float16", "bfloat16"):
            continue  # as in NVIDIA's configurations, over which a typed --dtype wins
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
        other = f"--position {values['position']}"
        raise UsageError(
            f"--attn_type {number}: means --position {name}, but {other} is given too; drop one of"
            " them"
        )
    if number in "23":
        print(
            f"note: --attn_type {number} is --position {name}: positions are added to a token once,"
            " where the original added them again at each segment",
            file=sys.stderr,
        )

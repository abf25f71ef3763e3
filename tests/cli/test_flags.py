"""The flags: those of 2019 as published, how they are spelt, and which value wins."""

import math
import re
import shlex
import typing
from collections.abc import Callable, Sequence
from dataclasses import Field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from tests.cli.conftest import Here
from tests.cli.test_scripts import run as started
from txl.config import Context, ModelConfig, UsageError, build, field_of, names_of
from txl.data_utils.corpus import DataConfig
from txl.evaluation.config import EVAL, SCORE, ReportConfig, ScoreConfig
from txl.generation.config import GENERATE, GenerateConfig
from txl.runs.resolve import new_settings
from txl.runtime.distributed import Ranks
from txl.settings.flags import read_flags
from txl.training.config import TrainConfig
from txl.training.run import worlds_that_fit

CLASSES = {
    "train": (TrainConfig, ModelConfig, Context, DataConfig),
    "eval": (*EVAL, DataConfig),
    "score": (*SCORE, DataConfig),
    "report": (ReportConfig, DataConfig),
    "generate": GENERATE,
}
PRESETS_OF: dict[str, Any] = {
    "train": "train",
    "eval": "eval",
    "generate": "generate",
}
CONFIGS = (*CLASSES["train"], *EVAL, ScoreConfig, GenerateConfig)

PUBLISHED = Path(__file__).with_name("published_flags.txt").read_text()


def published(kind: str) -> dict[str, str]:
    """The lines of a kind in published_flags.txt, by their names."""
    return dict(re.findall(rf"^{kind} (\w+): (.*)$", PUBLISHED, flags=re.MULTILINE))


TRAIN_2019, EVAL_2019, ALL_2019, ALL_NVIDIA = map(
    published, ("train", "eval", "all_2019", "all_nvidia")
)
REFUSED_OF_NVIDIA = (
    *(
        "config_file",
        "fp16",
        "save_all",
        "no_eval",
        "manual",
        "manual_config",
        "save_torchscript",
        "load_torchscript",
    ),
    *("target_perplexity", "target_throughput"),
)


def fields_of(cls: type) -> dict[str, Field]:
    """Of a configuration, with the settings of all parts."""
    return {name: cast(Field, field_of(cls, name)) for name in names_of(cls)}


def read(entry: str, *argv: str) -> dict[str, Any]:
    return read_flags(argv, *CLASSES[entry], description="", presets=PRESETS_OF.get(entry))


def arrived(entry: str, line: str) -> dict[str, Any]:
    """The values of a command line after they went through the dataclasses, by field."""
    typed = read(entry, *shlex.split(line))
    sizes = {"n_token": 267_735, "cutoffs": (20_000, 40_000, 200_000)}
    configs = [build(cls, typed, **(sizes if cls is ModelConfig else {})) for cls in CLASSES[entry]]
    return {
        name: getattr(config, name) for config in configs for name in typed if hasattr(config, name)
    }


# 2019


@pytest.mark.parametrize("name", TRAIN_2019)
def test_the_scripts_have_the_published_settings(tmp_path: Path, name: str) -> None:
    """scripts/run_*.sh and run_wt103.sh against the lines of 2019, but for their folders of text, and
    the conventions by which that code reads its own lines."""
    dataset, _, size = name.partition("_")
    script = "run_wt103.sh" if dataset == "wt103" else f"scripts/run_{dataset}.sh"
    for entry, lines in {"train": TRAIN_2019, "eval": EVAL_2019}.items():
        line = script_line(tmp_path, script, entry, size)
        asked, expected = arrived(entry, line), arrived(entry, lines[name])
        for values in (asked, expected):
            for place in ("data", "dataset", "work_dir"):
                values.pop(place, None)
        for convention in ("warmup_convention", "data_convention"):
            assert asked.pop(convention, "original") == "original"
        assert asked == expected
    assert f"--dataset {dataset}" in script_line(tmp_path, script, "train", size)


def script_line(folder: Path, script: str, *words: str) -> str:
    """The flags that a script hands to a program."""
    _, _, (call,) = started(folder, " ".join(words), script=script)
    words = shlex.split(call)
    program = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return shlex.join(words[program + 1 :])


def refusal(entry: str, *argv: str) -> str:
    """Why a command line is refused; empty if it is not."""
    try:
        read(entry, *argv)
    except UsageError as error:
        return str(error)
    return ""


def test_a_value_with_a_space_is_no_flag() -> None:
    """argparse takes it as a value, so its hyphens stay."""
    for value in ("-- a well-known half-truth", "--Half-hearted , he said", "--well-known=a fact"):
        assert read("generate", "--prompt", value) == {"prompt": value}


def test_to_go_on_as_in_2019_is_refused_with_both_ways_to() -> None:
    for argv in (["--restart"], ["--restart", "x.pt"]):
        why = refusal("train", *argv)
        assert "--resume" in why
        assert "--init_from" in why
    assert refusal("train", "--restart", "") == "", "the default of NVIDIA's"


def test_no_flag_of_2019_is_unheard_of_and_each_takes_its_default() -> None:
    for entry, flags in ALL_2019.items():
        for flag in flags.split("|"):
            assert "no such flag" not in refusal(entry, *flag.split(" ")), flag
        valued = [flag.partition(" ") for flag in flags.split("|") if " " in flag]
        assert refusal(entry, *(word for name, _, value in valued for word in (name, value))) == ""


def test_every_flag_of_nvidias_is_known_or_refused_with_advice() -> None:
    for entry, flags in ALL_NVIDIA.items():
        for flag in flags.split("|"):
            name, space, values = flag.partition(" ")
            why = refusal(entry, name, *(values.split() or ([""] if space else [])))
            assert "no such flag" not in why, flag
            assert bool(why) <= (name[2:] in REFUSED_OF_NVIDIA), (flag, why)


RETIRED = (
    "--cuda|--multi_gpu|--gpu0_bsz 4|--emb_init normal|--emb_init_range 0.01|--clip_nonemb|--debug|"
    "--static_loss_scale 1|--dynamic_loss_scale|--no_log"
)


def test_a_retired_flag_has_no_effect_but_one_note(capfd: pytest.CaptureFixture[str]) -> None:
    for flag in RETIRED.split("|"):
        for entry in ("eval", "generate", "train"):
            assert read(entry, *flag.split()) == {}
        noted = capfd.readouterr().err.splitlines()[-1]
        assert re.fullmatch(rf"note: {flag.split()[0]} has no effect: \S[^\n]+", noted)
    # asks for what is done anyway
    read("train", *"--attn_type 1 --batch_chunk 1 --sample_softmax -1".split())
    assert capfd.readouterr().err == ""


def test_a_flag_of_our_own_that_is_gone_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    for entry in ("train", "eval", "generate"):
        assert refusal(entry, "--lookup-faiss").startswith("--lookup_faiss: is gone, ")
        assert read(entry, "--no_lookup_faiss") == {}
        assert capfd.readouterr().err.startswith("note: --no_lookup_faiss has no effect: ")


def test_an_attn_type_is_a_position_encoding(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("rel_sinusoid", "learned_relative", "sinusoid_input", "learned_per_layer")
    for number, name in enumerate(names):
        assert read("train", "--attn_type", str(number)) == {"position": name}
        noted = capfd.readouterr().err
        assert (
            noted.startswith(f"note: --attn_type {number} is --position {name}: ")
            if number > 1
            else noted == ""
        )
        assert read("train", "--attn-type", str(number), "--position", name) == {"position": name}
        capfd.readouterr()


# spelling

SPELT: list[tuple[str, str, dict[str, Any]]] = [
    ("train", "", {}),
    *(
        ("train", line, {"n_layer": 3})
        for line in ("--n-layer 3", "--n_layer=3", "--n-layer=3", "--n_layer +03")
    ),
    ("train", "--gpu0-bsz=4 --static-loss-scale 128", {}),
    ("eval", "--no-same-length", {"same_length": False}),
    ("train", "--data my-text --work-dir=a-b", {"data": "my-text", "work_dir": "a-b"}),
    ("generate", "--prompt=--a-dash", {"prompt": "--a-dash"}),
    # NVIDIA's names
    ("train", "--eval_max_steps 7 --optim jitlamb", {"max_eval_steps": 7, "optim": "lamb"}),
    ("train", "--neural_layers 2", {"neural_layers": 2}),  # a choice of numbers
    ("train", "--n_layer 2 --n-layer 3", {"n_layer": 3}),  # the later one wins
    ("train", "--cutoffs 10 20 --cutoffs 30", {"cutoffs": (30,)}),
    ("train", "--same_length --no_same_length", {"same_length": False}),
    # a switch that may be left to the program
    ("train", "--cuda_graph --lr 1", {"cuda_graph": True, "lr": 1.0}),
    ("train", "--cuda_graph auto", {"cuda_graph": "auto"}),
    ("train", "--cuda_graph on --cuda_graph=off", {"cuda_graph": False}),
    ("train", "--cuda_graph auto --no_cuda_graph", {"cuda_graph": False}),
]


def test_a_line_has_these_values() -> None:
    for entry, line, values in SPELT:
        assert read(entry, *shlex.split(line)) == values, line


# which value wins


def test_a_typed_flag_wins_over_a_base_and_that_over_the_default() -> None:
    """A value typed for another configuration stays out. Evaluations of a training read segments as long as its own."""
    assert build(Context, {"tgt_len": 3, "n_layer": 3}, tgt_len=5, mem_len=7) == Context(
        tgt_len=3, mem_len=7
    )
    one = Ranks(0, 1, torch.device("cpu"))
    assert new_settings(read("train", "--tgt_len", "8"), one).train.eval_tgt_len == 8


def test_a_typed_flag_wins_over_the_checkpoint_and_that_over_the_default(here: Here) -> None:
    here("train --same_length --clamp_len 6 --max_step 1")
    trained_with = {"tgt_len": 8, "mem_len": 8, "ext_len": 0, "clamp_len": 6, "same_length": True}
    typed = {"tgt_len": 5, "mem_len": 3, "ext_len": 2, "clamp_len": 4, "same_length": False}
    flags = "--tgt_len 5 --mem_len 3 --ext_len 2 --clamp_len 4 --no_same_length"
    for expected, line in ((trained_with, ""), (typed, flags)):
        row = here.row(f"eval --work_dir new --split valid {line}")
        assert {name: row[name] for name in expected} == expected


# bounds

BOUNDS = {
    "above 0 and at most 1 and finite": "decay_rate rope_part",
    "above 0 and at most 1e+07 and finite": "minutes",
    "above 0 and at most 1e+09 and finite": "timeout_s",
    "above 0 and below 0.5 and finite": "held_out",
    "above 0 and below 1 and finite": "cache_lambda",
    "above 0 and finite": (
        "max_hours target_perplexity target_throughput lr epsilon dynamic_lr "
        "dynamic_epsilon rope_base rope_factor rope_low rope_high rope_attention rope_short rope_long"
    ),
    "at least -1 and below 2^31": "clamp_len",
    "at least -1 and below 2^63": "max_eval_steps",
    "at least 0 and at most 1 and finite": "min_p dynamic_decay",
    "at least 0 and at most 1e+30 and finite": "cache_theta",
    "at least 0 and at most 262144": "lookup_len",
    "at least 0 and below 1 and finite": "mom beta1 beta2 ema dropout dropatt label_smoothing",
    "at least 0 and below 2^31": "n_token mem_len compressed_len ext_len",
    "at least 0 and below 2^32": "seed split_seed",
    "at least 0 and below 2^63": (
        "warmup_step patience sample_length attn_keep_mib ff_chunk redraw_interval draw_mem_len min_freq top_k lines "
        "cache_size no_repeat_ngram_size"
    ),
    "at least 0 and finite": (
        "layer_norm_epsilon span_loss weight_decay clip eta_min lr_min init_range init_std proj_init_std temperature"
    ),
    "at least 1 and at most 255": "lsh_round",
    "at least 1 and at most 2^24": "vocab_size",
    "at least 1 and at most 4096": "n_layer",
    "at least 1 and at most 1024": "n_bucket",
    "at least 1 and at most 65536": "n_feature lookup_k n_memory_token n_sink",
    "at least 1 and below 2^31": (
        "n_head d_head d_model d_inner d_embed n_position max_distance tgt_len batch_size local_batch_size "
        "batch_chunk memory_parts max_span span_ramp n_kv_head rope_trained_len"
    ),
    "at least 1 and below 2^63": (
        "div_val lsh_reach max_step log_interval save_interval keep_last max_nonfinite max_step_scheduler "
        "eval_interval eval_tgt_len eval_batch_size max_size length num_samples num_beams batch_size "
        "dynamic_segments"
    ),
    "at least 1e-30 and at most 1 and finite": "top_p typical_p",
    "at least 1e-30 and finite": "repetition_penalty",
    "at least 2 and at most 65536": "compress_rate",
    "at least 2 and below 2^63": "lsh_bucket",
    "below 2^63": "cutoffs resume lookup_layer",
    "finite": "gate_bias",
    "at least -20 and at most 20 and finite": "length_penalty",
}
"""Of every number that can be typed: what it must be."""


def test_every_number_has_these_bounds() -> None:
    """What is counted in 64 bits somewhere is refused here, by the option's name."""
    found: dict[str, set[str]] = {}
    for cls in CONFIGS:
        for f in fields_of(cls).values():
            kinds = {f.type, *typing.get_args(f.type)} & {int, float}
            if kinds and (bool not in typing.get_args(f.type) or f.name == "resume"):
                bad = 10**400 if int in kinds else math.nan
                value = (bad,) if typing.get_origin(f.type) is tuple else bad
                with pytest.raises(UsageError, match=f"^--{f.name} .*: must be ") as refused:
                    cls(**{"n_token": 9, f.name: value} if cls is ModelConfig else {f.name: value})
                found.setdefault(str(refused.value).partition("must be ")[2], set()).add(f.name)
    assert found == {bound: set(names.split()) for bound, names in BOUNDS.items()}


@pytest.mark.parametrize(
    ("batch_size", "near"), [(2**31 - 2, 7), (2**30, 2**19), (12, 5), (1, 9), (36, 6)]
)
def test_numbers_of_processes_that_fit_are_found_for_any_batch(batch_size: int, near: int) -> None:
    """As all divisors would say, which takes a loop up to the batch."""
    found = [int(n) for n in worlds_that_fit(TrainConfig(batch_size=batch_size), near).split(", ")]
    assert all(batch_size % n == 0 for n in found)
    assert found == sorted(found)
    fit = [n for n in range(1, batch_size + 1) if batch_size % n == 0] if batch_size < 100 else []
    assert found == sorted(sorted(fit, key=lambda n: abs(n - near))[:5]) if fit else len(found) == 5


# help


def flags_of(classes: Sequence[type]) -> set[str]:
    return {
        f"--{f.name}"
        for cls in classes
        for f in fields_of(cls).values()
        if f.metadata.get("flag", True)
    }


@pytest.mark.parametrize("entry", CLASSES)
def test_help_says_what_the_program_is_for_and_lists_every_flag_those_used_most_first(
    call: Callable[..., Any], entry_points: dict[str, ModuleType], entry: str
) -> None:
    outcome = call(entry, "--help", "all")
    assert (outcome.status, outcome.err) == (0, "")
    assert (entry_points[entry].__doc__ or "").splitlines()[0] in outcome.out
    listed = set(re.findall(r"^  (--\w+)", outcome.out, flags=re.MULTILINE))
    common = {"--help", "--plugin", *(["--preset", "--config"] if entry in PRESETS_OF else [])}
    assert flags_of(CLASSES[entry]) | common == listed
    flags = [
        f
        for config in CLASSES[entry]
        for f in fields_of(config).values()
        if f.metadata.get("flag", True)
    ]
    assert [f.name for f in flags if not f.metadata.get("help", "").strip()] == []
    groups = re.findall(r"^(\S.*):\n  --", outcome.out, flags=re.MULTILINE)
    assert groups[:2] == ["options", "most used"]
    assert len(groups) == len(set(groups))


def test_help_leaves_settings_of_other_choices_to_topics(call: Callable[..., Any]) -> None:
    def listed(*words: str) -> set[str]:
        return set(re.findall(r"^  (--\w+)", call(*words).out, flags=re.MULTILINE))

    short = call("train", "-h", "--n_layr", "3")
    assert "more settings: --help optim, " in short.out
    assert {"--optim", "--beta1", "--memory", "--eta_min"} <= listed("train", "--help")
    assert not {"--mom", "--n_feature", "--patience"} & listed("train", "--help")
    assert listed("train", "--help", "scheduler") == {
        *("--scheduler", "--eta_min", "--patience", "--decay_rate", "--lr_min")
    }
    assert listed("train", "--help", "lr") == {"--lr"}
    refused = call("train", "--help", "wether")
    assert refused.status == 2
    assert "--help wether: no such topic; there are optim, scheduler, position" in refused.err


def test_help_wins_over_a_mistake_and_shows_defaults_and_how_to_turn_switches_off(
    call: Callable[..., Any],
) -> None:
    text = " ".join(call("train", "-h", "all", "--n_layr", "3").out.split())
    assert (
        "--warmup_step int updates over which the learning rate rises linearly to --lr [0]" in text
    )
    assert "--tf32, --no_tf32 float32 products" in text
    assert "--mom float sgd: momentum [0.0]" in text

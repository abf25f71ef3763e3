"""The flags: those of 2019 as published, how they are spelt, and which value wins."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from txl.cli import read_flags
from txl.config import Context, ModelConfig, UsageError, build
from txl.data_utils.corpus import DataConfig
from txl.evaluation.config import EVAL, SCORE, ReclConfig
from txl.generation.config import GenerateConfig
from txl.training.config import TrainConfig
from txl.training.plan import ClusterConfig

ROOT = Path(__file__).parents[2]
CLASSES = {
    "train": (TrainConfig, ModelConfig, Context, DataConfig),
    "eval": (*EVAL, DataConfig),
    "score": (*SCORE, DataConfig),
    "recl": (ReclConfig, DataConfig),
    "generate": (GenerateConfig,),
    "estimate": (ClusterConfig, TrainConfig, ModelConfig, Context, DataConfig),
}
CONFIGS = (*CLASSES["train"], *EVAL, SCORE[0], GenerateConfig, ClusterConfig)

# run_*.sh of kimiyoung/transformer-xl, as the shell hands them on

TRAIN_2019 = {
    "wt103_base": (
        "--cuda --data ../data/wikitext-103/ --dataset wt103 --adaptive --n_layer 16 --d_model 410 --n_head 10 "
        "--d_head 41 --d_inner 2100 --dropout 0.1 --dropatt 0.0 --optim adam --lr 0.00025 --warmup_step 0 "
        "--max_step 200000 --tgt_len 150 --mem_len 150 --eval_tgt_len 150 --batch_size 60 --multi_gpu --gpu0_bsz 4"
    ),
    "wt103_large": (
        "--cuda --data ../data/wikitext-103/ --dataset wt103 --adaptive --div_val 4 --n_layer 18 --d_model 1024 "
        "--n_head 16 --d_head 64 --d_inner 4096 --dropout 0.2 --dropatt 0.2 --optim adam --lr 0.00025 "
        "--warmup_step 16000 --max_step 4000000 --tgt_len 384 --mem_len 384 --eval_tgt_len 128 --batch_size 128 "
        "--multi_gpu --gpu0_bsz 0"
    ),
    "enwik8_base": (
        "--cuda --data ../data/enwik8/ --dataset enwik8 --n_layer 12 --d_model 512 --n_head 8 --d_head 64 "
        "--d_inner 2048 --dropout 0.1 --dropatt 0.0 --optim adam --lr 0.00025 --warmup_step 0 --max_step 400000 "
        "--tgt_len 512 --mem_len 512 --eval_tgt_len 128 --batch_size 22 --multi_gpu --gpu0_bsz 4"
    ),
    "enwik8_large": (
        "--cuda --data ../data/enwik8/ --dataset enwik8 --n_layer 24 --d_model 1024 --n_head 8 --d_head 128 "
        "--d_inner 3072 --dropout 0.15 --dropatt 0.15 --optim adam --lr 0.00025 --warmup_step 4000 --max_step 400000 "
        "--tgt_len 768 --mem_len 768 --eval_tgt_len 128 --batch_size 64 --multi_gpu --gpu0_bsz 0"
    ),
    "text8_base": (
        "--cuda --data ../data/text8/ --dataset text8 --n_layer 12 --d_model 512 --n_head 8 --d_head 64 "
        "--d_inner 2048 --dropout 0.1 --dropatt 0.0 --optim adam --lr 0.00025 --warmup_step 0 --max_step 400000 "
        "--tgt_len 512 --mem_len 512 --eval_tgt_len 128 --batch_size 22 --multi_gpu --gpu0_bsz 4"
    ),
    "text8_large": (
        "--cuda --data ../data/text8/ --dataset text8 --n_layer 24 --d_model 1024 --n_head 8 --d_head 128 "
        "--d_inner 3072 --dropout 0.15 --dropatt 0.15 --optim adam --lr 0.00025 --max_step 400000 --tgt_len 768 "
        "--mem_len 768 --eval_tgt_len 128 --batch_size 64"
    ),
    "lm1b_base": (
        "--cuda --data ../data/one-billion-words/ --dataset lm1b --adaptive --n_layer 18 --d_model 1024 --div_val 4 "
        "--n_head 8 --d_head 128 --d_inner 4096 --dropout 0.0 --dropatt 0.0 --optim adam --warmup_step 20000 "
        "--max_step 500000 --lr 0.00025 --tgt_len 32 --mem_len 32 --eval_tgt_len 32 --batch_size 224 --multi_gpu "
        "--gpu0_bsz 32"
    ),
    "lm1b_large": (
        "--cuda --data ../data/one-billion-words/ --dataset lm1b --adaptive --div_val 4 --n_layer 24 --d_model 1280 "
        "--n_head 16 --d_head 80 --d_inner 8192 --dropout 0.05 --dropatt 0.05 --optim adam --warmup_step 30000 "
        "--max_step 1200000 --lr 0.00025 --tgt_len 32 --mem_len 32 --eval_tgt_len 32 --batch_size 512 --multi_gpu "
        "--gpu0_bsz 0"
    ),
}
EVAL_2019 = {
    "wt103_base": (
        "--cuda --data ../data/wikitext-103/ --dataset wt103 --tgt_len 64 --mem_len 640 --clamp_len 400 "
        "--same_length --split test"
    ),
    "wt103_large": (
        "--cuda --data ../data/wikitext-103/ --dataset wt103 --tgt_len 128 --mem_len 1600 --clamp_len 1000 "
        "--same_length --split test"
    ),
    "enwik8_base": (
        "--cuda --data ../data/enwik8/ --dataset enwik8 --tgt_len 80 --mem_len 2100 --clamp_len 820 --same_length "
        "--split test"
    ),
    "enwik8_large": (
        "--cuda --data ../data/enwik8/ --dataset enwik8 --tgt_len 128 --mem_len 3800 --clamp_len 1000 --same_length "
        "--split test"
    ),
    "text8_base": (
        "--cuda --data ../data/text8/ --dataset text8 --tgt_len 80 --mem_len 2100 --clamp_len 820 --same_length "
        "--split test"
    ),
    "text8_large": (
        "--cuda --data ../data/text8/ --dataset text8 --tgt_len 128 --mem_len 3800 --clamp_len 1000 --same_length "
        "--split test"
    ),
    "lm1b_base": (
        "--cuda --data ../data/one-billion-words/ --dataset lm1b --batch_size 64 --tgt_len 32 --mem_len 128 "
        "--split test --same_length"
    ),
    "lm1b_large": (
        "--cuda --data ../data/one-billion-words/ --dataset lm1b --batch_size 8 --tgt_len 32 --mem_len 128 "
        "--split test --same_length"
    ),
}

# every flag of train.py and eval.py of 2019, with its default; switches have none
ALL_2019 = {
    "train": (
        "--data ../data/wikitext-103|--dataset wt103|--n_layer 12|--n_head 10|--d_head 50|--d_embed -1|--d_model 500|"
        "--d_inner 1000|--dropout 0.0|--dropatt 0.0|--init normal|--emb_init normal|--init_range 0.1|"
        "--emb_init_range 0.01|--init_std 0.02|--proj_init_std 0.01|--optim adam|--lr 0.00025|--mom 0.0|"
        "--scheduler cosine|--warmup_step 0|--decay_rate 0.5|--lr_min 0.0|--clip 0.25|--clip_nonemb|"
        "--max_step 100000|--batch_size 60|--batch_chunk 1|--tgt_len 70|--eval_tgt_len 50|--ext_len 0|--mem_len 0|"
        "--not_tied|--seed 1111|--cuda|--adaptive|--div_val 1|--pre_lnorm|--varlen|--multi_gpu|--log-interval 200|"
        "--eval-interval 4000|--work_dir LM-TFM|--restart|--restart_dir |--debug|--same_length|--attn_type 0|"
        "--clamp_len -1|--eta_min 0.0|--gpu0_bsz -1|--max_eval_steps -1|--sample_softmax -1|--patience 0|"
        "--finetune_v2|--finetune_v3|--fp16|--static-loss-scale 1|--dynamic-loss-scale"
    ),
    "eval": (
        "--data ../data/wikitext-103|--dataset wt103|--split all|--batch_size 10|--tgt_len 5|--ext_len 0|--mem_len 0|"
        "--clamp_len -1|--cuda|--work_dir LM-TFM|--no_log|--same_length"
    ),
}
EACH_2019 = [(entry, flag) for entry, flags in ALL_2019.items() for flag in flags.split("|")]


ALL_NVIDIA = {
    "train": (
        "--config default|--config_file None|--work_dir LM-TFM|--append_dataset|--append_time|--cuda|--fp16|--restart |"
        "--debug|--log_all_ranks|--dllog_file train_log.json|--txtlog_file train_log.log|--save_all|--no_env|--no_eval|"
        "--no_test|--log_interval 10|--target_throughput 1|--target_perplexity 1|--apex_amp_opt_level O2|--amp apex|"
        "--affinity socket_unique_interleaved|--data ../data/wikitext-103|--dataset wt103|--vocab word|--n_layer 16|"
        "--n_head 8|--d_head 64|--d_embed -1|--d_model 512|--d_inner 2048|--dropout 0.1|--dropatt 0.0|--pre_lnorm|"
        "--attn_type 0|--not_tied|--clamp_len -1|--adaptive|--div_val 1|--sample_softmax -1|--init normal|"
        "--emb_init normal|--init_range 0.1|--emb_init_range 0.01|--init_std 0.02|--proj_init_std 0.01|--optim jitlamb|"
        "--lr 0.01|--mom 0.0|--scheduler cosine|--max_step_scheduler 40000|--warmup_step 1000|--decay_rate 0.5|"
        "--lr_min 0.0|--clip 0.25|--weight_decay 0.0|--clip_nonemb|--patience 0|--eta_min 0.001|--max_step 40000|"
        "--batch_size 256|--local_batch_size 256|--batch_chunk 1|--roll|--tgt_len 192|--ext_len 0|--mem_len 192|"
        "--seed 1111|--multi_gpu ddp|--gpu0_bsz -1|--same_length|--varlen|--swap_mem|--eval_tgt_len 192|"
        "--eval_batch_size 16|--eval_max_steps -1|--eval_interval 5000|--local_rank 0"
    ),
    "eval": (
        "--config default|--config_file None|--work_dir LM-TFM|--debug|--data ../data/wikitext-103|--manual a b|"
        "--dataset wt103|--split all|--affinity single_unique|--type pytorch|--batch_size 16|--tgt_len 64|--ext_len 0|"
        "--mem_len 640|--seed 1111|--clamp_len -1|--cuda|--model |--manual_config {}|--manual_vocab word|--fp16|"
        "--log_all_ranks|--dllog_file eval_log.json|--same_length|--no_env|--log_interval 10|--target_perplexity 1|"
        "--target_throughput 1|--save_data|--repeat 1|--max_size 1|--percentiles 90 95 99|--save_torchscript x|"
        "--load_torchscript x"
    ),
}
EACH_NVIDIA = [(entry, flag) for entry, flags in ALL_NVIDIA.items() for flag in flags.split("|")]
REFUSED_OF_NVIDIA = (
    *("config_file", "fp16", "save_all", "no_eval", "manual", "manual_config", "save_torchscript", "load_torchscript"),
    *("target_perplexity", "target_throughput"),
)


def read(entry: str, *argv: str) -> dict[str, Any]:
    return read_flags(argv, *CLASSES[entry], description="")


def arrived(entry: str, line: str) -> dict[str, Any]:
    """The values of a command line after they went through the dataclasses, by field."""
    typed = read(entry, *line.split())
    sizes = {"n_token": 267_735, "cutoffs": (20_000, 40_000, 200_000)}
    configs = [build(cls, typed, **(sizes if cls is ModelConfig else {})) for cls in CLASSES[entry]]
    return {name: getattr(config, name) for config in configs for name in typed if hasattr(config, name)}


# 2019


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "wt103_base",
            {
                "data": "../data/wikitext-103/", "dataset": "wt103", "adaptive": True, "n_layer": 16, "d_model": 410,
                "n_head": 10, "d_head": 41, "d_inner": 2100, "dropout": 0.1, "dropatt": 0.0, "optim": "adam",
                "lr": 0.00025, "warmup_step": 0, "max_step": 200_000, "tgt_len": 150, "mem_len": 150,
                "eval_tgt_len": 150, "batch_size": 60,
            },
        ),
        (
            "wt103_large",
            {
                "data": "../data/wikitext-103/", "dataset": "wt103", "adaptive": True, "div_val": 4, "n_layer": 18,
                "d_model": 1024, "n_head": 16, "d_head": 64, "d_inner": 4096, "dropout": 0.2, "dropatt": 0.2,
                "optim": "adam", "lr": 0.00025, "warmup_step": 16_000, "max_step": 4_000_000, "tgt_len": 384,
                "mem_len": 384, "eval_tgt_len": 128, "batch_size": 128,
            },
        ),
    ],
)  # fmt: skip
def test_a_published_training_arrives_in_the_configurations(name: str, expected: dict[str, Any]) -> None:
    assert arrived("train", TRAIN_2019[name]) == expected


@pytest.mark.parametrize(
    ("name", "tgt_len", "mem_len", "clamp_len"), [("wt103_base", 64, 640, 400), ("wt103_large", 128, 1600, 1000)]
)
def test_a_published_evaluation_arrives_in_the_configuration(
    name: str, tgt_len: int, mem_len: int, clamp_len: int
) -> None:
    assert arrived("eval", EVAL_2019[name]) == {
        "data": "../data/wikitext-103/",
        "dataset": "wt103",
        "tgt_len": (tgt_len,),
        "mem_len": (mem_len,),
        "clamp_len": clamp_len,
        "same_length": True,
        "split": "test",
    }


@pytest.mark.parametrize("name", TRAIN_2019)
def test_the_scripts_have_the_published_settings(tmp_path: Path, name: str) -> None:
    """scripts/run_*.sh and run_wt103.sh against the lines of 2019, but for their folders of text."""
    dataset, _, size = name.partition("_")
    script = "run_wt103.sh" if dataset == "wt103" else f"scripts/run_{dataset}.sh"
    for entry, lines in {"train": TRAIN_2019, "eval": EVAL_2019}.items():
        line = script_line(tmp_path, script, entry, size)
        asked, expected = arrived(entry, line), arrived(entry, lines[name])
        for values in (asked, expected):
            for place in ("data", "dataset", "work_dir"):
                values.pop(place, None)
        assert asked == expected
    assert f"--dataset {dataset}" in script_line(tmp_path, script, "train", size)


@pytest.mark.parametrize(("dataset", "size"), [("enwik8", "base18"), ("wt2", "base"), ("ptb", "base")])
def test_the_scripts_of_ours_have_flags_that_there_are(tmp_path: Path, dataset: str, size: str) -> None:
    for entry in ("train", "eval", "generate"):
        assert arrived(entry, script_line(tmp_path, f"scripts/run_{dataset}.sh", entry, size))


def script_line(folder: Path, script: str, *words: str) -> str:
    """The flags that a script hands to a program."""
    python, calls = folder / "python", folder / "calls"
    python.write_text(f'#!/usr/bin/env bash\n[[ $2 != *count* ]] || echo 0\n[[ $1 = -c ]] || echo "$*" >{calls}\n')
    python.chmod(0o755)
    subprocess.run(["bash", ROOT / script, *words], check=True, env=os.environ | {"PYTHON": str(python)})
    return calls.read_text().partition(".py ")[2]


def refusal(entry: str, *argv: str) -> str:
    """Why a command line is refused; empty if it is not."""
    try:
        read(entry, *argv)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("entry", "flag"), EACH_2019, ids=[f"{entry} {flag}" for entry, flag in EACH_2019])
def test_no_flag_of_2019_is_unheard_of(entry: str, flag: str) -> None:
    name, space, value = flag.partition(" ")
    assert "no such flag" not in refusal(entry, name, *([value] if space else []))


@pytest.mark.parametrize("entry", ["train", "eval"])
def test_every_flag_that_took_a_value_in_2019_takes_its_default(entry: str) -> None:
    valued = [flag.partition(" ") for where, flag in EACH_2019 if where == entry and " " in flag]
    assert refusal(entry, *(word for name, _, value in valued for word in (name, value))) == ""


def test_every_flag_of_nvidias_is_known_or_refused_with_advice() -> None:
    for entry, flag in EACH_NVIDIA:
        name, space, values = flag.partition(" ")
        why = refusal(entry, name, *(values.split() or ([""] if space else [])))
        assert "no such flag" not in why, flag
        assert bool(why) <= (name[2:] in REFUSED_OF_NVIDIA), (flag, why)


def test_nvidias_names_become_ours() -> None:
    assert read("train", "--eval_max_steps", "7", "--optim", "jitlamb") == {"max_eval_steps": 7, "optim": "lamb"}


RETIRED = [
    "--cuda", "--multi_gpu", "--gpu0_bsz 4", "--emb_init normal", "--emb_init_range 0.01", "--clip_nonemb", "--debug",
    "--static_loss_scale 1", "--dynamic_loss_scale", "--no_log",
]  # fmt: skip


@pytest.mark.parametrize("flag", RETIRED)
def test_a_retired_flag_has_no_effect_but_one_note(flag: str, capfd: pytest.CaptureFixture[str]) -> None:
    for entry in ("eval", "generate", "train"):
        assert read(entry, *flag.split()) == {}
    noted = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"note: {flag.split()[0]} has no effect: \S[^\n]+", noted)


@pytest.mark.parametrize("flag", ["--attn_type 0", "--attn_type 1", "--batch_chunk 1", "--sample_softmax -1"])
def test_a_refused_flag_that_asks_for_what_is_done_anyway_is_accepted_in_silence(
    flag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    read("train", *flag.split())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("number", "name"),
    [("0", "rel_sinusoid"), ("1", "learned_relative"), ("2", "sinusoid_input"), ("3", "learned_per_layer")],
)
def test_an_attn_type_is_a_position_encoding(number: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert read("train", "--attn_type", number) == {"position": name}
    noted = capfd.readouterr().err
    assert noted == "" if number in "01" else noted.startswith(f"note: --attn_type {number} is --position {name}: ")
    assert read("train", "--attn-type", number, "--position", name) == {"position": name}


# spelling

SPELT: list[tuple[str, str, dict[str, Any]]] = [
    ("train", "", {}),
    *(("train", line, {"n_layer": 3}) for line in ("--n-layer 3", "--n_layer=3", "--n-layer=3", "--n_layer +03")),
    ("train", "--gpu0-bsz=4 --static-loss-scale 128", {}),
    ("eval", "--no-same-length", {"same_length": False}),
    ("train", "--data my-text --work-dir=a-b", {"data": "my-text", "work_dir": "a-b"}),
    ("generate", "--prompt=--a-dash", {"prompt": "--a-dash"}),
    ("train", "--n_layer 2 --n-layer 3", {"n_layer": 3}),  # the later one wins
    ("train", "--cutoffs 10 20 --cutoffs 30", {"cutoffs": (30,)}),
    ("train", "--same_length --no_same_length", {"same_length": False}),
]


@pytest.mark.parametrize(("entry", "line", "values"), SPELT)
def test_a_line_has_these_values(entry: str, line: str, values: dict[str, Any]) -> None:
    assert read(entry, *line.split()) == values


# which value wins


def test_a_typed_flag_wins_over_a_base_and_that_over_the_default() -> None:
    config = build(Context, {"tgt_len": 3}, tgt_len=5, mem_len=7)
    assert (config.tgt_len, config.mem_len, config.clamp_len) == (3, 7, -1)


def test_a_value_typed_for_another_configuration_stays_out() -> None:
    assert build(Context, {"n_layer": 3}) == Context()


EVAL_WINS = [
    ("--tgt_len 5", "tgt_len", 5),
    ("--mem_len 3", "mem_len", 3),
    ("--ext_len 2", "ext_len", 2),
    ("--clamp_len 4", "clamp_len", 4),
    ("--no_same_length", "same_length", False),
]


@pytest.fixture
def same_length_run(call: Callable[..., Any], training: list[str], tmp_path: Path) -> Path:
    run = tmp_path / "same_length"
    call("train", *training, "--work_dir", run, "--same_length", "--clamp_len", 6, "--max_step", 1)
    return run


@pytest.mark.parametrize(("flag", "field", "value"), EVAL_WINS, ids=[flag for flag, _, _ in EVAL_WINS])
def test_a_typed_flag_wins_over_the_checkpoint(
    same_length_run: Path, call: Callable[..., Any], tmp_path: Path, flag: str, field: str, value: object
) -> None:
    assert scored(call, tmp_path, "--work_dir", same_length_run, *flag.split())[field] == value


def test_what_is_not_typed_is_as_in_training(same_length_run: Path, call: Callable[..., Any], tmp_path: Path) -> None:
    row = scored(call, tmp_path, "--work_dir", same_length_run)
    context = {"tgt_len": 8, "mem_len": 8, "ext_len": 0, "clamp_len": 6, "same_length": True}
    assert {name: row[name] for name in context} == context


def scored(call: Callable[..., Any], tmp_path: Path, *flags: object) -> dict[str, Any]:
    """The row that an evaluation of the valid split writes."""
    call("eval", *flags, "--split", "valid", "--json", tmp_path / "result.json")
    (row,) = json.loads((tmp_path / "result.json").read_text())["rows"]
    return row


# help


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_has_a_help_text(config: type) -> None:
    assert [f.name for f in fields(config) if not f.metadata.get("help", "").strip()] == []


def flags_of(classes: Sequence[type]) -> set[str]:
    return {f"--{f.name}" for cls in classes for f in fields(cls) if f.metadata.get("flag", True)}


@pytest.mark.parametrize("entry", CLASSES)
def test_help_says_what_the_program_is_for_and_lists_every_flag(
    call: Callable[..., Any], entry_points: dict[str, ModuleType], entry: str
) -> None:
    outcome = call(entry, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert (entry_points[entry].__doc__ or "").splitlines()[0] in outcome.out
    listed = set(re.findall(r"^  (--\w+)", outcome.out, flags=re.MULTILINE))
    assert flags_of(CLASSES[entry]) | {"--help"} == listed


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_wins_over_a_mistake(call: Callable[..., Any], word: str) -> None:
    assert call("train", word, "--n_layr", "3").status == 0


def test_help_shows_defaults_that_are_0_and_how_to_turn_switches_off(call: Callable[..., Any]) -> None:
    text = " ".join(call("train", "--help").out.split())
    assert "--warmup_step int updates over which the learning rate rises linearly to --lr [0]" in text
    assert "--tf32, --no_tf32 float32 products" in text
    assert "--mom float sgd: momentum [0.0]" in text


@pytest.mark.parametrize("entry", CLASSES)
def test_help_begins_with_the_flags_used_most(call: Callable[..., Any], entry: str) -> None:
    groups = re.findall(r"^(\S.*):\n  --", call(entry, "--help").out, flags=re.MULTILINE)
    assert groups[:2] == ["options", "most used"]
    assert len(groups) == len(set(groups))


def test_no_clipping_has_two_spellings() -> None:
    assert build(TrainConfig, {"clip": float("inf")}).clip == build(TrainConfig, {"clip": 0.0}).clip == 0.0

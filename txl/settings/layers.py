"""Presets: settings by name, which --preset gives to train.py, eval.py and generate.py.

The one table of them: run_wt103.sh, scripts/run_*.sh and `txl try` read it too. Flags that are
typed win over those of a preset.
"""

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Entry = Literal["train", "eval", "generate"]
"""What a preset has flags for."""


class Preset(NamedTuple):
    """Settings of a model of a certain size, each as flags of a program.

    Attributes:
        about: what it is and whose.
        train, eval, generate: flags of train.py, eval.py and generate.py.
    """

    about: str
    train: str
    eval: str = ""
    generate: str = ""


_RECIPE = (
    "--activation swiglu --pre_lnorm --optim muon --lr 0.0025 --weight_decay 0.1 --clip 1"
    " --dropatt 0.0"
)
"""That of lab/docs/results.md#recipes, at a rate for longer trainings than there
(lab/docs/results.md#how-much-the-rate-decides).
"""
_WARMUP_2019 = "--warmup_convention original"
_EVAL_BASE = "--tgt_len 64 --mem_len 640 --clamp_len 400 --same_length --split test"
_EVAL_LARGE = "--tgt_len 128 --mem_len 1600 --clamp_len 1000 --same_length --split test"
_GENERATE_BASE = "--mem_len 640 --clamp_len 400 --same_length"
_GENERATE_LARGE = "--mem_len 1600 --clamp_len 1000 --same_length"
_EVAL_BYTES = "--tgt_len 80 --mem_len 2100 --clamp_len 820 --same_length --split test"
_EVAL_BYTES_LARGE = "--tgt_len 128 --mem_len 3800 --clamp_len 1000 --same_length --split test"
_GENERATE_BYTES = "--mem_len 2100 --clamp_len 820 --same_length"
_GENERATE_BYTES_LARGE = "--mem_len 3800 --clamp_len 1000 --same_length"
_BYTES_BASE = (
    "--data_convention original"
    " --n_layer 12 --d_model 512 --n_head 8 --d_head 64 --d_inner 2048 --dropout 0.1 --dropatt 0.0"
    " --optim adam --lr 0.00025 --warmup_step 0 --max_step 400000 --tgt_len 512 --mem_len 512"
    " --eval_tgt_len 128 --batch_size 22"
)
_BYTES_LARGE = (
    "--data_convention original"
    " --n_layer 24 --d_model 1024 --n_head 8 --d_head 128 --d_inner 3072 --dropout 0.15 --dropatt"
    " 0.15 --optim adam --lr 0.00025 --max_step 400000 --tgt_len 768 --mem_len 768 --eval_tgt_len"
    " 128 --batch_size 64"
)

PRESETS = {
    # any text
    "tiny": Preset(
        "any text, minutes on a CPU: 4 layers of 128",
        "--n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --activation relu"
        " --pre_lnorm --dropout 0.1 --optim muon --lr 0.005 --weight_decay 0.1 --clip 1"
        " --warmup_step 100 --max_step 2500 --tgt_len 64 --mem_len 128 --eval_tgt_len 64"
        " --batch_size 16 --eval_interval 250 --log_interval 50 --sample_length 0",
    ),
    "small": Preset(
        "any text, hours on a CPU or minutes on a GPU: 6 layers of 256",
        f"--n_layer 6 --d_model 256 --n_head 8 --d_head 32 --d_inner 683 {_RECIPE} --dropout 0.1"
        " --warmup_step 500 --max_step 10000 --tgt_len 64 --mem_len 192 --eval_tgt_len 64"
        " --batch_size 32 --eval_interval 500 --log_interval 100",
    ),
    "llama-small": Preset(
        "any text: a decoder of Llama's family of the size of small; not trained by us",
        f"--n_layer 6 --d_model 256 --n_head 8 --n_kv_head 4 --d_head 32 --d_inner 683 {_RECIPE}"
        " --position rotary --norm rms --final_norm --no_ff_bias --no_scale_embedding"
        " --no_softmax_bias --dropout 0.1 --warmup_step 500 --max_step 10000 --tgt_len 64 --mem_len"
        " 192 --eval_tgt_len 64 --batch_size 32 --eval_interval 500 --log_interval 100",
    ),
    "base": Preset(
        "any text, hours on a GPU: 12 layers of 512; not trained by us",
        f"--n_layer 12 --d_model 512 --n_head 8 --d_head 64 --d_inner 1365 {_RECIPE} --dropout 0.1"
        " --warmup_step 2000 --max_step 50000 --tgt_len 128 --mem_len 384 --eval_tgt_len 128"
        " --batch_size 64 --eval_interval 2000 --log_interval 100",
    ),
    "large": Preset(
        "any text, days on several GPUs: 18 layers of 1024; not trained by us",
        f"--n_layer 18 --d_model 1024 --n_head 16 --d_head 64 --d_inner 2731 {_RECIPE} --dropout"
        " 0.2 --warmup_step 4000 --max_step 100000 --tgt_len 256 --mem_len 768 --eval_tgt_len 128"
        " --batch_size 128 --eval_interval 5000 --log_interval 100",
    ),
    # WikiText-103; wt103-base, wt103-large: as in kimiyoung/transformer-xl's run_wt103_base.sh and
    # run_wt103_large.sh
    "wt103-base": Preset(
        "WikiText-103 as in 2019",
        "--adaptive --n_layer 16 --d_model 410 --n_head 10 --d_head 41 --d_inner 2100 --dropout 0.1"
        " --dropatt 0.0 --optim adam --lr 0.00025 --warmup_step 0 --max_step 200000 --tgt_len 150"
        " --mem_len 150 --eval_tgt_len 150 --batch_size 60",
        _EVAL_BASE,
        _GENERATE_BASE,
    ),
    "wt103-base_modern": Preset(
        "ours: wt103-base with the recipe of lab/docs/results.md#recipes, for half its tokens; not trained at"
        " this size",
        "--adaptive --n_layer 16 --d_model 410 --n_head 10 --d_head 41 --d_inner 1400 --activation"
        " swiglu --pre_lnorm --dropout 0.1 --dropatt 0.0 --optim muon --lr 0.0025 --weight_decay 0.1"
        " --warmup_step 8000 --max_step 100000 --tgt_len 150 --mem_len 150 --eval_tgt_len 150"
        " --batch_size 60",
        _EVAL_BASE,
        _GENERATE_BASE,
    ),
    "wt103-large": Preset(
        "WikiText-103 as in 2019",
        "--adaptive --div_val 4 --n_layer 18 --d_model 1024 --n_head 16 --d_head 64 --d_inner 4096"
        " --dropout 0.2 --dropatt 0.2 --optim adam --lr 0.00025 --warmup_step 16000 --max_step"
        f" 4000000 --tgt_len 384 --mem_len 384 --eval_tgt_len 128 --batch_size 128 {_WARMUP_2019}",
        _EVAL_LARGE,
        _GENERATE_LARGE,
    ),
    "wt103-nv_base": Preset(
        "WikiText-103 as in NVIDIA DeepLearningExamples' wt103_base.yaml",
        "--adaptive --div_val 1 --n_layer 16 --d_model 512 --n_head 8 --d_head 64 --d_inner 2048"
        " --dropout 0.1 --dropatt 0.0 --optim lamb --lr 0.01 --eta_min 0.001 --warmup_step 1000"
        " --max_step 40000 --roll --tgt_len 192 --mem_len 192 --eval_tgt_len 192 --batch_size 256"
        " --eval_interval 5000 --log_interval 10",
        _EVAL_BASE,
        _GENERATE_BASE,
    ),
    "wt103-nv_large": Preset(
        "WikiText-103 as in NVIDIA DeepLearningExamples' wt103_large.yaml",
        "--adaptive --div_val 4 --n_layer 18 --d_model 1024 --n_head 16 --d_head 64 --d_inner 4096"
        " --dropout 0.2 --dropatt 0.2 --init_std 0.005 --optim lamb --lr 0.01 --eta_min 0.0001"
        " --warmup_step 16000 --max_step 100000 --roll --tgt_len 384 --mem_len 384 --eval_tgt_len"
        " 128 --batch_size 128 --eval_interval 5000 --log_interval 100",
        _EVAL_LARGE,
        _GENERATE_LARGE,
    ),
    # the other data sets; as in the 2019 code's scripts, but for wt2, ptb and enwik8-base18, which
    # are ours
    "wt2-base": Preset(
        "WikiText-2: a small model, 6.9M parameters; ours, the 2019 code has no script",
        "--cutoffs 3000 12000 --div_val 2 --n_layer 4 --d_model 256 --n_head 8 --d_head 32"
        " --d_inner 1024 --dropout 0.1 --lr 0.001 --warmup_step 200 --max_step 4000 --tgt_len 64"
        " --mem_len 128 --eval_tgt_len 64 --batch_size 16 --eval_interval 500",
        "--tgt_len 64 --mem_len 256 --clamp_len 192 --split test",
        "--clamp_len 192",
    ),
    # as many parameters as the paper's model, whose settings, variational dropout and weight
    # averaging were not published: its 54.5 is not reproduced by this
    "ptb-base": Preset(
        "Penn Treebank, 24M parameters; ours",
        "--n_layer 14 --d_model 400 --n_head 10 --d_head 40 --d_inner 800 --dropout 0.4 --dropatt"
        " 0.2 --optim adam --lr 0.00035 --warmup_step 1000 --max_step 40000 --tgt_len 70 --mem_len"
        " 70 --eval_tgt_len 70 --batch_size 22 --eval_interval 1000 --ema 0.999",
        "--tgt_len 70 --mem_len 400 --clamp_len 140 --split test",
        "--mem_len 140 --clamp_len 140",
    ),
    "enwik8-base": Preset(
        "enwik8 as in 2019", f"--dataset enwik8 {_BYTES_BASE}", _EVAL_BYTES, _GENERATE_BYTES
    ),
    # the paper's 18 layers with 88M parameters, whose script was never published; these come to
    # 88.7M
    "enwik8-base18": Preset(
        "ours: enwik8, 18 layers; sizes, dropout and lengths are ours",
        "--n_layer 18 --d_model 640 --n_head 8 --d_head 64 --d_inner 2560 --dropout 0.1 --dropatt"
        " 0.0 --optim adam --lr 0.00025 --warmup_step 4000 --max_step 400000 --tgt_len 512"
        " --mem_len 512 --eval_tgt_len 128 --batch_size 22",
        _EVAL_BYTES,
        _GENERATE_BYTES,
    ),
    "enwik8-large": Preset(
        "enwik8 as in 2019",
        f"--dataset enwik8 {_BYTES_LARGE} --warmup_step 4000 {_WARMUP_2019}",
        _EVAL_BYTES_LARGE,
        _GENERATE_BYTES_LARGE,
    ),
    "text8-base": Preset(
        "text8 as in 2019", f"--dataset text8 {_BYTES_BASE}", _EVAL_BYTES, _GENERATE_BYTES
    ),
    "text8-large": Preset(
        "text8 as in 2019",
        f"--dataset text8 {_BYTES_LARGE}",
        _EVAL_BYTES_LARGE,
        _GENERATE_BYTES_LARGE,
    ),
    "lm1b-base": Preset(
        "One Billion Word as in 2019",
        f"--dataset lm1b {_WARMUP_2019}"
        " --adaptive --div_val 4 --n_layer 18 --d_model 1024 --n_head 8 --d_head 128 --d_inner 4096"
        " --dropout 0.0 --dropatt 0.0 --optim adam --lr 0.00025 --warmup_step 20000 --max_step"
        " 500000 --tgt_len 32 --mem_len 32 --eval_tgt_len 32 --batch_size 224",
        "--batch_size 64 --tgt_len 32 --mem_len 128 --same_length --split test",
        "--mem_len 128 --same_length",
    ),
    "lm1b-large": Preset(
        "One Billion Word as in 2019",
        f"--dataset lm1b {_WARMUP_2019}"
        " --adaptive --div_val 4 --n_layer 24 --d_model 1280 --n_head 16 --d_head 80 --d_inner 8192"
        " --dropout 0.05 --dropatt 0.05 --optim adam --lr 0.00025 --warmup_step 30000 --max_step"
        " 1200000 --tgt_len 32 --mem_len 32 --eval_tgt_len 32 --batch_size 512",
        "--batch_size 8 --tgt_len 32 --mem_len 128 --same_length --split test",
        "--mem_len 128 --same_length",
    ),
    # run_wt103.sh demo
    "demo": Preset(
        "Python's bundled documentation, minutes on a CPU",
        "--n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --dropout 0.15 --tgt_len 32"
        " --mem_len 128 --batch_size 16 --lr 0.001 --warmup_step 100 --max_step 2500 --eval_tgt_len"
        " 32 --eval_interval 500 --log_interval 100",
        "--split test --mem_len 0 8 32 128 --borders both",
        "--length 120 --finish_line --top_p 0.8 --no_unk",
    ),
    # lab/scripts/write_model.sh: the recipe and memory of lab/docs/results.md, in updates of 4,096 tokens,
    # 30 million in all; nothing is read twice, so nothing is dropped
    "wikipedia-16m": Preset(
        "ours: Wikipedia, 16M parameters, hours on a CPU",
        "--cutoffs auto --div_val 1 --dropout 0.0 --n_layer 4 --d_model 256 --n_head 8 --d_head 32"
        " --d_inner 683 --activation swiglu --pre_lnorm --optim muon --lr 0.0025 --weight_decay 0.1"
        " --warmup_step 500 --max_step 7324 --tgt_len 64 --mem_len 192 --batch_size 64"
        " --eval_tgt_len 64 --max_eval_steps 200 --eval_interval 500 --save_interval 250"
        " --sample_length 0",
    ),
}


class TextSize(NamedTuple):
    """What `txl try` trains on a text of a certain size.

    Attributes:
        most_characters: of the text.
        preset: the model, its training and its lengths; `on_gpu` where there is one.
        vocab_size: subwords, where the text has spaces.
        dropout: over that of the preset: a small text is read many times.
    """

    most_characters: float
    preset: str
    on_gpu: str
    vocab_size: int
    dropout: float


TEXT_SIZES = (
    TextSize(300_000, "tiny", "tiny", 512, 0.2),
    TextSize(900_000, "tiny", "tiny", 1024, 0.2),
    TextSize(2_000_000, "tiny", "tiny", 2048, 0.2),
    TextSize(4_000_000, "tiny", "small", 2048, 0.1),
    TextSize(inf, "tiny", "small", 4096, 0.1),
)


def size_for(n_char: int) -> TextSize:
    """The row of `TEXT_SIZES` for a text of so many characters."""
    return next(size for size in TEXT_SIZES if n_char <= size.most_characters)


_GIVE_WAY = {
    "minutes": {
        "max_step",
        "max_step_scheduler",
        "eval_interval",
        "save_interval",
        "warmup_convention",
    },
    "local_batch_size": {"batch_size"},
    "no_adaptive": {"cutoffs", "adaptive", "div_val"},
}
"""Flags of a preset that mean nothing beside a typed one."""
BESIDE_A_FILE = {
    "local_batch_size": _GIVE_WAY["local_batch_size"],
    "batch_size": {"local_batch_size"},
    "no_adaptive": _GIVE_WAY["no_adaptive"],
    "cutoffs": {"adaptive"},
}
"""The same of a file of settings, whose lengths of the training stay beside --minutes."""


def given_up(typed: Mapping[str, Any], give_way: Mapping[str, set[str]]) -> set[str]:
    """The flags that give way to those that are typed, by a table of them."""
    gone: set[str] = set()
    for field, value in typed.items():
        if value is False:
            field = f"no_{field}"
        gone |= give_way.get(field, set())
    return gone


def words_of(name: str, entry: Entry, typed: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """The flags of a preset for a program, without those that a typed flag replaces.

    Args:
        name: in `PRESETS`.
        typed: the flags that are typed, by their fields.
    """
    words = getattr(PRESETS[name], entry).split()
    gone = given_up(typed, _GIVE_WAY)
    if "dataset" in typed and typed["dataset"] not in words:
        gone.add("data_convention")
    kept: list[str] = []
    keeps = True
    for word in words:
        if word.startswith("--"):
            keeps = word.removeprefix("--") not in gone
        if keeps:
            kept.append(word)
    return kept

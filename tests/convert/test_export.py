"""`python -m txl.convert --to`: what is written is read again, with the same weights and figures, and has a card."""

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import txl
from tests.cli.conftest import Here, change_weights, records
from tests.cli.test_flags import read
from tests.convert.conftest import HF, WORDS, write_words
from tests.golden.test_model import Golden
from txl.attention_rules import ATTENTION_RULES
from txl.checkpoint import open_checkpoint
from txl.config import Context, ModelConfig, UsageError, as_dict
from txl.convert import convert, from_kimiyoung, to_kimiyoung
from txl.convert.huggingface import (
    config_for_huggingface,
    configs_of,
    from_huggingface,
    read_huggingface,
    second_names,
    to_huggingface,
)
from txl.convert.kimiyoung import arguments_for_kimiyoung, require_exportable
from txl.data_utils.free_text import decoder, encode_text
from txl.data_utils.lm1b import SentenceVocab
from txl.data_utils.subwords import Subwords
from txl.data_utils.tokens import ALL_BYTES, Characters, LowerVocab, Symbols, Vocab
from txl.files import require_writable, write_whole
from txl.language.export import training_command, write_huggingface, write_original
from txl.language.model import LanguageModel
from txl.model.transformer import TransformerXL
from txl.positions import POSITION_ENCODINGS
from txl.runs.resolve import Shape, new_settings
from txl.runtime.distributed import Ranks

TEXT = "bab ded bab ded ded bab\n"
SIZES = {"n_layer": 1, "n_head": 1, "d_head": 2, "d_model": 4, "d_inner": 4}

# runs


def test_that_a_length_is_left_out_is_said(here: Here) -> None:
    here("train --work_dir new --ext_len 3")
    assert "--ext_len 3: Hugging Face's" in here("convert new there --to huggingface").err
    assert here("convert new original --to original").err == ""


@pytest.mark.parametrize("to", ["txl", "huggingface", "original"])
def test_a_run_written_for_others_has_the_same_figures(here: Here, to: str) -> None:
    assert here(f"convert run there --to {to}").err == ""
    here("convert there back")
    lm = txl.load("run")
    for place in ("there", "back"):
        again = txl.load(place)
        assert again.score(TEXT * 3).nats == lm.score(TEXT * 3).nats
        assert (again.tokenizer.words, again.context) == (lm.tokenizer.words, lm.context)
    card = Path("there/README.md").read_text()
    for said in ("2 layers, d_model 16", "--tgt_len 8", "Perplexity of the valid split"):
        assert said in card
    assert not list(Path().glob(".tmp*"))
    if to == "huggingface":
        names = {path.name for path in Path("there").iterdir()}
        texts = {"config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "README.md"}
        assert names == {"model.safetensors", "curve.png", *texts}
        config = json.loads(Path("there/config.json").read_text())
        assert (config["model_type"], config["eos_token_id"], config["mem_len"]) == (
            "transfo-xl",
            0,
            8,
        )


def test_weights_in_16_bits_take_half_the_space_and_are_used_in_float32(here: Here) -> None:
    out = here("convert run half --dtype bfloat16 --licence cc-by-sa-4.0").out
    weights, whole = (next(Path(run).glob("step_*/model.safetensors")) for run in ("half", "run"))
    assert weights.stat().st_size < 0.6 * whole.stat().st_size
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in out
    found, expected = (dict(txl.load(path).model.named_parameters()) for path in ("half", "run"))
    assert all(
        torch.equal(found[name], weight.bfloat16().float()) for name, weight in expected.items()
    )
    card = Path("half/README.md").read_text()
    assert "license: cc-by-sa-4.0\n---" in card
    assert "`cc-by-sa-4.0`." in card


def test_dropout_of_the_training_is_exported(here: Here) -> None:
    here("train --dropout 0.3 --dropatt 0.2 --max_step 1")
    here("convert new slim")
    for source in ("new", "slim"):
        for to in ("huggingface", "original"):
            here(f"convert {source} {source}_{to} --to {to}")
        config = json.loads(Path(f"{source}_huggingface/config.json").read_text())
        arguments = torch.load(f"{source}_original/model.pt")["arguments"]
        assert [(said["dropout"], said["dropatt"]) for said in (config, arguments)] == [
            (0.3, 0.2)
        ] * 2
    here("convert new_original hf --to huggingface")
    assert json.loads(Path("hf/config.json").read_text())["dropatt"] == 0.2


@pytest.mark.parametrize("flags", ["--reset document", "--init_from run"])
def test_a_run_that_is_written_reads_text_as_it_did(
    flags: str, here: Here, write_text: Callable[..., Path]
) -> None:
    write_text(Path("other"), words=["bab", "ded", "unknown"])
    for path in Path("other").iterdir():
        path.write_text(f" \n = bab = \n \n{path.read_text()} \n = ded = \n \n bab ded \n")
    here(f"train --data other {flags} --max_step 1")
    assert "--samples" in here("convert -h").out
    here("convert new slim")
    for run in ("new", "slim"):
        here(f"eval --data other --work_dir {run} --split valid --json {run}.json")
    new, slim = (json.loads(Path(f"{run}.json").read_text()) for run in ("new", "slim"))
    assert (slim["reset"], slim["rows"][0]["nats_per_token"]) == (
        new["reset"],
        new["rows"][0]["nats_per_token"],
    )
    assert slim["reset"] == ("document" if "document" in flags else "never")


def test_what_cannot_be_written_is_refused_and_nothing_is(here: Here) -> None:
    here("train --position rotary --max_step 1")
    for to in ("huggingface", "original"):
        assert "--position rotary: " in here.refused(f"convert new there --to {to}")
    assert "--dataset: run is a run of txl and has its own" in here.refused(
        "convert run there --dataset text"
    )
    assert ".: is a folder without a name of its own" in here.refused("convert run .")
    change_weights(Path("run"), lambda weight: weight + 1e6)
    assert "exceed its range; use bfloat16" in here.refused("convert run there --dtype float16")
    assert not Path("there").exists()


# the 2019 code


@pytest.mark.parametrize(
    "name", ["adaptive_div1_emb16", "adaptive_div2_noprojtie", "attn1", "attn2", "attn3", "xl"]
)
def test_each_kind_of_the_2019_code_goes_there_and_back(name: str, tmp_path: Path) -> None:
    model, context = Golden(name).model()
    vocab = Vocab([f"w{i}" for i in range(model.config.n_token)])
    write_original(LanguageModel(model, context, vocab), tmp_path)
    back = convert(tmp_path)
    weights = back.model.state_dict()
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())
    assert back.words == vocab.words
    assert back.context == context


@pytest.mark.parametrize(
    ("n_position", "same_length", "expected"),
    [
        (20, True, (8, 0, 12)),
        (20, False, (8, 0, 12)),
        (12, False, (12, 0, 0)),
        (40, True, (28, 0, 12)),
    ],
)
def test_a_table_of_another_length_than_the_training_keeps_its_memory(
    n_position: int, same_length: bool, expected: tuple[int, ...], tmp_path: Path
) -> None:
    """The constructor there makes its table as long as the three lengths together, and `same_length` without a memory
    masks every key."""
    context = Context(tgt_len=4, mem_len=12, same_length=same_length)
    sizes = {"n_token": 9, "tie_projs": (False,), **SIZES}
    model = TransformerXL(ModelConfig(**sizes, position="learned_relative", n_position=n_position))
    write_original(LanguageModel(model, context, Vocab([f"w{i}" for i in range(9)])), tmp_path)
    back = convert(tmp_path)
    assert (back.context.tgt_len, back.context.ext_len, back.context.mem_len) == expected
    assert back.model.config == model.config


def test_a_table_without_room_for_the_memory_of_same_length_is_not_exported() -> None:
    context = Context(tgt_len=4, mem_len=12, same_length=True)
    model = TransformerXL(
        ModelConfig(n_token=9, **SIZES, position="learned_relative", n_position=12)
    )
    with pytest.raises(
        UsageError,
        match="--mem_len 12 leaves no row of --n_position 12 for new tokens; use --to txl",
    ):
        arguments_for_kimiyoung(model, context)


def test_sinusoids_have_no_table_and_keep_their_lengths() -> None:
    """n_position is that of the training that a run was begun with."""
    context = Context(tgt_len=4, mem_len=12, same_length=True)
    arguments = arguments_for_kimiyoung(
        TransformerXL(ModelConfig(n_token=9, **SIZES, n_position=30)), context
    )
    assert (arguments["tgt_len"], arguments["ext_len"], arguments["mem_len"]) == (4, 0, 12)


def test_damaged_arguments_are_refused(tmp_path: Path) -> None:
    model, context = Golden("xl").model()
    write_original(
        LanguageModel(model, context, Vocab([f"w{i}" for i in range(model.config.n_token)])),
        tmp_path,
    )
    held = torch.load(tmp_path / "model.pt")
    for arguments, message in (
        (5, "damaged (holds no JSON object"),
        ({"tie_projs": 5}, "damaged (tie_projs is '5'"),
        ({"tgt_len": "x"}, "damaged (tgt_len is 'x'"),
        ({"dropout": 7.0}, "damaged (dropout is no probability)"),
        ({"attn_type": 3}, "attn_type: 3 is given, but the weights are those of attn_type 0"),
    ):
        whole = held["arguments"] | arguments if isinstance(arguments, dict) else arguments
        torch.save({"arguments": whole, "state_dict": held["state_dict"]}, tmp_path / "model.pt")
        with pytest.raises(UsageError, match=re.escape(message)):
            convert(tmp_path)


# every kind of words

_TEXT = "The cat, it sat. Bab\n"
_WORDS = ["<eos>", "<unk>", "the", "cat", ",", "it", "sat", ".", "cat,", "sat.", "bab"]


def subwords() -> Subwords:
    pytest.importorskip("tokenizers")
    return Subwords.trained([_TEXT.encode() * 9], 260)


VOCABULARIES: dict[str, Callable[[], Any]] = {
    "text": lambda: Vocab(_WORDS),
    "ptb": lambda: LowerVocab(_WORDS),
    "lm1b": lambda: SentenceVocab(["<S>", "<UNK>", *_WORDS[2:]]),
    "characters": lambda: Characters(["\n", "<unk>", *dict.fromkeys(_TEXT.strip())]),
    "bytes": lambda: Symbols(ALL_BYTES),
    "enwik8": lambda: Symbols(list(dict.fromkeys(str(byte) for byte in _TEXT.encode()))),
    "bpe": subwords,
}


def pretrained(dataset: str) -> LanguageModel:
    vocab = VOCABULARIES[dataset]()
    model = TransformerXL(ModelConfig(n_token=len(vocab), **SIZES))
    return LanguageModel(model, Context(), vocab, {"data": {"data": "my/text", "dataset": dataset}})


@pytest.mark.parametrize("dataset", VOCABULARIES)
def test_text_is_read_as_before_the_export(dataset: str, tmp_path: Path) -> None:
    for write in (write_original, *([write_huggingface] if dataset == "text" else [])):
        source = pretrained(dataset)
        folder = tmp_path / write.__name__
        folder.mkdir()
        write(source, folder)
        lm, vocab = txl.load(folder), source.tokenizer
        ids = lm.encode(_TEXT)
        assert type(lm.tokenizer) is type(vocab)
        assert ids == encode_text(_TEXT, vocab, name="", running=dataset != "text").ids
        assert lm.decode(ids) == "".join(map(decoder(vocab, tokenised=dataset != "text"), ids))


@pytest.mark.parametrize("write", [write_huggingface, write_original])
@pytest.mark.parametrize("odd", ["New York", "a\u00a0b", ""])
def test_words_that_a_line_of_vocab_txt_cannot_name_are_not_written(
    write: Any, odd: str, tmp_path: Path
) -> None:
    source = pretrained("text")
    with pytest.raises(UsageError, match=re.escape(f"{odd!r}: is not one word")):
        write(dataclasses.replace(source, tokenizer=Vocab([*_WORDS[:-1], odd])), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_export_in_subwords_is_converted_again_and_names_its_text(here: Here) -> None:
    Path("there").mkdir()
    write_original(pretrained("bpe"), Path("there"))
    here("convert there back --data other/text")
    record = open_checkpoint(Path("back")).record
    assert (record["data"]["data"], record["data"]["dataset"]) == ("other/text", "bpe")
    assert txl.load("back").encode(_TEXT) == txl.load("there").encode(_TEXT)
    said = here.refused("convert there b --dataset ptb")
    assert "--dataset ptb: " in said
    assert "was trained on bpe; leave the flag out" in said
    Path("there/tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no vocabulary of --dataset bpe \(.*tokenizer\.json"):
        txl.load("there")


# Hugging Face

SPACED = (
    "the cat, (Bab) 'it' \u6211\u4eec\u8d70\u3002 "
    "a-b 1.5 $5.50 <unk>, x<eos>y <eos> <unk>\n\n\tthe\r\n the\x1ccat\u3000it\u2028a\x85b\r the "
)


@pytest.mark.parametrize("text", [SPACED, " ", "\n", "".join(map(chr, range(1, 0x3100)))])
def test_words_between_white_space_are_exported_with_a_tokenizer_of_the_same_ids(
    text: str, tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [
        "<eos>",
        "<unk>",
        *dict.fromkeys(word for word in SPACED.split() if word not in ("<eos>", "<unk>")),
    ]
    source = dataclasses.replace(pretrained("text"), tokenizer=Vocab(words))
    source = dataclasses.replace(
        source, model=TransformerXL(ModelConfig(n_token=len(words), **SIZES))
    )
    write_huggingface(source, tmp_path)
    there = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    there.encode_special_tokens = settings["split_special_tokens"]
    own = [] if text == " " else encode_text(text, source.tokenizer, name="").ids
    assert there.encode(text).ids == own
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    (tmp_path / "vocab.txt").unlink()  # as where transformers saves the tokenizer
    assert txl.load(tmp_path).tokenizer.words == words
    write_huggingface(dataclasses.replace(source, record={}), tmp_path)
    assert (
        json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"]
        == "TransfoXLTokenizer"
    )


@pytest.mark.parametrize("name", ["hf_div2", "x_hf_div1_emb16_tie_r"])
def test_tensors_and_settings_for_hugging_face_are_its_own(name: str) -> None:
    theirs, config = read_huggingface(HF / name)
    model, context = from_huggingface(theirs, config)
    ours = to_huggingface(model)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    assert second_names(model.config) <= ours.keys()
    written = config_for_huggingface(model, context)
    assert configs_of(written) == (model.config, context)
    assert {key: config[key] for key in written.keys() & config.keys()} | written == written


def test_what_layer_norm_adds_to_the_variance_is_kept(here: Here, hf: Path) -> None:
    """Through a run and back; the 2019 code has no other value."""
    config = json.loads((hf / "config.json").read_text()) | {"layer_norm_epsilon": 0.5}
    write_words(hf, WORDS)
    before = txl.load(hf)
    (hf / "config.json").write_text(json.dumps(config))
    here("convert hf converted")
    here("convert converted back --to huggingface")
    assert json.loads(Path("back/config.json").read_text())["layer_norm_epsilon"] == 0.5
    scores = [txl.load(place).score("w3 w4 w5 w6").nats for place in ("hf", "converted", "back")]
    assert scores == [pytest.approx(scores[0])] * 3
    assert scores[0] != pytest.approx(before.score("w3 w4 w5 w6").nats, rel=1e-3)
    with pytest.raises(
        UsageError, match=r"layer_norm_epsilon 0\.5: the original has no such model, only 1e-05"
    ):
        require_exportable(ModelConfig(n_token=9, **SIZES, layer_norm_epsilon=0.5))


def test_hugging_face_has_one_kind_of_model_and_says_no_damaged_words_on_its_text(
    tmp_path: Path,
) -> None:
    for name, value in {"position": "t5", "activation": "gelu", "recurrence": "same"}.items():
        with pytest.raises(UsageError, match=f"--{name} {value}: Hugging Face has no such model"):
            to_huggingface(TransformerXL(ModelConfig(n_token=9, **SIZES, **{name: value})))
    write_huggingface(pretrained("text"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for said in (5, {"dataset": "x"}, {"dataset": "text", "new": 1}):
        (tmp_path / "config.json").write_text(json.dumps(config | {"txl_data": said}))
        with pytest.raises(UsageError, match="what it says of its text is damaged"):
            txl.load(tmp_path)


# the card


@pytest.mark.parametrize(
    "flags",
    [
        *(f"--position {name}" for name in POSITION_ENCODINGS),
        *(f"--attention {name} --position none" for name in ATTENTION_RULES),
        "--dataset text --data a b --adaptive --cutoffs 20 40 --div_val 2 --not_tied --tgt_len 16 --no_untie_r",
        "--optim sgd --mom 0.5 --scheduler dev_perf --patience 2",
        "--optim muon --muon_positions --beta2 0.9",
    ],
)
def test_the_command_of_the_card_makes_the_same_training(flags: str) -> None:
    one, typed = Ranks(0, 1, torch.device("cpu")), read("train", *flags.split())

    def record(typed: dict[str, Any]) -> dict[str, Any]:
        config, context, data, shape, *_ = new_settings(typed, one)
        assert isinstance(shape, Shape)
        parts = {
            "train": config.record(),
            "context": as_dict(context),
            "data": as_dict(data),
            "model": as_dict(shape.of_words(90, data.dataset)),
        }
        return json.loads(json.dumps(parts))

    program, script, *words = shlex.split(training_command(record(typed)))
    assert (program, script) == ("python", "train.py")
    assert record(read("train", *words)) == record(typed)


def test_the_command_of_the_card_has_the_settings_of_an_optimizer_of_a_file() -> None:
    trained = {"optim": "mine", "warmth": 0.5, "mom": 0.0}
    assert training_command({"train": trained}) == "python train.py --optim mine --warmth 0.5"


def test_the_card_says_how_it_was_trained_and_states_no_text_that_nobody_named(
    here: Here, hf: Path
) -> None:
    typed = read("train", *shlex.split(training_command(open_checkpoint(Path("run")).record))[2:])
    (start,) = records(Path("run"), "start")
    assert {name: typed[name] for name in ("tgt_len", "init_std", "batch_size")} == {
        "tgt_len": start["context"]["tgt_len"],
        "init_std": 0.2,
        "batch_size": 4,
    }
    write_words(hf, WORDS)
    here("convert hf converted")
    here("convert converted again --to huggingface")
    here("convert hf named --data my/text --to huggingface")
    for name, data in {"converted": "Unknown.", "again": "Unknown.", "named": "`my/text`."}.items():
        assert f"## Data\n\n{data}\n" in Path(f"{name}/README.md").read_text()
    assert "txl_data" not in json.loads(Path("again/config.json").read_text())


def test_a_card_shows_what_is_said_of_the_model_and_figures_of_no_other(here: Here) -> None:
    here("eval --split valid --mem_len 4 8 --json plain.json")
    here("eval --split valid --cache_size 10 --json cache.json")
    Path("about.md").write_text("Its text is *nobody's*.\n")
    Path("samples.txt").write_text("bab <unk>\n```\nded bab\n")
    here("eval --split valid --convention original --same_length --json theirs.json")
    here("eval --split valid --borders aside --mem_len 8 --json aside.json")
    here("eval --split valid --memory sinks --n_sink 2 --mem_len 8 --json sinks.json")
    result = json.loads(Path("aside.json").read_text())
    result["rows"][0]["word_perplexity"] = None  # as eval.py writes infinity
    Path("aside.json").write_text(json.dumps(result))
    names = ("plain", "cache", "theirs", "aside", "sinks")
    files = " ".join(f"{name}.json" for name in names)
    here(f"convert run there --about about.md --evaluations {files} --samples samples.txt")
    card = Path("there/README.md").read_text()
    rows = [row for name in names for row in json.loads(Path(f"{name}.json").read_text())["rows"]]
    shown = [line.split(" | ") for line in card.splitlines() if line.startswith("| valid | ")]
    del rows[2]  # of cache.json, without the cache: it is in plain.json too
    how = ["the model alone"] * 2 + [
        "cache",
        "the model alone, same_length True, convention original",
        "the model alone, borders aside",
        "the model alone, memory sinks, n_sink 2",
    ]
    expected = [
        [f"{r['mem_len']}", said, f"{r['perplexity']:.2f}"]
        for r, said in zip(rows, how, strict=True)
    ]
    assert [cells[2:5] for cells in shown] == expected
    for said in (
        "Its text is *nobody's*.",
        "\n````\nbab <unk>\n```\nded bab\n````\n",
        "(curve.png)",
    ):
        assert said in card
    assert Path("there/curve.png").read_bytes().startswith(b"\x89PNG")
    assert "not a file of `eval.py --json`" in here.refused(
        "convert run other --evaluations run/metrics.jsonl"
    )
    Path("run").rename("moved")
    with Path("moved/metrics.jsonl").open("a") as file:
        file.write('{"kind": "va')  # as a kill leaves it
    here("convert moved again --evaluations plain.json")
    change_weights(Path("moved"), lambda weight: weight * 2)
    assert "the figures are those of other weights" in here.refused(
        "convert moved other --evaluations plain.json"
    )
    assert not Path("other").exists()


@pytest.mark.parametrize("to", ["txl", "huggingface", "original"])
def test_files_of_an_export_have_the_permissions_of_any_new_file(here: Here, to: str) -> None:
    before = os.umask(0o027)
    try:
        here(f"convert run there --to {to}")
    finally:
        os.umask(before)
    for path in Path("there").rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o640, path


def test_what_a_killed_export_left_is_removed_and_nothing_else(here: Here) -> None:
    """Of a process with the same number, too, as in a container."""
    for number in (1, os.getpid()):
        left = Path(f".tmp.{number}.txl.there")
        left.mkdir()
        (left / "model.safetensors").write_text("half")
    others = [Path(".tmp.1.there"), Path(".tmp.1.txl.other"), Path(".tmp.draft.txl.there")]
    for path in others:
        path.mkdir()
    living = Path(".tmp.2.txl.there")
    living.mkdir()
    held = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        here("convert run there")
    finally:
        os.close(held)
    assert sorted(Path().glob(".tmp*")) == sorted([*others, living])


def test_files_that_are_named_nearly_as_temporary_ones_stay(tmp_path: Path) -> None:
    names = (".y.writable", ".tmp.draft.y", ".tmp.7.y", ".tmp.7.txl.x", ".tmp.7.txl.y.more")
    for name in names:
        (tmp_path / name).write_text("mine")
    for name in ("y", "*", "[y]", "?"):
        require_writable(tmp_path / name)
        write_whole(tmp_path / name, "ours")
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def test_a_card_names_no_folder_of_a_machine(here: Here) -> None:
    """Neither of the text, in the command of the training, nor of what was converted."""
    text, far, hf = (shlex.quote(str(Path(name).absolute())) for name in ("text", "far", "hf"))
    here(f"train --data {text} --work_dir {far}")
    here(f"convert {far} there")
    here(f"convert {far} hf --to huggingface")
    here(f"convert {hf} again")
    for name in ("there", "hf", "again"):
        card = Path(name, "README.md").read_text()
        assert str(Path.cwd()) not in card
    assert "…/text" in Path("there/README.md").read_text()


def test_a_model_that_is_no_run_is_drawn_only_where_it_is_asked_for(here: Here) -> None:
    here("convert run hf --to huggingface")
    before = set(Path().rglob("*"))
    model = "eval --work_dir hf --dataset text --data text --split test --mem_len 0 8"
    here(model)
    here(f"{model} --json figures.json")
    new = set(Path().rglob("*.png")) - before
    assert not new
    here(f"{model} --pictures seen")
    here(f"{model} --plot drawn")
    assert Path("seen/context.png").is_file()
    assert Path("drawn/context.png").is_file()
    assert not Path("context.png").exists()


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned_relative", "learned_per_layer"])
def test_an_odd_width_goes_to_2019_and_back_where_there_is_no_sinusoid(position: str) -> None:
    """As the 2019 code trains it: 3 heads of 7."""
    count_back = {"count_back": True} if position == "learned_per_layer" else {}
    shape = {"n_token": 30, "n_layer": 2, "n_head": 3, "d_head": 7, "d_model": 21, "d_inner": 8}
    config = ModelConfig(**shape, position=position, n_position=6, **count_back)
    model = TransformerXL(config).double().eval()
    arguments = {"pre_lnorm": False, "tgt_len": 6, "ext_len": 0, "mem_len": 0, "n_head": 3}
    back, context = from_kimiyoung(to_kimiyoung(model), arguments)
    text_BT = torch.arange(14).view(2, 7)
    nll_BT, _ = model.nll(text_BT[:, :-1], text_BT[:, 1:], None, context)
    again_BT, _ = back.nll(text_BT[:, :-1], text_BT[:, 1:], None, context)
    torch.testing.assert_close(again_BT, nll_BT, rtol=0, atol=1e-12)
    for sines in ("rel_sinusoid", "sinusoid_input", "floater"):
        with pytest.raises(UsageError, match="--d_model 21: must be even"):
            ModelConfig(**shape, position=sines)

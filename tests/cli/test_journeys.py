"""Journeys of users: what is there, the command lines they type one after the other, and what each of these leads to.

Below a command line stand what it must print, as regular expressions, or "refused: " and what the one line must say. A
training makes new, which the lines after it are about. What figures must hold at the end is in the functions below.
"""

import gzip
import json
import math
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txl
from tests.cli.conftest import Here, config_of, pointed, records
from tests.convert.pickled import save_original
from tests.forks import ROOT, console
from tests.golden.test_model import Golden
from txl.convert import to_kimiyoung
from txl.data_utils.corpus import Corpus, DataConfig

SENTENCES = ROOT / "tests" / "golden" / "data" / "text" / "lm1b"
LINES = [f"the small text {i} has lines of words, {i % 5} and more \u00e4\n" for i in range(120)]
BYTES = "".join(
    f"<page n={i % 7}>\n\u00e4 [[link]] {'and' if i % 3 else 'or'} more\n" for i in range(90)
).encode()
LETTERS = b" the small text of letters" * 100
SHARDS = (
    "--data shards --held_out 0.1 --held_out_by document --split_seed 3 --documents blank"
    " --reset document --max_step 2"
)
TUNED = "--dataset text --lr 1e-12 --max_step 1"
"""One update that changes next to nothing."""


def go(here: Here, journey: str) -> None:
    """Type the lines of a journey."""
    for step in re.split(r"^ *\$ ", journey, flags=re.MULTILINE)[1:]:
        line, *expected = (part.strip() for part in step.strip().splitlines())
        program = line.partition(" ")[0]
        line += " --work_dir new" * (program in ("eval", "generate") and "--work_dir" not in line)
        if expected and expected[0].startswith("refused: "):
            assert expected[0].removeprefix("refused: ") in here.refused(line)
            continue
        outcome = here(line)
        assert "nan" not in outcome.out
        for pattern in expected:
            assert re.search(pattern, outcome.out, flags=re.MULTILINE), (line, pattern, outcome)


def shards() -> None:
    Path("shards").mkdir()
    for i in range(3):
        documents = ["".join(LINES[j : j + 4]) for j in range(40 * i, 40 * i + 40, 4)]
        Path(f"shards/{i}.txt.gz").write_bytes(gzip.compress("\n".join(documents).encode()))


def rows_and_a_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    for i in range(2):
        rows = [json.dumps({"body": line}) for line in LINES[60 * i : 60 * i + 60]]
        Path(f"{i}.jsonl").write_text("\n".join(rows))
    theirs = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "text": 2}, unk_token="[UNK]")
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.save("tokenizer.json")


def splits(content: Callable[[str], str]) -> Callable[[], None]:
    def write() -> None:
        Path("mine").mkdir()
        for split in ("train", "valid", "test"):
            Path(f"mine/{split}.txt").write_text(content(split))

    return write


def ids() -> None:
    Path("mine").mkdir()
    for split in ("train", "valid", "test"):
        np.save(f"mine/{split}.npy", np.arange(300) % 7)
        np.save(f"mine/{split}.documents.npy", np.arange(0, 300, 50))


def many_prompts() -> None:
    Path("my.txt").write_text("bab\nded bad\n")


def strange_name() -> None:
    path = Path("books/caf\udce9.txt")
    path.parent.mkdir()
    path.write_text("\n".join(f"w{i % 5} w{i % 7} w{i % 11}\n" for i in range(500)))


WHOLE_WAY = (
    "$ train {} --max_step 2\n $ train {} --resume --max_step 3 --max_step_scheduler 3\n $ eval\n"
    + (" $ generate --length 5")
)
JOURNEYS: dict[str, tuple[Callable[[], None], str]] = {
    "files, fields and a tokenizer": (
        rows_and_a_tokenizer,
        """
        $ train --data 0.jsonl 1.jsonl --dataset bpe --text_field body --tokenizer tokenizer.json --max_step 2
        $ generate --length 3
        """,
    ),
    "words of Penn Treebank are in lower case": (
        splits(lambda split: f" The small {split} of A BANK \n of a bank \n" * 30),
        """
        $ train --data mine --dataset ptb --max_step 2
        $ eval --split test --data mine
          ^test: 329 tokens counted, .*: 269 words
        $ generate --prompt "The BANK" --length 3 --raw
          ^the bank
        """,
    ),
    "ids of another program": (
        ids,
        r"""
        $ train --data mine --dataset ids --reset document --max_step 2
        $ eval --split test --data mine
        $ generate --prompt "1 2 3 " --length 4
          ^1 2 3( +[0-6]){4}$
        $ generate --prompt x
          refused: 'x': no number from 0 to 6
        """,
    ),
    "cutoffs are chosen": (
        splits(lambda _: " ".join(f"w{i % (1 + i // 3)}" for i in range(3000)) + "\n"),
        r"""
        $ train --data mine --cutoffs auto --max_step 2
          ^\| --cutoffs auto: \d+ .* products per token
        $ train --data mine --cutoffs auto --max_step 2 --resume
        $ train --data text --adaptive --cutoffs auto --max_step 2 --overwrite
          ^\| --cutoffs auto: none
        $ train --data text --adaptive --cutoffs auto --max_step 3 --max_step_scheduler 3 --resume
        $ train --data mine --cutoffs auto 7 --overwrite
          refused: give ranks, or auto alone
        """,
    ),
    "an encoding that was asked for once": (
        many_prompts,
        """
        $ train --attn_type 3 --max_step 2
        $ train --resume --max_step 3 --max_step_scheduler 3
        $ train --resume --max_step 4 --position alibi
          refused: --position alibi: the run in new was started with learned_per_layer
        """,
    ),
    "other memories": (
        many_prompts,
        "".join(
            f"\n$ train --overwrite --memory {memory} --memory_parts 2 --max_step 1"
            "\n$ eval --split test\n$ generate --length 3"
            for memory in (
                "none --mem_len 0",
                "recurrent_tokens --mem_len 0 --position learned_absolute",
                "sinks --n_sink 2 --mem_len 3 --swap_mem --reset document --documents row",
                "knn --mem_len 4 --lookup_layer 1 --lookup_len 20",
                "neural --mem_len 4 --neural_layers 2",
                "infini --mem_len 4 --infini_update delta",
                "expire_span --mem_len 9 --max_span 8 --span_ramp 4",
            )
        )
        + """
        $ eval --split test --mem_len 0 9
        $ eval --same_length
          refused: --same_length: --memory expire_span does not work with it; leave it out
        $ train --overwrite --memory sinks --clamp_len 3
          refused: --clamp_len 3: --memory sinks works with -1 or 0 only; leave it out
        $ train --overwrite --memory sinks --max_step 1
        $ train --resume --max_step 2 --max_step_scheduler 2
        $ eval --split test --mem_len 0 9
        $ eval --split test --convention original
          refused: --convention original: --memory sinks works with txl only; leave it out
        $ generate --length 30 --mem_len 1
        $ train --overwrite --memory knn --lookup_layer 7
          refused: --lookup_layer 7: the model has
        $ train --overwrite --memory expire_span --position learned_absolute
          refused: --position learned_absolute: it counts places from where the memory begins
        $ train --overwrite --memory none --mem_len 5
          refused: --mem_len 5: --memory none works with 0 only
        """,
    ),
    "a setting that nothing reads": (
        many_prompts,
        """
        $ train --position alibi --no_untie_r --attn_impl auto --attention softmax --max_step 1
        $ eval --attn_impl dense
          refused: --attn_impl dense: has no effect with --position alibi, only with rel_sinusoid or relative_keys
        $ generate --attn_impl dense
          refused: --attn_impl dense: has no effect with --position alibi, only with rel_sinusoid or relative_keys
        $ train --resume --max_step 2 --max_step_scheduler 2 --attn_impl dense
          refused: --attn_impl dense: has no effect with --position alibi, only with rel_sinusoid or relative_keys
        $ generate --length 1 --attn_impl auto
        $ train --overwrite --attn_type 0 --untie_r --attn_impl naive --clamp_len 3 --max_step 1
        """,
    ),
    "lengths beyond all machines": (
        many_prompts,
        """
        $ train --mem_len 2000000000 --max_step 1
        $ generate --device cpu --prompts my.txt --num_samples 2 --length 3 --mem_len 2000000000
        """,
    ),
    "a file whose name is not UTF-8": (
        strange_name,
        """
        $ train --data books --max_step 1
        $ train --data books --max_step 1 --overwrite
        """,
    ),
}
SLOW = {
    "performer": "--attention performer --position rotary --n_feature 16 --redraw_interval 2",
    "lsh": "--attention lsh --position sinusoid_input --lsh_round 2 --lsh_bucket 4 --batch_chunk 2 --swap_mem",
    "reversible": "--reversible --pre_lnorm --ff_chunk 3 --activation swiglu --position learned_absolute --dropout 0.1 "
    "--dtype bfloat16",
    "recurrence": "--recurrence same --label_smoothing 0.1 --d_embed 8 --pre_lnorm --gate gru --gate_bias 1 --position "
    "relative_keys",
    "floater": "--position floater",
}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "journey"), JOURNEYS.values(), ids=JOURNEYS)
def test_a_journey_ends_well(here: Here, before: Callable[[], None], journey: str) -> None:
    before()
    go(here, journey)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_other_rules_and_layers_go_all_the_way(here: Here, name: str) -> None:
    if name == "floater":
        pytest.importorskip("torchdiffeq")
    go(here, WHOLE_WAY.format(SLOW[name], SLOW[name]))
    if name != "lsh":
        assert all(
            math.isfinite(row["nats"]) for row in here.rows("eval --work_dir new --mem_len 0 60")
        )


def test_a_tokenizer_is_read_once_and_is_the_checkpoints_from_then_on(here: Here) -> None:
    rows_and_a_tokenizer()
    text = "--data 0.jsonl 1.jsonl --dataset bpe --text_field body"
    here(f"train {text} --tokenizer tokenizer.json --max_step 2")
    test = "eval --work_dir new --data 0.jsonl 1.jsonl --split test"
    nats = here.row(test)["nats"]
    Path("tokenizer.json").unlink()
    assert here.row(test)["nats"] == nats
    here(f"train {text} --resume --max_step 3 --max_step_scheduler 3")
    assert "the model has its own" in here.refused(f"{test} --tokenizer other.json")


@pytest.mark.parametrize("dataset", ["text", "characters", "bpe"])
def test_a_folder_of_shards_is_trained_on_evaluated_scored_and_continued(
    here: Here, dataset: str
) -> None:
    shards()
    kind = f"--dataset {dataset}"
    if dataset == "bpe":
        pytest.importorskip("tokenizers")
        kind += " --vocab_size 280"
    said = here(f"train {SHARDS} {kind}").out
    assert "| documents by blank (as asked): " in said
    assert "valid and test: 0.1 each, seed 3" in said
    found = here.row("eval --work_dir new --data shards --split valid --reset document")
    how = {"held_out": 0.1, "held_out_by": "document", "split_seed": 3}
    whole = DataConfig(data="shards", dataset="bytes", documents="blank", **how)
    text = b"".join(Corpus(whole).documents("valid")).decode()
    assert -12 < found["characters"] - len(text) < 0  # the first token is not predicted
    assert found["words"] + found["lines"] in {
        len(text.split()) + text.count("\n") - i for i in (0, 1)
    }
    assert here(
        "generate --work_dir new --prompt 'the small' --length 9 --finish_line"
    ).out.startswith("the small")
    here(f"train {SHARDS} {kind} --resume")
    if dataset != "text":
        lm, words = txl.load("new"), "the small \u00e4\n"
        Path("my.txt").write_text(words)
        row = here.row("eval --work_dir new --text my.txt")
        assert lm.score(words).total_nats == pytest.approx(row["nats"])
        assert (row["characters"], row["bytes"], row["words"]) == (12, 13, 3)
        Path("p.txt").write_text("the\n\n")
        continued = here("generate --work_dir new --prompt_file p.txt --length 20 --seed 1").out
        assert continued == "the\n" + lm.generate("the\n", length=20, seed=1) + "\n"
        assert lm.loglikelihood("\n\n", "the") == pytest.approx(-lm.score("the", "\n\n").total_nats)
        assert lm.loglikelihood("\n\n", "the") != pytest.approx(lm.loglikelihood("", "the"))


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["txl", "original"])
@pytest.mark.parametrize(("dataset", "content"), [("enwik8", BYTES), ("text8", LETTERS)])
def test_bytes_of_a_raw_file(here: Here, dataset: str, content: bytes, convention: str) -> None:
    with zipfile.ZipFile(f"{dataset}.zip", "w") as archive:
        archive.writestr(dataset, content)
    training = f"train --data . --dataset {dataset} --data_convention {convention} --max_step 2"
    size = f"has {len(content):,} bytes, {dataset} has 100,000,000; bring the file again"
    assert f"{dataset}.zip: {size}" in here.refused(training)
    n_held, prompt = len(content) // 20, "[[link]]" if dataset == "enwik8" else "the small"
    go(
        here,
        f"""
        $ {training} --prefix
          {len(content):,} bytes, the last {n_held:,} for test
          this is not {dataset}, which has 100,000,000
        $ {training} --prefix --resume
        $ generate --prompt "{prompt}" --length 9
          ^{re.escape(prompt)}
        """,
    )
    test = content[-n_held:]
    if convention == "original":
        test = test.replace(b"\n", b"") if dataset == "enwik8" else test.strip()
    found = here.row("eval --work_dir new --data . --split test")
    assert found["tokens"] == found["bytes"] == len(test) - 1
    assert found["nats"] / found["bytes"] / math.log(2) == pytest.approx(found["bits_per_byte"])
    if convention == "original":  # a checkpoint of the 2019 code comes back
        here("convert new model_pt --to original")
        here(f"convert model_pt back --data . --dataset {dataset}")
        again = here.row(
            "eval --work_dir back --data . --split test --tgt_len 8 --mem_len 8 --prefix"
        )
        assert again["nats"] == pytest.approx(found["nats"])


def test_sentences_of_one_billion_word(here: Here) -> None:
    shutil.copytree(SENTENCES, "mine")
    training = "train --data mine --dataset lm1b --reset document --cutoffs 30 90 --div_val 2 --dropout 0.1"
    training += " --eval_interval 60 --max_step_scheduler 60"  # more than an epoch
    here(f"{training} --max_step 60")
    here(f"{training} --max_step 53 --work_dir parts")
    here(f"{training} --max_step 60 --work_dir parts --resume")
    last = [records(Path(run), "valid")[-1]["valid/nll_nats"] for run in ("new", "parts")]
    assert last[0] == last[1]
    lines = Path("mine/test.txt").read_text().splitlines()
    found = here.row("eval --work_dir new --data mine --split test --reset never")
    assert (found["words"], found["lines"]) == (
        sum(len(line.split()) for line in lines),
        len(lines),
    )
    by_sentence = here.row("eval --work_dir new --data mine --split test")
    assert by_sentence["tokens"] == found["tokens"]
    assert by_sentence["nats"] != pytest.approx(found["nats"], rel=1e-4)
    assert config_of(Path("new"))["model"]["tie_projs"] == [False, False, False]
    assert (
        "<S>"
        not in here("generate --work_dir new --prompt 'zofe viru' --length 30 --finish_line").out
    )
    Path("mine/1b_word_vocab.txt").unlink()  # valid.txt and test.txt are enough for an evaluation
    assert here.row("eval --work_dir new --data mine --split valid")["lines"] == 40


@pytest.mark.slow
def test_a_trained_model_is_tuned_on_another_text(here: Here, write_text: Any) -> None:
    """Half of its words are new: with the model's vocabulary and lengths; such a run is resumed."""
    write_text(Path("other"), words=["bab", "new"] * 30, seed=3)
    here(f"train --init_from run --data other {TUNED}")
    vocabularies = {
        path.read_text() for run in ("new", "run") for path in Path(run).glob("step_*/vocab.txt")
    }
    assert len(vocabularies) == 1
    tuned = here.row("eval --work_dir new --data other --split valid")
    here(f"train --init_from run --data other {TUNED} --resume --max_step 2 --max_step_scheduler 2")
    assert config_of(Path("new"))["train"]["init_from"] == "run"
    # eval.py takes no text for that of a training which it was not
    Path("other/train.txt").unlink()
    before = here.row("eval --data other --split valid")
    assert tuned["nats_per_token"] == pytest.approx(before["nats_per_token"], rel=1e-6)
    assert (tuned["tgt_len"], tuned["mem_len"], tuned["unknown"]) == (8, 8, before["unknown"])
    assert tuned["unknown"] > 40


def test_the_evaluation_line_of_2019_finds_its_words_beside_the_text(
    here: Here, write_text: Any
) -> None:
    golden = Golden("adaptive_div2_noprojtie")
    model, _ = golden.model()
    Path("theirs").mkdir()
    save_original(Path("theirs/model.pt"), to_kimiyoung(model), golden.config["model"])
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(model.config.n_token - 2))]
    write_text(Path("other"), words=words[2:30])
    Path("other/train.txt").unlink()
    line = "--cuda --data other --dataset text --tgt_len 4 --split test --work_dir theirs".split()
    lost = here.call("eval", *line)
    assert "holds no vocabulary" in lost.complaints[-1]
    Path("other/cache.pt").write_bytes(pickle.dumps({"idx2sym": words}))
    assert here.call("eval", *line).status == 0
    Path("theirs/vocab.txt").write_text("<eos>\n")  # what is beside the weights counts
    assert "has 1 words" in here.call("eval", *line).complaints[-1]


@pytest.mark.slow
def test_a_model_of_the_2019_code_is_tuned(here: Here, write_text: Any) -> None:
    golden = Golden("adaptive_div2_noprojtie")
    model, _ = golden.model()
    save_original(Path("model.pt"), to_kimiyoung(model), golden.config["model"])
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(model.config.n_token - 2))]
    write_text(Path("other"), words=words[2:30])
    flags = f"--data other --work_dir tuned --sample_length 0 --batch_size 4 --tgt_len 4 {TUNED}"
    tuning = ["train", "--init_from", "model.pt", *flags.split()]
    lost = here.call(*tuning)
    assert lost.status == 2
    assert "model.pt: holds no vocabulary; put vocab.txt" in lost.complaints[0]
    Path("vocab.txt").write_text("".join(f"{word}\n" for word in words))
    other = here.call(*tuning, "--dataset", "lm1b").complaints[0]
    assert (
        "its words are no vocabulary of --dataset lm1b (has no <S>); give the --dataset of its training"
        in other
    )
    assert here.call(*tuning).status == 0
    lm = txl.load("tuned")
    theirs = model.layers[0].attn.q_net.weight.float()
    assert (lm.model.layers[0].attn.q_net.weight - theirs).abs().max() < 1e-6
    assert lm.tokenizer.words == words


@pytest.mark.slow
def test_the_three_programs_work_from_the_console(here: Here) -> None:
    """In another folder than theirs; a mistake is one line, and so is a closed standard output."""
    small = "--d_model 16 --n_layer 1 --n_head 2 --d_head 8 --d_inner 16 --batch_size 4 --tgt_len 8 --max_step 1"
    training = f"--data text --dataset text --work_dir new --sample_length 0 {small}".split()
    for program, flags in {
        "train": training,
        "eval": ["--work_dir", "new"],
        "generate": ["--work_dir", "new"],
    }.items():
        done = console(program, *flags, folder=Path.cwd())
        assert (done.returncode, done.stderr) == (0, "")
    done = console("train", *training, "--overwrite", "--d_model", "17", folder=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"train.py: --d_model 17: must be even[^\n]*\n", done.stderr)
    done = console("generate", "--work_dir", "run", folder=Path.cwd(), closed=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "generate.py: standard output is closed; send it to a file, or to /dev/null\n"
    )
    assert pointed(Path("new")).name == "step_00000001"

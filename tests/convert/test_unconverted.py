"""What the programs make of a checkpoint of another program is what they make of the run that it is converted into."""

import shutil
from pathlib import Path

import pytest

import txl
from tests.cli.conftest import Here
from tests.convert.conftest import HF, WORDS, write_words
from tests.convert.pickled import save_nvidia, save_original
from tests.golden.test_model import Golden
from txl.convert import to_kimiyoung

TEXT = "--data words --dataset text"
OF_EACH = {
    "original": "original",
    "nvidia": "nvidia",
    "nvidia in 16 bits": "txl",
    "hf": "huggingface",
}
"""A convention to evaluate each source with."""


@pytest.fixture(autouse=True)
def words(here: Here) -> None:
    """A text of such words."""
    Path("words").mkdir()
    for split in ("train", "valid", "test"):
        Path(f"words/{split}.txt").write_text(" w3 w4 w5 \n w6 <unk> w8 \n" * 20)


def source_of(kind: str) -> Path:
    """A checkpoint of this kind, and its words."""
    golden, folder = Golden("adaptive_div2"), Path("source")
    model, settings = golden.model()[0], golden.config["model"]
    if kind == "hf":
        shutil.copytree(HF / "hf_div2", folder)
        write_words(folder)
        return folder
    folder.mkdir()
    if kind == "original":
        save_original(folder / "model.pt", to_kimiyoung(model), settings)
        write_words(folder)
        return folder
    model = model.half() if "16" in kind else model.float()
    save_nvidia(folder / "checkpoint_best.pt", model, settings, WORDS)
    return folder / "checkpoint_best.pt"


@pytest.mark.parametrize(("kind", "convention"), OF_EACH.items(), ids=OF_EACH)
@pytest.mark.usefixtures("undrawn")
def test_figures_and_texts_are_those_after_converting(
    here: Here, kind: str, convention: str
) -> None:
    source = source_of(kind)
    before = {path: path.stat().st_mtime_ns for path in Path("source").rglob("*")}
    here(f"convert {source} converted {TEXT}")
    Path("words/train.txt").unlink()  # its vocabulary is another
    rows, said = [], []
    for place, known in (("converted", ""), (source, "--dataset text")):
        how = f"{TEXT} --convention {convention} --batch_size 2 --mem_len 3 8"
        rows.append([row["nats"] for row in here.rows(f"eval --work_dir {place} {how}")])
        said.append(
            here(f"generate --work_dir {place} {known} --length 20 --prompt 'w3 w4' --raw").out
        )
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]
    assert said[0] == said[1]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (
        txl.load(source, dataset="text").score("w3 w4").nats
        == txl.load("converted").score("w3 w4").nats
    )


def test_the_words_may_lie_elsewhere_and_a_training_may_start_there(here: Here) -> None:
    shutil.move(source_of("hf") / "vocab.txt", "words.txt")
    assert "holds no vocabulary; put vocab.txt" in here.refused(
        "eval --work_dir source --text words/test.txt"
    )
    here("eval --work_dir source --text words/test.txt --vocabulary words.txt")
    flags = f"{TEXT} --work_dir tuned --max_step 1 --batch_size 2 --tgt_len 8 --sample_length 0 --vocabulary words.txt"
    assert "--vocabulary has no effect without --init_from" in here.refused(f"train {flags}")
    assert here.call("train", *flags.split(), "--init_from", "source").status == 0
    assert txl.load("tuned").tokenizer.words == WORDS


def test_what_the_2019_code_computes_otherwise_is_said_on_the_line_of_the_figure(
    here: Here,
) -> None:
    golden = Golden("attn3")
    Path("source").mkdir()
    save_original(Path("source/model.pt"), to_kimiyoung(golden.model()[0]), golden.config["model"])
    write_words(
        Path("source"),
        [*WORDS[:2], *(f"w{i}" for i in range(golden.config["model"]["n_token"] - 2))],
    )
    Path("words/train.txt").unlink()
    result = here.result(
        f"eval --work_dir source {TEXT} --split test --convention original --mem_len 0 8"
    )
    said = "not the 2019 code's figure: its attn_type 3 adds positions to its memory again at each segment"
    (line,) = [
        line for line in result["out"].splitlines() if line.startswith("test ") and said in line
    ]
    assert line.split()[2] == "8"  # mem_len
    assert [row.get("unlike") for row in result["rows"]] == [None, said]


@pytest.mark.parametrize("kind", ["original", "nvidia"])
@pytest.mark.parametrize("name", ["xl_no_mem", "attn1"])
def test_a_model_trained_without_a_memory_is_read_with_one(
    here: Here, kind: str, name: str
) -> None:
    """Its file says mem_len 0, which same_length cannot be laid over alone."""
    golden = Golden(name)
    model, whole = golden.model()[0].float(), golden.config["model"]
    settings = whole | {"tgt_len": whole["tgt_len"] + whole["mem_len"], "mem_len": 0}
    words = [*WORDS[:2], *(f"w{i}" for i in range(settings["n_token"] - 2))]
    Path("source").mkdir()
    if kind == "original":
        save_original(Path("source/model.pt"), to_kimiyoung(model), settings)
        write_words(Path("source"), words)
    else:
        save_nvidia(Path("source/checkpoint_best.pt"), model, settings, words)
    shutil.copy("words/test.txt", "text.txt")
    Path("words/train.txt").unlink()
    lengths = "--dataset text --tgt_len 4 --mem_len 30 --same_length"
    for line in (f"eval --data words --split test {lengths}", f"score text.txt {lengths}"):
        row = here.row(f"{line} --work_dir source")
        assert (row["tgt_len"], row["mem_len"], row["same_length"]) == (4, 30, True)
    said = here.refused("eval --work_dir source --data words --dataset text --same_length")
    assert "--same_length needs --mem_len > 0" in said


def test_the_data_set_is_the_one_of_the_2019_log_beside_the_weights(here: Here) -> None:
    """Its first lines are all arguments of the training; what the user says counts more."""
    source = source_of("original")
    log = source / "log.txt"

    def dataset_of(**said: str) -> str | None:
        return txl.load(source, **said).record["data"].get("dataset")

    assert dataset_of() is None
    log.write_text("=" * 100 + "\n    - data : ../data/wikitext-2/\n    - dataset : wt2\n")
    assert dataset_of() == "wt2"
    assert dataset_of(dataset="text") == "text"
    here("convert source converted")
    assert txl.load("converted").record["data"]["dataset"] == "wt2"
    log.write_text("    - dataset : ../../etc\n")
    assert dataset_of() is None

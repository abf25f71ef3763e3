"""Bad input: one line that names the thing and the remedy, exit status 2, no traceback, nothing half written.

What needs no arrangement is in refusals.txt.
"""

import errno
import itertools
import os
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import as_of_0_2, change_record, sign
from tests.cli.conftest import Here, change_weights, contents, half_written, pointed
from tests.forks import ROOT
from txl import TransformerXL
from txl.config import ModelConfig, UsageError
from txl.language.model import LanguageModel

SENTENCES = ROOT / "tests" / "golden" / "data" / "text" / "lm1b"
FullDisk = Callable[[int], AbstractContextManager[None]]


def cut(path: Path, keep: float = 0.5) -> None:
    """Truncate a file to a share of its size."""
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])


# texts


def replace(name: str, old: str, new: str) -> None:
    Path(name).write_text(Path(name).read_text().replace(old, new))


def sentences(old: str = "", new: str = "") -> None:
    shutil.copytree(SENTENCES, "lm1b")
    replace("lm1b/1b_word_vocab.txt", old, new) if old else Path("lm1b/1b_word_vocab.txt").unlink()


def zipped(*names: str, keep: float = 1) -> None:
    with zipfile.ZipFile("enwik8.zip", "w") as archive:
        for name in names:
            archive.writestr(name, b"some bytes\n" * 500)
    cut(Path("enwik8.zip"), keep)


def latin1(split: str) -> None:
    lines = Path(f"text/{split}.txt").read_bytes().splitlines(keepends=True)
    lines[2] = " caf\xe9 \n".encode("latin1")
    Path(f"text/{split}.txt").write_bytes(b"".join(lines))


def archive_of_numpy() -> None:
    for split in ("train", "valid"):
        with Path(f"text/{split}.npy").open("wb") as file:
            np.savez(file, np.arange(500) % 7)


def gone(name: str) -> Callable[[], None]:
    return lambda: Path(name).unlink()


def holds(text: str, *names: str) -> Callable[[], object]:
    return lambda: [Path(name).write_text(text) for name in names]


Table = dict[str, tuple[Callable[[], object], str, str]]
TRAIN, VALID = "text/train.txt", "text/valid.txt"
LM1B, ENWIK8 = "train --data lm1b --dataset lm1b", "train --data . --dataset enwik8 --prefix"
A_FILE = holds("", "file")
"""In which nobody can make a folder, root included."""
HELD = {
    "nothing": (holds(" ", "f"), "is empty"),
    "latin1": (lambda: Path("f").write_bytes(b"\xe9"), "f: not UTF-8"),
}
FILES = (
    "eval --text",
    "eval --text text/test.txt --context",
    "generate --prompt_file",
    "generate --prompts",
)
TEXTS: Table = {
    "no train split": (gone(TRAIN), "train", f"{TRAIN}: no such file"),
    "no valid split": (
        gone(VALID),
        "train --dataset wt103",
        f"{VALID}: no such file; a folder of text needs train.txt, valid.txt and test.txt; of other"
        " files give --dataset text",
    ),
    "no test split": (gone("text/test.txt"), "train --eval_test", "text/test.txt"),
    "latin1 in train": (lambda: latin1("train"), "train", "text/train.txt, line 3: not UTF-8"),
    "latin1 in valid": (lambda: latin1("valid"), "train", "iconv -f windows-1252 -t utf-8"),
    "no <unk>": (
        holds("bab\nunread\n", VALID),
        "train --dataset wt103",
        f"{VALID}, line 2: the word 'unread' is not",
    ),
    "few words": (
        holds("four words " * 99, TRAIN, VALID),
        "train --adaptive",
        "--adaptive: a vocabulary of 4 words",
    ),
    "an archive of numpy": (
        archive_of_numpy,
        "train --dataset ids",
        "train.npy: no array of numpy",
    ),
    "shuffled already": (
        lambda: sentences("zofe", "zofe"),
        f"{LM1B} --varlen",
        "--varlen: the sentences of lm1b",
    ),
    "a blank line": (
        lambda: sentences("</S> 155\n", "\n"),
        LM1B,
        "lm1b/1b_word_vocab.txt, line 2: is blank",
    ),
    "no <UNK>": (lambda: sentences("<UNK>", "<NO>"), LM1B, "lm1b/1b_word_vocab.txt: has no <UNK>"),
    "no vocabulary": (sentences, LM1B, "load it with: python -m data_utils.download lm1b"),
    "no documents": (
        lambda: zipped("enwik8"),
        f"{ENWIK8} --reset document",
        "enwik8 is one text without documents",
    ),
    "two files": (lambda: zipped("enwik8", "other"), ENWIK8, "enwik8.zip: holds 2 files"),
    "half an archive": (
        lambda: zipped("enwik8", keep=0.5),
        ENWIK8,
        "enwik8.zip: damaged (File is not a zip file)",
    ),
    "no archive": (A_FILE, ENWIK8, "enwik8: no such file; put enwik8 or enwik8.zip there"),
    "too short": (holds("short", "enwik8"), ENWIK8, "too short for a valid split"),
    "words for bytes": (
        holds("32 97 300 \n 32", TRAIN),
        "train --dataset enwik8 --prefix",
        "than numbers of bytes",
    ),
    "a folder that cannot be made": (
        A_FILE,
        "train --work_dir file/new --data nowhere",
        "file/new",
    ),
    "a cache that cannot be made": (
        A_FILE,
        "train --cache_dir file/x",
        "name another folder with --cache_dir",
    ),
    "a result that cannot be written": (
        A_FILE,
        "eval --json file/r.json",
        "name a folder that can be written",
    ),
    "tokens that cannot be written": (
        A_FILE,
        "eval --text text/test.txt --per_token file/t.tsv",
        "file: File exists",
    ),
    **{
        f"{what} in {line}": (make, f"{line} f", why)
        for what, (make, why) in HELD.items()
        for line in FILES
    },
}


@pytest.mark.parametrize(("arrange", "line", "said"), TEXTS.values(), ids=TEXTS)
def test_a_bad_text_is_named(
    here: Here, arrange: Callable[[], object], line: str, said: str
) -> None:
    arrange()
    shutil.rmtree("text/txl-cache")
    assert said in here.refused(line)
    if said.startswith(f"{VALID}: no such"):
        assert not Path("text/txl-cache").exists()  # no other split has been read


def test_a_text_with_another_vocabulary_is_refused(
    here: Here, write_text: Callable[..., Path]
) -> None:
    write_text(Path("other"), words=["other", "words", "than", "those"])
    assert "other: its vocabulary (6 words) is not the one" in here.refused("eval --data other")


def test_a_closed_standard_input_is_no_text(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for line in ("eval --text -", "generate --prompt -", "generate --interactive"):
        assert "standard input is closed" in here.refused(line)


# checkpoints

FOREIGN = ("model.pt", "checkpoint_best.pt", "config.json", "pytorch_model.bin")
RESUME = "train --work_dir run --resume --max_step 8 --max_step_scheduler 8"


def each(change: Callable[[Path], object]) -> None:
    for folder in Path("run").glob("step_*"):
        change(folder)


def each_record(change: Callable[[dict[str, Any]], object]) -> None:
    each(lambda folder: change_record(folder, change))


def flip(path: Path) -> None:
    """Another last bit."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def set_record(part: str, **values: Any) -> Callable[[], None]:
    return lambda: each_record(put(part, **values))


def words(change: Callable[[list[str]], list[str]]) -> Callable[[], None]:
    def of(folder: Path) -> None:
        path = folder / "vocab.txt"
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
        sign(folder)

    return lambda: each(of)


def weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    return lambda: change_weights(Path("run"), change)


def memory(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    def of(folder: Path) -> None:
        (path,) = folder.glob("streams_*")
        save_file(
            {k: change(x).contiguous() if "memory" in k else x for k, x in load_file(path).items()},
            path,
        )
        sign(folder)

    return lambda: each(of)


def without_checksums(name: str) -> Callable[[], None]:
    def of(folder: Path) -> None:
        as_of_0_2(folder, digests=False)
        next(folder.glob(name)).unlink()

    return lambda: each(of)


CHECKPOINTS: Table = {
    **{
        f"{how} {name}": (
            lambda name=name, keep=keep: each(
                lambda folder: (
                    (folder / name).unlink() if keep is None else cut(folder / name, keep)
                )
            ),
            "eval",
            f"{name}: missing, truncated or damaged",
        )
        for name in ("config.json", "model.safetensors", "vocab.txt")
        for how, keep in {"no": None, "empty": 0.0, "cut": 0.99}.items()
    },
    **{
        f"half of {name}": (
            lambda name=name: cut(next(Path("run/step_00000004").glob(name))),
            RESUME,
            name.rstrip("*"),
        )
        for name in ("optimizer.safetensors", "progress.json", "streams_*")
    },
    "a flipped bit": (
        lambda: flip(Path("run/step_00000004/optimizer.safetensors")),
        RESUME,
        "optimizer.safetensors",
    ),
    "no streams, without checksums": (without_checksums("streams_*"), RESUME, "streams"),
    "no data set": (lambda: each_record(lambda record: record.pop("data")), "eval", "config.json"),
    "an unknown data set": (set_record("data", dataset="?"), "eval", "config.json"),
    "no weights but nan": (
        weights(lambda weight: torch.full_like(weight, torch.nan)),
        "generate",
        "run/step_00000004",
    ),
    "weights of whole numbers": (
        weights(lambda weight: weight.int()),
        "generate",
        "not floating-point",
    ),
    "weights of another shape": (
        set_record("model", n_layer=3),
        "generate",
        "model.safetensors: the weights do not",
    ),
    "weights in float64": (
        weights(torch.Tensor.double),
        "generate --dtype bfloat16",
        "the weights are in float64",
    ),
    "a narrow memory": (
        memory(lambda x_BMD: x_BMD[..., 1:]),
        RESUME,
        "streams_00000_00004.safetensors",
    ),
    "a memory of few streams": (
        memory(lambda x_BMD: x_BMD[1:]),
        RESUME,
        "streams_00000_00004.safetensors",
    ),
    "a memory of whole numbers": (
        memory(torch.Tensor.int),
        RESUME,
        "streams_00000_00004.safetensors",
    ),
    "a word twice": (words(lambda lines: [*lines[:-1], lines[-2]]), "generate", "vocab.txt"),
    "a word too few": (words(lambda lines: lines[:-1]), "generate", "vocab.txt"),
    "no <eos>": (words(lambda lines: ["x", *lines[1:]]), "generate", "vocab.txt"),
    "another text": (
        holds("bab bad\n", VALID),
        RESUME,
        "valid.txt has changed since run/step_00000004 was saved;",
    ),
    "another vocabulary": (
        lambda: replace(TRAIN, "bab", "new"),
        RESUME,
        "text: its vocabulary is no longer the one",
    ),
    "a text that only the checkpoint names": (
        set_record("data", data="x", dataset="pydoc"),
        "score text/test.txt --work_dir run --dynamic rms",
        "the text of the training is not there",
    ),
}


@pytest.mark.parametrize(("arrange", "line", "said"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_bad_checkpoint_is_named(
    here: Here, arrange: Callable[[], object], line: str, said: str
) -> None:
    arrange()
    before = contents(Path("run"))
    assert said in here.refused(line)
    assert contents(Path("run")) == before
    assert not Path("x").exists()


Change = Callable[[dict[str, Any]], object]


def put(part: str, **changes: Any) -> Change:
    return lambda record: record[part].update(changes)


MODELS: dict[str, tuple[Change, str]] = {
    "huge": (put("model", d_model=2 * 10**12), "below 2^31"),
    "large": (put("model", d_model=2 * 10**8), "do not fit"),
    "deep": (put("model", n_layer=4000), "do not fit"),
    "deeper": (put("model", n_layer=10**9), "at most 4096"),
    "clusters": (put("model", cutoffs=[*range(1, 10**5), 1]), "must be positive and ascending"),
    "wide": (
        put("model", n_feature=10**9, attention="performer", position="none"),
        "at most 65536",
    ),
    "float size": (put("model", n_layer=2.0), "n_layer is '2.0', which is not of type int"),
    "word for a switch": (
        put("model", pre_lnorm="no"),
        "pre_lnorm is 'no', which is not of type bool",
    ),
    "switch for a number": (put("model", n_layer=True), "n_layer is 'True'"),
    "newer": (put("model", hyper=1), "written by a newer version of txl, so upgrade"),
    "no such encoding": (put("model", position="?"), "config.json"),
    "list": (lambda record: record.update(model=[]), "model is '[]'"),
    "context": (put("context", mem_len="8"), "mem_len is '8'"),
    "negative": (put("context", mem_len=-5), "mem_len -5: must be at least 0"),
    "no context": (lambda record: record.pop("context"), "config.json"),
    "attachments": (lambda record: record.update(attachments=3), "attachments is '3'"),
    "digests": (lambda record: record.update(files=[]), "files is '[]'"),
    "format": (lambda record: record.update(format=3), "of format 3, this txl reads 1 to 2"),
    "reading": (lambda record: record.update(reading="x"), "reading is 'x'"),
    "rates": (lambda record: record.update(rates=["x"]), "rates is "),
    "origin": (lambda record: record.update(converted_from=5), "converted_from is '5'"),
    "loss": (lambda record: record.update(valid_nats_per_token="x"), "valid_nats_per_token is 'x'"),
}
RUNS: dict[str, tuple[Change, str]] = {
    "train": (put("train", lr="0.1"), "lr is '0.1'"),
    "newer": (put("train", hyper=1), "newer version"),
    "range": (put("train", lr=-1), "lr -1: must be above 0"),
    "no train": (lambda record: record.pop("train"), "config.json"),
    "data": (put("data", min_freq=0.5), "min_freq is '0.5'"),
    "texts": (lambda record: record.update(texts=[1]), "texts is '[1]'"),
}
PROGRESS: dict[str, tuple[Change, str]] = {
    "no plateau": (lambda progress: progress.pop("plateau"), "plateau"),
    "float step": (lambda progress: progress.update(batch=1.5), "batch is '1.5'"),
    "other step": (lambda progress: progress.update(step=3), "another step"),
    "newer": (lambda progress: progress.update(hyper=1), "newer version"),
    "before the beginning": (
        lambda progress: progress.update(batch=-1),
        "batch is -1, which counts nothing",
    ),
    "beyond all": (lambda progress: progress.update(batch=10**30), "which counts nothing"),
}


def require_refused(
    here: Here, line: str, folder: Path, name: str, table: dict[str, tuple[Change, str]]
) -> None:
    good = (folder / name).read_text()
    for what, (change, why) in table.items():
        change_record(folder, change, name)
        said = here.refused(line)
        assert why in said, what
        assert str(folder) in said, what
        assert "--" not in said.removesuffix("--plugin"), what  # it is no flag that is to blame
        (folder / name).write_text(good)


def test_a_configuration_that_cannot_be_is_refused_before_anything_is_built(here: Here) -> None:
    best = pointed(Path("run"), "best")
    require_refused(here, "generate", best, "config.json", MODELS)
    for content in ("[" * 10**5, "[]", "3", '{"format": 1e400}', '{"format": ' + "1" * 5000 + "}"):
        (best / "config.json").write_text(content)
        sign(best)
        assert str(best / "config.json") in here.refused("generate")


def test_what_a_run_goes_on_with_is_checked_too(here: Here) -> None:
    last = Path("run/step_00000004")
    for folder in set(Path("run").glob("step_*")) - {last}:
        shutil.rmtree(folder)
    require_refused(here, "train --work_dir run --resume", last, "config.json", RUNS)
    require_refused(here, "train --work_dir run --resume", last, "progress.json", PROGRESS)


@pytest.mark.parametrize("state", [torch.zeros(3, dtype=torch.uint8), torch.zeros(5056), None])
def test_a_random_state_that_is_none_is_refused(here: Here, state: torch.Tensor | None) -> None:
    for path in Path("run/step_00000004").glob("streams_*"):
        tensors = {name: tensor for name, tensor in load_file(path).items() if name != "rng.cpu"}
        save_file(
            tensors | ({"rng.other": torch.zeros(1)} if state is None else {"rng.cpu": state}), path
        )
        sign(path.parent)
    said = here.refused("train --work_dir run --resume --max_step 5 --max_step_scheduler 5")
    assert "step_00000004/streams_*.safetensors: no random state" in said


def test_a_damaged_checkpoint_of_another_program_and_a_file_of_one_are_named(here: Here) -> None:
    for name in FOREIGN:
        folder = Path(f"of {name}")
        folder.mkdir()
        (folder / name).write_text('{"model_type": "transfo-xl"}')
        for place in (folder, folder / name) if name != "config.json" else (folder,):
            assert str(place) in here.refused(f"generate --work_dir '{place}'")
    for name in (
        "run/step_00000004/model.safetensors",
        "run/step_00000004/config.json",
        "run/best",
    ):
        for line in (f"convert {name} out", f"eval --work_dir {name}"):
            assert f"{name}: is a file; name its folder, {Path(name).parent}" in here.refused(line)


def test_weights_that_may_not_be_read_are_not_called_damaged(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors says that a file it may not open is not there."""
    path, open_it = pointed(Path("run"), "best") / "model.safetensors", os.open

    def forbid(asked: Any, *args: Any, **how: Any) -> int:
        if str(asked) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_it(asked, *args, **how)

    def not_there(asked: Path, **_: Any) -> None:
        raise FileNotFoundError(f"No such file or directory: {asked}")

    monkeypatch.setattr(os, "open", forbid)
    monkeypatch.setattr("txl.checkpoint.load.safe_open", not_there)
    assert f"{path}: Permission denied; change its permissions" in here.refused("generate")


# full disks


def full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


LENGTHS = " ".join(map(str, range(10, 20)))


@pytest.mark.parametrize(
    ("line", "n_byte", "named"),
    [
        ("train --cache_dir cache", 1024, "cache"),
        ("train", 1000, "new/metrics.jsonl"),
        (f"eval --split test --mem_len {LENGTHS} --json new.json", 5000, "new.json"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_a_full_disk_is_named(
    here: Here, full_disk: FullDisk, line: str, n_byte: int, named: str
) -> None:
    with full_disk(n_byte):
        assert re.search(f"{named}.*make room", here.refused(line))


def test_a_full_disk_leaves_an_older_result_and_picture_as_they_were(
    here: Here, full_disk: FullDisk
) -> None:
    older = {"new.json": b"{}", "context.png": b"an older picture"}
    for name, content in older.items():
        Path(name).write_bytes(content)
    with full_disk(5000):
        here(f"eval --split test --mem_len {LENGTHS} --json new.json", status=2)
        here("eval --split valid --mem_len 0 8 --pictures .", status=2)
    assert {name: Path(name).read_bytes() for name in older} == older


def test_a_disk_that_fills_up_costs_no_earlier_checkpoint(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: full(file) if Path("new/latest").exists() else fsync(file)
    )
    assert re.search("new/.*No space left on device; make room", here.refused("train"))
    assert (pointed(Path("new")) / "model.safetensors").is_file()


# Ctrl-C

PressAtCall = Callable[[int, str], None]


@pytest.fixture
def press_at_call(ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> PressAtCall:
    """Presses Ctrl-C in a certain call of the function that stands at `place`."""

    def press_at_call(number: int, place: str) -> None:
        module, _, name = place.rpartition(".")
        original = getattr(sys.modules[module], name)
        calls = itertools.count(1)

        def pressing(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == number:
                ctrl_c()
            return original(*args, **kwargs)

        monkeypatch.setattr(place, pressing)

    return press_at_call


@pytest.mark.parametrize(
    "place",
    [
        "txl.training.loop.train_line",
        "txl.training.step.whole",
        "txl.training.loop.eval_line",
    ],
)
def test_ctrl_c_saves_the_last_whole_update_and_says_where(
    here: Here, press_at_call: PressAtCall, place: str
) -> None:
    press_at_call(3, place)
    said = (
        "train.py: interrupted after step 3; saved in new/step_00000003; continue with --resume\n"
    )
    assert here("train --log_interval 1", status=130).err == said


def test_a_second_ctrl_c_does_not_stop_the_saving(here: Here, press_at_call: PressAtCall) -> None:
    press_at_call(2, "txl.training.loop.train_line")
    press_at_call(1, "txl.checkpoint.save.save_file")
    here("train --log_interval 1 --eval_interval 100", status=130)
    assert Path("new/step_00000002/config.json").is_file()


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("train --cache_dir cache", "txl.data_utils.tokens.words_of"),
        ("eval", "txl.evaluation.report._bits"),
        ("generate", "txl.generation.sampling.require_in_range"),
    ],
)
def test_ctrl_c_ends_a_program_in_one_line(
    here: Here, press_at_call: PressAtCall, line: str, place: str
) -> None:
    press_at_call(1, place)
    said = f"{line.partition(' ')[0]}.py: interrupted; nothing was left half written\n"
    assert here(line, status=130).err == said
    assert half_written(Path()) == []


# libraries


def test_floater_says_what_it_needs(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    needs = "--position floater: needs torchdiffeq, which is not installed; pip install torchdiffeq"
    assert needs in here.refused("train --position floater")


@pytest.mark.parametrize("name", ["activation", "recurrence"])
def test_a_choice_that_is_not_there_is_refused_from_python_too(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"--{name} foo: no such choice; there are {getattr(ModelConfig, name)}, "
    ):
        ModelConfig(n_token=5, **{name: "foo"})


@pytest.mark.parametrize("name", ["attention", "position", "memory", "gate"])
def test_a_part_that_is_not_there_is_refused_from_python_too(name: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"^--{name} foo: no such .*; there are .*; the file that defines one of your",
    ):
        TransformerXL(ModelConfig(n_token=5, pre_lnorm=True, n_position=9, **{name: "foo"}))


def test_a_name_that_is_no_text_is_named(here: Here) -> None:
    for line in (
        "convert r\udcff out",
        "convert run o\udcff",
        "generate --work_dir r\udcff",
        "eval --json j\udcff",
    ):
        assert "\\udcff: not UTF-8; rename it" in here.refused(line)


@pytest.mark.parametrize(
    "line",
    ["read text/test.txt --work_dir run --to a.memory", "report run --measure", "convert run out"],
)
def test_a_program_that_is_told_to_end_says_so(
    here: Here, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    for number, status in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        monkeypatch.setattr(
            LanguageModel, "open", lambda *_, n=number, **__: signal.raise_signal(n)
        )
        before = signal.signal(number, signal.SIG_DFL)  # nohup has it ignored
        (complaint,) = here(line, status=status).complaints
        assert f"stopped by {number.name}" in complaint
        assert signal.signal(number, before) == signal.SIG_DFL

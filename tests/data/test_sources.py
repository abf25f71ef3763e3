"""Which files --data names, and which split each of them is."""

import os
from pathlib import Path

import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.data_utils.sources import sources_of

BY_FOLDER = ["s1/train/x.jsonl", "s1/valid/x.jsonl", "s1/test/x.jsonl"]
MORE, OTHERS = (
    "s1/more/x.jsonl",
    "valid-00000.txt wiki.valid.tokens validation/0.txt dev.txt.gz val.txt".split(),
)
BY_NAME = ["test_runs/train-0.jsonl", "test_runs/more.jsonl"]
# files, arguments, splits in the order of the files
CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "a folder": (BY_FOLDER, ["s1"], ["train", "valid", "test"]),
    "its folders": (BY_FOLDER, ["s1/train", "s1/valid", "s1/test"], ["train", "valid", "test"]),
    "a glob": (BY_FOLDER, ["s1/*/*.jsonl"], ["train", "valid", "test"]),
    "a glob of any depth": (BY_FOLDER, ["s1/**/*.jsonl"], ["train", "valid", "test"]),
    "globs": (BY_FOLDER, ["s1/train/*", "s1/valid/*", "s1/test/*"], ["train", "valid", "test"]),
    "what the shell makes of a glob": (BY_FOLDER, BY_FOLDER, ["train", "valid", "test"]),
    "the same with another folder": (
        [*BY_FOLDER, MORE],
        [*BY_FOLDER, MORE],
        ["train", "valid", "test", ""],
    ),
    "a folder and files": (BY_FOLDER, ["s1/train", *BY_FOLDER[1:]], ["train", "valid", "test"]),
    "a folder that names a split and another": (
        ["train/a.txt", "more/b.txt"],
        ["train", "more"],
        ["train", ""],
    ),
    "files in a folder of some name": (BY_NAME, BY_NAME, ["train", ""]),
    "a glob in it": (BY_NAME, ["test_runs/*.jsonl"], ["train", ""]),
    "files of it and another": ([*BY_NAME, "b.jsonl"], [*BY_NAME, "b.jsonl"], ["train", "", ""]),
    "a folder of such a name": (BY_NAME, ["test_runs"], ["train", ""]),
    "prose about tests": (
        ["a.md", "npm-install-test.md", "valid-names.md"],
        ["../home"],
        ["", "", ""],
    ),
    "a split among others": (
        ["a.md", "test.part.md", "dev/b.md"],
        ["../home"],
        ["", "test", "valid"],
    ),
    "other names of valid": (OTHERS, ["../home"], ["valid"] * 5),
}


@pytest.mark.parametrize(("files", "given", "splits"), CASES.values(), ids=CASES)
def test_the_split_of_a_file_depends_on_names_below_what_was_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    given: list[str],
    splits: list[str],
) -> None:
    home = tmp_path / "valid" / "home"
    write_all(home, files)
    monkeypatch.chdir(home)
    for before in ("", f"{home}/", "../home/"):
        found = sources_of(
            tuple(before + one for one in given) if len(given) > 1 else before + given[0]
        ).splits
        assert {os.path.relpath(path): split for path, split in found.items()} == dict(
            zip(files, splits, strict=True)
        )


def write_all(folder: Path, names: list[str], n: int = 50) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f'{{"text": "{name} {i}"}}\n' for i in range(n))
        (folder / name).write_text(
            text if ".json" in name else text.replace("{", "").replace("}", "")
        )


def documents(corpus: Corpus, split: str) -> list[str]:
    return [document.decode() for document in corpus.documents(split)]


def test_a_glob_does_not_find_the_cache(tmp_path: Path) -> None:
    write_all(tmp_path, ["v.txt", "x/c.txt"])
    data = str(tmp_path / "**/*.txt")
    corpus = Corpus(DataConfig(data=data, dataset="bytes", documents="row"))
    assert list((tmp_path / "txl-cache").iterdir())
    assert sorted(sources_of(data).splits) == [tmp_path / "v.txt", tmp_path / "x/c.txt"]
    assert Corpus(corpus.config).note == corpus.note


def test_a_named_split_is_evaluated_whole_without_training_text(tmp_path: Path) -> None:
    write_all(tmp_path, ["test.jsonl"])
    config = DataConfig(data=str(tmp_path), dataset="bytes")
    assert len(documents(Corpus(config, needed=["test"]), "test")) == 50
    with pytest.raises(DataError, match=r"has no train text; by name: test .*test\.jsonl; give"):
        Corpus(config, needed=["train"])
    with pytest.raises(DataError, match=r"has no train text"):
        Corpus(DataConfig(data=str(tmp_path), dataset="text"))


PLAIN: dict[str, tuple[list[str], bool]] = {  # the files of train and valid come first
    "another name": (["train.txt", "validation.txt", "test.txt"], False),
    "another suffix": (["train.txt", "valid.md", "test.txt"], False),
    "train.txt is missing": (["part.txt", "valid.txt", "test.txt"], False),
    "plain": (["train.txt", "valid.txt", "extra.txt"], True),
    "plain without training text": (["README.md", "valid.txt", "test.txt"], True),
}


@pytest.mark.parametrize(("names", "is_plain"), PLAIN.values(), ids=PLAIN)
def test_a_folder_of_plain_files_and_others(
    tmp_path: Path, names: list[str], is_plain: bool
) -> None:
    write_all(tmp_path, names)
    corpus = Corpus(DataConfig(data=str(tmp_path), dataset="bytes"))
    assert bool(corpus.note) == (not is_plain)
    for split, name in zip(("train", "valid"), names, strict=False):
        if name != "README.md":
            assert b"".join(corpus.documents(split)) == (tmp_path / name).read_bytes()


def test_a_data_set_of_one_folder_refuses_files(tmp_path: Path) -> None:
    write_all(tmp_path, ["train.txt", "valid.txt", "test.txt"])
    files = [str(tmp_path / name) for name in ("train.txt", "*.txt", "valid.txt")]
    of_sets = {
        "wt103": files[0],
        "ptb": files[1],
        "lm1b": tuple(files),
        "pydoc": files[0],
        "ids": files[0],
    }
    for dataset, given in of_sets.items():
        with pytest.raises(
            DataError, match=rf"^--data {tmp_path}/.*: --dataset {dataset} needs one folder"
        ):
            Corpus(DataConfig(data=given, dataset=dataset))


@pytest.mark.parametrize("glob", ["", "/**/*"])
def test_what_txl_writes_below_data_is_no_text_and_said(tmp_path: Path, glob: str) -> None:
    """A run folder, a cache elsewhere and hidden folders."""
    ours = [
        "runs/mine/metrics.jsonl",
        "runs/mine/step_2/samples.txt",
        "runs/mine/test.json",
        ".git/a.txt",
    ]
    write_all(tmp_path, ["a.txt", "runs/notes.txt", *ours])
    data = f"{tmp_path}{glob}"
    said = Corpus(
        DataConfig(data=data, dataset="bytes", documents="row", cache_dir=str(tmp_path / "cache"))
    ).note
    assert glob or said.endswith(f"; left out, written by txl: {tmp_path}/runs/mine")
    (tmp_path / "cache/checked.json").write_text("{}")
    assert sorted(sources_of(data).splits) == [tmp_path / "a.txt", tmp_path / "runs/notes.txt"]


BEGUN = '{"kind": "start", "step": 0}\n'


def test_what_a_run_or_a_study_has_begun_to_write_is_no_text(tmp_path: Path) -> None:
    """A run without a checkpoint, a study with one training, and a folder that is the run's, too."""
    ours = [
        "study/contrasts.json",
        "study/runs/a/seed_1/log.txt",
        "elsewhere/seed_1/log.txt",
        "elsewhere/seed_1/begun.json",
        "done/study.json",
        "done/table.md",
        "mine/log.txt",
        "log.txt",
        "step_00000003/vocab.txt",
    ]
    write_all(tmp_path, ["a.txt", "notes.md", *ours])
    (tmp_path / "mine/metrics.jsonl").write_text(BEGUN)
    (tmp_path / "metrics.jsonl").write_text(BEGUN)
    assert sorted(sources_of(str(tmp_path)).splits) == [tmp_path / "a.txt", tmp_path / "notes.md"]


@pytest.mark.parametrize("glob", ["", "/*/*.txt"])
def test_links_to_folders_are_followed_and_each_folder_is_read_once(
    tmp_path: Path, glob: str
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    write_all(home, ["part/a.txt", "part/more/b.txt"])
    write_all(other, ["c.txt"])
    for link, target in {
        "valid": other,
        "part/up": home,
        "again": home / "part",
        "of": other / "back",
    }.items():
        (home / link).symlink_to(target)
    (other / "back").symlink_to(home)
    found = {
        str(path.relative_to(home)): split
        for path, split in sources_of(f"{home}{glob}").splits.items()
    }
    assert found == {"part/a.txt": "", "valid/c.txt": "valid"} | (
        {} if glob else {"part/more/b.txt": ""}
    )


def test_files_of_a_folder_that_are_not_read_are_counted_by_suffix(tmp_path: Path) -> None:
    """One page among the sources of a program is not the text that its user means."""
    write_all(tmp_path, ["read.md", "a.rst", "sub/b.rst", "figures.csv", "Makefile", "c.h", "d.py"])

    def said(*names: str) -> str:
        data = names[0] if len(names) == 1 else names
        return Corpus(DataConfig(data=data, dataset="bytes", documents="row")).note

    here = str(tmp_path)
    counted = "not read unless named: 2 .rst, 1 without a suffix, 1 .h, 1 .py, 1 more"
    assert said(here).endswith(f"; {counted}")
    assert said(here, f"{here}/*.rst", f"{here}/sub/b.rst").endswith(
        "; not read unless named: 1 without a suffix, 1 .h, 1 .py, 1 .csv"
    )
    assert "not read" not in said(f"{here}/**/*.rst")


def test_a_readme_beside_rows_is_no_text(tmp_path: Path) -> None:
    write_all(tmp_path, ["README.md", "a.txt", "b.jsonl"])
    assert [path.name for path in sources_of(str(tmp_path)).splits] == ["a.txt", "b.jsonl"]
    assert Corpus(DataConfig(data=str(tmp_path), dataset="bytes")).note.startswith(
        "documents by row (b.jsonl has rows)"
    )
    (tmp_path / "b.jsonl").unlink()
    assert [path.name for path in sources_of(str(tmp_path)).splits] == ["README.md", "a.txt"]


@pytest.mark.parametrize("glob", ["", "/*/*.txt", "/**/*.txt"])
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glob: str
) -> None:
    write_all(tmp_path, ["a/one.txt", "b/two.txt"])
    scandir = os.scandir

    def refusing(path: str | Path) -> object:
        if os.fspath(path) == str(tmp_path / "b"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=r"/b: cannot be read \(Permission denied\)"):
        sources_of(f"{tmp_path}{glob}")


@pytest.mark.parametrize("how", ["named", "in a folder", "of a split"])
def test_a_pipe_is_refused_in_one_line(tmp_path: Path, how: str) -> None:
    write_all(tmp_path, ["valid.txt"])
    pipe = tmp_path / ("train.txt" if how == "of a split" else "my.txt")
    os.mkfifo(pipe)
    with pytest.raises(
        DataError, match=r"(my|train)\.txt: is a pipe or a device, which is read once; give a file"
    ):
        Corpus(DataConfig(data=str(pipe if how == "named" else tmp_path), dataset="text"))

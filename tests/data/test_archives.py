"""Archives that name files outside the folder of their copy, or links, are refused before anything is written."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from txl.data_utils.config import DataConfig
from txl.data_utils.corpus import Corpus
from txl.data_utils.download import DataSet, download
from txl.data_utils.errors import DataError
from txl.data_utils.remote import Remote

TEXT = ("train.txt", "valid.txt", "test.txt")
OUTSIDE = {
    "../../../notes.md": "leads out of its folder",
    "sub/../../notes.md": "leads out of its folder",
    "/notes.md": "leads out of its folder",
    "link.txt": "is a link",
}


def zipped(path: Path, member: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in TEXT:
            archive.writestr(name, "one two\n")
        info = zipfile.ZipInfo(member)
        if member == "link.txt":
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")


def tarred(path: Path, member: str) -> None:
    with tarfile.open(path, "w") as archive:
        for name in (*TEXT, member):
            info = tarfile.TarInfo(name)
            info.size = len(b"one two\n")
            if name == "link.txt":
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "train.txt", 0
            archive.addfile(info, io.BytesIO(b"one two\n"))


@pytest.mark.parametrize(("kind", "write"), [("zip", zipped), ("tar", tarred)])
@pytest.mark.parametrize("member", OUTSIDE)
def test_a_member_that_leaves_its_place_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    write: Callable[[Path, str], None],
    member: str,
) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    write(tmp_path / "archive", member)
    config = DataConfig(data=f"{kind}://::file://{tmp_path}/archive", dataset="text")
    with pytest.raises(DataError, match=OUTSIDE[member]) as refused:
        Corpus(config)
    assert repr(member) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "archive"]
    write(tmp_path / "archive", "inside/more.txt")
    assert len(Corpus(config).split("train")) == 3


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "zip"])
def test_a_member_is_read_as_its_own_name_says(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as that of the archive; wildcards are those of the members, also where the archive's
    address has such characters."""
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("not of it\n")
    content = b'{"text": "one two"}\n' * 100
    archive = tmp_path / f"a[1].{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("text/a.jsonl", content)
    else:
        with tarfile.open(archive, "w:gz" if suffix == "tar.gz" else "w") as packed:
            info = tarfile.TarInfo("text/a.jsonl")
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    for member in ("text/a.jsonl", "text/*.jsonl", "*/a.jsonl", "text", ""):
        for way in (archive.name, f"file://{archive}"):
            config = DataConfig(data=f"{suffix[:3]}://{member}::{way}", dataset="text", max_size=9)
            words = Corpus(config).vocab.words
            assert sorted(words) == ["<eos>", "<unk>", "one", "two"]


@pytest.mark.parametrize("write", [zipped, tarred])
def test_a_downloaded_archive_writes_into_its_folder_only(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    write(folder / "set.zip", "../../../notes.md")
    wanted = DataSet(
        "", (Remote("set.zip", []),), {"train.txt": "", "notes.md": ""}, ((".*", r"\g<0>"),)
    )
    with pytest.raises(
        DataError, match=r"set\.zip: the name '\.\./\.\./\.\./notes\.md' leads out of its folder"
    ):
        download(wanted, folder)
    assert not (tmp_path / "notes.md").exists()

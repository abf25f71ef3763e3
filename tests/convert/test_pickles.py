"""Pickles of strangers: nothing of them runs, and what is wrong with one is said in one line."""

import collections
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.convert.pickled import foreign
from txl.config import UsageError
from txl.convert.pickles import Inert, PickledTensor, read_pickle


class Evil:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


EVILS = [
    Evil(os.system, "touch {}"),
    Evil(eval, "open('{}', 'w')"),
    Evil(exec, "open('{}', 'w')"),
    Evil(getattr, Path, "touch"),
    Evil(__import__, "os"),
]


@pytest.mark.parametrize("how", ["torch", "old torch", "plain", "inside"])
def test_nothing_of_a_pickle_runs(how: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "model.pt"
    for one in EVILS:
        evil = Evil(
            one.call[0], *(str(a).format(mark) if isinstance(a, str) else a for a in one.call[1])
        )
        if how == "plain":
            path.write_bytes(pickle.dumps(evil))
        else:
            content = {"model_config": {}, "model_state": {"a": evil}} if how == "inside" else evil
            torch.save(content, path, _use_new_zipfile_serialization=how != "old torch")
        with pytest.raises(UsageError, match="which no checkpoint needs"):
            read_pickle(path)
        assert not mark.exists()


def test_functions_that_may_be_named_are_not_called(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(Evil(torch.load, str(tmp_path / "nowhere")), path)
    assert isinstance(read_pickle(path), Inert)


class Slotted:
    __slots__ = ("words",)


def test_an_object_with_slots_has_what_they_hold(tmp_path: Path) -> None:
    with foreign("vocabulary", "Vocab", base=Slotted) as classes:
        vocab: Any = classes["Vocab"]()
        vocab.words = ["a"]
        torch.save(vocab, tmp_path / "vocab.bin")
    assert read_pickle(tmp_path / "vocab.bin").words == ["a"]


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_all_kinds_come_back(zipped: bool, tmp_path: Path) -> None:
    base = torch.arange(24.0).view(4, 6)
    tensors = {
        "part": base[1:3, ::2],
        "turned": base.T,
        "half": torch.randn(3).half(),
        "brain": torch.randn(3).bfloat16(),
        "ids": torch.tensor([1, -2]),
        "none": torch.empty(0, 3),
        "one": torch.tensor(4.0, dtype=torch.float64),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    path = tmp_path / "tensors.pt"
    torch.save(collections.OrderedDict(tensors), path, _use_new_zipfile_serialization=zipped)
    found = read_pickle(path)
    for name, tensor in tensors.items():
        read = found[name].read()
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)


def test_tensors_of_one_storage_take_its_memory_once(tmp_path: Path) -> None:
    """Else a file of some MB could ask for all memory there is."""
    path, weight = tmp_path / "model.pt", torch.randn(1000)
    torch.save({f"layer{i}": weight for i in range(1000)}, path)
    assert (
        len({found.read().untyped_storage().data_ptr() for found in read_pickle(path).values()})
        == 1
    )


@pytest.mark.parametrize("name", ["data.pkl", "byteorder", "data/0"])
def test_what_is_compressed_is_not_inflated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.save stores what it writes as it is; 4 MB can inflate to 4 GiB."""
    path, read = tmp_path / "model.pt", []
    saved(True, path)
    zip_anew(
        path,
        lambda member, content: (content, zipfile.ZIP_DEFLATED if member.endswith(name) else 0),
    )
    read_entry = zipfile.ZipFile.read
    monkeypatch.setattr(
        zipfile.ZipFile, "read", lambda self, info: read.append(info) or read_entry(self, info)
    )
    with pytest.raises(UsageError, match=f"{name} is compressed"):
        read_pickle(path)
    assert not any(info.filename.endswith(name) for info in read)


def test_a_tensor_beyond_its_storage_is_refused() -> None:
    storage = type("S", (), {"dtype": torch.float32, "numel": 4, "content": bytes(16)})()
    for offset, shape, stride in [
        (0, (5,), (1,)),
        (2, (3,), (1,)),
        (-1, (1,), (1,)),
        (0, (2,), (-1,)),
    ]:
        with pytest.raises(ValueError, match="beyond its storage"):
            PickledTensor(storage, offset, shape, stride).read()


def saved(zipped: bool, path: Path) -> bytes:
    torch.save({"w": torch.ones(3, 4), "n": [1, "a"]}, path, _use_new_zipfile_serialization=zipped)
    return path.read_bytes()


def zip_anew(path: Path, change: Callable[[str, bytes], tuple[bytes, int]]) -> None:
    """Give each member other content, or another compression."""
    with zipfile.ZipFile(path) as archive:
        members = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, (content, how) in members.items():
            archive.writestr(name, content, how)


def read_all(path: Path) -> str:
    """What is wrong with the file, or nothing."""
    try:
        found = read_pickle(path)
    except UsageError as error:
        return str(error)
    for value in found.values() if isinstance(found, dict) else ():
        if isinstance(value, PickledTensor):
            try:
                value.read()
            except ValueError as error:
                return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_file_is_one_line(zipped: bool, tmp_path: Path) -> None:
    whole, path = saved(zipped, tmp_path / "whole.pt"), tmp_path / "damaged.pt"
    places = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)

    @settings(max_examples=60)
    @given(cut=st.integers(0, len(whole)), changes=places, more=st.binary(max_size=9))
    def check(cut: int, changes: list[tuple[int, int]], more: bytes) -> None:
        content = bytearray(whole)
        for place, byte in changes:
            content[place] = byte
        path.write_bytes(content[:cut] + more)
        assert len(read_all(path).splitlines()) <= 1

    check()


STRANGE: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", "damaged"),
    "a picture": (b"GIF89a", "damaged"),
    "a list": (pickle.dumps([1]), None),
    "marks": (b"(" * 10**5, "damaged"),
    "deep": (b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".", None),
    "huge bytes": (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "damaged"),
    "huge text": (b"\x80\x02X\xff\xff\xff\xff", "damaged"),
    "huge memo": (b"\x80\x02]r\xff\xff\xff\xff.", "memo index"),
}


@pytest.mark.parametrize(("content", "message"), STRANGE.values(), ids=STRANGE)
def test_strange_bytes(content: bytes, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    if message is None:
        assert isinstance(read_pickle(path), list)
    else:
        with pytest.raises(UsageError, match=message):
            read_pickle(path)


def test_a_file_of_a_big_endian_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    saved(True, path)
    zip_anew(path, lambda member, content: (b"big" if member.endswith("byteorder") else content, 0))
    with pytest.raises(UsageError, match="big-endian"):
        read_pickle(path)

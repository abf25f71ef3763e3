"""enwik8 and text8 as train, valid and test: from the raw file, or from the files that the 2019 scripts write."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from txl.files import written_whole

from .config import DataConfig
from .documents import SPLITS, kept, write_offsets
from .files import DataError, reading, require_text

VERSION = 1
WHOLE = 100_000_000
"""Bytes of enwik8 and of text8."""
_NUMBERS = re.compile(rb"[0-9 \n]*")
_SPACED = re.compile(rb"(?:\S )*\S?")


def byte_splits(config: DataConfig, cache: Path, digest: Callable[[Path], str]) -> tuple[Path, str]:
    """A folder in `cache` with the bytes of train.txt, valid.txt and test.txt, written anew where stale; and what was
    read, in words, empty if the 2019 code would read the same. Raises `DataError` if there is no text.

    A raw file, or the one in a zip archive, is cut as published: the last 5 % are test, the 5 % before them valid.
    """
    files = _files(config)
    target = cache / f"{config.dataset}-{config.data_convention}"
    fingerprint = [VERSION, *(digest(path) for path in files)]

    def write(_: bool) -> dict[str, str]:
        parts, said = _parts(config.dataset, files)
        for split, part in zip(SPLITS, parts, strict=True):
            if config.data_convention == "original":
                part = part.replace(b"\n", b"")
                part = part.strip() if config.dataset == "text8" else part
            if not part:
                raise DataError(f"{files[0]}: too short for a {split} split; it needs some 20 bytes of text")
            with written_whole(target / f"{split}.txt") as temporary:
                temporary.write_bytes(part)
            write_offsets(target, split, [0, len(part)])
        return {"said": said}

    return target, kept(target, fingerprint, digest, write)


def _files(config: DataConfig) -> list[Path]:
    """The three files of the splits, or the raw file."""
    name, given = config.dataset, config.data
    if not isinstance(given, str):
        raise DataError(f"--data {' '.join(given)}: --dataset {name} needs one folder or one file")
    path = Path(given)
    if path.is_file():
        return [path]
    splits = [path / f"{split}.txt" for split in SPLITS]
    raw = next((one for one in (path / name, path / f"{name}.zip") if one.is_file()), None)
    if raw is not None and not all(one.is_file() for one in splits):
        return [raw]
    if not splits[0].is_file():
        there = f"put {name} or {name}.zip there, or the three files of the 2019 scripts"
        raise DataError(f"{path / name}: no such file; {there}, or load it: python -m data_utils.download {name}")
    for one in splits:
        require_text(one)
    return splits


def _parts(name: str, files: list[Path]) -> tuple[list[bytes], str]:
    if len(files) == len(SPLITS):
        return [_unspaced(name, path) for path in files], ""
    content = _content(name, files[0])
    n_held = len(content) // 20
    said = f"{files[0].name}: {len(content):,} bytes, the last {n_held:,} for test, those before for valid"
    if len(content) != WHOLE:
        said += f"; this is not {name}, which has {WHOLE:,}: figures are not comparable with published ones"
    n_train = len(content) - 2 * n_held
    return [content[:n_train], content[n_train : n_train + n_held], content[n_train + n_held :]], said


def _content(name: str, path: Path) -> bytes:
    with reading(path):
        if not zipfile.is_zipfile(path):
            return path.read_bytes()
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.read(name)
        except (KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise DataError(f"{path}: holds no file {name} that can be read ({error}); bring it again") from None


def _unspaced(name: str, path: Path) -> bytes:
    """The bytes of a split; undoes prep_enwik8.py and prep_text8.py, which put spaces between the symbols."""
    with reading(path):
        content = path.read_bytes()
    first = content[: 1 << 12]
    if name == "enwik8" and _NUMBERS.fullmatch(first):
        try:
            return bytes(10 if word == b"\n" else int(word) for word in content.split(b" ") if word)
        except ValueError:
            raise DataError(f"{path}: has something else than numbers of bytes; give enwik8 itself") from None
    if name == "text8" and _SPACED.fullmatch(first.rstrip(b"\n")):
        return content.rstrip(b"\n")[::2].replace(b"_", b" ")
    return content

"""Which files --data names, and which split each of them is."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob, has_magic
from pathlib import Path
from typing import NamedTuple

from txl.files import RECORDS_BEGIN, begins_with

from .cache import CHECKED, RECORD
from .errors import DataError, reading
from .formats import COMPRESSED, LINES_OF_JSON, TEXT, has_rows, kind_of
from .remote import names_in, place_of

CACHE = "txl-cache"
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)")
_NAMES = {"validation": "valid", "val": "valid", "dev": "valid"}


class Sources(NamedTuple):
    """The files of a text.

    Attributes:
        splits: the split of each file; empty if its name and folders name none.
        left_out: caches and run folders among them, which are no text.
        not_read: other files of folders, which are read if they are named.
    """

    splits: dict[Path, str]
    left_out: list[Path]
    not_read: list[Path]


class _Named(NamedTuple):
    """What one argument of --data names: files, and the folder below which names of splits
    count."""

    root: str
    files: list[Path]
    left_out: list[Path]
    not_read: Sequence[Path] = ()


def sources_of(data: tuple[str, ...] | str) -> Sources:
    """The files that --data names: a folder, with its files of a known suffix, in it and below; a
    file; a glob; or several of these. In the order of the arguments, and of the names below each.

    A split is named by a file, such as valid.txt, wiki.test.tokens or validation-00000.parquet, or
    by its innermost folder that names one, of those below a root:

        | --data | roots |
        |---|---|
        | text | text |
        | text/*/a.txt | text, the part before the first wildcard |
        | text/train text/valid | text: every argument, or several of them, name different splits |
        | text/train other | the folders that hold text/train and other |
        | a.txt b.txt | the folder of each |

    Raises:
        DataError: if there are no files, or a file or folder cannot be read.
    """
    names = names_in(data)
    arguments = list(map(_named, names))
    if not any(argument.files for argument in arguments):
        raise _no_files(names)
    roots = _roots(names, arguments)
    splits = _splits_below(roots, arguments)
    named = set(splits.values())
    if "" in named and "train" not in named:
        # among files without a split, npm-install-test.md is about a test, and test.md is one
        splits = _splits_below(roots, arguments, is_whole=True)
    left_out: list[Path] = []
    not_read: list[Path] = []
    for argument in arguments:
        left_out += argument.left_out
        not_read += (path for path in argument.not_read if path not in splits)
    return Sources(splits, left_out, not_read)


def _no_files(names: tuple[str, ...]) -> DataError:
    shown = " ".join(names)
    if len(names) > 3:
        shown = f"{names[0]} and {len(names) - 1} more"
    known = " ".join((*TEXT, *LINES_OF_JSON[:1], ".parquet"))
    what = f"no files of text ({known}, or compressed: {' '.join(COMPRESSED)})"
    if len(names) == 1 and not Path(names[0]).exists():
        what = "no such folder"
    advice = "give the folder of the text files with --data, a file of text or a glob"
    return DataError(f"{shown}: {what}; {advice}")


def _roots(names: Sequence[str], arguments: Sequence[_Named]) -> list[str]:
    """Of each argument the folder below which names of splits count."""
    roots = [argument.root for argument in arguments]
    common = os.path.commonpath(roots)
    splits = {_split_below(common, folder) for folder in roots}
    if "" not in splits or len(splits) > 2:
        return [common] * len(roots)
    if len(names) > 1:
        for i, name in enumerate(names):
            if Path(name).is_dir():
                roots[i] = os.path.dirname(roots[i])
    return roots


def _splits_below(
    roots: Sequence[str], arguments: Sequence[_Named], *, is_whole: bool = False
) -> dict[Path, str]:
    splits = {}
    for root, argument in zip(roots, arguments, strict=True):
        for path in argument.files:
            splits[path] = _split_below(root, path, is_whole=is_whole)
    return splits


def _split_below(root: str, path: Path | str, *, is_whole: bool = False) -> str:
    """The split that a path below `root` names last; empty if it names none.

    Args:
        is_whole: the name is all of that of a file, without what is behind a dot, or of a folder.
    """
    for part in reversed(Path(os.path.abspath(path)).relative_to(root).parts):
        name = _SPLIT.search(part.lower())
        if is_whole:
            name = _SPLIT.fullmatch(part.partition(".")[0].lower())
        if name is not None:
            return _NAMES.get(name[1], name[1])
    return ""


def _named(name: str) -> _Named:
    """What an argument of --data names."""
    path = Path(name)
    left_out: list[Path] = []
    if path.is_dir():
        found = sorted(_below(path, left_out))
        files = list(filter(kind_of, found))
        texts = [file for file in files if kind_of(file) != "table"]
        if texts:
            files = texts  # tables beside texts are mostly figures
        if any(map(has_rows, files)):
            files = [file for file in files if not file.name.lower().startswith("readme.")]
        not_read = sorted(set(found).difference(files))
        return _Named(os.path.abspath(path), files, left_out, not_read)
    if path.exists():
        require_regular(path)
        return _Named(os.path.dirname(os.path.abspath(path)), [path], left_out)
    fixed = Path(*itertools.takewhile(lambda part: not has_magic(part), path.parts))
    if not fixed.is_dir():
        return _Named(os.path.abspath(fixed), [], left_out)
    matching = set(_matching(path))
    files = sorted(matching.intersection(_below(fixed, left_out, only=matching)))
    return _Named(os.path.abspath(fixed), files, left_out)


def _matching(pattern: Path) -> list[Path]:
    """What a glob matches. Raises `DataError` if a folder on the way cannot be read, which `glob`
    leaves out."""
    for i, part in enumerate(pattern.parts):
        if has_magic(part):
            for folder in glob(str(Path(*pattern.parts[:i])), recursive=True):
                if os.path.isdir(folder):
                    with reading(Path(folder)):
                        os.scandir(folder).close()
    return list(map(Path, glob(str(pattern), recursive=True)))


def _below(top: Path, left_out: list[Path], only: set[Path] | None = None) -> Iterator[Path]:
    """The files in a folder and below it, except for hidden ones. Links are followed, but each
    folder is read once, under its own name rather than that of a link beside it. Caches and run
    folders are appended to `left_out`.

    Args:
        only: files that are asked for; folders without any of them are not opened.
    """

    def stop(error: OSError) -> None:
        with reading(Path(error.filename)):
            raise error

    seen = {os.path.realpath(top)}
    ours = _of_run(top)
    for folder, below, names in os.walk(top, onerror=stop, followlinks=True):
        here = Path(folder)
        folders = _visible(here, below, ours)
        if only is not None:
            folders = [path for path in folders if any(path in file.parents for file in only)]
        left_out += filter(_is_ours, folders)
        below.clear()
        for path in sorted(folders, key=Path.is_symlink):
            if path not in left_out and (real := os.path.realpath(path)) not in seen:
                seen.add(real)
                below.append(path.name)
        for path in _visible(here, names, ours):
            if path.name != CHECKED and (only is None or path in only):
                if kind_of(path):
                    require_regular(path)
                yield path


def _visible(folder: Path, names: Sequence[str], ours: set[Path]) -> list[Path]:
    """What is neither hidden nor a run's."""
    paths = [folder / name for name in sorted(names) if not name.startswith(".")]
    return [path for path in paths if path not in ours]


def _is_ours(folder: Path) -> bool:
    """True for a folder that txl writes: a cache, the store of a text, a run, a study and one of
    its trainings."""
    if folder.name == CACHE or (folder / RECORD).is_file() or _is_run(folder):
        return True
    is_study = (folder / "contrasts.json").is_file() and (folder / "runs").is_dir()
    has_table = (folder / "study.json").is_file() and (folder / "table.md").is_file()
    is_training = (folder / "begun.json").is_file() and (folder / "log.txt").is_file()
    return is_study or has_table or is_training


def _is_run(folder: Path) -> bool:
    """True if its metrics.jsonl is one of train.py's, also before the first checkpoint."""
    records = folder / "metrics.jsonl"
    if not records.is_file():
        return False
    if any(folder.glob("step_*")):
        return True
    with suppress(OSError):
        return begins_with(records, RECORDS_BEGIN)
    return False


def _of_run(folder: Path) -> set[Path]:
    """What a run has written into a folder that is one of a text, too."""
    if not _is_run(folder):
        return set()
    own = [folder / name for name in ("metrics.jsonl", "log.txt", "tensorboard")]
    return {*own, *folder.glob("step_*")}


def require_regular(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that can be read twice."""
    if not path.is_file():
        what = "is a link to nothing"
        if path.exists():
            what = "is a pipe or a device, which is read once"
        advice = "give a file: compressed ones (.gz .xz .zst) are read as they are"
        raise DataError(f"{path}: {what}; {advice}")


def home_of(data: tuple[str, ...] | str) -> Path:
    """The folder that --data names or whose files it names."""
    first = place_of(names_in(data)[0])
    if first.is_dir():
        return first
    files = _named(str(first)).files
    if not files:
        return first
    return files[0].parent


def require_folder(data: tuple[str, ...] | str, dataset: str) -> None:
    """Raise `DataError` if --data names files, which are no data set."""
    is_folder = isinstance(data, str) and (
        Path(data).is_dir() or not (Path(data).exists() or glob(data, recursive=True))
    )
    if not is_folder:
        given = " ".join(names_in(data))
        advice = "give the folder, or --dataset text for words of any files"
        what = f"--dataset {dataset} needs one folder, with a file for each split"
        raise DataError(f"--data {given}: {what}; {advice}")

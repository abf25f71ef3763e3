"""Documents of any text: found by a rule, dealt to train, valid and test."""

import hashlib
import itertools
import json
import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from txl.files import written_whole

from .config import DataConfig
from .files import DataError, not_utf8, read_record, text_of, write_record
from .sources import has_rows, lines_of, rows_of, splits_of

VERSION = 1
SPLITS = ("train", "valid", "test")
MANY_FILES = 20
_LOG = logging.getLogger(__name__)


def documents_in(path: Path, config: DataConfig, rule: str) -> Iterator[bytes]:
    """The documents of a file in order; each ends with a line end. The file's text is theirs, joined. Raises
    `DataError` if it cannot be read, or is no text; bytes need not be text.

    Args:
        rule: blank, heading, file or row; a row of plain text is a line.
    """
    rows = has_rows(path)
    lines = rows_of(path, config.text_field, task="reading") if rows else lines_of(path, task="reading")
    if rows and rule in ("blank", "heading"):
        lines = (line for row in lines for line in row.splitlines(keepends=True))
    finders = {"blank": _up_to_blank_lines, "heading": _up_to_headings, "file": _as_one, "row": iter}
    line_ends = 0
    for document in finders[rule](lines):
        if config.dataset != "bytes":
            try:
                text_of(document)
            except UnicodeDecodeError as error:
                line_ends += document.count(b"\n", 0, error.start)
                raise not_utf8(path, line_ends + 1, error.reason) from None
            line_ends += document.count(b"\n")
        yield document if document.endswith(b"\n") else document + b"\n"


def _up_to_blank_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Each begins with its first line that is not blank, the first of all at the beginning."""
    held: list[bytes] = []
    ended = False
    for line in lines:
        blank = not line.strip()
        if ended and not blank:
            yield b"".join(held)
            held, ended = [], False
        held.append(line)
        ended = blank and any(map(bytes.strip, held)) if not ended else True
    if held:
        yield b"".join(held)


def _up_to_headings(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Each begins with a heading, as in `wikitext.article_starts`; what stands before the first is one too."""
    held: list[bytes] = []
    before_is_blank, blank_seen = True, False
    lines, following = itertools.tee(lines)
    for line, after in itertools.zip_longest(lines, itertools.islice(following, 1, None), fillvalue=b""):
        blank_seen = blank_seen or not line.strip()
        alone = (before_is_blank and not after.strip()) or not blank_seen
        if alone and is_heading(line) and any(map(bytes.strip, held)):
            yield b"".join(held)
            held = []
        held.append(line)
        before_is_blank = not line.strip()
    if held:
        yield b"".join(held)


def is_heading(line: bytes) -> bool:
    """True for a level-one heading: `= Title =`."""
    words = line.split()
    return len(words) > 2 and words[0] == words[-1] == b"=" != words[1] and b"\n" not in line.strip()


def _as_one(lines: Iterable[bytes]) -> Iterator[bytes]:
    if document := b"".join(lines):
        yield document


def rule_of(config: DataConfig, files: list[Path]) -> tuple[str, str]:
    """How documents are found, and why, from the beginning of the first file that is not empty, of rows if one has."""
    if config.documents != "auto":
        return config.documents, "as asked"
    path = next((path for path in sorted(files, key=has_rows, reverse=True) if path.stat().st_size), files[0])
    rows = has_rows(path)
    lines = rows_of(path, config.text_field, task="looking at") if rows else lines_of(path, task="looking at")
    first = list(itertools.islice(lines, 4096))
    if any(map(is_heading, first)):
        return "heading", "there are headings"
    if rows:
        return "row", f"{path.name} has rows"
    if len(files) >= MANY_FILES:
        return "file", f"there are {len(files)} files"
    if any(not line.strip() for line in first[:-1]):
        return "blank", "there are blank lines"
    return ("file", "there are several files") if len(files) > 1 else ("row", "it is one file without blank lines")


def is_plain(data: tuple[str, ...] | str) -> bool:
    """True if --data is a folder with a plain valid.txt or test.txt, where no other file is the only one of a split; a
    README.md or eval.json is no training text."""
    if not isinstance(data, str) or not Path(data).is_dir():
        return False
    plain = {split for split in SPLITS if (Path(data) / f"{split}.txt").is_file()}
    if not plain - {"train"} or len(plain) == len(SPLITS):
        return bool(plain - {"train"})
    named = splits_of(data).items()
    return {split or "train" for path, split in named if split or path.suffix.lower() not in (".md", ".json")} <= plain


def prepared(config: DataConfig, cache: Path, digest: Callable[[Path], str]) -> tuple[Path, str]:
    """A folder in `cache` with train.txt, valid.txt and test.txt of any text, written anew where stale; and how
    documents were found and dealt, in words.

    Files that name no split are train. Valid and test are split off it by document where there are none: a document
    goes where the hash of its text and the seed says, so that neither shards nor their order matter, and equal
    documents stay together. Without train, only the splits that files name are written.
    """
    splits: dict[str, list[Path]] = {}
    for path, split in splits_of(config.data).items():
        splits.setdefault(split or "train", []).append(path)
    settings = [VERSION, config.dataset == "bytes", config.documents, config.text_field]
    settings += [config.held_out, config.split_seed] if _split_off(splits) else []
    named = {split: [str(path) for path in paths] for split, paths in splits.items()}
    key = hashlib.sha256(json.dumps([settings, named]).encode()).hexdigest()[:12]
    target = cache / f"text-{key}"
    fingerprint = {
        "settings": settings,
        "files": named,
        "digests": [digest(path) for paths in splits.values() for path in paths],
    }

    def write(is_stale: bool) -> dict[str, Any]:
        if is_stale:
            _LOG.warning("%s: stale or damaged, rewritten", target)
        return _prepare(config, splits, target)

    return target, kept(target, fingerprint, digest, write)


def kept(
    target: Path, fingerprint: object, digest: Callable[[Path], str], write: Callable[[bool], dict[str, Any]]
) -> str:
    """What was said when the texts of the splits in `target` were made from what has this fingerprint. Where they are
    missing, damaged, or made from something else (True), `write` makes them and gives the record to keep, with "said"
    in it."""
    record = target / "prepared.json"
    known = read_record(record)
    if known.get("fingerprint") != fingerprint or known.get("written") != _written(target, digest):
        known = {"fingerprint": fingerprint, **write(bool(known))}
        write_record(record, {**known, "written": _written(target, digest)})
    return known["said"]


def _written(target: Path, digest: Callable[[Path], str]) -> dict[str, str]:
    """The digests of the files of prepared text."""
    files = (target / f"{split}.{suffix}" for split in SPLITS for suffix in ("txt", "documents.npy"))
    return {path.name: digest(path) for path in files if path.is_file()}


def _split_off(splits: Collection[str]) -> list[str]:
    """The splits that are split off the training text."""
    return [split for split in SPLITS if split not in splits] if "train" in splits else []


def _prepare(config: DataConfig, splits: dict[str, list[Path]], target: Path) -> dict[str, Any]:
    first = splits.get("train") or next(iter(splits.values()))
    rule, why = rule_of(config, first)
    dealt = _split_off(splits)
    there = [split for split in SPLITS if split in splits or dealt]
    counts, least = _write(config, rule, splits, target, {})
    if not all(counts[split] for split in dealt) and len(least) > len(dealt):
        counts, _ = _write(config, rule, splits, target, dict(zip(least, dealt, strict=False)))
    if empty := [split for split in there if not counts[split]]:
        found = f"{first[0]}: the text has {sum(counts.values())} document(s), found by {rule}, too few for"
        raise DataError(f"{found} {' and '.join(empty)}; choose --documents, or give files with these names")
    said = f"documents by {rule} ({why}): " + ", ".join(f"{counts[split]:,} {split}" for split in there)
    if list(splits) != ["train"]:
        more = {split: f" and {len(paths) - 1:,} more" if len(paths) > 1 else "" for split, paths in splits.items()}
        said += "; by name: " + ", ".join(
            f"{split} {splits[split][0]}{more[split]}" for split in there if split in more
        )
    if dealt:
        said += f"; {' and '.join(dealt)}: {config.held_out:g} each, seed {config.split_seed}"
    return {"rule": rule, "said": said}


def _write(
    config: DataConfig, rule: str, splits: dict[str, list[Path]], target: Path, chosen: dict[float, str]
) -> tuple[dict[str, int], list[float]]:
    """Write the documents of each split and where they begin and end, in bytes.

    Args:
        chosen: the split of documents by their place, for texts of few documents.
    Returns:
        The number of documents of each split, and the least places of all that were dealt.
    """
    dealt = _split_off(splits)
    ends = {split: array("q", [0]) for split in SPLITS if split in splits or dealt}
    least: list[float] = []
    with ExitStack() as stack:
        temporary = {split: stack.enter_context(written_whole(target / f"{split}.txt")) for split in ends}
        files = {split: stack.enter_context(temporary[split].open("wb")) for split in ends}
        for given, path in ((split, path) for split, paths in splits.items() for path in paths):
            if not path.stat().st_size:
                _LOG.warning("%s: is empty, left out", path)
            for document in documents_in(path, config, rule):
                split = given
                if given == "train" and dealt:
                    place = _place(document, config.split_seed)
                    least = sorted({*least, place})[: len(SPLITS)]
                    i = int(place / config.held_out)
                    split = chosen.get(place) or (dealt[i] if i < len(dealt) else "train")
                files[split].write(document)
                ends[split].append(ends[split][-1] + len(document))
        for split in ends:
            files[split].close()
            write_offsets(target, split, ends[split])
    return {split: len(ends[split]) - 1 for split in ends}, least


def write_offsets(target: Path, split: str, ends: Sequence[int]) -> None:
    """Write where the documents of a split begin and end, in bytes."""
    with written_whole(target / f"{split}.documents.npy") as temporary, temporary.open("wb") as file:
        np.save(file, np.array(ends, dtype=np.int64))


def _place(document: bytes, seed: int) -> float:
    """A number from 0 to 1 by the hash of a document."""
    digest = hashlib.blake2b(document, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest) / 2**64

"""Ids, vocabularies, where documents begin, counts and digests of texts of every kind, as they were before the text
library was rewritten. golden_ids.txt has the digests; to write it again, run this file with --write."""

import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.tokenizer_files import write_folder
from txl.config import UsageError
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.pydoc import write_pydoc_corpus

GOLDEN = Path(__file__).with_suffix("").with_name("golden_ids.txt")
LM1B = Path(__file__).parents[1] / "golden" / "data" / "text" / "lm1b"
SPLITS = ("train", "valid", "test")
WORDS = (
    "the of , and in . to a was as for The with on that by at from is his were <unk> it an are @-@ had he be this "
    "which first not their @,@ but also its Tag sch\u00f6n \u6771\u4eac \U0001f600 e\u0301 na\u00efve <eos> <|im_end|>"
).split()


def sentences(n: int, seed: int) -> list[str]:
    """Of words drawn by a congruence, the frequent ones first."""
    found = []
    state = seed
    for _ in range(n):
        line = []
        for _ in range(3 + state % 17):
            state = (1103515245 * state + 12345) % 2**31
            at = min(state >> 8 & 255, state >> 16 & 255, state >> 4 & 63)
            line.append(WORDS[at % len(WORDS)] if at < 60 else f"w{at}")
        found.append(" ".join(line))
    return found


def articles(n: int, seed: int) -> str:
    """As WikiText has them."""
    text = ""
    lines = sentences(3 * n, seed)
    for i in range(n):
        text += f" \n = Title {i} = \n \n"
        text += "".join(f" {line} \n" for line in lines[3 * i : 3 * i + 2])
        text += f" \n = = Part = = \n \n {lines[3 * i + 2]} \n"
    return text


def paragraphs(n: int, seed: int) -> str:
    return "".join(f"{line}\nand a line\n\n" for line in sentences(n, seed))


def jsonl(n: int, seed: int) -> str:
    rows = [
        {"text": f"{line}\r\nmore" if i % 5 else line} for i, line in enumerate(sentences(n, seed))
    ]
    return "".join(json.dumps(row) + "\n" for row in [*rows, {"text": None}, {"text": ""}])


def csv(n: int, seed: int) -> str:
    return "id,text\n" + "".join(f'{i},"{line}"\n' for i, line in enumerate(sentences(n, seed)))


def each_split(make: Callable[[int, int], str], suffix: str = ".txt") -> dict[str, bytes]:
    sizes = {"train": 40, "valid": 7, "test": 9}
    return {
        f"{split}{suffix}": make(n, seed).encode()
        for seed, (split, n) in enumerate(sizes.items(), 3)
    }


PLAIN = each_split(articles)
RETURNS = {
    name: text.replace(b"\n", b"\r\n" if "v" in name else b"\r") for name, text in PLAIN.items()
}
ROWS = {"a.jsonl": jsonl(60, 5).encode(), "more/b.jsonl.gz": gzip.compress(jsonl(90, 6).encode())}
FILES = {f"{i:02d}.md": paragraphs(2 + i % 4, i).encode() for i in range(30)}
BOOK = {"book.txt": paragraphs(200, 9).encode()}
LONG = {
    "long.txt": " ".join(sentences(40_000, 11)).encode() + b"\n",
    "b.txt": b"unbroken" * 200_000,
}
TABLE = {"a.csv": csv(100, 7).encode(), "b.tsv": csv(9, 8).replace(",", "\t").encode()}
ARRAY = {"a.json": json.dumps([{"text": line} for line in sentences(80, 4)]).encode()}
CASES: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    **{name: (PLAIN, {"dataset": name}) for name in ("wt103", "wt2", "ptb", "text", "characters")},
    "bytes": (PLAIN, {"dataset": "bytes"}),
    "bpe": (PLAIN, {"dataset": "bpe", "vocab_size": 400}),
    "ptb in capitals": ({name: text.upper() for name, text in PLAIN.items()}, {"dataset": "ptb"}),
    "words, limits": (PLAIN, {"dataset": "wt103", "max_size": 30, "min_freq": 3}),
    "words, a limit": (PLAIN, {"dataset": "text", "max_size": 20}),
    "line ends": (RETURNS, {"dataset": "text"}),
    "line ends, characters": (RETURNS, {"dataset": "characters", "documents": "row"}),
    "line ends, bytes": (RETURNS, {"dataset": "bytes", "documents": "blank"}),
    "line ends, a published set": (RETURNS, {"dataset": "wt2"}),
    **{
        f"by {rule}": (PLAIN, {"dataset": "text", "documents": rule})
        for rule in ("blank", "file", "row")
    },
    "rows": (ROWS, {"dataset": "text"}),
    "rows, by document": (ROWS, {"dataset": "text", "held_out_by": "document", "held_out": 0.1}),
    "rows, characters": (ROWS, {"dataset": "characters", "documents": "blank"}),
    "rows of splits": (each_split(jsonl, ".jsonl"), {"dataset": "bpe", "vocab_size": 300}),
    "a table": (TABLE, {"dataset": "text", "held_out": 0.1}),
    "an array": (
        ARRAY,
        {"dataset": "bytes", "held_out": 0.1, "split_seed": 3, "held_out_by": "document"},
    ),
    "many files": (FILES, {"dataset": "text", "held_out": 0.1}),
    "many files, by document": (
        FILES,
        {"dataset": "characters", "held_out": 0.1, "held_out_by": "document"},
    ),
    "few files": (dict(list(FILES.items())[:4]), {"dataset": "bytes"}),
    "a book": (BOOK, {"dataset": "text"}),
    "a book, by file": (BOOK, {"dataset": "characters", "documents": "file", "held_out": 0.07}),
    "a book, by document": (BOOK, {"dataset": "bpe", "vocab_size": 300, "held_out_by": "document"}),
    "a book and a test": ({**BOOK, "test.txt": b"the test\n"}, {"dataset": "text"}),
    "no line end": (
        {"a.txt": b"one two\n\nthree\n\nfour", "b.txt": b"five\n\nsix\n\nseven"},
        {"dataset": "text"},
    ),
    **{
        f"long, {name}": (LONG, {"dataset": name, "documents": "file"})
        for name in ("text", "characters", "bytes")
    },
    "long, bpe": (LONG, {"dataset": "bpe", "documents": "file", "vocab_size": 300}),
    "long, by document": (
        {**LONG, "c.txt": b"a short one", "d.txt": b"another"},
        {"dataset": "text", "documents": "file", "held_out_by": "document"},
    ),
    **{
        f"{name}, {how}": (
            {name: ("".join(sentences(300, 2)).encode() + b"\xff\n")},
            {"dataset": name, "prefix": True, "data_convention": how},
        )
        for name in ("enwik8", "text8")
        for how in ("txl", "original")
    },
    **{
        f"pretrained, {kind}": (PLAIN, {"dataset": "pretrained", "tokenizer": kind})
        for kind in ("smollm", "qwen", "llama_3", "llama_2")
    },
    "pretrained, headings": (
        PLAIN,
        {"dataset": "pretrained", "tokenizer": "qwen", "documents": "heading"},
    ),
    "pretrained, rows": (ROWS, {"dataset": "pretrained", "tokenizer": "smollm"}),
    "pretrained, a book": (BOOK, {"dataset": "pretrained", "tokenizer": "llama_3"}),
    "pretrained, long": (
        {"valid.txt": LONG["long.txt"], "test.txt": " ".join(sentences(999, 1)).encode()},
        {"dataset": "pretrained", "tokenizer": "smollm"},
    ),
    "a tokenizer": (PLAIN, {"dataset": "bpe", "tokenizer": "llama_3"}),
    "a tokenizer, special": (
        PLAIN,
        {"dataset": "bpe", "tokenizer": "qwen", "special_tokens": True},
    ),
    "lm1b": ({}, {"dataset": "lm1b"}),
    "ids": ({}, {"dataset": "ids"}),
    "pydoc": ({}, {"dataset": "pydoc"}),
}


def short(*parts: Any) -> str:
    """A digest of numbers and texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
    return digest.hexdigest()[:12]


def numbers(values: Any) -> str:
    return short(np.asarray(values).astype(np.int64).tobytes())


def write_text(name: str, folder: Path) -> Path:
    """The files of a case; the folder to read."""
    if name == "lm1b":
        return LM1B
    if name == "ids":
        np.save(folder / "train.npy", np.arange(999) ** 2 % 77)
        np.save(folder / "valid.npy", np.arange(99) ** 2 % 77)
        np.save(folder / "valid.documents.npy", np.array([0, 9, 50]))
        (np.arange(55) % 76).astype("<u2").tofile(folder / "test.bin")
    if name == "pydoc":
        stdlib = folder / "stdlib"
        stdlib.mkdir()
        for i in range(99):
            said = "\n\n".join(sentences(60, i))
            (stdlib / f"m{i}.py").write_text(f'"""{said}"""\n\n\ndef f():\n    """{said}"""\n')
        write_pydoc_corpus(folder / "text", stdlib=stdlib)
        return folder / "text"
    for file, content in CASES[name][0].items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


def found(name: str, tmp_path: Path) -> list[str]:
    """What is known of a case, a line each."""
    folder = tmp_path / "text"
    folder.mkdir()
    flags = {"cache_dir": str(tmp_path / "cache"), **CASES[name][1]}
    if "tokenizer" in flags:
        write_folder(tmp_path / "model", flags["tokenizer"])
        flags["tokenizer"] = str(tmp_path / "model" / "tokenizer.json")
    corpus = Corpus(DataConfig(data=str(write_text(name, folder)), **flags))
    dataset = corpus.config.dataset
    lines = [f"vocabulary {len(corpus.vocab)} {corpus.vocab.fingerprint()[:12]}"]
    for split in SPLITS:
        if not corpus.texts.is_there(split):
            continue
        sizes = corpus.sizes(split)
        try:
            starts = corpus.document_starts(split)
            begins = f"{len(starts)} {numbers(starts)}"
        except UsageError:
            begins = "none"
        sums = [int(size_N.sum()) for size_N in sizes.values()]
        content = short(*corpus.documents(split)) if name != "ids" else "none"
        ids = corpus.split(split)
        files = ""
        if dataset in ("lm1b", "pretrained"):  # of others only their batches were known
            files = f" files {numbers(corpus.file_starts(split))}"
        lines.append(
            f"{split} {len(ids)} {ids.dtype} {numbers(ids)} begins {begins} sums {sums} "
            f"{short(*map(numbers, sizes.values()))} text {corpus.fingerprint(split)[:12]} {content}"
            f"{files}"
        )
    note = corpus.note.replace(str(folder), "").replace("\n", " ")
    return [f"{name}: {line}" for line in [*lines, f"note {note}"]]


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_before(name: str, tmp_path: Path) -> None:
    if CASES[name][1]["dataset"] in ("bpe", "pretrained"):
        pytest.importorskip("tokenizers")
    known = [line for line in GOLDEN.read_text().splitlines() if line.startswith(f"{name}: ")]
    assert found(name, tmp_path) == known


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    import tempfile

    with GOLDEN.open("w") as file:
        for case in CASES:
            with tempfile.TemporaryDirectory() as scratch:
                file.writelines(f"{line}\n" for line in found(case, Path(scratch)))

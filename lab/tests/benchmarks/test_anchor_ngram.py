"""The n-grams count what train.py reads and are scored as eval.py scores.

Programs that print what KenLM's print stand for them.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks import anchor_ngram
from lab.benchmarks.anchor_ngram import KenLMError, as_line, counted, read_unigrams, run
from tests.stand_ins import write_program
from txl.data_utils.corpus import Corpus, DataConfig
from txl.errors import UsageError

LMPLZ = """
import math, sys
from collections import Counter
from pathlib import Path
flags = sys.argv[1:]
n_word = int(flags[flags.index("--vocab_pad") + 1]) - 1
words = Counter(sys.stdin.read().split())
n = words.total() + n_word
lines = [f"{math.log10((c + 1) / n)}\\t{word}\\t0" for word, c in words.items()]
lines += [f"{math.log10(1 / n)}\\t<unk>\\t0", "0\\t<s>\\t0", "-99\\t</s>\\t0"]
head = ["\\\\data\\\\", f"ngram 1={len(lines)}", "ngram 2=1", "", "\\\\1-grams:"]
tail = ["", "\\\\2-grams:", "-1\\t5 5", "", "\\\\end\\\\"]
Path(flags[flags.index("--arpa") + 1]).write_text("\\n".join([*head, *lines, *tail]) + "\\n")
"""
QUERY = """
import sys
from pathlib import Path
lines = [line.split("\\t") for line in Path(sys.argv[-1]).read_text().splitlines()]
p = {line[1]: line[0] for line in lines if len(line) == 3}
assert sys.argv[1:-1] == ["-n", "-v", "word"]
for line in sys.stdin:
    print("".join(f"{word}=7 1 {p.get(word, p['<unk>'])}\\t" for word in line.split()) + "Total: -1 OOV: 0")
"""
FEW = 2 * 40


@pytest.fixture
def kenlm(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, program in (("lmplz", LMPLZ), ("query", QUERY)):
        write_program(folder / name, program)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for split, n_line in (("train", 60), ("valid", 6), ("test", 8)):
        lines = [" ".join(chr(97 + (i * j) % 13) for j in range(9)) for i in range(n_line)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_a_row_for_each_number_of_tokens(
    text: Path, kenlm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = text / "found.json"
    argv = ["anchor_ngram", "--data", str(text), "--kenlm", str(kenlm), "--json", str(file)]
    argv += ["--max_size", "12", "--batch_size", "2", "--n_tokens", str(FEW), "600"]
    monkeypatch.setattr(sys, "argv", argv)
    anchor_ngram.main()
    few, whole = json.loads(file.read_text())["rows"]
    assert (few["tokens"], whole["tokens"]) == (FEW, 600)

    corpus = Corpus(DataConfig(data=str(text), dataset="text", max_size=12))
    ids, test = corpus.split("train"), corpus.split("test")
    read = np.concatenate([ids[: FEW // 2], ids[300 : 300 + FEW // 2]])
    n_word = len(corpus.vocab)
    p_V = (np.bincount(read, minlength=n_word) + 1) / (FEW + n_word)
    assert few["test"]["tokens"] == 8 * 10 - 1
    assert few["test"]["nats_per_token"] == pytest.approx(-np.log(p_V[test[1:]]).mean())
    assert few["sum_of_unigrams"] == pytest.approx(1)
    assert few["words_counted"] == len(set(read.tolist()))
    assert few["n_grams"] == [few["words_counted"] + 3, 1]


def test_more_tokens_than_there_are_are_refused() -> None:
    with pytest.raises(UsageError, match="the training text has 10"):
        counted(np.arange(11), 12, batch_size=2)


def test_unseen_words_share_what_is_left(tmp_path: Path) -> None:
    arpa = tmp_path / "a.arpa"
    arpa.write_text(
        "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\t0\n-99\t<s>\t0\n-0.30103\t4\t0\n"
    )
    n_grams, total = read_unigrams(arpa, 6)
    assert n_grams == [3]
    assert total == pytest.approx(0.5 + 5 * 0.1, abs=1e-6)


def test_a_program_that_fails_is_named_with_its_last_line() -> None:
    program = "import sys; sys.exit('first\\nno room')"
    with pytest.raises(KenLMError, match="no room"):
        run([sys.executable, "-c", program], as_line([1, 2]))

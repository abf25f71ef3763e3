"""A data set is a file and a line in the registry; here neither is in the package."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from txl.config import UsageError
from txl.data_utils.config import DATA_SETS, DataSet, tokenizer_of
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.documents import Document
from txl.data_utils.texts import Texts
from txl.data_utils.tokens import EOS, UNK, Vocab
from txl.settings.flags import read_flags

ROOT = Path(__file__).parents[2]


class Table(Texts):
    """The cells of a column of table.csv, each a document of the split that its row names."""

    rule = "row"

    def files(self, split: str) -> list[Path]:
        return [self.home / "table.csv"]

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        return ("train", "valid")

    def documents(self, splits: Sequence[str]) -> Iterator[Document]:
        with self.files("")[0].open(newline="") as file:
            for row in csv.DictReader(file):
                yield Document(f"{row['text']}\n".encode(), split=row["split"])


TABLE = DataSet(Table, Vocab, ("train",), special=(EOS, UNK))


def test_a_data_set_from_elsewhere_is_read_and_its_vocabulary_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATA_SETS, "table", TABLE)
    (tmp_path / "table.csv").write_text('split,text\ntrain,a b a\nvalid,a c\ntrain,"b, a"\n')
    config = DataConfig(
        **read_flags(["--dataset", "table", "--data", str(tmp_path)], DataConfig, description="")
    )
    corpus = Corpus(config)
    assert corpus.vocab.words == [EOS, UNK, "a", "b", "b,"]
    assert corpus.split("train").tolist() == [2, 3, 2, 0, 4, 2, 0]
    assert corpus.split("valid").tolist() == [2, 1, 0]
    assert corpus.document_starts("train").tolist() == [0, 4]
    assert tokenizer_of("table", corpus.vocab.files().__getitem__).words == corpus.vocab.words


def test_a_data_set_that_is_not_there_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        UsageError, match=r"^--dataset table: no such data set; there are wt103, wt2, .*, ids; the"
    ):
        DataConfig(dataset="table")
    monkeypatch.setitem(DATA_SETS, "table", TABLE)
    assert DataConfig(dataset="table").dataset == "table"


def test_only_the_data_set_that_is_read_is_imported() -> None:
    """The streams of sentences bring PyTorch, which the reading of a text does not need."""
    code = (
        "import json, sys\n"
        "from txl.data_utils.corpus import Corpus\n"
        "from txl.data_utils.config import DATA_SETS\n"
        "DATA_SETS['text']\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    modules = json.loads(done.stdout)
    assert "txl.data_utils.tokens" in modules
    assert {
        "torch",
        "txl.data_utils.lm1b",
        "txl.data_utils.subwords",
        "txl.data_utils.pydoc",
    }.isdisjoint(modules)


@pytest.mark.parametrize(("folder", "advice"), [("wikitext-103", True), ("mine", False)])
def test_a_text_of_the_scripts_that_is_not_there_can_be_downloaded(
    tmp_path: Path, folder: str, advice: bool
) -> None:
    with pytest.raises(UsageError, match="no such folder") as refused:
        Corpus(DataConfig(data=str(tmp_path / folder)))
    command = f"./run_wt103.sh data (python -m data_utils.download wt103 --out {tmp_path / folder})"
    assert str(refused.value).endswith(command) == advice

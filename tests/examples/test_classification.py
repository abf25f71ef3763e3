"""Fine-tuning a trained model to classify texts."""

from pathlib import Path

import pytest
import torch

import txl
from examples.classification.__main__ import main
from examples.classification.classifier import Classifier, batches, padded
from examples.classification.texts import docstrings, is_held_out, read_tsv
from tests.cli.conftest import Trained
from tests.conftest import long_test
from txl.config import UsageError

pytestmark = pytest.mark.slow


@pytest.fixture
def classifier(trained: Trained) -> Classifier:
    torch.manual_seed(0)
    classifier = Classifier(txl.load(trained.run), 3)
    classifier.model.double()
    classifier.head.double()
    return classifier.eval()


def test_texts_side_by_side_have_the_scores_of_each_alone(classifier: Classifier) -> None:
    texts = [[5, 9, 3], [7], list(range(2, 40)), list(range(30, 8, -1))]
    together = classifier(texts)
    torch.testing.assert_close(together, torch.cat([classifier([text]) for text in texts]))


def test_padding_is_seen_by_no_text() -> None:
    token_BT, since_BT = padded([[4, 5, 6], [7]], pad=9)
    assert token_BT.tolist() == [[4, 5, 6], [9, 9, 7]]
    assert since_BT.tolist() == [[0, 1, 2], [0, 0, 0]]


def test_every_text_is_in_one_batch() -> None:
    examples = [([i] * (i + 1), i) for i in range(23)]
    found = list(batches(examples, 4, torch.Generator().manual_seed(3)))
    assert sorted(label for batch in found for _, label in batch) == list(range(23))


@pytest.mark.usefixtures("notices")
def test_a_model_learns_to_tell_texts_apart(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = next(trained.run.glob("step_*/vocab.txt")).read_text().split()[2:]
    texts = [
        f"{label}\t{label} {words[i % 40]} {words[(7 * i) % 40]}\n"
        for i in range(60)
        for label in words[40:42]
    ]
    (tmp_path / "texts.tsv").write_text("".join(texts))
    flags = ["--data", str(tmp_path / "texts.tsv"), "--lr", "0.003", "--n_epoch", "6"]
    main(["--init_from", str(trained.run), *flags])
    assert capsys.readouterr().out.splitlines()[-1].endswith("100.0% right")


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    for content in ("no tab\n", "label\t\n"):
        (tmp_path / "t.tsv").write_text(f"a\tgood\n{content}")
        with pytest.raises(UsageError, match=r"t.tsv, line 2: is not a label, a tab and a text"):
            read_tsv(tmp_path / "t.tsv")


def test_a_text_may_hold_characters_at_which_python_splits_lines(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tone\u2028two\x0bthree\nb\tfour\n", encoding="utf-8")
    assert read_tsv(tmp_path / "t.tsv") == [("a", "one\u2028two\x0bthree"), ("b", "four")]


@long_test
def test_docstrings_have_labels_of_several_packages() -> None:
    found = docstrings()
    assert len(found) > 500
    assert len({label for label, _ in found}) == 8
    assert 0.1 < sum(is_held_out(text) for _, text in found) / len(found) < 0.3

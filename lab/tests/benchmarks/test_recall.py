"""The benchmark of recall: where a key and its question stand, and that a reader who knows the key is right."""

import json
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.benchmarks import pretrained_memories, recall
from tests.convert.test_llama_journey import folder
from tests.data.tokenizer_files import TEXT

__all__ = ["folder"]
DISTANCES = [120, 200]


@pytest.fixture(autouse=True)
def names_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "NAMES", ("Anna", "Boby"))


class Characters:
    """Of a model, how it encodes."""

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


def test_a_key_stands_as_far_before_its_answer_as_asked() -> None:
    ids, questions = recall.text_of(
        Characters(), Characters().encode(TEXT), DISTANCES, random.Random(3)
    )
    text = "".join(map(chr, ids))
    assert [question.distance for question in questions] == [200, 120]
    for question in questions:
        key = text[question.digits.start : question.digits.stop]
        assert key.isdecimal()
        assert text.count(key) == 2
        assert question.digits.start - text.index(key) == question.distance + 1  # a space is said
        name = text[: question.digits.start].split()[-2]
        assert f" The pass key of {name} is {key}. " in text


def test_every_key_is_recalled_by_who_knows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file.txt").write_text(TEXT)
    asked: dict[str, Any] = {
        "model": str(folder),
        "device": "cpu",
        "text": "file.txt",
        "distances": DISTANCES,
        "texts": 2,
        "seed": 1,
        "mem_len": 30,
        "compressed_len": None,
        "lookup_len": None,
        "row": "",
    }
    plain = [*recall.recalled(Namespace(**asked))]
    assert [(row["distance"], row["recalled"], row["mem_len"]) for row in plain] == [
        (200, 0, 30),
        (120, 0, 30),
    ]
    texts = []
    made = recall.text_of
    monkeypatch.setattr(recall, "text_of", lambda *args: texts.append(made(*args)) or texts[-1])

    class Knows:
        """The likeliest token is the one that follows."""

        turn = 0

        @classmethod
        def of(cls, model: Any) -> "Knows":
            cls.n_token = model.config.n_token
            return cls()

        def all(self, hidden_BD: Tensor) -> Tensor:
            begin = min(q.digits.start for q in texts[0][1])
            next_B = torch.tensor([ids[begin + self.turn] for ids, _ in texts])
            self.turn += 1
            return torch.nn.functional.one_hot(next_B, self.n_token).double().log()

    monkeypatch.setattr(recall, "WordProbabilities", Knows)
    rows = [*recall.recalled(Namespace(**asked))]
    assert [(row["recalled"], row["nats_per_digit"]) for row in rows] == [(2, 0.0), (2, 0.0)]
    assert "| 200 | 2 of 2 | 0.000 |" in capsys.readouterr().out


STUDY = """
[train]
tgt_len = 8
[runs."sinks, as loaded"]
memory = "sinks"
n_sink = 2
mem_len = 6
[runs."sinks, as loaded".evaluations."wiki, 50 MiB"]
mem_len = 150
[runs."sinks, again"]
memory = "sinks"
[evaluations."wiki, 10 MiB"]
split = "test"
[evaluations."wiki, 50 MiB"]
split = "test"
"""


def test_costs_of_a_study_and_its_picture(folder: Path) -> None:
    Path("file.txt").write_text(TEXT * 9)
    Path("study.toml").write_text(STUDY)
    args = Namespace(model=str(folder), text="file.txt", study=Path("study.toml"))
    rows = [*pretrained_memories.costs(args)]
    assert [(row["memory"], row["size"], row["mem_len"]) for row in rows] == [
        ("sinks", "10 MiB", 6),
        ("sinks", "50 MiB", 150),
    ]
    assert 0 < rows[0]["mib"] < rows[1]["mib"]
    values = {"wiki, 10 MiB, cut": 20.0, "wiki, 50 MiB": 15.0}
    results = {
        "runs": {
            "sinks, as loaded": [
                {"values": values},
                {"values": {k: v + 2 for k, v in values.items()}},
            ],
            "lost": [{"values": dict.fromkeys(values, 1e3)}],
        }
    }
    earlier = {"runs": {"sinks, as loaded": [{"values": values}], "lost": []}}
    for name, one in (("earlier.json", earlier), ("later.json", results | {"failed": []})):
        Path(name).write_text(json.dumps(one))
    assert pretrained_memories.rows_of([Path("earlier.json"), Path("later.json")]) == results
    assert pretrained_memories.rows_of([Path("later.json"), Path("earlier.json")]) == {
        "runs": results["runs"] | {"sinks, as loaded": [{"values": values}]}
    }
    of_code = [{"values": values, "source": "text 1, code 2"}]
    Path("of_code.json").write_text(
        json.dumps({"runs": {"sinks, as loaded (text 1, code 2)": of_code}})
    )
    both = pretrained_memories.rows_of([Path("earlier.json"), Path("of_code.json")])
    assert both == {"runs": {"sinks, as loaded": of_code}}
    found = pretrained_memories.points(results)
    assert found == {"sinks, as loaded": {"10 MiB": 21.0, "50 MiB": 16.0}}
    pretrained_memories.plot(results, {"rows": rows}, Path("picture.png"))
    assert Path("picture.png").stat().st_size > 1000

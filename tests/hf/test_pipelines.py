"""Pipelines of transformers, and what `generate` takes, with the words of a TransfoXL."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf.models import SIZES, build

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; run scripts/test_with_transformers.sh"
)
import txl.hf  # noqa: E402

LABELS = ["contradiction", "neutral", "entailment"]
TEXTS = [" ".join(f"w{(7 * i + j) % 50}" for j in range(3 + i % 5)) for i in range(20)]
"""More of them than layers, and than tokens of memory; of several lengths."""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    words = [
        "<eos>",
        "<unk>",
        *(f"w{i}" for i in range(SIZES["vocab_size"] - 6)),
        ".",
        "abc",
        "@.@",
        "5",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    return txl.hf.TransfoXLTokenizer(vocab_file=str(tmp_path / "vocab.txt"))


def classifier() -> Any:
    names = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {name: i for i, name in enumerate(LABELS)},
    }
    return build("TransfoXLForSequenceClassification", num_labels=3, pad_token_id=0, **names)


@pytest.mark.parametrize(
    "task", ["text-classification", "zero-shot-classification", "feature-extraction"]
)
def test_texts_in_batches_have_what_each_has_alone(task: str, tokenizer: Any) -> None:
    model = build("TransfoXLModel") if task == "feature-extraction" else classifier()
    pipeline = transformers.pipeline(task, model=model, tokenizer=tokenizer)
    asked = {"candidate_labels": ["w1", "w2 w3", "w5"]} if task.startswith("zero") else {}

    def numbers(result: Any) -> torch.Tensor:
        if task == "feature-extraction":
            return torch.tensor(result)
        if task == "text-classification":
            return torch.tensor([LABELS.index(result["label"]), result["score"]])
        assert set(result["labels"]) == set(asked["candidate_labels"])
        return torch.tensor(result["scores"])

    alone = [pipeline(text, **asked) for text in TEXTS]
    alone = [numbers(result[0] if task == "text-classification" else result) for result in alone]
    for batch_size in (20, 3):
        together = [numbers(result) for result in pipeline(TEXTS, batch_size=batch_size, **asked)]
        torch.testing.assert_close(together, alone)


def test_features_come_as_tensors_and_other_models_have_their_own(tokenizer: Any) -> None:
    pipeline = transformers.pipeline(
        "feature-extraction", model=build("TransfoXLModel"), tokenizer=tokenizer
    )
    (short, long) = pipeline([TEXTS[0], TEXTS[3]], batch_size=2, return_tensors=True)
    assert (short.shape, long.shape) == ((1, 3, 16), (1, 6, 16))
    config = transformers.GPT2Config(vocab_size=60, n_embd=8, n_layer=1, n_head=1, n_positions=16)
    other = transformers.pipeline(
        "feature-extraction", model=transformers.GPT2Model(config), tokenizer=tokenizer
    )
    short, _ = other([TEXTS[0], TEXTS[3]], batch_size=2, return_tensors=True)
    assert short.shape[-2:] == (6, 8)


def test_a_pipeline_joins_prompt_and_continuation_and_pads_by_itself(tokenizer: Any) -> None:
    write = transformers.pipeline("text-generation", model=build(), tokenizer=tokenizer)
    how = {"max_new_tokens": 5, "do_sample": False}
    alone = [write(text, **how)[0]["generated_text"] for text in TEXTS[:3]]
    together = write(TEXTS[:3], batch_size=3, **how)
    assert [row[0]["generated_text"] for row in together] == alone
    new = write(TEXTS[0], return_full_text=False, **how)[0]["generated_text"]
    assert TEXTS[0] + new == alone[0]


class Script(transformers.LogitsProcessor):
    """Writes a text that is known, after a prompt of n_prompt tokens."""

    def __init__(self, ids: list[int], n_prompt: int) -> None:
        self.ids, self.n_prompt = ids, n_prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = torch.full_like(scores, -100.0)
        scores[:, self.ids[input_ids.shape[1] - self.n_prompt]] = 0
        return scores


@pytest.mark.parametrize(
    ("stop_strings", "text"),
    [
        ("nowhere", "w2 w3 5.5 w7 w1 w2"),
        ("w7", "w2 w3 5.5 w7"),
        ("w3", "w2 w3"),  # not where the prompt has it
        ("w2 w3", "w2 w3"),
        ("3 5", "w2 w3 5"),
        ("5.5", "w2 w3 5.5"),
        (["w1", "5.5", "nowhere"], "w2 w3 5.5"),
        ("7 w", "w2 w3 5.5 w7 w1"),
    ],
)
def test_a_text_ends_where_it_holds_a_stop_string(
    stop_strings: Any, text: str, tokenizer: Any
) -> None:
    prompt = "w1 w2 w3"
    ids_BT = tokenizer(prompt, return_tensors="pt")["input_ids"]
    written = tokenizer.convert_tokens_to_ids("w2 w3 5 @.@ 5 w7 w1 w2".split())
    out_BT = build().generate(
        ids_BT, max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0,
        logits_processor=transformers.LogitsProcessorList([Script(written, ids_BT.shape[1])]),
        stop_strings=stop_strings, tokenizer=tokenizer,
    )  # fmt: skip
    assert tokenizer.decode(out_BT[0]) == f"{prompt} {text}"


def test_stop_strings_need_the_tokenizer() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        build().generate(torch.tensor([[3, 4]]), stop_strings="w3", max_new_tokens=3)

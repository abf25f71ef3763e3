"""What models of txl.hf compute, text and names of weights included, is what a record holds.

python -m tests.hf.test_record    write the record anew
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.hf.models import KINDS, build, some_ids

pytest.importorskip(
    "transformers", reason="transformers is not installed; run scripts/test_with_transformers.sh"
)
RECORD = Path(__file__).parent / "record.npz"
NEAR = {torch.float32: 1e-6, torch.float64: 1e-12}
IDS = some_ids(2, 5)
PADDED: dict[str, Any] = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3},
    "beams without memory": {"do_sample": False, "num_beams": 3, "use_cache": False},
    "sampled": {"do_sample": True, "top_p": 0.9, "num_return_sequences": 2},
}


def with_weights(dtype: torch.dtype, *what: str, **settings: Any) -> Any:
    """A model with weights that are the same on every processor, which those that PyTorch draws are not."""
    model, generator = build(*what, **settings).to(dtype), np.random.default_rng(8)
    for parameter in model.parameters():
        parameter.data.copy_(torch.from_numpy(generator.normal(0, 0.3, parameter.shape)))
    return model


def figures(kind: str, dtype: torch.dtype) -> dict[str, Any]:
    """Of a first segment with padding, of one after it, of a training step with dropout, with and without
    recomputed layers, and of texts."""
    model = with_weights(dtype, "TransfoXLLMHeadModel", kind, clamp_len=3)
    classify = with_weights(dtype, "TransfoXLForSequenceClassification", kind, num_labels=3)
    rates = {"dropout": 0.2, "dropatt": 0.2}
    learner = with_weights(dtype, "TransfoXLLMHeadModel", kind, **rates).train()
    steps = []
    for _ in range(2):
        torch.manual_seed(4)
        learner.zero_grad()
        loss = learner(IDS, **PADDED, labels=IDS).loss
        loss.backward()
        steps.append(torch.stack([loss, *(p.grad.abs().sum() for p in learner.parameters())]))
        learner.gradient_checkpointing_enable()
    padded = model(IDS, **PADDED, output_attentions=True)
    after = model(IDS, mems=padded.mems)
    found = {
        "logits": padded.logits,
        "attentions": padded.attentions[-1],
        "mems": torch.stack(after.mems),
        "logits after": after.logits,
        "losses": model(IDS, **PADDED, labels=IDS).losses,
        "training": torch.stack(steps),
        "classes": classify(IDS, **PADDED).logits,
    }
    for name, way in WAYS.items():
        torch.manual_seed(5)
        how = {"max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": -1, **PADDED, **way}
        found[name] = model.generate(IDS, **how)
    numbers = {f"{kind}, {dtype}: {name}": x.detach().numpy() for name, x in found.items()}
    names = [[*one.state_dict()] for one in (model, classify)]
    return {**numbers, f"{kind}: names": np.array(names[0] + names[1])}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", NEAR)
def test_figures_texts_and_names_are_those_of_the_record(kind: str, dtype: torch.dtype) -> None:
    record = np.load(RECORD)
    for name, found in figures(kind, dtype).items():
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, record[name], rtol=NEAR[dtype], atol=NEAR[dtype])
        else:
            assert found.tolist() == record[name].tolist()


def write() -> None:
    """The record of this code."""
    every = [figures(kind, dtype) for kind in KINDS for dtype in NEAR]
    np.savez_compressed(RECORD, **{name: x for found in every for name, x in found.items()})


if __name__ == "__main__":
    write()

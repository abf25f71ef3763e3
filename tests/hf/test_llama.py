"""Decoders of Llama's family give what transformers gives, in one segment and in several."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.hf.llamas import KINDS, build, in_file, in_float64
from txl.config import Context
from txl.convert import convert
from txl.convert.gpt_neox import NAMES as OF_NEOX
from txl.convert.gpt_neox import apart
from txl.convert.llama import NAMES, config_for_llama, to_llama
from txl.inference.reader import Reader, context_of_text
from txl.model.transformer import TransformerXL

pytest.importorskip(
    "transformers", reason="transformers is not installed; run scripts/test_with_transformers.sh"
)
IDS = torch.randint(0, 61, (2, 40), generator=torch.Generator().manual_seed(3))
of_every_kind = pytest.mark.parametrize("kind", KINDS)


def loaded(model: Any, folder: Path, **how: Any) -> tuple[TransformerXL, Context]:
    model.save_pretrained(folder, **how)
    found = convert(folder)
    return found.model, found.context


def hidden_by_segments(model: TransformerXL, context: Context, sizes: list[int]) -> Tensor:
    memory = None
    parts = []
    for part_BT in IDS.split(sizes, dim=1):
        hidden_BTD, memory = model(part_BT, memory, context)
        parts.append(hidden_BTD)
    return torch.cat(parts, dim=1)


def logits(model: TransformerXL, hidden_BTD: Tensor) -> Tensor:
    return hidden_BTD @ model.softmax.tables[0].T


@torch.no_grad()
@of_every_kind
def test_logits_and_hidden_states(kind: str, tmp_path: Path) -> None:
    theirs = build(kind)
    model, context = loaded(theirs, tmp_path)
    with in_float64():
        out = theirs(IDS, output_hidden_states=True)
    for sizes in ([40], [13, 13, 13, 1], [7] * 5 + [5], [1] * 40):
        hidden_BTD = hidden_by_segments(model, context, sizes)
        torch.testing.assert_close(hidden_BTD, out.hidden_states[-1], rtol=0, atol=1e-10)
        torch.testing.assert_close(logits(model, hidden_BTD), out.logits, rtol=0, atol=1e-10)
    read = Reader(model, context, 2)
    hidden_BTD = torch.cat([read.read(part) for part in IDS.split([9, 1, 30], dim=1)], dim=1)
    torch.testing.assert_close(hidden_BTD, out.hidden_states[-1], rtol=0, atol=1e-10)


@of_every_kind
def test_gradients(kind: str, tmp_path: Path) -> None:
    theirs = build(kind)
    model, context = loaded(theirs, tmp_path)
    with in_float64():
        logit_BTV = theirs(IDS).logits[:, :-1]  # its own loss is in float32
    F.cross_entropy(logit_BTV.flatten(0, 1), IDS[:, 1:].flatten()).backward()
    nll_BT, _ = model.nll(IDS[:, :-1], IDS[:, 1:], None, context)
    nll_BT.mean().backward()
    of_theirs = {in_file(kind, name): p.grad for name, p in theirs.named_parameters()}
    names = NAMES
    if "gpt_neox" in kind:
        of_theirs = apart(of_theirs, model.config.n_head, tmp_path)
        names = OF_NEOX
    for name, parameter in model.named_parameters():
        expected = torch.cat([of_theirs[one] for one in names.of(name)])
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


@torch.no_grad()
@of_every_kind
def test_greedy_words(kind: str, tmp_path: Path) -> None:
    theirs = build(kind)
    model, context = loaded(theirs, tmp_path)
    with in_float64():
        expected = theirs.generate(
            IDS[:1, :12], max_new_tokens=18, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
    reader = Reader(model, context_of_text(model.config, context, 30), 1)
    found = IDS[:1, :12]
    hidden_BTD = reader.read(found)
    for _ in range(18):
        next_B1 = logits(model, hidden_BTD[:, -1:]).argmax(-1)
        found = torch.cat([found, next_B1], dim=1)
        hidden_BTD = reader.read(next_B1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "gpt_neox" not in kind])
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    """In several files; and what is written here is read there with nothing missing."""
    import transformers
    from safetensors.torch import save_file

    theirs = build(kind)
    model, context = loaded(theirs, tmp_path / "theirs", max_shard_size="8KB")
    assert len([*(tmp_path / "theirs").glob("*.safetensors")]) > 2
    ours = tmp_path / "ours"
    ours.mkdir()
    save_file(to_llama(model), ours / "model.safetensors", metadata={"format": "pt"})
    (ours / "config.json").write_text(json.dumps(config_for_llama(model, context)))
    back, info = transformers.AutoModelForCausalLM.from_pretrained(
        ours, output_loading_info=True, dtype=torch.float64
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if kind != "mistral":  # which without a window is Llama's
        assert type(back) is type(theirs)
    expected = theirs.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in back.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(back(IDS).logits, theirs(IDS).logits, rtol=0, atol=1e-9)

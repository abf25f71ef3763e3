"""What must hold of every memory, a toy among them, or the reason why it does not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hygiene.toy_memory import ToyMemory
from tests.laws.conftest import N_TOKEN, build
from txl import Context, Memory, TransformerXL
from txl.memory import MEMORIES
from txl.training.nats import Nats

NAMES = [*MEMORIES, "toy"]
CONTEXTS = {"none": {}, "toy": {}, "compressive": {"mem_len": 3, "compressed_len": 4}}
SETTINGS: dict[str, dict[str, Any]] = {"compressive": {"compress_rate": 2}}
FLOWS = {"toy"}
"""Through their states a gradient flows from part to part of a step."""


def context_of(name: str, **changes: Any) -> Context:
    return Context(**{"tgt_len": 6, **CONTEXTS.get(name, {"mem_len": 5}), **changes})


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMORIES, "toy", ToyMemory)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(name: str, seeded: None) -> TransformerXL:
    return build("plain", memory=name, **SETTINGS.get(name, {}))


def read(
    model: TransformerXL, token_BT: Tensor, sizes: list[int], context: Context, memory: Any = None
) -> tuple[Tensor, Any]:
    hiddens = []
    for segment_BT in token_BT.split(sizes, dim=1):
        hidden_BTD, memory = model(segment_BT, memory, context)
        hiddens.append(hidden_BTD)
    return torch.cat(hiddens, dim=1), memory


def test_the_future_is_invisible(name: str, model: TransformerXL, token_BT: Tensor) -> None:
    other_BT = token_BT.clone()
    other_BT[:, 15:] = (other_BT[:, 15:] + 7) % N_TOKEN
    before, after = (read(model, text, [6] * 4, context_of(name))[0] for text in (token_BT, other_BT))
    torch.testing.assert_close(before[:, :15], after[:, :15])
    assert not torch.isclose(before[:, 15:], after[:, 15:]).all(-1).any()


def test_rows_do_not_mix_and_can_be_taken_apart(name: str, model: TransformerXL, token_BT: Tensor) -> None:
    context = context_of(name)
    together, memory = read(model, token_BT, [6] * 4, context)
    for row in range(2):
        torch.testing.assert_close(read(model, token_BT[row : row + 1], [6] * 4, context)[0][0], together[row])
    swapped = model(token_BT[:, :6].flip(0), memory.rows(torch.tensor([1, 0])), context).hidden_BTD
    torch.testing.assert_close(swapped, model(token_BT[:, :6], memory, context).hidden_BTD.flip(0))
    again = Memory.joined(memory.chunks(2)).named()
    assert all(torch.equal(again[key], tensor) for key, tensor in memory.named().items())


@torch.no_grad()
def test_evaluation_remembers_what_training_remembers(name: str, model: TransformerXL, token_BT: Tensor) -> None:
    """Also where it reads one token at a time."""
    context = context_of(name)
    for sizes in ([6] * 4, [1] * 24):
        expected = read(model, token_BT, sizes, context)[0]
        found = read(model, token_BT, sizes, context, model.fresh_memory(2))[0]
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_memory_is_never_written_to_and_does_not_grow_without_limit(
    name: str, model: TransformerXL, token_BT: Tensor
) -> None:
    context = context_of(name)
    memory = read(model, token_BT, [6] * 4, context)[1]
    before = {key: tensor.clone() for key, tensor in memory.named().items()}
    later = read(model, token_BT.repeat(1, 4), [6] * 16, context, memory)[1].named()
    assert all(torch.equal(before[key], tensor) for key, tensor in memory.named().items())
    assert {key: tensor.shape for key, tensor in later.items()} == {key: tensor.shape for key, tensor in before.items()}


def test_every_parameter_gets_a_gradient_at_each_length_of_the_memory(
    name: str, model: TransformerXL, token_BT: Tensor
) -> None:
    memory = None
    for segment_BT in token_BT.split(6, dim=1):
        model.zero_grad()
        loss_BT, _, memory = Nats(model.train(), 0.0)(segment_BT, segment_BT, memory, context_of(name))
        loss_BT.mean().backward()
        without = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert without == []
        assert not any(tensor.requires_grad for tensor in memory.named().values())


def test_a_step_in_parts_is_its_parts_one_after_the_other(name: str, model: TransformerXL, token_BT: Tensor) -> None:
    """With the gradient of what was remembered of the parts before, where the memory has one."""
    context, model = context_of(name), model.train()
    input_BT, target_BT = token_BT[:, :12], token_BT[:, 1:13]
    loss_BT, nll_BT, _ = Nats(model, 0.0, 3)(input_BT, target_BT, None, context)
    embedded = [model.word_emb(part).detach().requires_grad_() for part in input_BT.split(4, dim=1)]
    memory, hiddens = None, []
    for h_BTD in embedded:
        hidden_BTD, memory = model.read(h_BTD, memory, context)
        hiddens.append(hidden_BTD)
    torch.testing.assert_close(model.softmax.nll(torch.cat(hiddens, dim=1), target_BT), nll_BT)
    (to_first,) = torch.autograd.grad(hiddens[-1].sum(), embedded[:1], allow_unused=True)
    assert (to_first is not None and bool(to_first.any())) == (name in FLOWS)
    assert (loss_BT.detach() - nll_BT).abs().max().item() == pytest.approx(0) or memory.loss is not None


@pytest.mark.parametrize("compression", ["conv", "mean", "max", "most_used"])
def test_what_stood_before_a_document_is_not_in_what_it_sees_compressed(
    token_BT: Tensor, seeded: None, compression: str
) -> None:
    """Law 13 but for its end: alone, a document is compressed at other places."""
    model = build("plain", memory="compressive", compress_rate=2, compression=compression)
    context, since_BT = context_of("compressive"), torch.arange(24).expand(2, 24).clone()
    since_BT[0, 7:] -= 7  # within a block of two that is compressed
    since_BT[1, 4:] -= 4

    def hidden(text_BT: Tensor) -> Tensor:
        memory, found = None, []
        for segment_BT, mark_BT in zip(text_BT.split(6, dim=1), since_BT.split(6, dim=1), strict=True):
            hidden_BTD, memory = model(segment_BT, memory, context, mark_BT)
            found.append(hidden_BTD)
        return torch.cat(found, dim=1)

    other_BT = token_BT.clone()
    other_BT[0, :7] = (other_BT[0, :7] + 7) % N_TOKEN
    before, after = hidden(token_BT), hidden(other_BT)
    torch.testing.assert_close(after[0, 7:], before[0, 7:])
    assert not torch.allclose(after[0, :7], before[0, :7])
    torch.testing.assert_close(after[1], before[1])
    assert not torch.allclose(model(token_BT, None, context, since_BT).hidden_BTD, model(token_BT, None, context)[0])

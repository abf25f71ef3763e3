"""Laws 1 to 6, 10 and 13 of docs/architecture.md, each for all models of the list in conftest.py that claim it."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import (
    FAR,
    MEMORY_MODELS,
    MODELS,
    N_TOKEN,
    SMALL,
    build,
    clamps,
    config_of,
    context_of,
    counts_distances,
    for_models,
    is_cut_anywhere,
    other,
    read,
    without_gradient,
)
from txl import Context, Memory, ModelConfig, TransformerXL
from txl.attention_rules import ATTENTION_RULES
from txl.config import UsageError
from txl.inference.frozen import Frozen
from txl.memory import MEMORIES
from txl.model.memory import State
from txl.model.streams import chunks, joined
from txl.positions import POSITION_ENCODINGS
from txl.training.nats import Nats

CUT = [5, 7]
WINDOW = Context(mem_len=4, same_length=True)
FLOWS = {
    "toy",
    "infini_delta",
    "neural",
    "decoder_neural",
    "neural_two_layers",
    "recurrent_tokens",
    "decoder_tokens",
}
"""Through what they remember a gradient flows from part to part of a step."""


def masks_documents(c: ModelConfig) -> bool:
    return c.attention == "softmax" and c.memory not in ("none", "toy", "recurrent_tokens")


def test_every_encoding_rule_and_memory_has_a_model() -> None:
    found = [config_of(name) for name in MODELS]
    assert {c.position for c in found} == set(POSITION_ENCODINGS)
    assert {c.attention for c in found} == set(ATTENTION_RULES)
    assert {c.memory for c in found} == set(MEMORIES)


def test_each_law_of_the_page_is_found_by_its_name() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    laws = re.findall(
        r"^\d+\. .*", page.partition("## Laws")[2].partition("\n## ")[0], re.MULTILINE
    )
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py")
    )
    assert len(laws) == 13
    for law in laws:
        names = re.findall(r"`(test_\w+)`", law)
        assert [tests.count(f"def {name}(") for name in names] == [1] * len(names), law
        assert names


@for_models(is_cut_anywhere)
def test_two_segments_equal_one_pass(model: TransformerXL, token_BT: Tensor) -> None:
    whole = read(model, token_BT, [12], FAR)[0]
    for sizes in ([1, 11], [7, 5]):
        torch.testing.assert_close(read(model, token_BT, sizes, FAR)[0], whole)


@for_models()
def test_the_future_is_invisible(name: str, model: TransformerXL, token_BT: Tensor) -> None:
    texts = (token_BT, other(token_BT, slice(6, None)))
    before, after = (read(model, text, CUT, context_of(name))[0] for text in texts)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.isclose(before[:, 6:], after[:, 6:]).all(-1).any()


@torch.inference_mode()
@for_models(is_cut_anywhere)
def test_one_token_at_a_time_equals_one_pass(model: TransformerXL, token_BT: Tensor) -> None:
    whole = read(model, token_BT, [12], FAR)[0]
    torch.testing.assert_close(read(Frozen(model), token_BT, [1] * 12, FAR)[0], whole)


LOOKS = [
    (Context(tgt_len=6, mem_len=0), [6, 6]),
    (Context(tgt_len=4, mem_len=5, clamp_len=3), [1, 4, 4, 3]),
    (Context(tgt_len=4, mem_len=3, same_length=True), CUT),
    (Context(tgt_len=4, mem_len=5, ext_len=2), CUT),
]


@for_models()
def test_remembered_keys_and_values_equal_remembered_hidden_states(
    name: str, model: TransformerXL, token_BT: Tensor
) -> None:
    """Evaluation, whatever it remembers, reads as training does; reversible layers read in training mode too."""
    looks = (
        [(context_of(name), [4] * 3), (context_of(name), [1] * 12)]
        if model.config.memory != "fifo"
        else LOOKS
    )
    for context, sizes in looks:
        context = context if clamps(model) else dataclasses.replace(context, clamp_len=-1)
        hidden, fresh = None, Frozen(model).fresh_memory(2)
        for segment_BT in token_BT.split(sizes, dim=1):
            one, hidden = model(segment_BT, hidden, context)
            with torch.inference_mode():
                two, fresh = Frozen(model)(segment_BT, fresh, context)
            torch.testing.assert_close(two, one.detach())
            assert fresh.length == hidden.length


@for_models()
def test_memory_is_detached_bounded_by_mem_len_and_never_written_to(
    name: str, model: TransformerXL, token_BT: Tensor
) -> None:
    loss = Nats(model.train(), 0.0)
    is_fifo = model.config.memory == "fifo"
    for context in [context_of(name, mem_len=n) for n in (0, 5)] if is_fifo else [context_of(name)]:
        memory = None
        for segment_BT in token_BT.split(4, dim=1):
            memory = loss(segment_BT, segment_BT, memory, context)[2]
        assert not any(tensor.requires_grad for tensor in memory.named().values())
        assert not is_fifo or memory.length == context.mem_len
        before = {key: tensor.clone() for key, tensor in memory.named().items()}
        loss_BT, _, later, _ = loss(segment_BT, segment_BT, memory, context)
        loss_BT.sum().backward()
        assert all(torch.equal(before[key], tensor) for key, tensor in memory.named().items())
        assert {key: x.shape for key, x in later.named().items()} == {
            key: x.shape for key, x in before.items()
        }


@for_models(lambda c: c.memory == "fifo")
def test_memory_holds_the_last_tokens_that_a_layer_read_or_returned(
    model: TransformerXL, token_BT: Tensor
) -> None:
    inputs, outputs = [], []
    for layer in model.layers:
        if model.config.reversible:  # stream 2
            layer.attended = lambda x, *more, plain=layer.attended: (
                inputs.append(x) or plain(x, *more)
            )
            layer.ff.register_forward_hook(lambda _, args, out: outputs.append(inputs[-1] + out))
        else:
            layer.register_forward_hook(
                lambda _, args, out: inputs.append(args[0]) or outputs.append(out[0])
            )
    with torch.no_grad():
        memory = read(model, token_BT, [8, 4], Context(mem_len=6))[1]
    states = outputs if model.config.recurrence == "same" else inputs
    for i, layer_BMD in enumerate(memory.layers):
        whole = torch.cat(states[i :: len(model.layers)], dim=1)
        assert torch.equal(layer_BMD, whole[:, -6:])
        # and nothing longer stays with it
        assert layer_BMD.untyped_storage().nbytes() == layer_BMD.nbytes


@for_models(is_cut_anywhere)
def test_re_read_tokens_are_not_remembered(model: TransformerXL, token_BT: Tensor) -> None:
    """With ext_len the text reads on without a seam: the memory ends where the next input begins."""
    context = Context(tgt_len=4, mem_len=100, ext_len=2)
    first = model(token_BT[:, :6], None, context)
    second = model(token_BT[:, 4:], first.memory, context)
    assert (first.memory.length, second.memory.length) == (4, 10)
    torch.testing.assert_close(second.hidden_BTD, read(model, token_BT, [12], FAR)[0][:, 4:])


@for_models()
def test_every_parameter_gets_a_gradient(name: str, model: TransformerXL) -> None:
    """In every step, also of one token: whichever clusters the words are from, whatever is remembered."""
    # the shortlist, the last cluster, one word of each
    some = [range(10), range(30, 50), [10], [0], [49]]
    loss = Nats(model.train(), 0.0)
    for ids in (range(50), *(some if model.config.cutoffs else [])):
        choice, memory = torch.tensor(list(ids)), None
        token_BT = choice[torch.randint(0, len(choice), (2, 13))]
        for begin, end in ((0, 1), (1, 7), (7, 12)):
            model.zero_grad()
            loss_BT, _, memory, _ = loss(
                token_BT[:, begin:end], token_BT[:, begin + 1 : end + 1], memory, context_of(name)
            )
            loss_BT.mean().backward()
            assert without_gradient(model).keys() == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pre_lnorm_adaptive", "gated", "floater", "performer_rotary", "lsh_none"]
)
def test_gradients_equal_finite_differences(model: TransformerXL) -> None:
    token_BT = torch.randint(0, N_TOKEN, (2, 10))
    memory = model.train()(token_BT[:, :4], None, FAR).memory
    names, parameters = zip(*model.named_parameters(), strict=True)

    def loss(*values: Tensor) -> Tensor:
        inputs = (token_BT[:, 4:9], memory, FAR)
        hidden, _ = torch.func.functional_call(model, dict(zip(names, values, strict=True)), inputs)
        return hidden.square().mean()

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)


@pytest.mark.parametrize("compress", ["conv", "mean"])
def test_a_step_in_parts_is_its_parts_one_after_the_other(compress: str, token_BT: Tensor) -> None:
    """With the gradient of what was remembered of the parts before, where the memory has one."""
    for name in MEMORY_MODELS:
        model, context = build(name, **SMALL | {"compression": compress}).train(), context_of(name)
        target_BT = other(token_BT, slice(None))
        loss_BT, nll_BT, *_ = Nats(model, 0.0, 3)(token_BT, target_BT, None, context)
        embedded = [
            model.word_emb(part).detach().requires_grad_() for part in token_BT.split(4, dim=1)
        ]
        memory, hiddens, own = None, [], []
        for h_BTD in embedded:
            hidden_BTD, memory = model.read(h_BTD, memory, context)
            hiddens.append(hidden_BTD)
            of_memory = memory.loss
            own.append(torch.zeros(()) if of_memory is None else of_memory)
        torch.testing.assert_close(model.softmax.nll(torch.cat(hiddens, dim=1), target_BT), nll_BT)
        torch.testing.assert_close(loss_BT, nll_BT + torch.stack(own).repeat_interleave(4))
        (to_first,) = torch.autograd.grad(hiddens[-1].sum(), embedded[:1], allow_unused=True)
        assert (to_first is not None and bool(to_first.any())) == (name in FLOWS)


@for_models(lambda c: is_cut_anywhere(c) and c.attention == "softmax")
def test_same_length_is_a_sliding_window_of_mem_len_keys(name: str, token_BT: Tensor) -> None:
    """In one layer a token sees itself and the mem_len - 1 tokens before it, whether they are remembered or new."""
    model = build(name, **SMALL | MODELS[name] | {"n_layer": 1})
    texts = torch.stack([token_BT[0], *(other(token_BT, slice(i, i + 1))[0] for i in range(12))])
    hidden = read(model, texts, [4, 8], WINDOW)[0]
    # rounding depends on which clusters the batch has
    moved = (hidden[1:] - hidden[0]).abs().amax(dim=2) > 1e-12
    places = torch.arange(12)
    distance = places - places[:, None]
    assert torch.equal(moved, (distance >= 0) & (distance < 4))


@for_models(counts_distances)
def test_same_length_does_not_depend_on_tgt_len(model: TransformerXL, token_BT: Tensor) -> None:
    whole = read(model, token_BT, [12], WINDOW)[0]
    torch.testing.assert_close(read(model, token_BT, [8, 1, 3], WINDOW)[0], whole)


@for_models(counts_distances)
def test_where_the_memory_came_from_does_not_matter(model: TransformerXL, token_BT: Tensor) -> None:
    """Positions are relative: the same remembered states read at other absolute positions give the same result."""
    late = read(model, token_BT[:, :8], [4, 4], FAR)[1]
    cut = Memory(tuple(State(layer[:, -3:]) for layer in late.layers))
    bounded = read(model, token_BT[:, :8], [8], Context(mem_len=3))[1]
    one, two = (model(token_BT[:, 8:], memory, FAR).hidden_BTD for memory in (cut, bounded))
    torch.testing.assert_close(one, two)


@for_models(lambda c: counts_distances(c) and c.attention == "softmax" and c.position != "none")
def test_clamped_distances_are_all_the_same(name: str, token_BT: Tensor) -> None:
    """Beyond clamp_len the order of remembered tokens is lost: in one layer, exchanging two changes nothing."""
    model = build(name, **SMALL | MODELS[name] | {"n_layer": 1})
    if not clamps(model):
        with pytest.raises(
            UsageError, match=rf"--clamp_len 3: --position {model.config.position} has no distances"
        ):
            model(token_BT, None, dataclasses.replace(FAR, clamp_len=3))
        return
    exchanged_BT = token_BT.clone()
    exchanged_BT[:, [1, 2]] = exchanged_BT[:, [2, 1]]
    for clamp_len, is_lost in ((3, True), (-1, False)):
        context = dataclasses.replace(FAR, clamp_len=clamp_len)
        one, two = (
            read(model, text, [6, 6], context)[0][:, 6:] for text in (token_BT, exchanged_BT)
        )
        assert torch.allclose(one, two, rtol=0, atol=1e-12) == is_lost


@torch.no_grad()
def test_a_memory_is_made_of_states_or_of_hidden_states_and_of_nothing_else() -> None:
    model = build("plain")
    n_layer, width = model.config.n_layer, model.config.d_model
    hidden = [torch.randn(2, 6, width).double() for _ in range(n_layer)]
    text_BT = torch.arange(8).view(2, 4)
    context = context_of("plain", mem_len=6)
    plain, _ = model(text_BT, Memory(tuple(map(State, hidden))), context)
    found, _ = model(text_BT, Memory(tuple(hidden)), context)
    assert torch.equal(found, plain)
    for wrong in ((1,), (hidden[0][0],), ("a",)):
        with pytest.raises(
            TypeError, match=r"Memory takes a State, or a tensor \(B, M, D\), a layer"
        ):
            Memory(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the memory holds 1 layers, the model"):
        model(text_BT, Memory((hidden[0],)), context)


@for_models()
def test_rows_of_a_batch_do_not_mix(name: str, model: TransformerXL, token_BT: Tensor) -> None:
    """And what is remembered of them can be taken apart and joined."""
    context = context_of(name)
    together, memory = read(model, token_BT, CUT, context)
    alone = [read(model, token_BT[row : row + 1], CUT, context) for row in range(2)]
    torch.testing.assert_close(torch.cat([hidden for hidden, _ in alone]), together)
    later = model(token_BT[:, :4], memory, context).hidden_BTD
    again = joined([one for _, one in alone])
    torch.testing.assert_close(model(token_BT[:, :4], again, context).hidden_BTD, later)
    swapped = model(token_BT[:, :4].flip(0), memory.rows(torch.tensor([1, 0])), context).hidden_BTD
    torch.testing.assert_close(swapped, later.flip(0))
    whole = joined(chunks(memory, 2)).named()
    assert all(torch.equal(whole[key], tensor) for key, tensor in memory.named().items())
    with pytest.raises(ValueError, match="memory holds 2 rows, the segment 1"):
        model(token_BT[:1], memory, context)


BORDERS = ((0, 3, 9), (0, 5))
"""Where the documents of each row begin."""
SINCE_BT = torch.tensor([[i - max(b for b in row if b <= i) for i in range(12)] for row in BORDERS])
"""Tokens before each one in its document."""


@for_models(masks_documents)
def test_a_token_sees_its_own_document_and_nothing_before_it(
    name: str, model: TransformerXL, token_BT: Tensor
) -> None:
    own = context_of(name)
    for context in (own, WINDOW) if own is FAR else (own,):
        before = read(model, token_BT, CUT, context, since_BT=SINCE_BT)[0]
        for row, borders in enumerate(BORDERS):
            for border in borders[1:]:
                changed_BT = other(token_BT, slice(0, border), slice(row, row + 1))
                after = read(model, changed_BT, CUT, context, since_BT=SINCE_BT)[0]
                torch.testing.assert_close(after[row, border:], before[row, border:])
                assert not torch.allclose(after[row, border - 1], before[row, border - 1])


@for_models(lambda c: masks_documents(c) and counts_distances(c))
def test_a_document_read_alone_has_the_same_states(model: TransformerXL, token_BT: Tensor) -> None:
    together = read(model, token_BT, CUT, FAR, since_BT=SINCE_BT)[0]
    for row, borders in enumerate(BORDERS):
        for begin, end in zip(borders, (*borders[1:], 12), strict=True):
            alone = model(token_BT[row : row + 1, begin:end], None, FAR).hidden_BTD
            torch.testing.assert_close(together[row : row + 1, begin:end], alone)


@torch.no_grad()
@for_models(masks_documents)
def test_documents_are_masked_whatever_is_remembered(
    name: str, model: TransformerXL, token_BT: Tensor
) -> None:
    """In keys and values as in hidden states; a row of one document is the plain text, however long it is."""
    context = context_of(name)
    expected = read(model, token_BT, CUT, context, since_BT=SINCE_BT)[0]
    found = read(Frozen(model), token_BT, CUT, context, since_BT=SINCE_BT)[0]
    torch.testing.assert_close(found, expected)
    plain = read(model, token_BT, CUT, context)[0]
    for begun in (0, 1000):
        whole_BT = torch.arange(begun, begun + 12).expand(2, 12)
        torch.testing.assert_close(read(model, token_BT, CUT, context, since_BT=whole_BT)[0], plain)
    assert not torch.allclose(expected, plain)


LONG_AGO = [(name, "conv") for name in MEMORY_MODELS if masks_documents(config_of(name))]
LONG_AGO += [("compressive", compression) for compression in ("mean", "max", "most_used")]


@pytest.mark.parametrize(("name", "compression"), LONG_AGO)
def test_what_stood_before_a_document_is_not_in_what_it_sees_of_long_ago(
    name: str, compression: str, token_BT: Tensor
) -> None:
    """Law 13 where a border has left the window. Read alone, a document may be compressed at other places."""
    model, context = build(name, compression=compression), context_of(name)
    since_BT = torch.arange(24).expand(2, 24).clone()
    since_BT[0, 7:] -= 7  # within a block of two that is compressed
    since_BT[1, 4:] -= 4
    text_BT = token_BT.repeat(1, 2)
    texts = (text_BT, other(text_BT, slice(7), slice(1)))
    before, after = (read(model, text, [6] * 4, context, since_BT=since_BT)[0] for text in texts)
    torch.testing.assert_close(after[0, 7:], before[0, 7:])
    assert not torch.allclose(after[0, :7], before[0, :7])
    torch.testing.assert_close(after[1], before[1])

"""What the layers are made of: reversible streams, activations, chunks, recurrence, dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.laws.conftest import FAR, LAYERS, MODELS, N_TOKEN, SMALL, build, read
from txl import Context, ModelConfig, Span, TransformerXL
from txl.attention_rules import use_attention
from txl.model.activations import ACTIVATIONS, is_gated
from txl.model.feed_forward import FeedForward
from txl.stacks.reversible import compute_in_chunks, reversible_layers

REVERSIBLE = LAYERS["reversible"]


def build_noisy(shape: str, *, dropout: float, dropatt: float, **changes: Any) -> TransformerXL:
    """In training mode with dropout."""
    quiet = build(shape, **changes)
    noisy = TransformerXL(quiet.config, dropout=dropout, dropatt=dropatt).double()
    noisy.load_state_dict(quiet.state_dict())
    return noisy.train()


def stored(
    layers: Any, x1: Tensor, x2: Tensor, memory: Any, feats: Tensor, span: Span
) -> tuple[Tensor, Tensor]:
    """The layers as they are defined, with all activations kept."""
    for layer, mem_BMD in zip(layers, memory, strict=True):
        x1 = x1 + layer.attended(x2, mem_BMD, feats, span)
        x2 = x2 + layer.feed_forward(x1)
    return x1, x2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "impl", "noisy"),
    [("reversible", impl, False) for impl in ("naive", "dense")]
    + [
        (name, "auto", True)
        for name in ("reversible", "t5", "shaw", "floater", "performer_rotary", "lsh_none")
    ],
)
def test_reversible_gradients_equal_the_stored_ones(name: str, impl: str, noisy: bool) -> None:
    dropatt = 0.2 * noisy * (MODELS[name].get("attention") is None)  # the other rules refuse it
    changes = SMALL | MODELS[name] | REVERSIBLE | {"n_layer": 3}
    model = build_noisy(name, dropout=0.3 * noisy, dropatt=dropatt, **changes)
    use_attention(model, impl)
    memory = tuple(torch.randn(2, 5, 8).double() for _ in range(3))
    span, x1, x2 = Span(5, 7), *torch.randn(2, 2, 7, 8).double()
    upstream, kept = torch.randn(2, 2, 7, 8).double(), []
    results = []
    for way in ("stored", "reversible"):
        torch.manual_seed(4)
        leaves = [x.clone().requires_grad_() for x in (x1, x2)]
        feats = model.layers[0].attn.pos.prepare(span, like=x1)
        if way == "stored":
            out = stored(model.layers, *leaves, memory, feats, span)
        else:
            keep = lambda before, after: kept.append((before, after))  # noqa: E731
            out = reversible_layers(model.layers, *leaves, memory, feats, span, keep)
        after = torch.rand(3)
        torch.manual_seed(11)  # what happens between the passes is not what is replayed
        wanted = [*leaves, *model.layers.parameters()]
        grads = torch.autograd.grad(out, wanted, tuple(upstream), allow_unused=True)
        results.append([*out, after, torch.rand(3), *(g for g in grads if g is not None)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-9)
    assert torch.equal(kept[0][0], x2)
    assert len(kept) == 3


def saved_bytes(model: TransformerXL, token_BT: Tensor) -> int:
    """What autograd keeps for the backward pass, parameters left out, each storage once; and what is remembered."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(token_BT, None, Context(tgt_len=12, mem_len=0))
    assert out.hidden_BTD.requires_grad
    return sum(seen.values()) + sum(layer.untyped_storage().nbytes() for layer in out.memory.layers)


def test_what_is_kept_for_the_backward_pass_does_not_grow_with_reversible_layers(
    token_BT: Tensor,
) -> None:
    few, many = (saved_bytes(build("reversible", n_layer=n).train(), token_BT) for n in (2, 10))
    assert many == few
    stored_few, stored_many = (
        saved_bytes(build("pre_lnorm", n_layer=n), token_BT) for n in (2, 10)
    )
    assert stored_many > 4 * stored_few > 4 * few


def test_reversible_layers_do_not_compute_again_with_weights_that_were_replaced(
    token_BT: Tensor,
) -> None:
    model = build("reversible").train()
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    out = torch.func.functional_call(model, weights, (token_BT, None, Context(tgt_len=12)))
    with pytest.raises(RuntimeError, match="not with functional_call"):
        out.hidden_BTD.sum().backward()


FORMULAS = {
    "relu": lambda a: a.clamp(min=0),
    "gelu": lambda a: a * (1 + torch.erf(a / 2**0.5)) / 2,
    "gelu_tanh": lambda a: a * (1 + ((2 / torch.pi) ** 0.5 * (a + 0.044715 * a**3)).tanh()) / 2,
    "relu2": lambda a: a.clamp(min=0) ** 2,
    "silu": lambda a: a / (1 + (-a).exp()),
    "glu": lambda a: 1 / (1 + (-a).exp()),
}
FORMULAS |= {"reglu": FORMULAS["relu"], "geglu": FORMULAS["gelu"], "swiglu": FORMULAS["silu"]}
FORMULAS["geglu_tanh"] = FORMULAS["gelu_tanh"]


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_feed_forward_nets_are_the_formula(activation: str) -> None:
    """Vaswani et al. 2017, eq. 2; Shazeer 2020, eq. 5 and 6: (act(x W) * x V) W_2; So et al. 2021: relu(x)^2."""
    net = FeedForward(ModelConfig(n_token=5, d_model=6, d_inner=10, activation=activation)).double()
    x_BTD = torch.randn(2, 3, 6).double()
    inner = x_BTD @ net[0].weight.T + net[0].bias
    act = FORMULAS[activation]
    gated = is_gated(activation)
    assert net[0].weight.shape == (20 if gated else 10, 6)
    inner = act(inner[..., :10]) * inner[..., 10:] if gated else act(inner)
    torch.testing.assert_close(net(x_BTD), inner @ net[3].weight.T + net[3].bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "changes"),
    [(1, {"activation": "swiglu"}), (5, {}), (5, REVERSIBLE), (100, {})],
    ids=str,
)
def test_chunks_of_the_feed_forward_net_change_nothing(
    token_BT: Tensor, chunk: int, changes: dict[str, Any]
) -> None:
    model = build("plain", **changes)

    def result() -> list[Tensor]:
        model.zero_grad()
        nll_BT, _ = model.nll(token_BT, token_BT, None, FAR)
        nll_BT.mean().backward()
        with torch.no_grad():
            quiet, _ = model.nll(token_BT, token_BT, None, FAR)
        return [nll_BT.detach(), quiet, *(p.grad.clone() for p in model.parameters())]

    whole = result()
    for layer in model.layers:
        compute_in_chunks(layer.ff, chunk)
    for one, two in zip(whole, result(), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-9)


def test_chunks_keep_none_of_the_inner_states() -> None:
    net = FeedForward(ModelConfig(n_token=5, d_model=8, d_inner=512))

    def largest(chunk: int) -> int:
        compute_in_chunks(net, chunk)
        sizes = [0]
        x_BTD = torch.randn(2, 24, 8).requires_grad_()
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel()) or t, lambda t: t
        )
        with hooks:
            net(x_BTD)
        return max(size for size in sizes if size != 8 * 512)  # the weights

    assert largest(0) == 2 * 24 * 512
    assert largest(6) <= 2 * 24 * 8


def test_a_layer_that_remembers_what_it_returned_is_the_formula(token_BT: Tensor) -> None:
    """Ding et al. 2021 (ERNIE-Doc), "enhanced recurrence mechanism": layer n reads [h_(tau)^n, h_(tau+1)^(n-1)]."""
    model = build("same")
    span, empty = Span(0, 7), torch.empty(2, 0, 16).double()
    returned, h_BTD = [], model.word_emb(token_BT[:, :7])
    feats = model.layers[0].attn.pos.prepare(span, like=h_BTD)
    for layer in model.layers:
        h_BTD = layer.attend(h_BTD, empty, feats, span)
        returned.append(h_BTD.detach())
    span, h_BTD = Span(7, 5), model.word_emb(token_BT[:, 7:])
    feats = model.layers[0].attn.pos.prepare(span, like=h_BTD)
    for layer, mem_BMD in zip(model.layers, returned, strict=True):
        h_BTD = layer.attend(h_BTD, mem_BMD, feats, span)
    ours, memory = read(model, token_BT, [7, 5], FAR)
    torch.testing.assert_close(ours[:, 7:], h_BTD)
    # without dropout what the last layer returned
    torch.testing.assert_close(memory.layers[-1], ours)


@pytest.mark.parametrize("changes", [{}, {"pre_lnorm": True}, REVERSIBLE], ids=str)
def test_each_place_of_dropout_acts_alone(changes: dict[str, Any]) -> None:
    """With all others off, the result differs from that without dropout, of training as of evaluation."""
    model = build_noisy("plain", dropout=0.5, dropatt=0.0, n_layer=1, **changes)
    token_BT = torch.randint(0, N_TOKEN, (2, 9))

    def states(acting: nn.Module | None) -> Tensor:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5 * (module is acting)
        return model(token_BT, None, Context(mem_len=8)).hidden_BTD.detach()

    quiet = states(None)
    places = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for place in places:
        place.p = 0.5
    torch.testing.assert_close(model.eval()(token_BT, None, FAR).hidden_BTD, quiet)
    model.train()
    # words and last hidden states, R, probabilities, after attention, two in the feed-forward
    assert len(places) == 6
    assert not any(torch.equal(states(place), quiet) for place in places)
    kept = states(model.drop) != 0  # the last hidden states too
    assert 0.3 < kept.double().mean() < 0.7


def test_what_a_memory_adds_to_the_loss_is_added_with_documents_too() -> None:
    model = build("expire_span").train()
    context = Context(tgt_len=6, mem_len=5)
    token_BT = torch.randint(N_TOKEN, (2, 12), generator=torch.Generator().manual_seed(1))
    added = []
    for since_BT in (None, torch.arange(12).expand(2, 12)):
        memory = None
        for part in (slice(0, 6), slice(6, 12)):
            since = None if since_BT is None else since_BT[:, part]
            _, memory = model(token_BT[:, part], memory, context, since)
        assert memory is not None
        assert memory.loss is not None
        added.append(memory.loss)
    torch.testing.assert_close(added[1], added[0])

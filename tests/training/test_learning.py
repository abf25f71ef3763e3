"""--train: what learns, and that nothing is kept for what does not."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.conftest import context_of, shape_of
from tests.training.runs import ADAPTIVE, ALONE, CONTEXT, SHAPE, Run, config
from txl import ModelConfig, TransformerXL
from txl.config import UsageError
from txl.ops import linear_cross_entropy as module
from txl.ops.linear_cross_entropy import linear_cross_entropy
from txl.training.estimate import lasting_bytes, optimizer_bytes, passing_bytes
from txl.training.learning import freeze, learning_parameters
from txl.training.optim import Optimizers
from txl.training.update_rules import rule_of

MEMORIES = ["compressive", "expire_span", "infini_delta", "knn", "neural", "recurrent_tokens"]
PLAIN = SHAPE | ADAPTIVE


def run(what: str, name: str = "neural", **settings: Any) -> Run:
    context = context_of(name) if name != "fifo" else CONTEXT
    shape = PLAIN | shape_of(name) | settings.pop("shape", {})
    given = {"train": what, "memory_parts": 2, "max_step": 3, "clip": 0.0, **settings}
    return Run(config(**given), dtype=torch.float64, shape=shape, context=context).begin()


def names_of(what: str, shape: dict[str, Any]) -> set[str]:
    model = TransformerXL(ModelConfig(**shape))
    freeze(model, what)
    return set(learning_parameters(model))


def test_names() -> None:
    shape = PLAIN | shape_of("neural")
    every = names_of("all", shape)
    memory = {name for name in every if ".memory." in name}
    assert names_of("memory", shape) == memory
    # u and v of the positions are those of both layers
    last = {name for name in every if name.startswith("layers.1.")}
    assert names_of("last:1", shape) == memory | last
    assert not any(name.endswith(("u_NH", "v_NH")) for name in last)
    untied = names_of("last:1", shape | {"untie_r": True})
    assert {"layers.1.attn.pos.u_NH", "layers.1.attn.pos.v_NH"} <= untied
    both = names_of("last:2", shape)
    assert both == {name for name in every if name.startswith("layers.")}


@pytest.mark.parametrize("optim", ["adam", "adamw", "sgd", "muon", "lamb", "adagrad"])
@pytest.mark.parametrize("what", ["memory", "last:1"])
def test_only_what_learns_moves_and_has_a_state(what: str, optim: str) -> None:
    one = run(what, optim=optim, ema=0.5, weight_decay=0.1, mom=0.5 if optim == "sgd" else 0.0)
    before = one.weights()
    learning = set(learning_parameters(one.state.model))
    for name, p in one.state.model.named_parameters():
        assert p.requires_grad == (name in learning)
    one.train()
    after = one.weights()
    moved = {name for name in after if not after[name].equal(before[name])}
    assert moved == learning
    kept = {name.rpartition(":")[0] for name in one.state.optimizers.state()}
    assert kept == learning
    assert {name.removesuffix(":trained") for name in one.state.average.trained()} == learning


@pytest.mark.parametrize("name", MEMORIES)
def test_gradients_are_those_of_a_training_of_all(name: str) -> None:
    """And the norm is of those alone; the rest has no gradient at all."""
    found: list[dict[str, torch.Tensor]] = []
    for what in ("all", "memory"):
        one = run(what, name)
        grads: dict[str, torch.Tensor] = {}
        one.state._update_or_skip = lambda *_, one=one, grads=grads: grads.update(  # type: ignore[method-assign]
            {
                of: p.grad.clone()
                for of, p in one.state.model.named_parameters()
                if p.grad is not None
            }
        )
        ids = torch.arange(4 * 6).view(4, 6) % 40
        one.state.step(ids, ids.flip(1))
        one.state.step(ids.flip(0), ids)
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads.values()))
        assert float(one.state.grad_norm) == pytest.approx(norm, rel=1e-9)
        found.append(grads)
    assert found[1].keys() == {of for of in found[0] if ".memory." in of}
    for of, grad in found[1].items():
        torch.testing.assert_close(grad, found[0][of], rtol=0, atol=1e-12)


def test_reversible_layers_too() -> None:
    shape = {"pre_lnorm": True, "reversible": True, "untie_r": True}
    one = run("last:1", "fifo", shape=shape, memory_parts=1)
    before = one.weights()
    one.train()
    after = one.weights()
    moved = {name for name in after if not after[name].equal(before[name])}
    assert moved == {name for name in after if name.startswith("layers.1.")}


@pytest.mark.parametrize(
    "settings", [{}, {"optim": "muon"}, {"ema": 0.5, "optim": "adamw"}], ids=str
)
def test_a_run_goes_on_as_if_never_stopped(settings: dict[str, Any], tmp_path: Path) -> None:
    given = {"train": "last:1", "memory_parts": 2, **settings}
    more: dict[str, Any] = {"shape": PLAIN | shape_of("infini"), "context": CONTEXT}
    whole = Run(config(**given), **more).begin().trained()
    first = Run(config(**given | {"max_step": 2}), folder=tmp_path, **more).begin().trained()
    second = Run(config(**given), folder=tmp_path, **more).resume().trained()
    torch.testing.assert_close(first.losses + second.losses, whole.losses, rtol=0, atol=0)
    torch.testing.assert_close(second.weights(), whole.weights(), rtol=0, atol=0)


def test_what_learns_nothing_is_refused() -> None:
    model = TransformerXL(ModelConfig(**PLAIN))
    with pytest.raises(UsageError) as refused:
        freeze(model, "memory")
    assert str(refused.value) == (
        "--train memory: --memory fifo has no weights that could learn; use --memory compressive or"
        " expire_span or infini or knn or neural or recurrent_tokens, or --train last:1"
    )
    with pytest.raises(UsageError, match=r"^--train last:3: the model has 2 layer"):
        freeze(model, "last:3")
    assert all(p.requires_grad for p in model.parameters())
    for what in ("some", "last:0", "last:", "last:x", "Memory"):
        with pytest.raises(UsageError, match=f"^--train {what}: no such choice; there are all"):
            config(train=what)


def test_estimates_count_what_learns() -> None:
    model = TransformerXL(ModelConfig(**PLAIN | shape_of("neural")))
    every = {}
    for what in ("all", "memory"):
        freeze(model, what)
        settings = config(train=what, ema=0.5)
        passing = passing_bytes(
            model, config(train=what, batch_chunk=2), CONTEXT, ALONE, torch.float32
        )
        every[what] = (
            optimizer_bytes(model, settings),
            lasting_bytes(model, settings, CONTEXT, 1)["average"],
            passing["gradients"],
        )
    n_byte = sum(p.numel() * 4 for p in learning_parameters(model).values())
    assert every["memory"] == (2 * n_byte, n_byte, n_byte)
    assert all(a < b for a, b in zip(every["memory"], every["all"], strict=True))


def test_an_optimizer_without_matrices_takes_the_rest() -> None:
    model = TransformerXL(ModelConfig(**PLAIN | shape_of("infini")))
    freeze(model, "memory")
    rule = rule_of(config(optim="muon"))
    optimizers = Optimizers(
        learning_parameters(model).items(), config(optim="muon"), rule.matrices(model)
    )
    assert len(optimizers._all) == 1


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("n_token", [3, 40])
def test_a_table_that_does_not_learn_gets_no_gradient(
    n_token: int, is_half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is made, and that of the hidden states is as before."""
    monkeypatch.setattr(module, "BUDGET", {"cpu": 28})
    torch.manual_seed(0)
    dtype = torch.bfloat16 if is_half else torch.float64
    hidden, weight, bias = (
        torch.randn(*shape, dtype=dtype) for shape in ((n_token, 5), (7, 5), (7,))
    )
    target = torch.randint(7, (n_token,))
    found = []
    for learns in (True, False):
        leaves = [hidden.clone().requires_grad_(), weight.clone(), bias.clone()]
        for leaf in leaves[1:]:
            leaf.requires_grad_(learns)
        nll = linear_cross_entropy(*leaves, target, same_weight=True)
        saved = nll.grad_fn.saved_tensors if hasattr(nll.grad_fn, "saved_tensors") else ()
        assert learns or not any(x is not None and x.shape == weight.shape for x in saved)
        nll.sum().backward()
        found.append((nll.detach(), leaves[0].grad))
        assert (leaves[1].grad is not None) == learns
    torch.testing.assert_close(*found)


def test_the_operator_sees_that_the_mask_wants_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it keeps what that takes only if q, k or v wants one; those of a first layer that is frozen do not."""
    seen = []
    operator = F.scaled_dot_product_attention

    def noted(q: Tensor, *args: Any, **options: Any) -> Tensor:
        seen.append(q.requires_grad)
        return operator(q, *args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    rule = TransformerXL(ModelConfig(**SHAPE | {"position": "rotary"})).layers[0].attn.rule
    q, mask = torch.randn(1, 2, 3, 4), torch.zeros(3, 3, requires_grad=True)
    rule.by_product(q, q, q, 1.0, mask).sum().backward()
    rule.by_product(q, q, q, 1.0, mask.detach())
    assert mask.grad is not None
    assert seen == [True, False]

"""A training step never waits for the device: what depends on the ids is settled where they come from, on the CPU. And
a compiled layer is one graph, whatever it remembers."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.laws.conftest import SHAPES, SMALL, build
from txl import Context, ModelConfig, Span, TransformerXL
from txl.attention_rules import use_attention
from txl.model.memory import Reading, State
from txl.ops.rel_attention.dense import dense
from txl.runtime.distributed import Ranks
from txl.training import optimizers
from txl.training.config import TrainConfig
from txl.training.step import TrainState

META = torch.device("meta")
"""Tensors there have no values: what would look at one raises."""
CONTEXT = Context(mem_len=8)


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"floater", "floater_untied"}))
def test_loss_and_gradients_ask_the_device_for_no_number(model: TransformerXL) -> None:
    """Only torchdiffeq compares times where they are, at every step."""
    model = model.train().to("meta")
    token_BT = torch.randint(0, 50, (2, 9))
    nll_BT, memory = model.nll(token_BT[:, :4], token_BT[:, 1:5], None, CONTEXT)
    nll_BT, _ = model.nll(token_BT[:, 4:8], token_BT[:, 5:], memory, CONTEXT)
    nll_BT.mean().backward()
    assert {nll_BT.device, *(p.grad.device for p in model.parameters())} == {META}


@pytest.mark.parametrize("optim", ["adam", "lamb"])
def test_a_training_step_asks_the_device_for_no_number(
    optim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it: clipping, the note of a gradient that is not finite, the update. To look for that note is to ask."""
    # off here, and not to be had on meta
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(
        sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_: None
    )
    config = TrainConfig(optim=optim, batch_size=4, batch_chunk=2, max_step=2, clip=1.0)
    model = build("pre_lnorm_adaptive", **SMALL).train().to(META)
    state = TrainState(model, config, CONTEXT, Ranks(0, 1, META))
    token_BT = torch.randint(0, 50, (4, 9))
    for first in (0, 4):
        nll_BT = state.step(token_BT[:, first : first + 4], token_BT[:, first + 1 : first + 5])
    assert nll_BT.device == state.grad_norm.device == state.watch.step.device == META
    assert len(state.optimizers.state()) >= 2 * len(list(model.parameters()))
    with pytest.raises((RuntimeError, NotImplementedError)):
        state.check()


LENGTHS = {
    **dict.fromkeys(("fifo", "infini", "neural", "sinks"), CONTEXT),
    "compressive": Context(mem_len=8, compressed_len=2),
    "knn": Context(mem_len=8, lookup_len=4),
    **dict.fromkeys(("none", "recurrent_tokens"), Context()),
}


@pytest.mark.parametrize(
    ("memory", "has_documents"),
    [*((memory, False) for memory in LENGTHS), ("fifo", True), ("sinks", True), ("infini", True)],
)
def test_a_repeated_step_asks_for_no_number_whatever_it_remembers(
    memory: str, has_documents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for the ids, which are on the device there: a graph holds nothing that depends on them. `expire_span` is not
    here: how much it remembers depends on what it reads."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(optimizers, "dtype_on", lambda *_: "float32")
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: None)  # not to be had on meta
    config = TrainConfig(optim="muon", batch_size=2, max_step=9)
    model = build("pre_lnorm_adaptive", **SMALL, memory=memory).train().to(META)
    state = TrainState(model, config, LENGTHS[memory], Ranks(0, 1, META))
    repeats = []
    shares = (1.0,) * len(model.config.cluster_sizes)
    state.repeat_update(lambda work: lambda: repeats.append(work()), shares)
    token_BT = torch.randint(0, 50, (2, 33))
    since_BT = torch.randint(0, 9, (2, 4)) if has_documents else None
    for first in range(0, 32, 4):
        state.step(token_BT[:, first : first + 4], token_BT[:, first + 1 : first + 5], since_BT)
    assert repeats


def test_looking_at_a_number_there_would_be_seen() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64, device=META)
    with pytest.raises((RuntimeError, NotImplementedError)):
        build("pre_lnorm_adaptive").to(META).nll(ids, ids, None, Context())


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What other tests have compiled, and what this one has."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("ignore")  # those of torch itself, while it compiles
def test_a_layer_compiles_into_one_graph_for_every_length_of_its_memory() -> None:
    """A graph for none, one for the first length there is, which PyTorch takes for a constant, and one for all others.

    A part that cannot stand in a graph would raise.
    """
    config = ModelConfig(n_token=5, n_layer=1, n_head=2, d_head=4, d_model=8, d_inner=12)
    model = TransformerXL(config, dropout=0.1, dropatt=0.1).train()
    use_attention(model, "dense")
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    layer = torch.compile(model.layers[0], fullgraph=True, backend=counted)
    context, made = Context(tgt_len=4, mem_len=11), []
    for n_mem in (0, 4, 8, 11):
        span = Span.of(context, n_mem=n_mem, n_new=4)
        x_BTD, state = torch.randn(2, 4, 8, requires_grad=True), State(torch.randn(2, n_mem, 8))
        reading = Reading(context, span, model.layers[0].attn.pos, like=x_BTD).prepared()
        with torch.autocast("cpu", torch.bfloat16):
            out_BTD, after = layer(x_BTD, state, reading)
        assert after.hidden_BMD.shape[1] == min(11, n_mem + 4)
        out_BTD.square().sum().backward()
        assert x_BTD.grad.isfinite().all()
        made.append(len(graphs))
    assert made[0] == 1
    assert made[-1] <= 3, made


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("ignore")
def test_what_a_compiled_graph_drops_it_drops_again_when_it_recomputes() -> None:
    operands = [
        torch.randn(shape, requires_grad=True)
        for shape in [(2, 2, 5, 4)] * 3 + [(5, 2, 4), (2, 4), (2, 4)]
    ]

    def attended(*operands: torch.Tensor) -> torch.Tensor:
        return dense(*operands, scale=0.5, dropout=0.5)

    def recomputed(*operands: torch.Tensor) -> torch.Tensor:
        return checkpoint(attended, *operands, use_reentrant=False)

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        return torch.autograd.grad(compiled(*operands).square().sum(), operands)

    torch.testing.assert_close(gradients(recomputed), gradients(attended))

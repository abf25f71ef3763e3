"""A compiled layer is one graph, whatever it remembers."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from txl import Context, ModelConfig, Span, TransformerXL
from txl.ops.rel_attention.dense import dense


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What other tests have compiled, and what this one has."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")  # those of torch itself, while it compiles
def test_a_layer_compiles_into_one_graph_for_every_length_of_its_memory() -> None:
    """A graph for none, one for the first length there is, which PyTorch takes for a constant, and one for all others.

    A part that cannot stand in a graph would raise.
    """
    config = ModelConfig(n_token=5, n_layer=1, n_head=2, d_head=4, d_model=8, d_inner=12)
    model = TransformerXL(config, dropout=0.1, dropatt=0.1).train()
    model.use_attention("dense")
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    layer = torch.compile(model.layers[0], fullgraph=True, backend=counted)
    made = []
    for n_mem in (0, 4, 8, 11):
        span = Span.of(Context(tgt_len=4, mem_len=11), n_mem=n_mem, n_new=4)
        x_BTD, mem_BMD = torch.randn(2, 4, 8, requires_grad=True), torch.randn(2, n_mem, 8)
        feats = model.layers[0].attn.pos.prepare(span, like=x_BTD)
        with torch.autocast("cpu", torch.bfloat16):
            out_BTD = layer(x_BTD, mem_BMD, feats, span)
        out_BTD.square().sum().backward()
        assert x_BTD.grad.isfinite().all()
        made.append(len(graphs))
    assert made[0] == 1
    assert made[-1] <= 3, made


@pytest.mark.filterwarnings("ignore")
def test_what_a_compiled_graph_drops_it_drops_again_when_it_recomputes() -> None:
    operands = [torch.randn(shape, requires_grad=True) for shape in [(2, 2, 5, 4)] * 3 + [(5, 2, 4), (2, 4), (2, 4)]]

    def attended(*operands: torch.Tensor) -> torch.Tensor:
        return dense(*operands, scale=0.5, dropout=0.5)

    def recomputed(*operands: torch.Tensor) -> torch.Tensor:
        return checkpoint(attended, *operands, use_reentrant=False)

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        return torch.autograd.grad(compiled(*operands).square().sum(), operands)

    torch.testing.assert_close(gradients(recomputed), gradients(attended))

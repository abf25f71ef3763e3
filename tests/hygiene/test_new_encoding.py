"""A new position encoding is one new file and one line in the registry."""

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import train
from txl import Context, ModelConfig, TransformerXL
from txl.cli import read_flags
from txl.config import TrainConfig, UsageError
from txl.convert import ATTN_TYPES
from txl.evaluate import evaluate
from txl.init import init_weights
from txl.memory import KeyValueMemory, Span
from txl.positions import POSITION_ENCODINGS
from txl.positions.base import PositionEncoding, spread
from txl.sampling import generate

ROOT = Path(__file__).parents[2]


class Toy(PositionEncoding):
    """logit_ts = H^(-1/2) q_t.k_s - a (t - s), with one learned a for all heads and layers."""

    shared = ("a",)
    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.a = nn.Parameter(torch.tensor(0.1))

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        return span.distances_S(like.device)[:, None].to(like.dtype)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        return -self.a * spread(feats, span.n_new)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POSITION_ENCODINGS, "toy", Toy)


@pytest.mark.usefixtures("registered")
def test_a_line_in_the_registry_makes_it_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_flags(["--position", "toy"], ModelConfig, description="") == {"position": "toy"}
    with pytest.raises(SystemExit):
        train.main(["--help"])
    assert "none,toy}" in capsys.readouterr().out


@pytest.mark.usefixtures("registered")
def test_it_trains_evaluates_with_a_memory_and_writes() -> None:
    sizes = {"n_token": 9, "n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 8}
    model = TransformerXL(ModelConfig(**sizes, position="toy")).double()
    init_weights(model, TrainConfig(init_std=0.2))
    text_BT, context = torch.randint(0, 9, (2, 25)), Context(tgt_len=8, mem_len=8)
    segments = [(text_BT[:, i : i + 8], text_BT[:, i + 1 : i + 9], None) for i in (0, 8, 16)]

    optimizer, memory, before = torch.optim.SGD(model.parameters(), lr=0.1), None, evaluate(model, segments, context)
    for input_BT, target_BT, _ in segments:
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)
        optimizer.zero_grad()
        nll_BT.mean().backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
    after = evaluate(model, segments, context)
    assert after.nats < before.nats
    assert isinstance(model.fresh_memory(1), KeyValueMemory)
    assert evaluate(model, segments, Context(tgt_len=8, mem_len=24)).nats != after.nats
    assert len(list(generate(model, [1, 2, 3], context, length=5, seed=0))) == 5


@pytest.mark.parametrize("name", sorted(set(POSITION_ENCODINGS) - {*ATTN_TYPES, "none"}))
def test_no_other_file_names_an_encoding(name: str) -> None:
    """Those of the 2019 code are also in `txl.convert` and `txl.cli`, which know what they were called.

    "none" means other things elsewhere.
    """
    files = [*(ROOT / "txl").rglob("*.py"), *(ROOT / "data_utils").rglob("*.py"), *ROOT.glob("*.py")]
    naming = [
        str(path.relative_to(ROOT))
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == name
    ]
    assert naming == ["txl/positions/__init__.py"]
    assert (ROOT / "txl" / "positions" / f"{name}.py").is_file()


def test_an_encoding_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"--position sundial: no such encoding; there are rel_sinusoid, .*, none"):
        TransformerXL(ModelConfig(n_token=5, position="sundial"))

"""The Transformer of 2017 decodes the same on every device."""

import torch

from examples.seq2seq.decoding import beam_search, greedy
from examples.seq2seq.model import Seq2Seq
from lab.benchmarks.checks.errors import Errors
from txl.config import ModelConfig


def decoding_errors(device: str) -> Errors:
    """The share of tokens that differ from those written on a CPU, both in float64."""
    torch.manual_seed(0)
    config = ModelConfig(
        n_token=30, n_layer=2, n_head=2, d_head=8, d_model=16, d_inner=32, position="sinusoid_input"
    )
    model, source_BS = Seq2Seq(config).double().eval(), torch.randint(3, 30, (8, 11))
    written = []
    for where in ("cpu", device):
        model, source_BS = model.to(where), source_BS.to(where)
        beam_BT, _ = beam_search(model, source_BS, max_len=12)
        written.append([greedy(model, source_BS, max_len=12).cpu(), beam_BT.cpu()])
    return {
        name: 1.0 if x.shape != y.shape else float((x != y).double().mean())
        for name, x, y in zip(("greedy", "beam"), *written, strict=True)
    }

"""Twelve updates, the learning rates and the parameter counts of the original."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import txl.training
from txl import ModelConfig, TransformerXL
from txl.config import TrainConfig
from txl.convert import from_kimiyoung, to_kimiyoung
from txl.evaluate import Score
from txl.optim import build_optimizer, learning_rate
from txl.training import train

FOLDER = Path(__file__).parent / "train"


@dataclass
class Curves:
    """Stands in for TensorBoard and keeps what it is told."""

    values: dict[str, list[float]]

    def add(self, step: int, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)


def adam_that_skips_what_no_token_reached(parameters: Iterable[nn.Parameter], config: TrainConfig) -> Optimizer:
    """The optimizer of the golden run.

    In segments 5 and 7 no input token falls in the shortlist. There the original gives `emb_projs.0` no gradient at
    all, and Adam, in the torch of the golden run, leaves such a parameter alone. Ours gets a gradient of zeros in every
    step, which DistributedDataParallel needs, and Adam's momentum moves it on, as it did in the torch of 2019.
    """
    optimizer = build_optimizer(parameters, config)

    @optimizer.register_step_pre_hook
    def skip(optimizer: Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.grad.any():
                    parameter.grad = None

    return optimizer


def test_twelve_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txl.training, "build_optimizer", adam_that_skips_what_no_token_reached)
    file = np.load(FOLDER / "trajectory.npz")
    config = json.loads(str(file["config"]))
    start = {
        k.removeprefix("param0/"): torch.from_numpy(file[k]).double() for k in file.files if k.startswith("param0/")
    }
    model, context = from_kimiyoung(start, config["model"])
    stream_BL = torch.from_numpy(file["stream"]).T.long()
    pieces = [stream_BL[:, i : i + context.tgt_len + 1] for i in range(0, 96, context.tgt_len)]
    segments = [(piece[:, :-1], piece[:, 1:], None) for piece in pieces]
    curves = Curves({})
    train(
        model,
        segments,
        validate=lambda: Score(1.0, 1),
        save=lambda **_: None,
        config=TrainConfig(
            max_step=config["max_step"],
            lr=config["lr"],
            warmup_step=config["warmup_step"],
            clip=config["clip"],
            warmup_convention="original",
            log_interval=1,
        ),
        context=context,
        scalars=curves,
    )
    for ours, theirs in (("train__nll_nats", "loss"), ("train__grad_norm", "grad_norm"), ("train__lr", "lr_used")):
        np.testing.assert_allclose(curves.values[ours], file[theirs], rtol=0, atol=1e-9)
    for name, weight in to_kimiyoung(model).items():
        np.testing.assert_allclose(weight.detach().numpy(), file[f"param12/{name}"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("cosine_w0", {}), ("cosine_w5", {"warmup_step": 5}), ("cosine_w5_eta", {"warmup_step": 5, "eta_min": 1e-5})],
)
def test_learning_rates_by_the_original_convention(name: str, settings: dict) -> None:
    golden = np.load(FOLDER / "lr_schedules.npz")[f"lr_used/{name}"]
    config = TrainConfig(lr=0.00025, max_step=20, warmup_convention="original", **settings)
    np.testing.assert_allclose([learning_rate(k, config) for k in range(20)], golden, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("wt103_base", {"n_layer": 16, "d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100}),
        ("wt103_large", {"n_layer": 18, "d_model": 1024, "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4}),
    ],
)
def test_parameter_counts_of_the_published_configurations(name: str, shape: dict) -> None:
    golden = json.loads((FOLDER / "param_counts.json").read_text())[name]
    cutoffs, tie_projs = (20000, 40000, 200000), (False, True, True, True)
    with torch.device("meta"):
        model = TransformerXL(ModelConfig(n_token=golden["n_token"], cutoffs=cutoffs, tie_projs=tie_projs, **shape))
    assert sum(p.numel() for p in model.parameters()) == golden["n_all_param"]
    biases = sum(p.numel() for name, p in model.layers.named_parameters() if name.endswith(("u_NH", "v_NH")))
    assert sum(p.numel() for p in model.layers.parameters()) - biases == golden["n_nonemb_param"]

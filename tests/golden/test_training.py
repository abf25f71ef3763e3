"""Twelve updates, the learning rates and the parameter counts of the original."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from txl import ModelConfig, TransformerXL
from txl.convert import from_kimiyoung
from txl.convert.kimiyoung import parameters_as_kimiyoung
from txl.runtime.distributed import Ranks
from txl.training.config import TrainConfig
from txl.training.schedules import Plateau, schedule_of
from txl.training.step import TrainState

FOLDER = Path(__file__).parent / "train"


def skip_what_no_token_reached(parameters: dict[str, nn.Parameter]) -> None:
    """Do as the golden run did.

    In segments 5 and 7 no input token falls in the shortlist. There the original gives `emb_projs.0` no gradient at
    all, and Adam, in the torch of the golden run, leaves such a parameter alone. Ours gets a gradient of zeros in every
    step, which DistributedDataParallel needs, and Adam's momentum moves it on, as it did in the torch of 2019.
    """
    for parameter in parameters.values():
        if not parameter.grad.any():
            parameter.grad = None


def test_twelve_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    file = np.load(FOLDER / "trajectory.npz")
    golden = json.loads(str(file["config"]))
    names = [key.removeprefix("param0/") for key in file.files if key.startswith("param0/")]
    start = {name: torch.from_numpy(file[f"param0/{name}"]).double() for name in names}
    model, context = from_kimiyoung(start, golden["model"])
    settings = {name: golden[name] for name in ("lr", "warmup_step", "max_step", "clip")}
    config = TrainConfig(warmup_convention="original", **settings)
    state = TrainState(model.train(), config, context, Ranks(0, 1, torch.device("cpu")))
    update = state.optimizers.step

    def update_as_in_the_golden_run(**options: Any) -> None:
        skip_what_no_token_reached(dict(model.named_parameters()))
        update(**options)

    monkeypatch.setattr(state.optimizers, "step", update_as_in_the_golden_run)
    stream_BL = torch.from_numpy(file["stream"]).T.long()
    losses, norms, rates = [], [], []
    for begin in range(0, 96, context.tgt_len):
        piece = stream_BL[:, begin : begin + context.tgt_len + 1]
        losses.append(float(state.step(piece[:, :-1], piece[:, 1:]).mean()))
        norms.append(float(state.grad_norm))
        rates.append(state.lr)
    for ours, theirs in ((losses, "loss"), (norms, "grad_norm"), (rates, "lr_used")):
        np.testing.assert_allclose(ours, file[theirs], rtol=0, atol=1e-9)
    for name, weight in parameters_as_kimiyoung(model, dict(model.named_parameters())).items():
        np.testing.assert_allclose(
            weight.detach().numpy(), file[f"param12/{name}"], rtol=0, atol=1e-9
        )


SCHEDULES = {
    "cosine_w0": {},
    "cosine_w5": {"warmup_step": 5},
    "cosine_w5_eta": {"warmup_step": 5, "eta_min": 1e-5},
    "inv_sqrt_w0": {"scheduler": "inv_sqrt"},
    "inv_sqrt_w5": {"scheduler": "inv_sqrt", "warmup_step": 5},
    "constant_w5": {"scheduler": "constant", "warmup_step": 5},
    "dev_perf_w5": {"scheduler": "dev_perf", "warmup_step": 5},
}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_learning_rates_by_the_original_convention(name: str) -> None:
    golden = np.load(FOLDER / "lr_schedules.npz")[f"lr_used/{name}"]
    config = TrainConfig(lr=0.00025, max_step=20, warmup_convention="original", **SCHEDULES[name])
    plateau, valid, rates = Plateau(config), iter([5, 4, 4.5, 4.2, 4.1, 3.9]), []
    for update in range(20):
        rates.append(plateau.apply(schedule_of(config).rate(update)))
        if (update + 1) % 3 == 0:
            plateau.see(next(valid))
    np.testing.assert_allclose(rates, golden, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (
            "wt103_base",
            {"n_layer": 16, "d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100},
        ),
        (
            "wt103_large",
            {
                "n_layer": 18,
                "d_model": 1024,
                "n_head": 16,
                "d_head": 64,
                "d_inner": 4096,
                "div_val": 4,
            },
        ),
    ],
)
def test_parameter_counts_of_the_published_configurations(name: str, shape: dict) -> None:
    golden = json.loads((FOLDER / "param_counts.json").read_text())[name]
    cutoffs, tie_projs = (20000, 40000, 200000), (False, True, True, True)
    with torch.device("meta"):
        model = TransformerXL(
            ModelConfig(n_token=golden["n_token"], cutoffs=cutoffs, tie_projs=tie_projs, **shape)
        )
    assert sum(p.numel() for p in model.parameters()) == golden["n_all_param"]
    biases = sum(
        p.numel() for name, p in model.layers.named_parameters() if name.endswith(("u_NH", "v_NH"))
    )
    assert sum(p.numel() for p in model.layers.parameters()) - biases == golden["n_nonemb_param"]

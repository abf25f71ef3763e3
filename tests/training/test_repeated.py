"""Updates that are recorded once and repeated, here by calling them again: a graph needs a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.runs import ADAPTIVE, N_TOKEN, SHAPE, Run, config
from txl import Context
from txl.config import UsageError
from txl.ops import linear_cross_entropy
from txl.runtime.distributed import Ranks
from txl.runtime.recording import _first
from txl.training import optimizers
from txl.training.finite import NonFiniteError
from txl.training.optim import Optimizers
from txl.training.repeated import RepeatedUpdate, why_no_graph

# 4 streams, 9 segments of 6 and one of 3 an epoch; the memory of 9 is full after two
CONTEXT = Context(tgt_len=6, mem_len=9, compressed_len=2)
IDS = np.random.default_rng(5).integers(0, N_TOKEN, 4 * 58)
# of the 24 words of an update 15 are of one cluster
CROWDED = np.where(np.random.default_rng(6).random(4 * 58) < 0.3, 10 + IDS // 2, IDS)


class Recorder:
    """Notes what is recorded and how often it is repeated."""

    def __init__(self) -> None:
        self.n_recorded = self.n_repeated = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.n_recorded += 1

        def repeat() -> None:
            self.n_repeated += 1
            work()

        return repeat


def a_run(shape: dict[str, Any] | None = None, *, ids: np.ndarray = IDS, **settings: Any) -> Run:
    given = {"max_step": 16, "max_step_scheduler": 16, **settings}
    shape = SHAPE | ADAPTIVE | (shape or {})
    return Run(config(**given), dtype=torch.float64, ids=ids, shape=shape, context=CONTEXT)


@pytest.fixture(autouse=True)
def rates_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a graph reads them, for updates that are made one by one, too."""
    exact = Optimizers.set_learning_rate

    def rounded(self: Optimizers, lr: float) -> None:
        exact(self, float(torch.tensor(lr)))

    monkeypatch.setattr(Optimizers, "set_learning_rate", rounded)


@pytest.fixture(autouse=True)
def muon_in_the_dtype_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor has instructions for."""
    monkeypatch.setattr(optimizers, "dtype_on", lambda *_: "float32")


ALL = (1.0, 1.0, 1.0)
NONE = (0.0, 0.0, 0.0)
"""Shares of clusters for which there is room for all words in each, and for 16."""


def repeated(run: Run, record: Any) -> Run:
    """With room for all words in each cluster. Losses are copied, since the next repetition writes over them."""
    run.state.repeat_update(record, ALL[: len(run.state.model.config.cluster_sizes)])
    return keeping_losses(run)


def keeping_losses(run: Run) -> Run:
    update = run.state.update

    def kept(*given: Any) -> Any:
        left = update(*given)
        return left._replace(nll_BT=left.nll_BT.clone())

    run.state.update = kept
    return run


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ({}, {}),
        ({}, {"optim": "muon", "weight_decay": 0.1, "label_smoothing": 0.1}),
        ({}, {"optim": "sgd", "mom": 0.9, "batch_chunk": 2}),
        ({"cutoffs": (), "div_val": 1, "tie_projs": ()}, {"optim": "adamw", "ema": 0.9}),
        ({"div_val": 1, "tie_projs": ()}, {"scheduler": "dev_perf", "eval_interval": 2}),
        ({"memory": "compressive", "compress_rate": 3}, {}),
        ({"memory": "infini"}, {"memory_parts": 2}),
    ],
    ids=str,
)
def test_repeated_updates_are_those_made_one_by_one(
    shape: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Over the end of an epoch, with its short segment and an empty memory after it, at rates that change."""
    plain = a_run(shape, **settings).begin().trained()
    recorder = Recorder()
    run = repeated(a_run(shape, **settings).begin(), recorder).trained()
    assert recorder.n_recorded == 1
    assert recorder.n_repeated >= 8
    torch.testing.assert_close(run.losses, plain.losses, rtol=0, atol=1e-8)
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ({}, {}),
        ({}, {"optim": "muon", "label_smoothing": 0.1}),
        ({"div_val": 1, "tie_projs": ()}, {"optim": "adamw"}),
        ({"memory": "compressive", "compress_rate": 3}, {}),
    ],
    ids=str,
)
def test_an_update_without_room_is_made_by_itself(
    shape: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Of 24 words, with room for 16 in each cluster; those before and after it are repeated."""
    plain = a_run(shape, ids=CROWDED, **settings).begin().trained()
    n_repeated = []
    for shares in (ALL, NONE):
        recorder = Recorder()
        run = a_run(shape, ids=CROWDED, **settings).begin()
        run.state.repeat_update(recorder, shares)
        run = keeping_losses(run).trained()
        assert recorder.n_recorded == 1
        n_repeated.append(recorder.n_repeated)
    assert 2 <= n_repeated[1] <= n_repeated[0] - 2
    torch.testing.assert_close(run.losses, plain.losses, rtol=0, atol=1e-8)
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=0, atol=1e-8)


def test_an_update_whose_words_were_not_counted_stops_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device finds that there is no room for them."""
    monkeypatch.setattr(RepeatedUpdate, "_has_room", lambda *_: True)
    run = a_run(log_interval=1, ids=CROWDED).begin()
    run.state.repeat_update(Recorder(), NONE)
    with pytest.raises(NonFiniteError, match=r"the loss is not finite.*; the update was not made"):
        run.train()
    assert all(weight.isfinite().all() for weight in run.weights().values())


def test_a_head_in_chunks_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the places of a tail cluster some are empty, so that gradients cannot be made with the loss."""
    plain = a_run().begin().trained()
    monkeypatch.setattr(linear_cross_entropy, "BUDGET", {"cpu": 50})
    run = repeated(a_run().begin(), Recorder()).trained()
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=0, atol=1e-8)


def test_where_documents_begin_may_differ_from_update_to_update() -> None:
    draw = torch.Generator().manual_seed(4)
    text = torch.randint(0, N_TOKEN, (4, 49), generator=draw)
    length = torch.randint(0, 20, (4, 48), generator=draw)
    found = []
    for record in (None, Recorder()):
        state = a_run().begin().state
        if record is not None:
            state.repeat_update(record, ALL)
        losses = []
        for begin in range(0, 48, 6):
            end = begin + 6
            batch = (text[:, begin:end], text[:, begin + 1 : end + 1], length[:, begin:end])
            losses.append(state.step(*batch).clone())
        found.append(torch.stack(losses))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-8)
    assert record is not None
    assert record.n_repeated == 5


def test_what_happened_first_is_said() -> None:
    """The end of a recording says only that something has happened in it."""

    def record() -> None:
        try:
            raise ValueError("this waits for the GPU")
        finally:
            raise RuntimeError("a previous error during capture")

    with pytest.raises(RuntimeError) as raised:
        record()
    assert str(_first(raised.value)) == "this waits for the GPU"


def test_a_repeated_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Where memory and optimizer are in other places than before."""
    never = repeated(a_run(optim="muon").begin(), Recorder()).trained()
    first = a_run(optim="muon", max_step=8, save_interval=8)
    first.folder = tmp_path
    repeated(first.begin(), Recorder()).train()
    second = a_run(optim="muon")
    second.folder = tmp_path
    repeated(second.resume(), Recorder()).train()
    torch.testing.assert_close(second.losses, never.losses[8:], rtol=0, atol=1e-8)


def test_what_cannot_be_recorded_is_made_one_by_one_where_that_is_left_to_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is left of the update that was tried."""

    def fail(work: Callable[[], None]) -> Callable[[], None]:
        with monkeypatch.context() as during:
            during.setattr(Optimizers, "step", broken)
            work()
        raise AssertionError

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("this waits for the GPU")

    monkeypatch = pytest.MonkeyPatch()
    plain = a_run().begin().trained()
    run = repeated(a_run(cuda_graph="auto").begin(), fail).trained()
    (said,) = [line for line in caplog.messages if "cuda_graph" in line]
    assert said.startswith("--cuda_graph auto: off: an update cannot be recorded (this waits")
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=0, atol=1e-8)


def test_why_nothing_is_recorded_is_known_before() -> None:
    gpu = torch.device("cuda")
    assert why_no_graph(config(), Ranks(0, 1, gpu)) == ""
    assert "device is cpu" in why_no_graph(config(), Ranks(0, 1, torch.device("cpu")))
    assert "there are 8; several can have --compile" in why_no_graph(config(), Ranks(0, 8, gpu))
    assert "--varlen" in why_no_graph(config(varlen=True, cuda_graph="auto"), Ranks(0, 1, gpu))


def test_what_cannot_be_recorded_is_named() -> None:
    def refuse(work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("this waits for the GPU\nmore of it")

    run = a_run().begin()
    run.state.repeat_update(refuse, ALL)
    said = r"^--cuda_graph: an update cannot be recorded \(this waits for the GPU\); give --no"
    with pytest.raises(UsageError, match=said):
        run.train()
    assert run.state.progress.step == 3


def test_a_word_outside_the_vocabulary_is_refused_before_it_is_repeated() -> None:
    run = repeated(a_run().begin(), Recorder()).trained()
    ids = torch.full((4, 6), N_TOKEN)
    before = run.weights()
    with pytest.raises(ValueError, match="token ids must lie in"):
        run.state.step(ids, ids)
    assert all(torch.equal(weight, before[name]) for name, weight in run.weights().items())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"varlen": True}, "--varlen"),
        ({"draw_mem_len": 2}, "--draw_mem_len"),
        ({"recompute": True}, "--recompute"),
        ({"swap_mem": True}, "--swap_mem"),
        ({"on_nonfinite": "skip"}, "--on_nonfinite skip"),
        ({"dtype": "float16"}, "--dtype float16"),
        ({"shard": True}, "--shard"),
    ],
)
def test_settings_of_which_no_two_updates_are_alike_are_refused(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=f"--cuda_graph and {named}: no graph can hold that"):
        config(cuda_graph=True, **settings)


def test_where_it_cannot_be_is_said() -> None:
    with pytest.raises(UsageError, match="--optim lamb does not say that"):
        repeated(a_run(optim="lamb").begin(), Recorder())
    with pytest.raises(UsageError, match="--optim adagrad does not say that"):
        repeated(a_run(optim="adagrad").begin(), Recorder())
    with pytest.raises(UsageError, match="how much --memory expire_span keeps depends on what it"):
        repeated(a_run({"memory": "expire_span"}).begin(), Recorder())


def test_where_no_two_updates_are_alike_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be compressed has a length of its own in each update."""
    monkeypatch.setattr("txl.training.repeated._PATIENCE", 12)
    recorder = Recorder()
    repeated(a_run({"memory": "compressive", "compress_rate": 4}).begin(), recorder).trained()
    assert recorder.n_recorded == 0
    (said,) = [line for line in caplog.messages if "graph" in line]
    assert said.startswith("--cuda_graph: of 12 updates none could be recorded")


def test_dropout_is_drawn_alike() -> None:
    settings = {"dropout": 0.3, "dropatt": 0.2}
    shape = {"cutoffs": (), "div_val": 1, "tie_projs": ()}
    plain = a_run(shape, **settings).begin().trained()
    run = repeated(a_run(shape, **settings).begin(), Recorder()).trained()
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=0, atol=1e-8)

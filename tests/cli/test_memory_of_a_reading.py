"""A trained model reads with another memory: eval.py, txl score, generate.py, `txl.load`; train.py --init_from adds one
whose weights are to be trained."""

import json
from pathlib import Path

import pytest
import torch

import txl
from tests.cli.conftest import Here, config_of
from txl.config import UsageError

NEW = "--memory sinks --n_sink 2 --mem_len 3"


def test_eval_score_and_generate_read_with_sinks(here: Here) -> None:
    """Of the same weights, and so as a model that is loaded with them in Python."""
    plain = here.result("eval --split test --mem_len 3")
    found = here.result(f"eval --split test {NEW}")
    assert found["rows"][0]["nats"] != plain["rows"][0]["nats"]
    assert found["read_with"] == {"memory": "sinks", "n_sink": 2}
    assert "read_with" not in plain
    assert found["weights"] == plain["weights"]
    everything = [
        here.result(f"eval --split test --batch_size 1 --mem_len {mem_len} {memory}")["rows"][0]
        for mem_len, memory in ((98, "--memory sinks --n_sink 2"), (100, ""))
    ]
    assert everything[0]["nats"] == pytest.approx(everything[1]["nats"], rel=1e-6)
    Path("my.txt").write_text(Path("text/test.txt").read_text())
    here(f"eval --text my.txt {NEW} --json scored.json")
    scored = json.loads(Path("scored.json").read_text())
    assert scored["read_with"] == {"memory": "sinks", "n_sink": 2}
    lm = txl.load("run", memory="sinks", n_sink=2)
    lm.context.__dict__["mem_len"] = 3
    by_hand = lm.score(Path("my.txt").read_text()).total_nats
    assert scored["rows"][0]["nats"] == pytest.approx(by_hand, rel=1e-5)
    greedy = "--prompt 'bab def' --length 40 --temperature 0 --mem_len 3 --allow_unk"
    texts = [
        here(f"generate {greedy} {memory}").out
        for memory in ("--memory sinks --n_sink 2", "--memory sinks --n_sink 2", "")
    ]
    assert texts[0] == texts[1]
    assert texts[0].split()[:5] == texts[2].split()[:5]


def test_settings_of_the_memory_of_the_training_may_change_alone(here: Here) -> None:
    here("train --memory sinks --max_step 1")
    four = here.result("eval --work_dir new --split test --mem_len 2")
    two = here.result("eval --work_dir new --split test --mem_len 2 --n_sink 2")
    assert two["rows"][0]["nats"] != four["rows"][0]["nats"]
    assert two["read_with"] == {"memory": "sinks", "n_sink": 2}


def test_the_memory_of_the_training_is_no_other_if_it_is_named(here: Here) -> None:
    plain = here.result("eval --split test")
    named = here.result("eval --split test --memory fifo")
    assert [row["nats"] for row in named["rows"]] == [row["nats"] for row in plain["rows"]]
    assert "read_with" not in named
    here("train --memory sinks --max_step 1")
    named = here.result("eval --work_dir new --split test --mem_len 2 --n_sink 4")
    assert "read_with" not in named


def test_what_was_not_trained_is_refused(here: Here) -> None:
    said = here.refused("eval --split test --memory infini")
    assert said.endswith(
        "--memory infini: has weights of its own, with which run was not trained; train them first:"
        " train.py --init_from run --memory infini"
    )
    here.refused("generate --memory neural")
    with pytest.raises(UsageError, match=r"^--memory knn: has weights of its own"):
        txl.load("run", memory="knn")
    with pytest.raises(TypeError, match="no memory has a setting 'devise'"):
        txl.load("run", devise="cpu")
    # it has no weights
    found = here.result("eval --split test --memory compressive --compression mean --mem_len 4")
    assert found["read_with"] == {"memory": "compressive", "compression": "mean"}


def test_lengths_of_the_training_that_it_does_not_work_with_are_named(here: Here) -> None:
    here("train --clamp_len 3 --same_length --max_step 1")
    for typed, said in (
        ("", "--same_length, with which the model was trained; give --no_same_length"),
        ("--no_same_length", "--clamp_len, with which the model was trained; give --clamp_len -1"),
    ):
        for entry in ("eval --split test", "generate"):
            complaint = here.refused(f"{entry} --work_dir new --memory sinks {typed}")
            assert complaint.endswith(f"--memory sinks: does not work with {said}")
    here("eval --work_dir new --split test --memory sinks --no_same_length --clamp_len -1")


def test_a_memory_is_added_to_trained_weights(here: Here) -> None:
    """Before training nothing changes; its weights are drawn from the seed, and are saved and resumed."""
    tuned = "train --init_from run --memory infini --infini_update delta --train memory"
    here(f"{tuned} --max_step 1 --lr 1e-30")
    config = config_of(Path("new"))
    assert config["model"]["memory"] == "infini"
    assert config["model"]["own"]["memory_gate"] == "tanh"
    assert config["train"]["memory_parts"] == 4
    rows = [
        here.row(f"eval --work_dir {run} --split test --batch_size 1") for run in ("run", "new")
    ]
    assert rows[0]["nats"] == pytest.approx(rows[1]["nats"], rel=1e-6)
    here(f"{tuned} --resume --max_step 2 --max_step_scheduler 2 --lr 1e-30")
    # the same memory with other settings keeps what it has learned
    here("train --init_from new --infini_update linear --max_step 1 --lr 1e-30 --work_dir third")
    models = [txl.load(run).model for run in ("new", "third")]
    for name, weight in models[0].state_dict().items():
        assert torch.allclose(models[1].state_dict()[name], weight, atol=1e-6)
    assert models[1].config.infini_update == "linear"


@pytest.mark.parametrize(
    ("memory", "setting", "added", "usual"),
    [
        ("neural", "rates_of", "normed", "hidden"),
        ("neural", "forgets_to", "begin", "nothing"),
        ("expire_span", "spans_of", "normed", "hidden"),
    ],
)
def test_settings_of_a_memory_that_is_added_to_trained_weights(
    memory: str, setting: str, added: str, usual: str, here: Here
) -> None:
    """Unless it is said otherwise; a training from scratch has the usual ones."""
    for flags, expected in (
        ("--init_from run", added),
        (f"--init_from run --{setting} {usual}", usual),
        ("", usual),
    ):
        here(f"train {flags} --memory {memory} --mem_len 4 --max_step 1 --overwrite")
        assert config_of(Path("new"))["model"]["own"][setting] == expected


def test_weights_of_an_added_memory_are_drawn_from_the_seed(here: Here) -> None:
    drawn = []
    for seed in (1, 1, 2):
        flags = f"--seed {seed} --max_step 1 --lr 1e-30 --overwrite"
        here(f"train --init_from run --memory recurrent_tokens --mem_len 0 {flags}")
        drawn.append(txl.load("new").model.layers[0].memory.begin_MD)
    assert torch.allclose(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2])
    assert drawn[0].std() > 0.01


def test_lengths_that_a_new_memory_cannot_have_are_not_those_of_the_trained_model(
    here: Here,
) -> None:
    flags = "--work_dir new --data text --max_step 1 --batch_size 2 --device cpu"
    words = f"--init_from run --memory recurrent_tokens {flags}".split()
    assert txl.load("run").context.mem_len > 0
    assert here.call("train", *words).status == 0
    assert txl.load("new").context.mem_len == 0

"""Settings of the parts of a model, which stand beside the parts and are fields of its configuration."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoints import change_record
from tests.cli.conftest import Here
from txl import ModelConfig
from txl.checkpoint import open_checkpoint
from txl.config import UsageError, build
from txl.memory.compressive import Compressive

COMPRESSIVE = ModelConfig(n_token=9, memory="compressive", compress_rate=3, max_distance=5)


def test_a_model_has_the_settings_of_its_parts_and_of_others_what_is_not_at_its_default() -> None:
    assert COMPRESSIVE.own == {
        "compress_rate": 3,
        "compression": "conv",
        "compress_loss": "attention",
        "max_distance": 5,
    }
    assert COMPRESSIVE.settings(Compressive.Settings).compress_rate == 3
    assert ModelConfig(n_token=9, compress_rate=4, n_bucket=32).own == {}


def test_settings_are_fields_that_are_replaced_and_read() -> None:
    changed = replace(COMPRESSIVE, compress_rate=4, memory="knn", position="t5")
    of_knn = {"lookup_layer": -1, "lookup_k": 32, "memory_gate": "sigmoid"}
    assert changed.own == of_knn | {"max_distance": 5, "n_bucket": 32}
    assert (changed.lookup_k, changed.compress_rate) == (32, 4)  # one of a part, one of another
    assert build(ModelConfig, {"lookup_k": 7, "lr": 1.0}, memory="knn").lookup_k == 7
    for same in (
        copy.deepcopy(COMPRESSIVE),
        pickle.loads(pickle.dumps(COMPRESSIVE)),
        replace(COMPRESSIVE),
    ):
        assert same == COMPRESSIVE
    with pytest.raises(AttributeError, match="no field compress_rat, and no part has this setting"):
        _ = COMPRESSIVE.compress_rat
    with pytest.raises(TypeError, match="no field 'compress_rat', and no part has this setting"):
        ModelConfig(n_token=9, compress_rat=3)


@pytest.mark.parametrize("memory", ["fifo", "compressive"])
def test_values_are_checked_whatever_part_they_are_of(memory: str) -> None:
    with pytest.raises(UsageError, match=r"^--compress_rate 1: must be at least 2"):
        ModelConfig(n_token=9, memory=memory, compress_rate=1)
    with pytest.raises(
        UsageError,
        match=r"^--compression sum: no such choice; there are conv, mean, max, most_used",
    ):
        ModelConfig(n_token=9, memory=memory, compression="sum")


def test_what_must_fit_the_model_is_checked_with_it() -> None:
    with pytest.raises(
        UsageError, match=r"^--lookup_layer 2: the model has 2 layer\(s\); name one from 0 to 1"
    ):
        ModelConfig(n_token=9, memory="knn", n_layer=2, lookup_layer=2)
    with pytest.raises(UsageError, match=r"^--lsh_bucket 5: must be even .*; use 6"):
        ModelConfig(n_token=9, attention="lsh", position="none", lsh_bucket=5)


def test_a_checkpoint_in_which_settings_stand_beside_other_fields_is_read(here: Here) -> None:
    """As versions before 0.3 wrote them, of all parts."""
    here("train --memory compressive --compress_rate 3 --max_step 1 --work_dir mine")
    saved = open_checkpoint(Path("mine"))

    def flat(record: dict) -> None:
        record["model"].update(
            record["model"].pop("own"), lookup_k=32, n_bucket=32, max_distance=None, n_position=9
        )

    change_record(saved.folder, flat)
    found = open_checkpoint(Path("mine")).model_config
    assert found == replace(saved.model_config, n_position=9)
    other = here.refused(
        "train --work_dir mine --resume --max_step 2 --max_step_scheduler 2 --compress_rate 2"
    )
    assert "--compress_rate 2: the run in mine was started with 3; drop the flag" in other
    change_record(saved.folder, lambda record: record["model"].update(lookup_k="many"))
    assert "lookup_k is 'many', which is not of type int" in here.refused("eval --work_dir mine")


def test_a_model_from_before_a_setting_is_as_it_was_trained(here: Here) -> None:
    flags = "--memory recurrent_tokens --mem_len 0 --pre_lnorm"
    here(f"train {flags} --tokens_of hidden --max_step 1 --work_dir mine")
    saved = open_checkpoint(Path("mine"))
    assert saved.model_config.tokens_of == "hidden"
    change_record(saved.folder, lambda record: record["model"]["own"].pop("tokens_of"))
    assert open_checkpoint(Path("mine")).model_config == saved.model_config
    here("eval --work_dir mine --split valid")
    again = f"train {flags} --work_dir mine --resume --max_step 2 --max_step_scheduler 2"
    other = here.refused(f"{again} --tokens_of normed")
    assert "--tokens_of normed: the run in mine was started with hidden; drop the flag" in other
    config = saved.folder / "config.json"
    here(f"train --config {config} --mem_len 0 --max_step 1 --work_dir alike")
    assert open_checkpoint(Path("alike")).model_config == saved.model_config
    here(f"train {flags} --max_step 1 --work_dir other")
    assert open_checkpoint(Path("other")).model_config.tokens_of == "normed"


def test_a_setting_of_a_part_of_the_wrong_type_is_named(here: Here) -> None:
    here("train --memory compressive --max_step 1 --work_dir mine")
    folder = open_checkpoint(Path("mine")).folder
    change_record(folder, lambda record: record["model"]["own"].update(compress_rate="4"))
    assert "compress_rate is '4', which is not of type int" in here.refused("eval --work_dir mine")

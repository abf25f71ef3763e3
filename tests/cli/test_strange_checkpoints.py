"""Checkpoints that others made, or another version: refused in one line before anything is built."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.checkpoints import change_record, sign
from tests.cli.conftest import Here, pointed

Change = Callable[[dict[str, Any]], object]


def put(part: str, **changes: Any) -> Change:
    return lambda record: record[part].update(changes)


MODELS: dict[str, tuple[Change, str]] = {
    "huge": (put("model", d_model=2 * 10**12), "below 2^31"),
    "large": (put("model", d_model=2 * 10**8), "do not fit"),
    "deep": (put("model", n_layer=4000), "do not fit"),
    "deeper": (put("model", n_layer=10**9), "at most 4096"),
    "clusters": (put("model", cutoffs=[*range(1, 10**5), 1]), "must be positive and ascending"),
    "wide": (put("model", n_feature=10**9, attention="performer", position="none"), "at most 65536"),
    "float size": (put("model", n_layer=2.0), "n_layer is '2.0', which is not of type int"),
    "word for a switch": (put("model", pre_lnorm="no"), "pre_lnorm is 'no', which is not of type bool"),
    "switch for a number": (put("model", n_layer=True), "n_layer is 'True'"),
    "newer": (put("model", hyper=1), "written by a newer version of txl, so upgrade"),
    "no such encoding": (put("model", position="?"), "config.json"),
    "list": (lambda record: record.update(model=[]), "model is '[]'"),
    "context": (put("context", mem_len="8"), "mem_len is '8'"),
    "negative": (put("context", mem_len=-5), "mem_len -5: must be at least 0"),
    "no context": (lambda record: record.pop("context"), "config.json"),
    "attachments": (lambda record: record.update(attachments=3), "attachments is '3'"),
    "digests": (lambda record: record.update(files=[]), "files is '[]'"),
    "format": (lambda record: record.update(format=3), "of format 3, this txl reads 1 to 2"),
}
RUNS: dict[str, tuple[Change, str]] = {
    "train": (put("train", lr="0.1"), "lr is '0.1'"),
    "newer": (put("train", hyper=1), "newer version"),
    "range": (put("train", lr=-1), "lr -1: must be above 0"),
    "no train": (lambda record: record.pop("train"), "config.json"),
    "data": (put("data", min_freq=0.5), "min_freq is '0.5'"),
    "texts": (lambda record: record.update(texts=[1]), "texts is '[1]'"),
}
PROGRESS: dict[str, tuple[Change, str]] = {
    "no plateau": (lambda progress: progress.pop("plateau"), "plateau"),
    "float step": (lambda progress: progress.update(batch=1.5), "batch is '1.5'"),
    "other step": (lambda progress: progress.update(step=3), "another step"),
    "newer": (lambda progress: progress.update(hyper=1), "newer version"),
}


def require_refused(here: Here, line: str, folder: Path, name: str, table: dict[str, tuple[Change, str]]) -> None:
    good = (folder / name).read_text()
    for what, (change, why) in table.items():
        change_record(folder, change, name)
        said = here.refused(line)
        assert why in said, what
        assert str(folder) in said, what
        assert "--" not in said, what  # it is no flag that is to blame
        (folder / name).write_text(good)


def test_a_configuration_that_cannot_be_is_refused_before_anything_is_built(here: Here) -> None:
    best = pointed(Path("run"), "best")
    require_refused(here, "generate", best, "config.json", MODELS)
    for content in ("[" * 10**5, "[]", "3", '{"format": 1e400}', '{"format": ' + "1" * 5000 + "}"):
        (best / "config.json").write_text(content)
        sign(best)
        assert str(best / "config.json") in here.refused("generate")


def test_what_a_run_goes_on_with_is_checked_too(here: Here) -> None:
    last = Path("run/step_00000004")
    for folder in set(Path("run").glob("step_*")) - {last}:
        shutil.rmtree(folder)
    require_refused(here, "train --work_dir run --resume", last, "config.json", RUNS)
    require_refused(here, "train --work_dir run --resume", last, "progress.json", PROGRESS)

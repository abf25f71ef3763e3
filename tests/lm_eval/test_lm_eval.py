"""lm-evaluation-harness with our models; scripts/test_with_transformers.sh makes its environment and runs this."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import txl
from tests.cli.conftest import Outcome, call, entry_points, run_folder, trained, write_text
from txl.config import UsageError

harness = pytest.importorskip("lm_eval", reason="lm_eval is not installed; run scripts/test_with_transformers.sh")
from txl.lm_eval import TransformerXLForHarness  # noqa: E402

__all__ = ["call", "entry_points", "run_folder", "trained", "write_text"]
pytestmark = pytest.mark.slow
PAGE = "= bab =\n\nbab ded bab , the ded .\n" + "ded bab bab ded \n" * 40
TASK = """
task: page
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
metadata: {{version: 1.0}}
"""
CHOICE = """
task: choice
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: multiple_choice
test_split: test
doc_to_text: "bab ded"
doc_to_choice: ["bab", "ded", "nobody knows"]
doc_to_target: 0
metadata: {{version: 1.0}}
"""
WRITE = """
task: write
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: generate_until
test_split: test
doc_to_text: "bab ded"
doc_to_target: "ded"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 12}}
metric_list:
  - metric: exact_match
metadata: {{version: 1.0}}
"""


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=args) for args in arguments]


def nats_of_eval(run: Path, folder: Path, call: Callable[..., Outcome], *flags: object) -> float:
    """The page's total, by eval.py."""
    (folder / "page.txt").write_text(PAGE)
    typed = ["--work_dir", run, "--text", folder / "page.txt", "--per_token", folder / "page.json", *flags]
    assert call("eval", *typed).status == 0
    return math.fsum(token["nats"] for token in json.loads((folder / "page.json").read_text())["tokens"])


@pytest.mark.parametrize("mem_len", [None, 5])
def test_a_page_has_the_figures_of_eval_py(
    run_folder: Path, tmp_path: Path, call: Callable[..., Outcome], mem_len: int | None
) -> None:
    flags = [] if mem_len is None else ["--mem_len", mem_len]
    model = TransformerXLForHarness(str(run_folder), mem_len=mem_len, batch_size=1)
    (found, nothing) = model.loglikelihood_rolling(requests((PAGE,), ("",)))
    assert found == pytest.approx(-nats_of_eval(run_folder, tmp_path, call, *flags), rel=1e-6)
    assert nothing == 0.0


def test_continuations(run_folder: Path) -> None:
    model, lm = TransformerXLForHarness(str(run_folder)), txl.load(run_folder)
    context = "bab ded " * 30
    likely = lm.generate(context, length=3, temperature=0)
    pairs = [(context, " bab ded"), (context, f" {likely}"), ("", "ded"), ("ded", " bab\n")]
    found = model.loglikelihood(requests(*pairs))
    for (nats, is_greedy), pair in zip(found, pairs, strict=True):
        assert nats == pytest.approx(lm.loglikelihood(*pair), rel=1e-5)
        assert isinstance(is_greedy, bool)
    assert found[1][1]
    assert not model.loglikelihood(requests((context, " <unk>")))[0][1]


def test_generation_ends_at_a_string(run_folder: Path) -> None:
    model, lm = TransformerXLForHarness(str(run_folder)), txl.load(run_folder)
    whole = lm.generate("bab ded", length=20, temperature=0, allow_unknown=False)
    asked = {"until": ["bab"], "max_gen_toks": 20}
    settings = [asked, {"until": "never", "max_gen_toks": 20}, {"until": [], "max_gen_toks": 3, "temperature": 0.0}]
    stopped, unstopped, short = model.generate_until(requests(*(("bab ded", each) for each in settings)))
    assert stopped == whole[: whole.index("bab")] if "bab" in whole else whole
    assert unstopped == whole
    assert whole.startswith(short)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("path=RUN,memlen=64", "memlen=64: no such setting; there are path, vocabulary, tgt_len, mem_len, clamp_len"),
        ("path=RUN,same_length=True,x=1", "same_length=True, x=1: no such setting"),
        ("path=RUN,mem_len=x", "mem_len=x: not a whole number"),
        ("path=RUN,dtype=float16", "dtype=float16: "),
        ("mem_len=5", "path is missing; give --model_args path=RUN"),
    ],
)
def test_settings_without_effect_are_refused_by_name(run_folder: Path, settings: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        TransformerXLForHarness.create_from_arg_string(settings.replace("RUN", str(run_folder), 1), {"batch_size": 1})


def test_settings_of_the_harness_itself_are_taken(run_folder: Path) -> None:
    passed = {"batch_size": "auto:4", "max_batch_size": 8, "device": "cuda:0", "trust_remote_code": True}
    model = TransformerXLForHarness.create_from_arg_obj({"path": str(run_folder), "dtype": "auto"}, passed)
    assert model.lm.context == txl.load(run_folder).context


def test_the_command_of_the_harness(run_folder: Path, tmp_path: Path, call: Callable[..., Outcome]) -> None:
    data = tmp_path / "pages.json"
    data.write_text(json.dumps({"page": PAGE}) + "\n")
    for name, task in (("page", TASK), ("choice", CHOICE), ("write", WRITE)):
        (tmp_path / f"{name}.yaml").write_text(task.format(data=data))
    command = [sys.executable, "-m", "txl.lm_eval", "--model", "txl", "--model_args", f"path={run_folder}"]
    flags = ["--tasks", "page,choice,write", "--include_path", tmp_path, "--output_path", tmp_path / "out.json"]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    root = Path(txl.__file__).parents[1]
    subprocess.run([*command, *flags], env=os.environ | offline, cwd=root, check=True, capture_output=True, text=True)
    results = json.loads(next(tmp_path.glob("out*.json")).read_text())["results"]
    nats = nats_of_eval(run_folder, tmp_path, call)
    found = results["page"]["word_perplexity,none"]
    assert math.log(found) == pytest.approx(nats / len(re.split(r"\s+", PAGE)), rel=1e-6)
    assert results["choice"]["acc,none"] in (0.0, 1.0)
    assert "exact_match,none" in results["write"]
    wrong = subprocess.run([*command[:-1], "path=nowhere", *flags], cwd=root, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith("lm_eval.py: nowhere: no such file or folder")

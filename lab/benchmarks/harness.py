"""lm-evaluation-harness with our model and with its own `hf` on the same weights, in float32: whole tasks.

    PYTHON -m lab.benchmarks.harness FOLDER --text FILE [--bigbench FILE] [--only NAME ...] [--json FILE]

PYTHON is that of an environment with lm-eval, transformers and what txl needs. FOLDER is one of Hugging Face, such as
lab/scripts/get_smollm2.sh writes. The tasks are made of WikiText's FILE (its pages, and the last words of its
paragraphs) and of the package `bigbench`:

    pip download --no-deps --no-binary :all: bigbench==1.0.0

Each pair of readings is two runs of the harness's own command; a row says the figures of both, and the largest
difference of a request.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl.data_utils.pretrained import Pretrained

WINDOW = 512
"""Of the readings of pages that do not fit it."""
PAGE = 1500
"""Tokens of the longest page that is read as one that fits."""
N_LAST_WORDS = 50
BIGBENCH = ("analytic_entailment", "crass_ai", "physical_intuition")
ROLLING = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{page}}",
    "metric_list": [
        {"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")
    ],
}
LAST_WORD = {
    "output_type": "loglikelihood",
    "doc_to_text": "{{before}}",
    "doc_to_target": " {{word}}",
    "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
}
CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{right}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


@dataclass(frozen=True)
class Reading:
    """Tasks that both models do in one run of the harness.

    Attributes:
        flags: of the harness.
        ours, theirs: settings of the models.
    """

    tasks: Sequence[str]
    flags: Sequence[str] = ()
    ours: str = ""
    theirs: str = ""


CHAT = ("--apply_chat_template", "--system_instruction", "Answer in a few words.")
READINGS = {
    "plain": Reading(("pages", "last_word", *BIGBENCH, "long")),
    "chat": Reading(("analytic_entailment",), (*CHAT, "--num_fewshot", "1")),
    "window": Reading(
        ("pages",),
        ours=f",tgt_len=128,mem_len={WINDOW - 128 - 4}",
        theirs=f",max_length={WINDOW}",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, metavar="FILE", required=True, help="of WikiText")
    parser.add_argument("--bigbench", type=Path, metavar="FILE", help="bigbench-1.0.0.tar.gz")
    parser.add_argument(
        "--only", nargs="+", choices=READINGS, default=list(READINGS), help="not all of them"
    )
    parser.add_argument("--limit", type=positive, help="documents of each task [all]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    versions = {name: version(name) for name in ("lm_eval", "transformers")}
    write_as_found(args.json, compared(args), **versions)


def compared(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each reading, printed as it is found."""
    print(
        "| reading | task | documents | metric | hf | txl | nats of a request |\n"
        + "|---" * 7
        + "|"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = of_text(args.text, args.folder)
        if args.bigbench is not None:
            documents |= of_bigbench(args.bigbench)
        for task, (kind, found) in documents.items():
            write_task(folder, task, kind, found)
        for reading in args.only:
            tasks = [task for task in READINGS[reading].tasks if task in documents]
            if tasks:
                yield from rows_of(reading, tasks, args, folder)


def rows_of(
    name: str, tasks: Sequence[str], args: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """Both runs of a reading, and a row for each task."""
    reading = READINGS[name]
    at = args.folder.resolve()
    out = {"hf": folder / f"{name}-hf", "txl": folder / f"{name}-txl"}
    limit = ["--limit", str(args.limit)] if args.limit else []
    flags = ["--tasks", ",".join(tasks), *reading.flags, *limit]
    run("hf", f"pretrained={at},dtype=float32{reading.theirs}", flags, out["hf"])
    run("txl", f"path={at},dtype=float32{reading.ours}", flags, out["txl"])
    for task in tasks:
        row = {
            "reading": name,
            "task": task,
            "flags": list(reading.flags),
            "settings": {"hf": reading.theirs[1:], "txl": reading.ours[1:]},
            **beside(out["hf"], out["txl"], task),
        }
        for metric, (theirs, ours) in row["metrics"].items():
            print(
                f"| {name} | {task} | {row['documents']} | {metric} | {theirs:.6f} | {ours:.6f} |"
                f" {row['nats']:.1g} |",
                flush=True,
            )
        yield row


def beside(out_theirs: Path, out_ours: Path, task: str) -> dict[str, Any]:
    """Of two runs: each metric, theirs and ours, and the largest difference of a request."""
    theirs, theirs_each = figures(out_theirs, task)
    ours, ours_each = figures(out_ours, task)
    pairs = list(zip(theirs_each, ours_each, strict=True))
    return {
        "documents": theirs.pop("documents"),
        "requests": len(pairs),
        "nats": max(abs(a - b) for a, b in pairs),
        "relative": max(abs(a - b) / abs(a) for a, b in pairs),
        "metrics": {metric: (value, ours[metric]) for metric, value in theirs.items()},
    }


def run(model: str, settings: str, flags: Sequence[str], out: Path) -> None:
    """The harness's own command, with the tasks in the folder of `out`."""
    command = [sys.executable, "-m", "txl.lm_eval", "--model", model, "--model_args", settings]
    command += ["--device", "cpu", "--batch_size", "1", "--log_samples", *flags]
    command += ["--include_path", str(out.parent), "--output_path", str(out)]
    home = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out.parent / "home")}
    done = subprocess.run(command, env=os.environ | home, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{model}: {done.stderr[-2000:]}")


def figures(out: Path, task: str) -> tuple[dict[str, Any], list[float]]:
    """The task's metrics, and the log-likelihood of each request."""
    (of_all,) = out.rglob("results_*.json")
    result = json.loads(of_all.read_text())
    metrics = {"documents": result["n-samples"][task]["effective"]}
    for key, value in result["results"][task].items():
        if key.endswith(",none") and "stderr" not in key:
            metrics[key.removesuffix(",none")] = value
    each = []
    (samples,) = out.rglob(f"samples_{task}_*.jsonl")
    lines = map(json.loads, samples.read_text().splitlines())
    for sample in sorted(lines, key=lambda sample: sample["doc_id"]):
        for (answer,) in sample["resps"]:
            each.append(float(answer[0] if isinstance(answer, list) else answer))
    return metrics, each


Documents = dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]
"""The kind of each task, and what it asks."""


def of_text(path: Path, folder: Path) -> Documents:
    """Tasks of WikiText: its pages that fit, the first that does not, and the last words of
    paragraphs.
    """
    text = path.read_text()
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Pretrained.of_folder(folder, config["vocab_size"])
    pages = [page for page in re.split(r"(?m)^(?= = [^=\n]+ = $)", text) if page.strip()]
    sized = [(len(tokenizer.encode(page).ids), page) for page in pages]
    short = [{"page": page} for n_token, page in sized if n_token <= PAGE]
    window = config["max_position_embeddings"]
    long = [{"page": page} for n_token, page in sized if window < n_token <= 1.5 * window]
    words = []
    for paragraph in text.splitlines():
        found = re.fullmatch(r" ([^=].{200,1000}) (\w+) \. ", paragraph)
        if found:
            words.append({"before": found[1], "word": found[2]})
    return {
        "pages": (ROLLING, short),
        "long": (ROLLING, long[:1]),
        "last_word": (LAST_WORD, words[:N_LAST_WORDS]),
    }


def of_bigbench(path: Path) -> Documents:
    """Tasks of BIG-bench: the questions that have one right answer."""
    found: Documents = {}
    with tarfile.open(path) as package:
        for name in BIGBENCH:
            file = f"bigbench-1.0.0/bigbench/benchmark_tasks/{name}/task.json"
            content = package.extractfile(file)
            assert content is not None
            questions = []
            for example in json.load(content)["examples"]:
                scores = list(example["target_scores"].values())
                if scores.count(1) == 1:
                    question = {"question": example["input"], "right": scores.index(1)}
                    questions.append(question | {"choices": list(example["target_scores"])})
            found[name] = (CHOICE, questions)
    return found


def write_task(
    folder: Path, name: str, kind: dict[str, Any], documents: list[dict[str, Any]]
) -> None:
    """A task of the harness, and its documents beside it."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        **kind,
        "metadata": {"version": 1.0},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


if __name__ == "__main__":
    main()

"""Training on a CPU beside nanoGPT: its example for a CPU, and how long ours takes to its loss.

    python -m lab.benchmarks.nanogpt NANOGPT_FOLDER TEXT [--json FILE]

NANOGPT_FOLDER is a checkout of karpathy/nanoGPT, which is copied and left as it is; TEXT is a file of
UTF-8 text, whose last tenth is held out. nanoGPT trains by the example for a CPU of its README: 4
layers of 128, 2,000 updates of 12 x 64 characters, in float32, which is all that it computes in on
a CPU. Ours trains on the same characters, in bfloat16 where the processor is made for it.

Timed is the whole program of a training: its start, the reading of the text, the updates, the last
checkpoint. Evaluations are short: nanoGPT's is of 20 batches of either split, before the first
update and after the last; ours of 20 batches of the held-out text, after the last. The loss is read
afterwards by another program, which is not timed: nanoGPT's in blocks of 64 characters, each alone;
ours by eval.py, in segments of 64 with the memory of the training. All read the whole held-out text
and score every character but the first. Blocks that are read alone see nothing before them, so
nanoGPT is read once more in blocks that overlap by half, each character with half a block before
it at least.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from lab.benchmarks.peers import PeerError, say_machine, write_as_found
from lab.benchmarks.shapes import TINY_FLAGS

ROOT = Path(__file__).parents[2]
BLOCK = 64
BLOCKS_AT_ONCE = 128
DATASET = "shakespeare_char"
"""The name under which nanoGPT's configuration looks for the text, whatever text it is."""
OUT = "out-shakespeare-char"
THEIR_UPDATES = 2000
THEIR_EXAMPLE = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12"
    " --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0"
)
OUR_SHAPE = (
    "--n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --dropout 0.0 --tgt_len 64"
)
OUR_LOGS = "--log_interval 100 --max_eval_steps 20 --sample_length 0"
TINY_UPDATES = 2
THEIR_TINY = "--n_layer=1 --n_head=2 --n_embd=16 --eval_iters=1 --batch_size=2"


class Training(NamedTuple):
    """One of ours.

    Attributes:
        name: of its row.
        updates: how many.
        mem_len: characters of memory, in training and in evaluation.
        flags: of train.py.
    """

    name: str
    updates: int
    mem_len: int
    flags: str


_ADAMW = (
    "--batch_size 12 --optim adamw --lr 0.001 --eta_min 0.0001 --beta2 0.99 --weight_decay 0.1"
    " --clip 1 --warmup_step 100"
)
_MUON = "--optim muon --pre_lnorm --weight_decay 0.1 --clip 1"
_MUON_12 = f"--batch_size 12 {_MUON} --lr 0.005 --warmup_step 100"
_MUON_32 = f"--batch_size 32 {_MUON} --lr 0.01 --warmup_step 20"
TRAININGS = (
    Training("txl, Muon, memory 64, 32 streams", 150, 64, _MUON_32),
    Training("txl, Muon, memory 64, 32 streams", 300, 64, _MUON_32),
    Training("txl, Muon, memory 64", 400, 64, _MUON_12),
    Training("txl, Muon, memory 64", 700, 64, _MUON_12),
    Training("txl, AdamW, no memory", 2000, 0, _ADAMW),
)
"""The rate, warmup and streams of the first two were found by a few runs that read Shakespeare's
last tenth."""


class Split(NamedTuple):
    """A text and the end of it that is held out."""

    train: str
    valid: str


def split(text: str) -> Split:
    """The last tenth held out, from the beginning of a line where there is one.

    A text ends in a line end, since ours adds one to a document that has none.
    """
    if not text.endswith("\n"):
        text += "\n"
    end = text.find("\n", int(0.9 * len(text)), len(text) - 1) + 1
    if end == 0:
        end = int(0.9 * len(text))
    return Split(text[:end], text[end:])


def write_for_nanogpt(folder: Path, text: Split) -> None:
    """The files that nanoGPT trains on: the characters as ids of two bytes, and their number."""
    characters = sorted(set(text.train + text.valid))
    id_of = {character: i for i, character in enumerate(characters)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", text.train), ("val", text.valid)):
        ids = np.array([id_of[character] for character in part], dtype=np.uint16)
        ids.tofile(folder / f"{name}.bin")
    meta = {"vocab_size": len(characters), "stoi": id_of, "itos": dict(enumerate(characters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def write_for_ours(folder: Path, text: Split) -> None:
    """The files that ours trains on."""
    folder.mkdir()
    (folder / "train.txt").write_text(text.train, encoding="utf-8")
    (folder / "valid.txt").write_text(text.valid, encoding="utf-8")


class Took(NamedTuple):
    """Seconds that have passed, and those that its threads have computed, together."""

    wall_s: float
    cpu_s: float


def time_of(command: list[str], folder: Path) -> Took:
    """How long a program takes, from its start to its end.

    Raises:
        PeerError: with the last line that it has printed, if it fails.
    """
    start = time.perf_counter()
    before = os.times()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = os.times()
    wall_s = time.perf_counter() - start
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    if done.returncode:
        lines = (done.stderr.strip() or f"status {done.returncode}").splitlines()
        raise PeerError(f"{Path(command[1]).name}: {lines[-1]}")
    return Took(wall_s, cpu_s)


def their_model(folder: Path) -> torch.nn.Module:
    """The model that nanoGPT has trained in this folder."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checkpoint = torch.load(folder / OUT / "ckpt.pt", map_location="cpu", weights_only=True)
    with contextlib.redirect_stdout(None):  # it prints its number of parameters
        model = module.GPT(module.GPTConfig(**checkpoint["model_args"]))
    model.load_state_dict(checkpoint["model"])
    return model.eval()


@torch.inference_mode()
def nats_in_blocks(model: torch.nn.Module, ids: np.ndarray) -> float:
    """Nats a character, read in blocks that see nothing before them."""
    text = torch.from_numpy(ids.astype(np.int64))
    n_scored = len(text) - 1
    n_whole = n_scored // BLOCK * BLOCK
    inputs = [*text[:n_whole].view(-1, BLOCK).split(BLOCKS_AT_ONCE)]
    targets = [*text[1 : n_whole + 1].view(-1, BLOCK).split(BLOCKS_AT_ONCE)]
    if n_whole < n_scored:
        inputs.append(text[None, n_whole:-1])
        targets.append(text[None, n_whole + 1 :])
    total = 0.0
    for x_BT, y_BT in zip(inputs, targets, strict=True):
        _, loss = model(x_BT, y_BT)
        total += loss.item() * y_BT.numel()
    return total / n_scored


@torch.inference_mode()
def nats_in_overlapping_blocks(model: torch.nn.Module, ids: np.ndarray) -> float:
    """Nats a character, read with half a block before each; the first block is scored whole."""
    text = torch.from_numpy(ids.astype(np.int64))
    n_scored = len(text) - 1
    half = BLOCK // 2
    starts = torch.tensor([*range(0, n_scored - BLOCK, half), n_scored - BLOCK])
    nats = torch.zeros(n_scored)
    for some in starts.split(BLOCKS_AT_ONCE):
        at_BT = some[:, None] + torch.arange(BLOCK)
        y_BT = text[at_BT + 1]
        logits_BTV, _ = model(text[at_BT], y_BT)
        nats_BT = F.cross_entropy(logits_BTV.transpose(1, 2), y_BT, reduction="none")
        if some[0] == 0:
            nats[:half] = nats_BT[0, :half]
        nats[at_BT[:, half:]] = nats_BT[:, half:]
    return nats.double().mean().item()


def their_row(folder: Path, *, tiny: bool) -> dict[str, Any]:
    """Train by nanoGPT's example in its folder, and read the held-out text.

    Raises:
        PeerError: if its training fails.
    """
    updates = THEIR_UPDATES
    flags = THEIR_EXAMPLE
    if tiny:
        updates = TINY_UPDATES
        flags += f" {THEIR_TINY}"
    flags += (
        f" --max_iters={updates} --lr_decay_iters={updates} --eval_interval={updates}"
        " --always_save_checkpoint=True"
    )
    config = f"config/train_{DATASET}.py"
    took = time_of([sys.executable, "train.py", config, *flags.split()], folder)
    held_out = np.fromfile(folder / "data" / DATASET / "val.bin", dtype=np.uint16)
    model = their_model(folder)
    return {
        "program": "nanoGPT",
        "flags": f"{config} {flags}",
        "updates": updates,
        "train_s": took.wall_s,
        "train_cpu_s": took.cpu_s,
        "nats_per_character": nats_in_blocks(model, held_out),
        "nats_in_overlapping_blocks": nats_in_overlapping_blocks(model, held_out),
    }


def our_row(training: Training, text: Path, run: Path, *, tiny: bool) -> dict[str, Any]:
    """Train ours and read the held-out text.

    Raises:
        PeerError: if the training or the evaluation fails.
    """
    updates = training.updates
    flags = f"{OUR_SHAPE} --mem_len {training.mem_len} {training.flags}"
    if tiny:
        updates = TINY_UPDATES
        flags += f" {TINY_FLAGS} --warmup_step 1"
    flags += f" --max_step {updates} --eval_interval {updates} {OUR_LOGS}"
    where = ["--dataset", "characters", "--data", str(text), "--work_dir", str(run)]
    took = time_of([sys.executable, str(ROOT / "train.py"), *where, *flags.split()], text)
    figures = run / "figures.json"
    reading = f"--split valid --tgt_len {BLOCK} --mem_len {training.mem_len}"
    command = [sys.executable, str(ROOT / "eval.py"), "--work_dir", str(run), *reading.split()]
    time_of([*command, "--json", str(figures)], text)
    (row,) = json.loads(figures.read_text())["rows"]
    return {
        "program": training.name,
        "flags": flags,
        "updates": updates,
        "train_s": took.wall_s,
        "train_cpu_s": took.cpu_s,
        "nats_per_character": row["nats_per_token"],
    }


def first_row(path: Path) -> dict[str, Any]:
    """nanoGPT's row of an earlier call, from its file of results.

    Raises:
        PeerError: if there is no such row.
    """
    try:
        row = json.loads(path.read_text(encoding="utf-8"))["rows"][0]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise PeerError(f"--theirs {path}: {error}; name a file of --json") from error
    return row


def measured(checkout: Path, text: Split, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per training, nanoGPT's first, printed one by one."""
    print(
        f"{'':34}{'updates':>8}{'training, s':>13}{'cpu, s':>9}{'of its time':>13}{'nats':>8}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs = folder / "nanogpt"
        shutil.copytree(checkout, theirs, ignore=shutil.ignore_patterns(".git", "out*", "*.bin"))
        write_for_nanogpt(theirs / "data" / DATASET, text)
        write_for_ours(folder / "text", text)
        if args.theirs is None:
            first = their_row(theirs, tiny=args.tiny)
        else:
            first = first_row(args.theirs)
        yield said(first, first)
        print(f"{'  its blocks overlapping':77}{first['nats_in_overlapping_blocks']:8.3f}")
        for i, training in enumerate(TRAININGS):
            row = our_row(training, folder / "text", folder / f"run_{i}", tiny=args.tiny)
            yield said(row, first)


def said(row: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The row with its share of the first one's time, after a line that says it."""
    share = row["train_s"] / first["train_s"]
    print(
        f"{row['program']:34}{row['updates']:8,}{row['train_s']:13.1f}"
        f"{row['train_cpu_s']:9.1f}{share:13.2f}{row['nats_per_character']:8.3f}",
        flush=True,
    )
    return row | {"share_of_its_time": share}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, metavar="NANOGPT_FOLDER", help="a checkout of it")
    parser.add_argument("text", type=Path, metavar="TEXT", help="a file of UTF-8 text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--theirs", type=Path, metavar="FILE", help="of an earlier --json: its row of nanoGPT"
    )
    parser.add_argument("--tiny", action="store_true", help="two updates of models of no weight")
    args = parser.parse_args()
    if not args.checkout.is_dir():
        parser.error(f"{args.checkout}: No such folder; name a checkout of karpathy/nanoGPT")
    for name in ("train.py", "model.py", f"config/train_{DATASET}.py"):
        if not (args.checkout / name).is_file():
            parser.error(f"{args.checkout}: has no {name}; name a checkout of karpathy/nanoGPT")
    try:
        text = split(args.text.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8"
        parser.error(f"{args.text}: {reason}; name a file of UTF-8 text")
    if len(text.valid) <= BLOCK + 1:
        parser.error(f"{args.text}: its last tenth has no more than {BLOCK + 1} characters")
    say_machine()
    about = {"train_characters": len(text.train), "valid_characters": len(text.valid)}
    try:
        write_as_found(args.json, measured(args.checkout, text, args), **about)
    except PeerError as error:
        raise SystemExit(f"failed: {error}") from error


if __name__ == "__main__":
    main()

"""What a file asks for in time and memory is bounded, and said in one line."""

import copy
import json
import os
import pickle
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txl.data_utils import processes, subwords
from txl.data_utils.corpus import Corpus
from txl.data_utils.datasets import DataConfig
from txl.data_utils.processes import Apart
from txl.data_utils.raw_text import DataError
from txl.data_utils.subwords import Subwords


class Thing:
    """Does what it is asked to."""

    def double(self, n: int) -> int:
        return 2 * n

    def fail(self, error: BaseException) -> None:
        raise error

    def take(self, n_byte: int) -> int:
        return len(bytes(n_byte))

    def spin(self) -> None:
        while True:
            pass

    def abort(self) -> None:
        os.write(2, b"noise of a library\n")
        os.abort()

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd")) - 1  # of the folder itself


def test_a_process_answers_fails_and_is_started_again() -> None:
    thing = Apart(Thing, "thing")
    assert thing.call("double", 4, seconds=9) == 8
    for error in (KeyError("x"), BaseException("a panic\nof many lines")):
        with pytest.raises(ValueError, match=r"^(a panic|'x')$"):
            thing.call("fail", error, seconds=9)
    with pytest.raises(DataError, match="thing: takes more than 2048 MiB of memory, or fails"):
        thing.call("abort", seconds=9)
    for again in (thing, copy.copy(thing), pickle.loads(pickle.dumps(thing))):
        assert again.call("double", 5, seconds=9) == 10


def test_memory_and_time_are_bounded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MEMORY", 1 << 20)
    monkeypatch.setattr(processes, "_A_THREAD", 0)
    thing = Apart(Thing, "thing")
    with pytest.raises(ValueError, match="MemoryError"):
        thing.call("take", 1 << 28, seconds=9)
    with pytest.raises(DataError, match="thing: takes more than 0 s of processor time"):
        thing.call("spin", seconds=0)
    assert capfd.readouterr().err == ""


def test_locks_and_pipes_of_the_parent_are_not_held_on(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w"):
        # three streams and the pipe
        assert Apart(Thing, "thing").call("descriptors", seconds=9) == 4


# tokenizers


def rules(**parts: Any) -> str:
    content = json.loads(Subwords.trained([b"hello world"], 257).content)
    return json.dumps({**content, **parts})


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


EXPLODES: dict[str, tuple[Callable[[], str], str]] = {
    "pattern": (lambda: rules(pre_tokenizer=split("(x+x+)+y")), "retry-limit-in-match over"),
    "growth": (
        lambda: rules(normalizer=replace("x", "x" * 1000)),
        "makes [0-9]+ tokens of [0-9]+ bytes",
    ),
    "ids": (
        lambda: rules(
            model={"type": "BPE", "vocab": {"x": 2**32 - 1}, "merges": []}, added_tokens=[]
        ),
        "its 1 tokens have ids up to 4294967295",
    ),
}


@pytest.mark.parametrize("name", EXPLODES)
def test_a_tokenizer_that_explodes_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("tokenizers")
    content, why = EXPLODES[name]
    (tmp_path / "tokenizer.json").write_text(content())
    for split_name in ("train", "valid", "test"):
        (tmp_path / f"{split_name}.txt").write_text(f"{'x' * 300}\n")
    config = DataConfig(
        data=str(tmp_path), dataset="bpe", tokenizer=str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(
        DataError, match=rf"tokenizer\.json: .*{why}.*; give another|tokenizer\.json: {why}"
    ) as refused:
        Corpus(config, needed=("train",))
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_a_tokenizer_whose_text_does_not_end_is_refused() -> None:
    pytest.importorskip("tokenizers")
    grows = {"type": "Sequence", "decoders": [replace("e", "e" * 1000)] * 2}
    tokenizer = Subwords(rules(decoder=grows))
    with pytest.raises(DataError, match=r"tokenizer\.json: makes 1000000 characters of 1 tokens"):
        tokenizer.text_of([tokenizer.index["e"]])


def test_what_is_trained_here_needs_no_process_of_its_own() -> None:
    pytest.importorskip("tokenizers")
    assert type(subwords.encoder_of(rules())) is subwords.Encoder
    for other in (
        rules(normalizer=replace("a", "b")),
        rules(pre_tokenizer=split("a")),
        rules(decoder=replace("a", "b")),
        rules(post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}),
    ):
        one = subwords.encoder_of(other)
        assert type(one) is subwords.EncoderApart
        assert len(one.names()) == 257


def test_a_process_ends_though_another_holds_its_pipe() -> None:
    """One that was forked since and lives as long."""
    thing = Apart(Thing, "thing")
    thing.call("double", 1, seconds=9)
    ending = os.pidfd_open(thing._pid)
    holder = os.fork()
    if holder == 0:
        ended, _, _ = select.select([ending], [], [], 60)
        os._exit(0 if ended else 1)
    del thing
    assert os.waitpid(holder, 0) == (holder, 0)
    os.close(ending)


def test_a_process_ends_with_its_tokenizer() -> None:
    thing = Apart(Thing, "thing")
    thing.call("double", 1, seconds=9)
    pid = thing._pid
    del thing
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert signal.getsignal(signal.SIGXCPU) == signal.SIG_DFL

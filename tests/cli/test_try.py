"""`txl try`: what it chooses for a text, what it says, and that the text decides what it says."""

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.cli.conftest import Here
from txl.config import Context, as_words
from txl.data_utils.config import DataConfig
from txl.data_utils.texts import has_spaces, survey
from txl.evaluation.config import EvalConfig
from txl.evaluation.gain import Verdict, judge
from txl.evaluation.measures.token_losses import TokenLosses
from txl.evaluation.rows import Row
from txl.evaluation.score import Score
from txl.runs import trial as trial_module
from txl.runs.scoring import Split
from txl.runs.trial import Plan, Trial, in_time, name_of, plan_of
from txl.runtime.clock import Clock
from txl.settings.layers import Asked
from txl.training.loop import Outcome

SMALL = "--n_layer 1 --d_model 16 --n_head 2 --d_head 8 --d_inner 16 --batch_size 2 --tgt_len 8 --mem_len 8"
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def lines_of(n_line: int, n_word: int, *, times: int = 1) -> str:
    rng = random.Random(1)
    lines = [" ".join(rng.choices(SYLLABLES, k=n_word)) + "\n" for _ in range(n_line)]
    return "".join(times * line for line in lines)


# what is chosen


def planned(text: str, **typed: Any) -> Plan:
    Path("mine.txt").write_text(text)
    return plan_of({"minutes": 5.0, "data": "mine.txt", **typed})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_words_between_spaces_are_read_as_subwords_and_others_as_characters() -> None:
    asked = planned(lines_of(500, 9)).asked
    assert (asked["dataset"], asked["vocab_size"]) == ("bpe", 512)
    asked = planned("\u6771\u4eac\u90fd\u306f\u5927\u304d\u3044\u3002\n" * 500).asked
    assert asked["dataset"] == "characters"
    assert "vocab_size" not in asked


@pytest.mark.usefixtures("folder")
def test_what_is_typed_wins_over_what_is_chosen() -> None:
    typed = {"dataset": "characters", "dropout": 0.5, "held_out": 0.1, "work_dir": "runs/x"}
    asked = planned(lines_of(500, 9), **typed).asked
    assert {name: asked[name] for name in typed} == typed
    assert "vocab_size" not in asked


@pytest.mark.usefixtures("folder")
def test_streams_may_be_given_per_process() -> None:
    plan = planned(lines_of(500, 9), dataset="characters", local_batch_size=8)
    assert plan.asked["batch_size"] == 8
    assert plan.asked["max_step"] == 553, "half of the 16 of the preset"


@pytest.mark.parametrize(("status", "reason"), [(0, "stopped by --max_hours"), (1, None)])
def test_a_training_that_does_not_reach_its_end_is_not_judged(
    status: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ending(asked: Asked, clock: Clock, after_s: Any, at_end: Any) -> int:
        at_end(Outcome(1.0, 9.0, status, reason))
        return status

    monkeypatch.setattr(trial_module, "train", ending)
    plan = Plan({"work_dir": "runs/none", "minutes": 1.0}, 9, 9)
    assert trial_module.trained_and_read(plan, Clock(), {}) == (status, None)


@pytest.mark.usefixtures("folder")
def test_no_trial_is_overwritten() -> None:
    Path("runs/try-mine").mkdir(parents=True)
    Path("runs/try-mine-2-against-none").mkdir()
    plan = planned(lines_of(500, 9), dataset="characters")
    assert str(plan.run) == "runs/try-mine-2"
    assert str(plan.against("none", 500).run) == "runs/try-mine-2-against-none-2"
    again = planned(lines_of(500, 9), dataset="characters", work_dir="runs/x", overwrite=True)
    Path("runs/x-against-none").mkdir()
    assert str(again.against("none", 500).run) == "runs/x-against-none"


@pytest.mark.usefixtures("folder")
def test_a_small_text_is_not_read_more_often_than_helps_and_gives_a_larger_share() -> None:
    plan = planned(lines_of(500, 9), dataset="characters")
    assert plan.asked["held_out"] == 0.15
    assert plan.asked["max_step"] == 276, "30 readings in updates of 1,024 tokens"
    assert plan.after_s(2.0) == pytest.approx((17 + 5) * 2.0 * plan.n_test / plan.n_valid)


@pytest.mark.usefixtures("folder")
def test_a_slow_machine_reads_less_of_the_test_split_so_that_time_is_left_to_train() -> None:
    """A third of five minutes: 100 s for 17 readings, beside those for the page; where they do not
    do for the fewest tokens, for the 8 that are needed."""
    plan = planned(lines_of(500, 9))._replace(n_valid=17_000, n_test=20_000)
    assert (plan.n_to_read(4.25), plan.after_s(4.25)) == (20_000, 85.0 + 25.0)
    assert plan.n_to_read(10.0) == 10_000
    assert plan.after_s(10.0) == pytest.approx(100.0 + 5 * 10.0 * 10 / 17)
    assert plan.n_to_read(30.0) == 6_000
    assert plan.after_s(30.0) == pytest.approx(100.0 + 5 * 30.0 * 6 / 17)
    assert plan.after_s(50.0) == pytest.approx((8 + 5) * 50.0 * 6 / 17)


def test_longer_memories_are_read_while_there_is_time() -> None:
    """A reading takes a second here, with borders aside three."""

    class Ticks:
        at = 0.0

        def seconds(self) -> float:
            return self.at

    needed = [(EvalConfig(borders=borders), Context()) for borders in ("cut", "aside")]
    longer = [(EvalConfig(borders=borders), Context(mem_len=9)) for borders in ("cut", "aside")]
    between = [(EvalConfig(), Context(mem_len=5))]
    every = [*needed, *longer, *between]
    for until_s, read in [(0, needed), (6, [*needed, *between]), (12, every)]:
        clock = Ticks()
        found = []
        for way in in_time(needed, [longer, between], cast(Clock, clock), until_s):
            found.append(way)
            clock.at += 3 if way[0].borders == "aside" else 1
        assert found == read


@pytest.mark.usefixtures("folder")
def test_the_second_model_has_the_same_flags_but_for_its_memory() -> None:
    plan = planned(lines_of(500, 9), dataset="characters")
    other = plan.against("none", 500)
    changed = {"memory": "none", "mem_len": 0, "draw_mem_len": 0, "work_dir": str(other.run)}
    assert other.asked == plan.asked | changed
    assert str(other.run) == "runs/try-mine-against-none"
    assert other.n_to_read(1e9) == 500, "as many tokens as were read with the first model"
    assert plan.against("compressive", 500).asked["mem_len"] == 128
    assert other.is_other
    assert not plan.is_other


@pytest.mark.usefixtures("folder")
def test_a_survey_says_how_large_a_text_is() -> None:
    Path("mine.txt").write_text("\u00e4 b\n" * 1000)
    found = survey(DataConfig(data="mine.txt", dataset="bpe"))
    assert (found.n_byte, found.n_char, found.n_file) == (5000, 4000, 1)
    assert found.is_held_out


def test_spaces_are_counted() -> None:
    assert has_spaces("some words between spaces\n")
    assert not has_spaces("\u6771 \u4eac \u90fd \u306f")
    assert not has_spaces("0123456789abcdef" * 9)


def test_flags_become_words_and_runs_get_names() -> None:
    given = {"data": ("a b", "c"), "lr": 0.1, "pre_lnorm": True, "same_length": False, "ema": None}
    assert as_words(given) == "--data|a b|c|--lr|0.1|--pre_lnorm|--no_same_length".split("|")
    names = {
        "x/my text.txt": "my-text",
        "/data/shakespeare/input.txt": "shakespeare-input",
        "a.csv": "a-csv",
    }
    assert {data: name_of(data) for data in names} == names


# what is said


def row(nats_N: np.ndarray, mem_len: int, borders: str) -> Row:
    n_token = len(nats_N)
    nats_N = np.concatenate([[np.nan], nats_N]).astype(np.float32)
    context = Context(tgt_len=8, mem_len=mem_len)
    ids_N = np.arange(n_token + 1) % 50
    tokens = TokenLosses("test", {}, "", ids_N, nats_N, np.ones(n_token + 1), borders=borders)
    score = Score(float(np.nansum(nats_N)), n_token)
    return Row("test", context, score, 1.0, tokens=tokens, borders=borders)


def verdict(
    *, saved: float, spread: float = 0.1, nats: float = 2.0, n_train: int = 40_000, n: int = 9000
) -> Verdict:
    rng = np.random.default_rng(0)
    base_N = np.full(n, nats) + rng.normal(0, 0.5, n)
    rows = []
    for borders, more in (("cut", 0.2), ("aside", 0.0)):
        rows.append(row(base_N + saved + more + rng.normal(0, spread, n), 0, borders))
        rows.append(row(base_N, 8, borders))
        rows.append(row(base_N + 0.01, 16, borders))
    train_ids = np.arange(n_train) % 50
    return judge(
        rows,
        {},
        starts=None,
        trained=Context(tgt_len=8, mem_len=8),
        reset="never",
        train_ids=train_ids,
    )


def test_a_verdict_is_about_what_is_saved_by_seeing_further() -> None:
    assert verdict(saved=0.05).word == "helps"
    assert verdict(saved=0.0).word == "not shown"
    assert verdict(saved=-0.05).word == "not shown"
    assert verdict(saved=0.004, spread=0.001).word == "not shown", (
        "an interval above 0, and less than seeds differ by"
    )
    assert verdict(saved=0.01, spread=20.0).word == "not shown"


def test_little_text_and_little_training_tell_nothing() -> None:
    assert verdict(saved=0.05, n_train=29_000).word == "too short to tell"
    short = verdict(saved=0.05, n=300)
    assert short.word == "too short to tell"
    assert "20 are needed" not in short.sentence()
    assert verdict(saved=0.0, nats=3.5).word == "too early to tell"
    assert verdict(saved=0.05, nats=3.5).word == "helps"


def test_a_sentence_has_both_figures_and_what_lies_beyond_is_said_to_be() -> None:
    found = verdict(saved=0.05)
    claim = r"memory helps: memory 8 in place of none: 2\d\.\d % lower perplexity a token .* % .* by seeing further.*"
    assert re.fullmatch(claim, found.sentence())
    assert found.beyond is not None
    assert "16 is more than the 8 of the training" in found.beyond.claim()
    assert json.loads(json.dumps(found.as_dict()))["word"] == "helps"


def trial(nats: float, mem_len: int, *, reset: str) -> Trial:
    """900 tokens in documents of 30."""
    rng = np.random.default_rng(mem_len)
    rows = [row(nats + rng.normal(0, 0.1, 899), mem_len, borders) for borders in ("cut", "aside")]
    lm = SimpleNamespace(context=Context(tgt_len=8, mem_len=mem_len), reading={"reset": reset})
    split = Split("test", np.arange(900), {}, lambda: np.arange(0, 900, 30))
    return Trial(cast(Any, lm), cast(Any, None), split, rows)


def test_two_models_are_compared_where_the_text_is_long_enough_for_an_interval() -> None:
    """Documents that are read alone are drawn whatever their length, see `blocks_of`."""
    found = {}
    for reset in ("document", "never"):
        mine, theirs = trial(1.0, 64, reset=reset), trial(1.1, 0, reset=reset)
        found[reset] = trial_module.compared(mine, theirs, "none")
    assert re.search(r"\): 9\.\d % lower perplexity a token \(\d", found["document"]["sentence"])
    assert set(found["document"]["share"]) == {"cut", "aside"}
    assert found["never"]["sentence"].endswith(
        "): too short to tell, 4 stretches of 200 tokens; 20 are needed"
    )
    assert found["never"]["share"] == {}


# the program


def test_the_page_is_of_as_many_tokens_as_were_read(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "MOST_TOKENS", 100)
    Path("mine.txt").write_text(lines_of(200, 9))
    here(f"try mine.txt --dataset characters {SMALL} --eval_tgt_len 8 --minutes 1e-9")
    report = json.loads(Path("runs/try-mine/report.json").read_text())
    assert report["n_token"] == 99
    here("report runs/try-mine --json whole.json --mem_len 0 8 --sample_length 0")
    whole = json.loads(Path("whole.json").read_text())
    assert whole["n_token"] > 99
    assert report["text"] != whole["text"], "a beginning is not compared with the whole"
    here("report runs/try-mine/report.json whole.json --out both.html")
    assert "different texts" in Path("both.html").read_text()


def test_figures_of_a_text_without_test_are_those_of_valid(here: Here) -> None:
    Path("mine").mkdir()
    Path("mine/train.txt").write_text(lines_of(200, 9))
    Path("mine/valid.txt").write_text(lines_of(20, 9))
    out = here(f"try mine --dataset characters {SMALL} --eval_tgt_len 8 --minutes 1e-9").out
    assert re.search(r"^\| valid: [\d,]+ tokens, perplexity ", out, flags=re.MULTILINE)
    assert "| test: " not in out


def test_it_trains_reads_samples_and_ends_in_a_sentence(here: Here) -> None:
    """With no time for more than one update; the run is one like any other."""
    Path("mine.txt").write_text(lines_of(200, 9))
    out = here(
        f"try mine.txt --dataset characters {SMALL} --eval_tgt_len 8 --minutes 1e-9 --against none"
    ).out
    last = out.splitlines()[-1]
    assert last.startswith("| too short to tell (give more text)")
    assert "against a model of no memory, trained for the same minutes" in last
    rows = re.findall(r"^test +8 +(\d+) .*?(aside)?$", out, flags=re.MULTILINE)
    needed = [("0", ""), ("8", ""), ("0", "aside"), ("8", "aside")]
    assert rows == [*needed, ("0", ""), ("0", "aside")], "and of the other model two"
    assert out.count("which were not there to train: give more --minutes") == 2
    assert "--resume --minutes" in out
    assert "| page: runs/try-mine/report.html" in out
    assert Path("runs/try-mine/report.html").is_file()
    found = json.loads(Path("runs/try-mine/try.json").read_text())
    assert found["verdict"]["word"] == "too short to tell"
    assert list(found["against"]) == ["none"]
    assert here.row("eval --work_dir runs/try-mine --data mine.txt --split test")["tokens"] > 0
    out = here(f"try mine.txt --dataset characters {SMALL} --eval_tgt_len 8 --minutes 1e-9").out
    advised = out.splitlines()[-1].partition("says what it is worth: txl try ")[2]
    same = f"mine.txt --dataset characters {SMALL} --eval_tgt_len 8 --minutes 1e-09 --against none"
    assert sorted(advised.split()) == sorted(same.split())
    assert "a larger one: txl try mine.txt --dataset characters --preset small" in out


def test_a_text_with_hardly_any_spaces_is_counted_in_characters_and_its_notice_said_once(
    here: Here,
) -> None:
    rng = random.Random(1)
    signs = [chr(0x4E00 + i) for i in range(40)]
    known = ["".join(rng.choices(signs, k=20)) + "\u3002\n" for _ in range(300)]
    Path("mine.txt").write_text("".join(known) + "\u9f98\n" * 20)
    outcome = here(f"try mine.txt {SMALL} --eval_tgt_len 8 --minutes 1e-9")
    (note,) = [line for line in outcome.notes if "not in the vocabulary" in line]
    assert re.search(r": 20 of \d+ characters are not in the vocabulary", note)
    assert " characters | cutoffs" in outcome.out
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("| test: ")]
    assert re.fullmatch(
        r"\| test: [\d,]+ tokens, perplexity [\d.]+ a token, [\d.]+ bits a character", line
    )
    Path("mine.txt").write_text(lines_of(200, 9))
    outcome = here(f"try mine.txt {SMALL} --eval_tgt_len 8 --minutes 1e-9 --dataset characters")
    assert " a word and line end, " in outcome.out


def test_what_cannot_be_tried_is_refused_in_a_line(here: Here) -> None:
    assert "TEXT: nothing to train on" in here.refused("try")
    assert "nothing.txt" in here.refused("try nothing.txt")
    Path("mine.txt").write_text(lines_of(20, 9))
    assert "--against elephant: no such memory" in here.refused("try mine.txt --against elephant")
    assert "--mem_len 0: no memory to judge" in here.refused("try mine.txt --mem_len 0")
    assert "--same_length: shows each token" in here.refused("try mine.txt --same_length")
    for memory in ("none", "recurrent_tokens"):
        assert f"--memory {memory}: has no length" in here.refused(
            f"try mine.txt --memory {memory}"
        )


# the text decides

QUICK = "--dataset text --n_layer 2 --d_model 64 --n_head 4 --d_head 16 --d_inner 128 --dropout 0"


def word_of(here: Here, text: str, flags: str) -> dict[str, Any]:
    Path("mine.txt").write_text(text)
    here(f"try mine.txt --minutes 60 --work_dir tried --documents file {QUICK} --seed 1 {flags}")
    return json.loads(Path("tried/try.json").read_text())["verdict"]


@pytest.mark.slow
def test_lines_that_stand_twice_are_helped_by_a_memory(here: Here) -> None:
    """Copies lie further back than a segment of 32."""
    flags = "--tgt_len 32 --eval_tgt_len 32 --mem_len 64 --max_step 700"
    found = word_of(here, lines_of(6000, 40, times=2), flags)
    assert found["word"] == "helps"
    assert found["gain"]["by_seeing_further"]["mean"] > 0.1


@pytest.mark.slow
def test_shuffled_lines_gain_nothing_by_seeing_further(here: Here) -> None:
    """A memory in place of none helps all the same, as it mends the borders of segments."""
    rng = random.Random(1)
    chain = {word: rng.choices(SYLLABLES, k=3) for word in SYLLABLES}
    lines = []
    for _ in range(8000):
        words = [rng.choice(SYLLABLES)]
        while len(words) < 12:
            words.append(rng.choice(chain[words[-1]]))
        lines.append(" ".join(words))
    found = word_of(here, "\n".join(lines) + "\n", "--max_step 300")
    assert found["word"] == "not shown"
    assert found["gain"]["in_all"]["low"] > 0
    assert found["gain"]["by_seeing_further"]["mean"] < 0.005

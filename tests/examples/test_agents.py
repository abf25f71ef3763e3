"""The agents of examples/agents: their environments, and trainings that go on as if never stopped."""

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from examples.agents import curves, ppo
from examples.agents.environments import TMaze, make
from txl.config import UsageError

pytestmark = pytest.mark.slow

SMALL = ppo.PPOConfig(
    n_env=4, n_step=8, n_update=4, n_epoch=1, n_part=2, mem_len=5, d_model=8, n_layer=1
)


PAGE = Path(__file__).parents[2] / "docs" / "agents.md"


def test_the_loop_of_the_page_learns_from_the_numbers_that_acted() -> None:
    """Before each update the learner's pass gives the probabilities that were stored, across resets and rollouts."""
    (loop,) = re.findall(
        r"^```python\n(import gymnasium.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    watched = loop.replace(
        "loss.backward()", "seen.append((iteration, ratio_BT, of_rows, reset_BT)); loss.backward()"
    )
    seen: list[tuple[int, torch.Tensor, object, torch.Tensor]] = []
    names: dict[str, Any] = {"seen": seen}
    torch.manual_seed(0)
    exec(compile(watched, PAGE.name, "exec"), names)
    assert names["memory"].ages_B.equal(names["acting"].ages_B)
    assert [iteration for iteration, *_ in seen] == [0] * 4 + [1] * 4
    for _, ratio_BT, _, _ in (seen[0], seen[4]):
        torch.testing.assert_close(ratio_BT, torch.ones_like(ratio_BT), rtol=0, atol=1e-5)
    assert not torch.allclose(seen[7][1], torch.ones(1), atol=1e-3)
    assert seen[4][2] is not None
    assert seen[4][3].any()


def test_the_cue_of_a_maze_is_shown_once_and_decides_at_its_end() -> None:
    maze = TMaze(64, length=5)
    seen, _ = maze.reset(seed=1)
    cue = seen[:, :2].argmax(axis=1) + 1
    assert set(cue) == {1, 2}
    for _ in range(5):
        seen, reward, ended, late, _ = maze.step(np.zeros(64, dtype=int))
        assert not any(x.any() for x in (seen[:, :2], reward, ended, late))
    assert seen[:, 2].all()
    _, reward, ended, _, _ = maze.step(np.ones(64, dtype=int))
    assert ended.all()
    assert (reward == (cue == 1)).all()
    seen, reward, ended, _, _ = maze.step(np.ones(64, dtype=int))  # resets, whatever is done
    assert (seen[:, :2].sum(axis=1) == 1).all()
    assert not any(x.any() for x in (reward, ended))


def test_turns_in_the_corridor_cost_and_time_runs_out() -> None:
    maze = TMaze(2, length=3)
    maze.reset(seed=1)
    for step in range(6):
        _, reward, ended, late, _ = maze.step(np.array([0, 2]))
        assert reward.tolist() == [0.0, -0.1]
        assert not ended.any()
        assert late.all() == (step == 5)


def test_velocities_are_hidden_and_unknown_environments_refused() -> None:
    seen, _ = make("cartpole", 3).reset(seed=1)
    assert seen.shape == (3, 2)
    with pytest.raises(UsageError, match="no-such-thing"):
        make("no-such-thing-v0", 3)


def test_what_is_not_typed_goes_on_as_it_was(tmp_path: Path) -> None:
    run = f"--work_dir {tmp_path / 'run'} --n_env 4 --n_step 4 --n_part 2 --d_model 16".split()
    ppo.main([*run, "--n_update", "1", "--decay", "0.5", "--env", "cartpole"])
    with pytest.raises(UsageError, match=r"run: holds a training; give --resume"):
        ppo.main(run)
    ppo.main(["--work_dir", str(tmp_path / "run"), "--resume", "--n_update", "2"])
    curve = json.loads((tmp_path / "run" / "curve.json").read_text())
    config = curve["config"]
    assert (config["decay"], config["env"], config["n_step"]) == (0.5, "cartpole", 4)
    assert len(curve["curve"]) == 2


def test_what_is_typed_counts_for_a_training_that_goes_on_or_is_refused(tmp_path: Path) -> None:
    run = f"--work_dir {tmp_path / 'run'} --n_env 4 --n_step 4 --n_part 2 --d_model 16".split()
    ppo.main([*run, "--n_update", "1", "--env", "cartpole"])
    resume = ["--work_dir", str(tmp_path / "run"), "--resume", "--n_update", "2"]
    with pytest.raises(UsageError, match=r"--env tmaze: .* goes on with cartpole"):
        ppo.main([*resume, "--env", "tmaze"])
    ppo.main([*resume, "--gamma", "0.5", "--n_step", "6"])
    acted = pickle.loads(ppo.checkpoint_in(tmp_path / "run")["actor"]).config
    assert (acted.gamma, acted.n_step) == (0.5, 6)


@pytest.mark.parametrize("env", ["tmaze", "cartpole", "Acrobot-v1"])
def test_a_training_that_goes_on_is_as_if_never_stopped(env: str, tmp_path: Path) -> None:
    whole = ppo.Training(replace(SMALL, env=env, work_dir=str(tmp_path / "whole")))
    whole.run()
    config = replace(SMALL, env=env, work_dir=str(tmp_path / "run"))
    first = ppo.Training(config)
    first.run(until=2)
    second = ppo.Training(config)
    second.resume(ppo.checkpoint_in(second.folder))
    second.run()
    for name, tensor in whole.agent.state_dict().items():
        assert torch.equal(tensor, second.agent.state_dict()[name]), name
    returns = [[row["return"] for row in training.curve] for training in (whole, second)]
    assert returns[0] == returns[1]
    assert len(json.loads((tmp_path / "run" / "curve.json").read_text())["curve"]) == 4


def test_what_acted_is_what_is_learnt_from() -> None:
    """The probabilities of the rollout, a step at a time with projected keys, are those of the learner's segment."""
    torch.manual_seed(1)
    actor = ppo.Actor(SMALL, 4, seed=1)
    agent = ppo.new_agent(SMALL, actor)
    before = None
    for _ in range(3):
        rollout, _ = actor.rollout(agent)
        with torch.no_grad():
            log_p_BTA, value_BT, actor.memory = agent(rollout.seen, before, rollout.begins)
        torch.testing.assert_close(
            log_p_BTA.gather(-1, rollout.action[..., None])[..., 0], rollout.log_p
        )
        torch.testing.assert_close(value_BT, rollout.value)
        before = actor.memory


def test_advantages_are_sums_of_what_is_still_to_come() -> None:
    """By the definition: discounted errors up to the end of the episode; one that breaks off goes on with a value."""
    torch.manual_seed(1)
    actor = ppo.Actor(replace(SMALL, gamma=0.9, decay=0.8), 1, seed=1)
    value = torch.randn(1, 7)
    reward = torch.randn(6)
    ended = torch.tensor([False, True, False, False, False, False])
    over = torch.tensor([False, True, False, False, True, False])
    found = actor._advantages(
        value, list(reward[:, None]), list(zip(ended[:, None], over[:, None], strict=True))
    )
    for t in range(6):
        total, weight = 0.0, 1.0
        for s in range(t, 6):
            after = 0.0 if ended[s] else value[0, s + 1]
            total += weight * (reward[s] + 0.9 * after - value[0, s])
            weight *= 0.9 * 0.8
            if over[s]:
                break
        torch.testing.assert_close(found[0, t], torch.as_tensor(total))


def test_curves_say_what_was_trained_and_earned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(curves, "SMOOTH", 2)
    for name, mem_len in (("seeing", 5), ("blind", 1)):
        training = ppo.Training(
            replace(
                SMALL, env="cartpole", mem_len=mem_len, n_update=12, work_dir=str(tmp_path / name)
            )
        )
        training.returns = {"own memory": mem_len / 2}
        training.run()
    curves.main(
        [str(tmp_path / "seeing"), str(tmp_path / "blind"), "--json", str(tmp_path / "rows.json")]
    )
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "2.50",
        "0.50",
    ]
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["config"]["mem_len"] for row in rows] == [5, 1]
    first, second = [point for point in training.curve if point["return"] is not None][:2]
    assert rows[1]["curve"][0] == [
        second["steps"],
        pytest.approx((first["return"] + second["return"]) / 2, abs=1e-3),
    ]
    curves.draw(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="no-run"):
        curves.main([str(tmp_path / "no-run")])

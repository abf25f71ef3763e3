"""PPO (Schulman et al. 2017, arXiv 1707.06347) for agents that remember by Transformer-XL:

python -m examples.agents.ppo --env tmaze --work_dir runs/tmaze
"""

import json
import math
import pickle
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from examples.agents.environments import make
from txl import AgentMemory, Context, MemoryTransformer, ModelConfig
from txl.config import SEED, SIZE, Checked, build, option, require
from txl.files import written_whole
from txl.programs.run import run
from txl.settings.flags import read_flags

CLOCKS = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}


@dataclass(frozen=True, kw_only=True)
class PPOConfig(Checked):
    """The task, the agent and its training."""

    env: str = option(
        "tmaze", "tmaze, cartpole (without velocities), or any environment that gymnasium knows"
    )
    work_dir: str = option("runs/agent", "where the checkpoint and the curve are kept")
    resume: bool = option(False, "go on from the checkpoint in work_dir")
    seed: int = option(1, "random seed", **SEED)
    mem_len: int = option(
        64, "steps that an agent sees, the present one included; 1: no memory", **SIZE
    )
    n_layer: int = option(2, "layers", **SIZE)
    d_model: int = option(64, "size of the hidden states", **SIZE)
    gate: str = option(
        "gru", "gate of the layers: gru, input, output, highway, sigmoid_tanh or none"
    )
    n_env: int = option(32, "environments side by side", **SIZE)
    n_step: int = option(32, "steps of each environment between two updates", **SIZE)
    n_update: int = option(200, "updates", **SIZE)
    n_epoch: int = option(4, "passes over the steps in an update", **SIZE)
    n_part: int = option(4, "parts of the environments, a gradient step each", **SIZE)
    lr: float = option(0.002, "learning rate at the beginning; it falls to 0", above=0)
    gamma: float = option(0.99, "discount of a step", minimum=0, maximum=1)
    decay: float = option(
        0.95, "lambda of the generalised advantage estimate", minimum=0, maximum=1
    )
    clip: float = option(0.2, "how far a probability's ratio to the actor's may leave 1", above=0)
    entropy: float = option(0.01, "weight of the entropy", minimum=0)


CHECKPOINT = "checkpoint.pt"
KEPT = ("env", "seed", "mem_len", "n_layer", "d_model", "gate", "n_env")
"""What a training that goes on cannot change: its agent and its environments are made of it."""


class Agent(nn.Module):
    """Observations in, policy and value out; what it remembers is passed in and returned."""

    def __init__(self, config: PPOConfig, n_seen: int, n_action: int) -> None:
        super().__init__()
        d_model = config.d_model
        sizes = {"n_layer": config.n_layer, "n_head": 4, "d_head": d_model // 4, "d_model": d_model}
        shape = ModelConfig(
            **sizes, d_inner=2 * d_model, pre_lnorm=True, gate=config.gate, gate_bias=1.0
        )  # type: ignore[arg-type]
        self.embed, self.body = nn.Linear(n_seen, d_model), MemoryTransformer(shape)
        self.policy, self.value = nn.Linear(d_model, n_action), nn.Linear(d_model, 1)
        nn.init.normal_(self.policy.weight, std=0.01)
        # same_length: a step sees the same steps whether it is read alone or in a segment
        self.context = Context(tgt_len=config.n_step, mem_len=config.mem_len, same_length=True)

    def forward(
        self, seen_BTF: Tensor, memory: Any, begins_BT: Tensor
    ) -> tuple[Tensor, Tensor, Any]:
        """Log-probabilities of the actions (B, T, A), values (B, T), and the memory for the next segment.

        Args:
            begins_BT: True where an episode begins.
        """
        hidden_BTD, memory = self.body(self.embed(seen_BTF), memory, self.context, begins_BT)
        return self.policy(hidden_BTD).log_softmax(-1), self.value(hidden_BTD)[..., 0], memory


class Rollout(NamedTuple):
    """Steps of all environments, (B, T) each; `idle`: the episode was over, the environment only reset."""

    seen: Tensor
    begins: Tensor
    idle: Tensor
    action: Tensor
    log_p: Tensor
    value: Tensor
    advantage: Tensor


class Actor:
    """The environments, where they stand, and what the agent remembers of them."""

    def __init__(self, config: PPOConfig, n_env: int, *, seed: int) -> None:
        self.config, self.env = config, make(config.env, n_env)
        self.seen, _ = self.env.reset(seed=seed)
        self.begins, self.idle = np.ones(n_env, dtype=bool), np.zeros(n_env, dtype=bool)
        self.earned = np.zeros(n_env)
        self.memory: AgentMemory | None = None

    @torch.no_grad()
    def rollout(self, agent: Agent) -> tuple[Rollout, list[float]]:
        """The next n_step steps, and the returns of the episodes that ended in them."""
        steps, rewards, ends, returns = [], [], [], []
        acting = agent.body.projected(self.memory, self.env.num_envs)
        for _ in range(self.config.n_step):
            now = self.now()
            log_p, value, acting = agent(now[0][:, None], acting, now[1][:, None])
            action = torch.multinomial(log_p[:, 0].exp(), 1)
            reward, ended = self.act(action[:, 0])
            returns += self.ended_returns()
            steps.append([*now, action[:, 0], log_p[:, 0].gather(1, action)[:, 0], value[:, 0]])
            rewards.append(reward)
            ends.append((ended, torch.as_tensor(self.idle)))
        last = self.now()
        value_BT = torch.stack(
            [
                *(step[-1] for step in steps),
                agent(last[0][:, None], acting, last[1][:, None])[1][:, 0],
            ],
            1,
        )
        seen, begins, idle, action, log_p, value = (
            torch.stack(column, dim=1) for column in zip(*steps, strict=True)
        )
        return Rollout(
            seen, begins, idle, action, log_p, value, self._advantages(value_BT, rewards, ends)
        ), returns

    def now(self) -> list[Tensor]:
        """What is seen (B, F), whether an episode begins, and whether one was over before, (B,) each."""
        return [torch.as_tensor(x) for x in (self.seen.astype(np.float32), self.begins, self.idle)]

    def act(self, action_B: Tensor) -> tuple[Tensor, Tensor]:
        """A step of all environments: their rewards, and whether an episode ended."""
        self.seen, reward, ended, late, _ = self.env.step(action_B.numpy())
        self.earned += reward
        self.begins, self.idle = self.idle, ended | late
        return torch.as_tensor(reward, dtype=torch.float32), torch.as_tensor(ended)

    def ended_returns(self) -> list[float]:
        """The returns of the episodes that the last step ended."""
        found = self.earned[self.idle].tolist()
        self.earned[self.idle] = 0.0
        return found

    def _advantages(
        self, value_BT: Tensor, rewards: list[Tensor], ends: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Generalised advantage estimates (Schulman et al. 2016, eq. 16), (B, T). What comes after an episode that was
        broken off is worth the value of its last observation."""
        gamma, found, later = self.config.gamma, [], torch.zeros(len(value_BT))
        for t in reversed(range(len(rewards))):
            ended, over = ends[t]
            delta = rewards[t] + gamma * value_BT[:, t + 1] * ~ended - value_BT[:, t]
            later = delta + gamma * self.config.decay * later * ~over
            found.append(later)
        return torch.stack(found[::-1], dim=1)


def learn(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    memory: AgentMemory | None,
    config: PPOConfig,
) -> None:
    """Gradient steps on a rollout that began with this memory."""
    counts_BT = ~rollout.idle
    mean, std = rollout.advantage[counts_BT].mean(), rollout.advantage[counts_BT].std()
    for _ in range(config.n_epoch):
        for index_B in torch.randperm(config.n_env).chunk(config.n_part):
            part = Rollout(*(column[index_B] for column in rollout))
            log_p_BTA, value_BT, _ = agent(part.seen, memory and memory.rows(index_B), part.begins)
            log_p_BT = log_p_BTA.gather(-1, part.action[..., None])[..., 0]
            ratio_BT, advantage_BT = (
                (log_p_BT - part.log_p).exp(),
                (part.advantage - mean) / (std + 1e-8),
            )
            clipped_BT = ratio_BT.clamp(1 - config.clip, 1 + config.clip)
            gain_BT = torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
            error_BT = ((value_BT - part.value - part.advantage) / (std + 1e-8)).square()
            entropy_BT = -(log_p_BTA.exp() * log_p_BTA).sum(-1)
            loss = (0.5 * error_BT - gain_BT - config.entropy * entropy_BT)[~part.idle].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


class Training:
    """All that a training is; a checkpoint holds it whole, so that one that goes on is as if never stopped."""

    def __init__(self, config: PPOConfig) -> None:
        self.config, self.folder = config, Path(config.work_dir)
        torch.manual_seed(config.seed)
        self.actor = Actor(config, config.n_env, seed=config.seed)
        self.agent = new_agent(config, self.actor)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), eps=1e-5)
        self.curve: list[dict[str, Any]] = []
        self.returns: dict[str, float] = {}

    def run(self, until: int | None = None) -> None:
        """Train to the last update, or to that one."""
        config, past = self.config, self.curve[-1] if self.curve else {}
        begun = {name: clock() - past.get(name, 0.0) for name, clock in CLOCKS.items()}
        last = config.n_update if until is None else until
        bar = tqdm(range(len(self.curve), last), desc=config.env, disable=None)
        for update in bar:
            for group in self.optimizer.param_groups:
                group["lr"] = config.lr * (1 - update / config.n_update)
            before = self.actor.memory
            rollout, returns = self.actor.rollout(self.agent)
            with torch.no_grad():  # what the weights that acted remember, as hidden states
                self.actor.memory = self.agent(rollout.seen, before, rollout.begins)[2]
            learn(self.agent, self.optimizer, rollout, before, config)
            mean = sum(returns) / len(returns) if returns else None  # no episode has ended
            steps = (update + 1) * config.n_step * config.n_env
            took = {name: clock() - begun[name] for name, clock in CLOCKS.items()}
            self.curve.append({"update": update + 1, "steps": steps, "return": mean} | took)
            bar.set_postfix_str(f"return {math.nan if mean is None else mean:.2f}")
            if (update + 1) % 10 == 0 or update + 1 == last:
                self.save()

    def save(self) -> None:
        """Write checkpoint.pt and curve.json."""
        state = {
            "config": asdict(self.config),
            "agent": self.agent.state_dict(),
            "curve": self.curve,
        }
        state |= {"optimizer": self.optimizer.state_dict(), "random": torch.get_rng_state()}
        self.folder.mkdir(parents=True, exist_ok=True)
        with written_whole(self.folder / CHECKPOINT) as path:
            torch.save(state | {"actor": pickle.dumps(self.actor)}, path)
        with written_whole(self.folder / "curve.json") as path:
            written = {"config": asdict(self.config), "returns": self.returns, "curve": self.curve}
            path.write_text(json.dumps(written, indent=1))

    def resume(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint, see `checkpoint_in`."""
        self.agent.load_state_dict(state["agent"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.actor, self.curve = pickle.loads(state["actor"]), state["curve"]
        self.actor.config = self.config
        torch.set_rng_state(state["random"])


def checkpoint_in(folder: Path) -> dict[str, Any]:
    """What `Training.save` has written. Raises `UsageError` if it is not there."""
    path = folder / CHECKPOINT
    require(path.is_file(), f"{path}: no checkpoint to go on from; leave --resume out")
    return torch.load(path, weights_only=False)  # our own: it holds the environments


def new_agent(config: PPOConfig, actor: Actor) -> Agent:
    """An agent for these environments. Raises `UsageError` if it cannot act in them."""
    seen, action = actor.env.single_observation_space.shape, actor.env.single_action_space
    fits = seen is not None and len(seen) == 1 and hasattr(action, "n")
    require(
        fits,
        f"--env {config.env}: observations must be vectors and actions numbers; choose another",
    )
    return Agent(config, seen[0], int(action.n))  # type: ignore[index,attr-defined]


@torch.no_grad()
def returns_of(
    agent: Agent, config: PPOConfig, n_episode: int, *, other_row: bool = False
) -> float:
    """The mean return of episodes that start together and are acted in by the likeliest action.

    Args:
        other_row: every agent acts by the memory of the next environment.
    """
    actor, memory, done = (
        Actor(config, n_episode, seed=config.seed + 1),
        None,
        torch.zeros(n_episode, dtype=torch.bool),
    )
    total_B, next_B = torch.zeros(n_episode), torch.arange(n_episode).roll(1)
    while not done.all():
        seen, begins, _ = actor.now()
        now = begins[:, None]
        log_p, _, own = agent(seen[:, None], memory, now)
        if other_row and memory is not None:
            log_p, _, _ = agent(seen[:, None], memory.rows(next_B), now)
        memory = own
        reward, _ = actor.act(log_p[:, 0].argmax(-1))
        total_B += reward * ~done
        done |= torch.as_tensor(actor.idle)
    return total_B.mean().item()


def main(argv: Sequence[str]) -> None:
    typed = read_flags(argv, PPOConfig, description=__doc__ or "")
    config = build(PPOConfig, typed)
    state = None
    if config.resume:
        state = checkpoint_in(Path(config.work_dir))
        for name in KEPT:
            was = state["config"][name]
            require(
                typed.get(name, was) == was,
                f"--{name} {typed.get(name)}: the training in {config.work_dir} goes on with"
                f" {was}; leave it out",
            )
        config = build(PPOConfig, typed, **state["config"])  # what is not typed is as it was
    else:
        there = Path(config.work_dir) / CHECKPOINT
        require(
            not there.exists(),
            f"--work_dir {config.work_dir}: holds a training; give --resume to go on with it, or"
            " name another folder",
        )
    training = Training(config)
    if state is not None:
        training.resume(state)
    training.run()
    for name, other in (("own memory", False), ("memory of another row", True)):
        training.returns[name] = returns_of(training.agent, config, 256, other_row=other)
        print(f"return of 256 episodes by their {name}: {training.returns[name]:.2f}")
    training.save()


if __name__ == "__main__":
    run(main)

"""PPO (Schulman et al. 2017, arXiv 1707.06347) for agents that remember by Transformer-XL."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from examples.agents._shim import MemoryTransformer
from examples.agents.environments import make
from txl import Context, ModelConfig
from txl.config import SEED, SIZE, Checked, option


@dataclass(frozen=True, kw_only=True)
class PPOConfig(Checked):
    """The task, the agent and its training."""

    env: str = option("tmaze", "tmaze, cartpole (without velocities), or any environment that gymnasium knows")
    work_dir: str = option("runs/agent", "where the checkpoint and the curve are kept")
    resume: bool = option(False, "go on from the checkpoint in work_dir")
    seed: int = option(1, "random seed", **SEED)
    mem_len: int = option(64, "steps that an agent sees, the present one included; 1: no memory", **SIZE)
    n_layer: int = option(2, "layers", **SIZE)
    d_model: int = option(64, "size of the hidden states", **SIZE)
    gate: str = option("gru", "gate of the layers: gru, output, highway, sigmoid_tanh or none")
    gate_bias: float = option(2.0, "what the bias of gates begins at")
    n_env: int = option(64, "environments side by side", **SIZE)
    n_step: int = option(64, "steps of each environment between two updates", **SIZE)
    n_update: int = option(200, "updates", **SIZE)
    n_epoch: int = option(3, "passes over the steps in an update", **SIZE)
    n_part: int = option(4, "parts of the environments, a gradient step each", **SIZE)
    lr: float = option(0.0007, "learning rate at the beginning; it falls to 0", above=0)
    gamma: float = option(0.99, "discount of a step", minimum=0, maximum=1)
    decay: float = option(0.95, "lambda of the generalised advantage estimate", minimum=0, maximum=1)
    clip: float = option(0.2, "how far a probability's ratio to the actor's may leave 1", above=0)
    entropy: float = option(0.01, "weight of the entropy", minimum=0)


class Agent(nn.Module):
    """Observations in, policy and value out; what it remembers is passed in and returned."""

    def __init__(self, config: PPOConfig, n_seen: int, n_action: int) -> None:
        super().__init__()
        d_model = config.d_model
        shape = {"n_layer": config.n_layer, "n_head": 4, "d_head": d_model // 4, "d_model": d_model}
        shape |= {
            "d_inner": 2 * d_model,
            "pre_lnorm": True,
            "gate": config.gate,
            "n_token": 2,
            "gate_bias": config.gate_bias,
        }
        self.embed = nn.Linear(n_seen, d_model)
        self.body = MemoryTransformer(ModelConfig(**shape))  # type: ignore[arg-type]
        self.policy, self.value = nn.Linear(d_model, n_action), nn.Linear(d_model, 1)
        nn.init.normal_(self.policy.weight, std=0.01)
        # same_length: a step sees the same steps whether it is read alone or in a segment
        self.context = Context(tgt_len=config.n_step, mem_len=config.mem_len, same_length=True)

    def forward(self, seen_BTF: Tensor, memory: Any, begins_BT: Tensor) -> tuple[Tensor, Tensor, Any]:
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

    def __init__(self, config: PPOConfig) -> None:
        self.config, self.env = config, make(config.env, config.n_env)
        self.seen, _ = self.env.reset(seed=config.seed)
        self.begins, self.idle = np.ones(config.n_env, dtype=bool), np.zeros(config.n_env, dtype=bool)
        self.memory: Any = None
        self.earned = np.zeros(config.n_env)

    @torch.no_grad()
    def rollout(self, agent: Agent) -> tuple[Rollout, list[float]]:
        """The next n_step steps, and the returns of the episodes that ended in them."""
        steps, rewards, ends, returns = [], [], [], []
        for _ in range(self.config.n_step):
            now = [torch.as_tensor(x) for x in (self.seen.astype(np.float32), self.begins, self.idle)]
            log_p, value, self.memory = agent(now[0][:, None], self.memory, now[1][:, None])
            action = torch.multinomial(log_p[:, 0].exp(), 1)
            self.seen, reward, ended, late, _ = self.env.step(action[:, 0].numpy())
            self.earned += reward
            self.begins, self.idle = self.idle, ended | late
            returns += self.earned[self.idle].tolist()
            self.earned[self.idle] = 0.0
            steps.append([*now, action[:, 0], log_p[:, 0].gather(1, action)[:, 0], value[:, 0]])
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            ends.append((torch.as_tensor(ended), torch.as_tensor(self.idle)))
        last = (
            torch.as_tensor(self.seen.astype(np.float32))[:, None],
            self.memory,
            torch.as_tensor(self.begins)[:, None],
        )
        value_BT = torch.stack([*(step[-1] for step in steps), agent(*last)[1][:, 0]], dim=1)
        rows = [torch.stack(column, dim=1) for column in zip(*steps, strict=True)]
        return Rollout(*rows, self._advantages(value_BT, rewards, ends)), returns

    def _advantages(self, value_BT: Tensor, rewards: list[Tensor], ends: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Generalised advantage estimates (Schulman et al. 2016, eq. 16), (B, T). What comes after an episode that was
        broken off is worth the value of its last observation."""
        gamma, found, later = self.config.gamma, [], torch.zeros(len(value_BT))
        for t in reversed(range(len(rewards))):
            ended, over = ends[t]
            delta = rewards[t] + gamma * value_BT[:, t + 1] * ~ended - value_BT[:, t]
            later = delta + gamma * self.config.decay * later * ~over
            found.append(later)
        return torch.stack(found[::-1], dim=1)


def learn(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, memory: Any, config: PPOConfig) -> None:
    """Gradient steps on a rollout that began with this memory."""
    counts_BT = ~rollout.idle
    mean, std = rollout.advantage[counts_BT].mean(), rollout.advantage[counts_BT].std()
    for _ in range(config.n_epoch):
        for index_B in torch.randperm(config.n_env).chunk(config.n_part):
            part = Rollout(*(column[index_B] for column in rollout))
            log_p_BTA, value_BT, _ = agent(part.seen, memory and memory.rows(index_B), part.begins)
            log_p_BT = log_p_BTA.gather(-1, part.action[..., None])[..., 0]
            ratio_BT, advantage_BT = (log_p_BT - part.log_p).exp(), (part.advantage - mean) / (std + 1e-8)
            clipped_BT = ratio_BT.clamp(1 - config.clip, 1 + config.clip)
            gain_BT = torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
            error_BT = (value_BT - (part.value + part.advantage)).square()
            entropy_BT = -(log_p_BTA.exp() * log_p_BTA).sum(-1)
            loss = (0.5 * error_BT - gain_BT - config.entropy * entropy_BT)[~part.idle].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()

"""Environments in which the past matters, many at a time (gymnasium's vector environments)."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorObservationWrapper

from txl.config import UsageError


class TMaze(VectorEnv):
    """A corridor of `length` steps that ends in a T; where to turn is shown in the first step only.

    Observations: (cue left, cue right, at the junction). Actions: go on, left, right. A turn in the corridor costs 0.1
    and leads nowhere. At the junction the right turn earns 1, the wrong one nothing; either ends the episode, and so do
    2 length steps. After the end the next step resets, as gymnasium's AutoresetMode.NEXT_STEP says.
    """

    def __init__(self, num_envs: int, length: int = 60) -> None:
        self.num_envs, self.length = num_envs, length
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = Box(0.0, 1.0, (3,)), Discrete(3)
        self.observation_space = Box(0.0, 1.0, (num_envs, 3))
        self.action_space = MultiDiscrete([3] * num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place, self.age, self.goal = np.zeros((3, self.num_envs), dtype=np.int64)
        self.over = np.zeros(self.num_envs, dtype=bool)
        self._begin(~self.over)
        return self._seen(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        begins, turns, at_end = self.over, actions > 0, self.place == self.length
        reward = np.where(turns, np.where(at_end, actions == self.goal, -0.1), 0.0) * ~begins
        self.place = np.minimum(self.place + ~turns, self.length)
        self.age += 1
        ended, late = turns & at_end & ~begins, (self.age >= 2 * self.length) & ~begins
        self._begin(begins)
        self.over = ended | late
        return self._seen(), reward, ended, late & ~ended, {}

    def _begin(self, rows: np.ndarray) -> None:
        self.place[rows] = self.age[rows] = 0
        self.goal[rows] = self.np_random.integers(1, 3, rows.sum())

    def _seen(self) -> np.ndarray:
        first = self.age == 0
        seen = np.stack(
            [first & (self.goal == 1), first & (self.goal == 2), self.place == self.length], axis=1
        )
        return seen.astype(np.float32)


class MaskedVelocities(VectorObservationWrapper):
    """CartPole that shows where cart and pole are, in parts of what ends an episode, and not how fast they move."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = Box(-2.0, 2.0, (2,))
        self.observation_space = Box(-2.0, 2.0, (env.num_envs, 2))

    def observations(self, observations: np.ndarray) -> np.ndarray:
        return observations[:, ::2] / np.array([2.4, np.radians(12)], dtype=np.float32)


def make(name: str, n_env: int) -> VectorEnv:
    """`tmaze`, `cartpole` without velocities, or a name of gymnasium. Raises `UsageError` if there is no such name."""
    if name == "tmaze":
        return TMaze(n_env)
    if name == "cartpole":
        return MaskedVelocities(gymnasium.make_vec("CartPole-v1", n_env))
    try:
        if gymnasium.spec(name).vector_entry_point is not None:
            return gymnasium.make_vec(name, n_env)
        return SyncVectorEnv([partial(gymnasium.make, name)] * n_env)  # a checkpoint pickles it
    except gymnasium.error.Error as error:
        raise UsageError(f"--env {name}: {str(error).splitlines()[0]}; name another") from None

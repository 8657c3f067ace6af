"""A row of an environment with several agents that keeps every step in lists, and its transitions, step by step."""

from __future__ import annotations

from typing import NamedTuple

from literal_replay import DISCOUNT


class Chances(NamedTuple):
    """How often things happen in a row; shares of steps."""

    acts: float = 0.5
    fails: float = 0.03
    terminated: float = 0.06
    truncated: float = 0.06
    has_final: float = 0.9


class Turns:
    """One row, see "Several agents" in :mod:`rollmill.specs`, and all that it ever showed.

    An observation at which the row does not act is random: reading it would be an error.
    """

    depth = 1

    def __init__(self, random, chances):
        self.random = random
        self.chances = chances
        self.shown = [0]
        self.acts, self.reset = [], []
        self.steps = []
        self.is_new = True
        self.is_final = False
        self.show(final=False)

    @property
    def begins(self):
        """Whether the row is between two episodes, or begins one, at the newest observation."""
        return self.reset[-1] or (self.is_new and not self.is_final)

    def happens(self, chance):
        return self.random.random() < chance

    def show(self, *, final):
        """Whether the row acts at the next observation; an episode's first one is that from which it acts."""
        acts = final or self.happens(self.chances.acts)
        self.acts.append(acts)
        self.reset.append(acts and self.is_new and not final)
        self.is_final = final
        if acts and not final:
            self.is_new = False

    def step(self):
        """(action, reward, terminated, truncated, valid) of the next step."""
        action = int(self.random.integers(10))
        reward, terminated, truncated, valid, shows_final = 0.0, False, False, False, False
        if self.is_final or self.happens(self.chances.fails):
            self.is_new = True  # a reset, or a rebuild
        else:
            reward, valid = float(self.random.normal()), self.acts[-1]
            kind = self.random.random()
            if not self.is_new and kind < self.chances.terminated:
                terminated = True
            elif not self.is_new and kind < self.chances.terminated + self.chances.truncated:
                truncated = True
                shows_final = self.happens(self.chances.has_final)
            if terminated or (truncated and not shows_final):
                self.is_new = True
        self.steps.append((action, reward, terminated, truncated, valid))
        if truncated and not shows_final:
            self.acts.append(False)
            self.reset.append(False)
            self.is_final = False
        else:
            self.show(final=shows_final)
            if shows_final:
                self.is_new = True
        self.shown.append(int(self.random.integers(1 << 30)))
        return self.steps[-1]

    def transition(self, t, n, clip=float("inf")):
        """(reward, discount, t of x_{t+k}, steps looked at) of the turn at t; None if it never is whole, or not yet.

        x_{t+k} is None behind a termination.
        """
        if not self.steps[t][4]:
            return None
        rewards = []  # of each turn
        s = t
        while True:
            acts = self.acts[s]
            if s > t and acts and self.reset[s]:
                return None  # its environment was rebuilt
            is_whole = acts and len(rewards) == n
            if not is_whole and s == len(self.steps):
                return None
            is_end = s > t and acts and not is_whole and not self.steps[s][4]
            if is_whole or is_end:
                return self.total(rewards, clip), DISCOUNT ** len(rewards), s, s - t + is_end
            _, reward, terminated, truncated, _ = self.steps[s]
            if acts:
                rewards.append(0.0)
            rewards[-1] += reward
            s += 1
            if terminated:
                return self.total(rewards, clip), 0.0, None, s - t
            if truncated:
                return (self.total(rewards, clip), DISCOUNT ** len(rewards), s, s - t) if self.acts[s] else None

    @staticmethod
    def total(rewards, clip):
        return sum(DISCOUNT**i * min(max(reward, -clip), clip) for i, reward in enumerate(rewards))

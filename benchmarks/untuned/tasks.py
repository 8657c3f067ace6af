"""The environments of the out-of-the-box comparison, with the budget and the evaluation of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

RANDOM = "random"
"""Name of the library, and of the algorithm, that plays uniformly random actions."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One environment and one algorithm.

    Attributes:
        env: Name of Rollmill's preset, ``<family>/<id>``.
        algorithm: "ppo" (Rollmill: `rollmill train` without `--algo`), "dqn", "sac", "td3", or "random".
        steps: Budget in agent steps, the same for both libraries.
        minutes: Expected wall-clock minutes of Rollmill and of Stable-Baselines3, on two quiet cores.
        episodes: Episodes of an evaluation.
        sampled: Whether the evaluation samples actions, as the zoo does on Atari, instead of taking the best ones; in
            partially observed mazes a deterministic policy can repeat a loop for ever.
        limit: Time limit in agent steps for both libraries, where the environment has none.
        idle: Return of an agent that only lets the time pass, where that is more than random play's.
        named: Whether a preset of Rollmill's has settings for this environment and algorithm; the row is marked.
        zoo: The environment's id in the table of the rl-baselines3-zoo; None where it has none.
    """

    env: str
    algorithm: str
    steps: int
    minutes: tuple[float, float]
    episodes: int = 50
    sampled: bool = False
    limit: int | None = None
    idle: float | None = None
    named: bool = False
    zoo: str | None = None

    @property
    def name(self) -> str:
        """For the command line and for people."""
        return f"{self.env}:{self.algorithm}"

    @property
    def family(self) -> str:
        """The first part of the environment's name."""
        return self.env.partition("/")[0]


def _tasks() -> Iterator[Task]:
    yield from _gym()
    yield from _mujoco()
    for id, steps, minutes in (
        ("Empty-8x8", 50_000, (0.5, 1.0)),
        ("Unlock", 200_000, (0.7, 3.0)),
        ("LavaGapS5", 200_000, (0.7, 3.0)),
        ("Dynamic-Obstacles-6x6", 200_000, (0.7, 3.0)),
    ):
        yield Task(
            env=f"minigrid/MiniGrid-{id}-v0", algorithm="ppo", steps=steps, minutes=minutes, episodes=100, sampled=True
        )
    for id in ("health_gathering", "defend_the_line", "take_cover"):
        yield Task(env=f"vizdoom/{id}", algorithm="ppo", steps=300_000, minutes=(3.0, 25.0), episodes=30, sampled=True)
    for game, in_zoo in (
        ("asteroids", True),
        ("beam_rider", True),
        ("boxing", False),
        ("enduro", True),
        ("freeway", False),
        ("ms_pacman", False),
        ("qbert", True),
        ("road_runner", True),
        ("seaquest", True),
        ("space_invaders", True),
    ):
        zoo = "".join(part.capitalize() for part in game.split("_")) + "NoFrameskip-v4" if in_zoo else None
        atari = Task(
            env=f"atari/{game}",
            algorithm="ppo",
            steps=500_000,
            minutes=(4.0, 40.0),
            episodes=20,
            sampled=True,
            zoo=zoo,
        )
        yield atari
        if game in ("boxing", "space_invaders"):
            yield replace(atari, algorithm="dqn", minutes=(10.0, 60.0))


def _gym() -> Iterator[Task]:
    acrobot = Task(env="gym/Acrobot-v1", algorithm="ppo", steps=300_000, minutes=(0.5, 4.0), zoo="Acrobot-v1")
    yield acrobot
    yield replace(acrobot, algorithm="dqn", steps=150_000, minutes=(2.0, 2.5))
    car = Task(env="gym/MountainCar-v0", algorithm="ppo", steps=200_000, minutes=(0.4, 2.5), zoo="MountainCar-v0")
    yield car
    yield replace(car, algorithm="dqn", steps=150_000, minutes=(2.0, 2.0))
    strong_car = Task(
        env="gym/MountainCarContinuous-v0",
        algorithm="ppo",
        steps=100_000,
        minutes=(0.4, 1.5),
        idle=0.0,
        zoo="MountainCarContinuous-v0",
    )
    yield strong_car
    yield replace(strong_car, algorithm="sac", steps=50_000, minutes=(3.0, 8.0))
    pendulum = Task(env="gym/Pendulum-v1", algorithm="ppo", steps=200_000, minutes=(0.4, 2.5), zoo="Pendulum-v1")
    yield pendulum
    for algorithm in ("sac", "td3"):
        yield replace(pendulum, algorithm=algorithm, steps=20_000, minutes=(1.5, 3.0), named=True)
    lake = Task(env="gym/FrozenLake-v1", algorithm="ppo", steps=100_000, minutes=(0.4, 1.5), episodes=100)
    yield lake
    yield replace(lake, algorithm="dqn", steps=50_000, minutes=(1.0, 1.0))
    cliff = Task(env="gym/CliffWalking-v1", algorithm="ppo", steps=50_000, minutes=(0.4, 1.0), limit=200, idle=-200.0)
    yield cliff
    yield replace(cliff, algorithm="dqn", minutes=(1.0, 1.0))
    taxi = Task(env="gym/Taxi-v4", algorithm="ppo", steps=200_000, minutes=(0.4, 3.0), idle=-200.0)
    yield taxi
    yield replace(taxi, algorithm="dqn", steps=100_000, minutes=(1.5, 2.0))
    lander = Task(env="gym/LunarLander-v3", algorithm="ppo", steps=300_000, minutes=(0.6, 5.0), zoo="LunarLander-v2")
    yield lander
    yield replace(lander, algorithm="dqn", steps=100_000, minutes=(2.0, 2.5), named=True)
    engines = replace(lander, env="gym/LunarLanderContinuous-v3", zoo="LunarLanderContinuous-v2")
    yield engines
    yield replace(engines, algorithm="sac", steps=100_000, minutes=(6.0, 16.0), named=True)
    walker = Task(
        env="gym/BipedalWalker-v3", algorithm="ppo", steps=500_000, minutes=(1.0, 9.0), zoo="BipedalWalker-v3"
    )
    yield walker
    yield replace(walker, algorithm="sac", steps=200_000, minutes=(12.0, 32.0))


def _mujoco() -> Iterator[Task]:
    for id, on_policy, off_policy, in_zoo in (
        ("InvertedPendulum", 100_000, 20_000, False),
        ("InvertedDoublePendulum", 200_000, 50_000, False),
        ("Reacher", 300_000, 50_000, False),
        ("Swimmer", 300_000, 100_000, True),
        ("Hopper", 1_000_000, 200_000, True),
        ("Walker2d", 1_000_000, 200_000, True),
    ):
        task = Task(
            env=f"mujoco/{id}-v5",
            algorithm="ppo",
            steps=on_policy,
            minutes=(0.4 + on_policy / 500_000, 0.5 + on_policy / 70_000),
            zoo=f"{id}-v3" if in_zoo else None,
        )
        yield task
        minutes = (0.5 + off_policy / 17_000, 0.5 + off_policy / 6_500)
        # The off-policy preset of locomotion names the environments that are in the zoo.
        yield replace(task, algorithm="sac", steps=off_policy, minutes=minutes, named=in_zoo)
        if id == "Hopper":
            yield replace(task, algorithm="td3", steps=off_policy, minutes=minutes, named=in_zoo)


TASKS = tuple(_tasks())


def scaled(task: Task, scale: float) -> Task:
    """The task with its budget of steps, and the expected minutes, multiplied."""
    if scale == 1.0:
        return task
    ours, theirs = task.minutes
    return replace(task, steps=max(1, round(task.steps * scale)), minutes=(ours * scale, theirs * scale))


def selected(only: list[str]) -> tuple[Task, ...]:
    """The tasks that are asked for; all if nothing is.

    Args:
        only: Texts ``ENV`` or ``ENV:ALGORITHM``; an environment is meant if its name contains the text, without regard
            to case.

    Raises:
        ValueError: A text that fits no task.
    """
    unknown = [text for text in only if not any(_fits(task, text) for task in TASKS)]
    if unknown:
        names = ", ".join(task.name for task in TASKS)
        raise ValueError(f"--only {' '.join(unknown)}: fits no task; give (parts of) some of {names}")
    return tuple(task for task in TASKS if not only or any(_fits(task, text) for text in only))


def _fits(task: Task, text: str) -> bool:
    env, _, algorithm = text.lower().partition(":")
    return env in task.env.lower() and algorithm in ("", task.algorithm)

"""Parts of the report: what limits the speed, the effect of single changes, and the curves (PAL, figure 12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rollmill.tuning.curves import Balance, Curve, Curves
from rollmill.tuning.model import Allocation, Prediction, StageCosts, Workload, predict
from rollmill.tuning.search import Space

LIMITS = {
    "simulation": "Simulation limits the speed: the rollout workers are always busy.",
    "inference": "Inference limits the speed: the policy workers are always busy.",
    "learning": "Learning limits the speed: collecting waits for the learner.",
    "waiting": "Waiting limits the speed: too few groups of environments are stepped while others wait for actions "
    "(k/2 < t_inf / t_env).",
    "cores": "The number of cores limits the speed: all of them are busy.",
}
"""Station that limits the machine -> a sentence."""


class Change(NamedTuple):
    """Something that could be otherwise.

    Attributes:
        what: For people.
        gain: Predicted speed over today's, less 1.
    """

    what: str
    gain: float


def describe_allocation(allocation: Allocation) -> str:
    """One line."""
    a = allocation
    return (
        f"{a.num_envs} environments in {a.num_groups} groups of {a.envs_per_group} on {a.rollout_workers} rollout "
        f"worker(s), {a.policy_workers} policy worker(s), {a.learner_cores} core(s) for learning"
    )


def bounds_sentence(prediction: Prediction) -> str:
    """What each station lets through."""
    bounds = ", ".join(f"{name} {float(bound[0]):,.0f}" for name, bound in prediction.bounds.items())
    return f"most that each stage lets through, agent steps/s: {bounds}"


def changes(costs: StageCosts, workload: Workload, allocation: Allocation, cores: int, space: Space) -> list[Change]:
    """What single changes would bring, by the model; those of the allocation only where it is free."""
    now = float(predict(costs, workload, allocation, cores).steps_per_second[0])

    def gain(what: str, *, a: Allocation = allocation, c: StageCosts = costs, m: float = cores) -> Change:
        return Change(what, float(predict(c, workload, a, m).steps_per_second[0]) / now - 1)

    one = allocation
    result: list[Change] = []
    if len(space.rollout_workers) > 1:
        if one.rollout_workers < one.num_groups:
            result.append(gain("one rollout worker more", a=one._replace(rollout_workers=one.rollout_workers + 1)))
        if one.rollout_workers > 1:
            result.append(gain("one rollout worker fewer", a=one._replace(rollout_workers=one.rollout_workers - 1)))
    if len(space.policy_workers) > 1 and one.policy_workers < one.num_groups:
        result.append(gain("one policy worker more", a=one._replace(policy_workers=one.policy_workers + 1)))
    if len(space.learner_cores) > 1:
        result.append(gain("twice the cores for learning", a=one._replace(learner_cores=2 * one.learner_cores)))
    if not space.num_envs:
        result.append(gain("twice the environments, as more groups", a=one._replace(num_envs=2 * one.num_envs)))
        if len(space.envs_per_group) > 1:
            larger = one._replace(num_envs=2 * one.num_envs, envs_per_group=2 * one.envs_per_group)
            result.append(gain("twice the environments, as larger groups", a=larger))
    half = {"env": "an environment", "inference": "inference", "sgd": "an SGD step"}
    for stage, name in half.items():
        cheaper = {key: value / 2 for key, value in vars(costs).items() if key.startswith(stage) and key.endswith("_s")}
        result.append(gain(f"{name} in half the time", c=replace(costs, **cheaper)))
    result.append(gain("twice the cores, allocated as now", m=2 * cores))
    return result


def curves_of(costs: StageCosts, workload: Workload, allocation: Allocation, cores: int) -> Curves:
    """f_a and f_l by the fitted model: each side alone on x cores, with the costs that it has while both sides run.

    Args:
        costs: Of the machine.
        workload: Of the run.
        allocation: Groups are its own, spread over as many workers as there are cores for.
        cores: M.
    """
    alone = replace(workload, regime="async")
    collecting = replace(costs, sgd_step_s=0.0)
    actors: list[tuple[float, float]] = []
    serving: list[int] = []
    for x in sorted({*range(1, min(cores, 16) + 1), *(cores * i // 16 for i in range(1, 17))} - {0}):
        found: list[tuple[float, int]] = []
        most = max(1, x - 1)
        for policy_workers in {1, min(allocation.policy_workers, most), *(max(1, x * i // 8) for i in range(1, 8))}:
            workers = max(1, x - policy_workers) if x > 2 else x
            share = allocation._replace(
                rollout_workers=min(workers, allocation.num_groups),
                policy_workers=min(policy_workers, allocation.num_groups),
            )
            rate = float(predict(collecting, alone, share, x).steps_per_second[0])
            found.append((rate, int(share.policy_workers)))
        best = max(found, key=lambda each: (each[0], -each[1]))
        actors.append((float(x), best[0]))
        serving.append(best[1])
    speedup = costs.learner_speedup
    learners = [
        (float(x), float(speedup(x)) / costs.sgd_step_s)
        for x in sorted({*(int(c) for c in speedup.cores if c <= cores), 1})
    ]
    return Curves(
        cores=cores,
        actors=Curve.through(actors),
        learners=Curve.through(learners),
        policy_workers=tuple(serving),
        num_envs=int(allocation.num_envs),
        envs_per_group=int(allocation.envs_per_group),
        update_interval=workload.update_interval,
    )


def draw(
    curves: Curves,
    update_interval: float,
    path: Path,
    *,
    title: str,
    solution: Balance | None,
    measured: Sequence[tuple[float, float, float]] = (),
) -> Path:
    """Draws f_a(x) and u f_l(M - x) over the actors' cores, and where they cross.

    Args:
        curves: Both sides.
        update_interval: u.
        path: The picture.
        title: Its title.
        solution: Where they cross; None where both sides take turns.
        measured: (actors' cores, learner's cores, agent steps a second) of joint runs.
    """
    from matplotlib.figure import Figure

    cores = curves.cores
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    xs = [cores * i / 400 for i in range(401)]
    axes.plot(xs, [curves.actors(x) for x in xs], color="#0072B2", label="$f_a(x)$: collected")
    learned = [update_interval * curves.learners(cores - x) for x in xs]
    axes.plot(xs, learned, color="#D55E00", label="$u\\,f_l(M - x)$: learned from")
    if solution is not None:
        axes.plot([solution.actor_cores], [solution.steps_per_second], "o", color="#009E73", ms=9, label="crossing")
    if measured:
        axes.plot([m[0] for m in measured], [m[2] for m in measured], "x", color="#8C8C8C", label="joint runs")
    axes.set(xlabel=f"cores for actors, x of M = {cores}", ylabel="agent steps / s", title=title, xlim=(0, cores))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path

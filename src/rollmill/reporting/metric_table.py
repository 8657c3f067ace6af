"""What a run measures: the name, unit and meaning of every key of ``metrics.jsonl``, of TensorBoard and of the display.

A metric has one name everywhere. TensorBoard groups by what stands before a slash; names without one are in its group
``run``. ``docs/metrics.md`` is made from these tables (``python -m rollmill.reporting.metric_table``), and a test
compares both with what runs of all regimes write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

EVALUATION_GROUP = "evaluation"
_ALL = ("async", "lockstep", "replay")
_ON_POLICY = ("async", "lockstep")
_REPLAY = ("replay",)
_LOSSES = "rows after the first SGD step"
_ACTOR_LOSSES = f"{_LOSSES}, with DDPG, TD3, SAC"
_TEMPERATURE_LOSSES = f"{_LOSSES}, with SAC and `off_policy.temperature=auto`"
_SEVERAL_LEARNERS = "every row, with `learner.num_learners` above 1"


class Metric(NamedTuple):
    """One key of ``metrics.jsonl``.

    Attributes:
        name: The key.
        unit: Of the value.
        meaning: One sentence, for the docs.
        regimes: Where it exists.
        when: Which rows have it.
        label: What the display calls it; empty where the display does not show it.
    """

    name: str
    unit: str
    meaning: str
    regimes: tuple[str, ...] = _ALL
    when: str = "every row"
    label: str = ""


def _loss(name: str, unit: str, meaning: str, regimes: tuple[str, ...], when: str = _LOSSES) -> Metric:
    return Metric(f"loss/{name}", unit, meaning, regimes, when)


METRICS: Mapping[str, Sequence[Metric]] = {
    "Progress": (
        Metric("time_s", "seconds", "Since the run's processes were started; a resumed run counts on."),
        Metric(
            "agent_steps",
            "agent steps",
            "On-policy: distinct valid samples that the learner has consumed. Replay: steps that were collected.",
            label="steps",
        ),
        Metric("frames", "frames", "`agent_steps` times the environment's frameskip.", label="frames"),
        Metric("batches", "batches", "Batches that were learned from.", label="batches"),
        Metric("sgd_steps", "SGD steps", "Optimiser steps. In replay each batch is one.", label="SGD steps"),
        Metric(
            "policy_version",
            "versions",
            "Version of the weights that were published last: the newest that acts. Versions count SGD steps in async "
            "and replay, and batches in lockstep.",
            label="version",
        ),
        Metric("learning_rate", "-", "The present one, by its schedule.", label="learning rate"),
    ),
    "Speed": (
        Metric(
            "steps_per_second",
            "agent steps / s",
            "Over the last ten seconds; null in the first row of a session.",
            label="steps/s",
        ),
        Metric("frames_per_second", "frames / s", "The same in frames.", label="frames/s"),
    ),
    "Episodes": (
        Metric("episodes", "episodes", "Training episodes that ended, as far as batches have them.", label="episodes"),
        Metric(
            "episode_return",
            "reward",
            "Mean return of the last 100 training episodes: raw rewards, undiscounted, neither scaled nor clipped; "
            "null before the first episode ended. Of several tasks, the mean of the tasks' mean returns, over the last "
            "100 / tasks episodes of each, at least 5; null before each has ended one.",
            label="return",
        ),
        Metric("episode_return_std", "reward", "Standard deviation of these returns."),
        Metric("episode_length", "agent steps", "Mean length of these episodes.", label="length"),
        Metric(
            "actions_at_bound",
            "0..1",
            "Share of the actions' real numbers that are at a bound of the action space, or beyond it before they are "
            "clipped, in the batch before the row.",
            _ON_POLICY,
            "every row, with a Box in the action space",
        ),
    ),
    "Agents": (
        Metric(
            "agent/NAME/episode_return",
            "reward",
            "Mean return of the episodes of the agent NAME that have ended since the previous row, whichever policy "
            "played it; null where there were none. With more than 16 agents, those whose names differ by a number at "
            "the end share one. Of several ranks, rank 0's environments.",
            when="rows after an agent's first episode, in environments with several agents",
        ),
    ),
    "Policies": (
        Metric(
            "policy/NAME/agent_steps",
            "agent steps",
            "Samples that the policy has consumed. All of its metrics are in `policies/NAME/metrics.jsonl`.",
            when="rows of a run with several policies",
        ),
        Metric(
            "policy/NAME/episode_return",
            "reward",
            "Mean return of its last 100 episodes; null before the first.",
            when="rows of a run with several policies",
        ),
        Metric(
            "policy/NAME/rating",
            "Elo or skill",
            "Its rating.",
            when="rows of a run with several policies, in environments with several agents",
        ),
        Metric(
            "win_rate/NAME",
            "0..1",
            "The policy's share of the points in its matches against the policy NAME, older matches counting less: "
            "half after 200 more; null before the first.",
            when="rows of a policy, in environments with several agents",
        ),
    ),
    "Tasks": (
        Metric(
            "task/NAME/episode_return",
            "reward",
            "Mean return of the task's last 100 episodes; null before the first. Of several policies, the mean of "
            "theirs.",
            _ON_POLICY,
            when="every row, with several tasks",
        ),
        Metric(
            "task/NAME/score",
            "-",
            "The same, human-normalised: 0 is random play, 1 a human's return.",
            _ON_POLICY,
            when="every row, for Atari games and levels of DMLab-30 among several tasks",
        ),
        Metric(
            "task/NAME/samples",
            "0..1",
            "The task's share of the samples that were learned from, over the last ten rows.",
            _ON_POLICY,
            when="every row, with several tasks",
        ),
        Metric(
            "task/NAME/compute",
            "0..1",
            "Its share of the time that rollout workers spent in steps of environments, over the last ten rows.",
            _ON_POLICY,
            when="every row, with several tasks",
        ),
        Metric(
            "score/mean",
            "-",
            "Mean of the tasks' human-normalised scores; null until each has ended an episode.",
            _ON_POLICY,
            when="every row, with several tasks of which some have such scores",
        ),
        Metric("score/median", "-", "Likewise, the median.", _ON_POLICY, when="as score/mean"),
        Metric(
            "score/mean_capped",
            "-",
            "Likewise, the mean of the scores, each at most 1.",
            _ON_POLICY,
            when="as score/mean",
            label="score",
        ),
    ),
    "Past selves": (
        Metric(
            "rating",
            "Elo or skill",
            "Rating of the policy, from its matches against other policies and against past selves, which keep the "
            "rating that they had when they were taken; 0 at the start. With population.rating=openskill, its estimate "
            "minus three standard deviations.",
            when="every row, with population.snapshots or guests, or in environments with several agents and policies",
        ),
        Metric("snapshots", "snapshots", "Snapshots taken.", when="every row, with population.snapshots"),
        Metric(
            "past_win_rate",
            "0..1",
            "The policy's share of the points in its matches against past selves since the previous row: 1 for a win, "
            "1/2 for a draw; null where there were none.",
            when="every row, with population.snapshots",
        ),
    ),
    "Population-based training": (
        Metric(
            "pbt/score",
            "-",
            "The policy's objective when it was last compared with others; null before the first time.",
            when="rows of a policy, with population.pbt",
        ),
        Metric(
            "pbt/generation",
            "replacements",
            "How often another policy's weights have replaced this one's.",
            when="rows of a policy, with population.pbt",
        ),
        Metric(
            "pbt/NUMBER",
            "-",
            "Each number that is mutated (pbt.mutate), as the policy uses it now.",
            when="rows of a policy, with population.pbt",
        ),
    ),
    "Environment": (
        Metric(
            "env/NAME",
            "-",
            'Mean of the numbers that environments have given as `info["metrics"]["NAME"]` of `step` and `reset` since '
            "the previous row; null where there were none. Of several ranks, rank 0's environments.",
            when="rows after the first such number",
        ),
    ),
    "Policy lag": (
        Metric(
            "policy_lag_mean",
            "versions",
            "The learner's version minus the version that chose the action, at admission: mean over the samples since "
            "the previous row; null where there were none. `learner.max_policy_lag` counts the same versions.",
            _ON_POLICY,
            label="policy lag",
        ),
        Metric(
            "policy_lag_max", "versions", "The largest lag of these samples; null where there were none.", _ON_POLICY
        ),
        Metric(
            "policy_lag_expected",
            "versions",
            "What the configuration implies. Lockstep: `lag` (the first `lag` batches have less). Async: (samples of "
            "one rollout of all rows / batch size - 1) times the SGD steps of a batch; waiting in queues adds to it.",
            _ON_POLICY,
            label="expected lag",
        ),
        Metric(
            "policy_lag_histogram",
            "samples",
            "Samples since the previous row with lag 0, 1, 2, ..., up to the last that occurred; entry 63 counts all "
            "larger ones. A list, and so not in TensorBoard.",
            _ON_POLICY,
        ),
        Metric(
            "versions_per_trajectory",
            "versions",
            "Mean number of policy versions that acted within one trajectory; null where there was none.",
            _ON_POLICY,
        ),
        Metric(
            "stale_samples",
            "samples",
            "Valid samples that were left out because their lag was above `learner.max_policy_lag`, or because their "
            "policy was replaced since (population-based training), since the run's first start.",
            _ON_POLICY,
        ),
        Metric(
            "invalid_samples",
            "samples",
            "Rows that are no samples, since the run's first start: final observations that an autoreset made, and "
            "steps of failed environments.",
            _ON_POLICY,
        ),
    ),
    "Losses": (
        _loss("policy", "-", "Policy loss, without its coefficient.", _ON_POLICY),
        _loss("value", "-", "Value loss, without its coefficient.", _ON_POLICY),
        _loss("approx_kl", "nats", "Approximate KL divergence from the policy that acted.", _ON_POLICY),
        _loss("clip_fraction", "0..1", "Share of the samples whose ratio of probabilities was clipped.", _ON_POLICY),
        _loss("ratio", "-", "Mean ratio of probabilities, new policy over the one that acted.", _ON_POLICY),
        _loss(
            "gradient_norm", "-", "Norm of the gradient before it is clipped.", _ALL, f"{_LOSSES}; in replay with DQN"
        ),
        _loss("entropy", "nats", "Entropy of the policy, mean over samples.", _ALL, f"{_LOSSES}; in replay with SAC"),
        _loss("q", "reward", "Mean value of the actions in the batch.", _REPLAY),
        _loss("td_error", "reward", "Mean absolute temporal difference.", _REPLAY),
        _loss(
            "critic_gradient_norm", "-", "Norm of the critics' gradient before it is clipped.", _REPLAY, _ACTOR_LOSSES
        ),
        _loss("actor_loss", "-", "Loss of the actor.", _REPLAY, _ACTOR_LOSSES),
        _loss("actor_gradient_norm", "-", "Norm of the actor's gradient before it is clipped.", _REPLAY, _ACTOR_LOSSES),
        _loss("temperature", "-", "Weight of the entropy.", _REPLAY, _TEMPERATURE_LOSSES),
        _loss(
            "temperature_gradient_norm",
            "-",
            "Norm of its gradient before it is clipped.",
            _REPLAY,
            _TEMPERATURE_LOSSES,
        ),
    ),
    "Replay": (
        Metric(
            "replay/age",
            "versions",
            "Versions between the policy that collected a sample and the one that learns from it: mean since the "
            "previous row; null where nothing was learned. Steps of `replay.preload` count as those of version 0.",
            _REPLAY,
        ),
        Metric("replay/size", "agent steps", "Steps that the replay holds; of all ranks or policies.", _REPLAY),
        Metric("replay/samples_per_insert", "-", "How often each step has been learned from so far, mean.", _REPLAY),
        Metric("replay/total_priority", "-", "Sum of all priorities; of several ranks, rank 0's.", _REPLAY),
        Metric("replay/max_priority", "-", "Priority of new transitions; of several ranks, rank 0's.", _REPLAY),
        Metric(
            "replay/late_priorities",
            "samples",
            "Priorities that came after their sample had been evicted, since the session began.",
            _REPLAY,
        ),
        Metric(
            "replay/batches_skipped",
            "batches",
            "Batches for which there was nothing to draw, over all sessions with one replay file: at the end, or where "
            "other policies' steps have replaced a policy's; of several ranks, rank 0's.",
            _REPLAY,
        ),
        Metric(
            "learners/staleness_mean",
            "SGD steps",
            "Between the weights that a gradient was computed at and those that it was applied to: mean since the "
            "previous row; null where there was none.",
            _REPLAY,
            _SEVERAL_LEARNERS,
        ),
        Metric("learners/staleness_max", "SGD steps", "The largest of these.", _REPLAY, _SEVERAL_LEARNERS),
    ),
}

_LEARNER = {
    "measuring the fast path": "Choosing precision and memory format at the start.",
    "waiting for batches": "Waiting: no batch is ready.",
    "learning": "Forward and backward passes and optimiser steps.",
    "publishing": "Copying weights to where policy workers read them.",
    "reporting": "Making rows of metrics.",
    "saving": "Writing checkpoints and networks to be evaluated.",
}

PHASES: Mapping[str, Mapping[str, str]] = {
    "rollout worker": {
        "building environments": "Making environments, and their first reset.",
        "simulating": "In the environments' own `step` and `reset`.",
        "bookkeeping": "Everything else that it does.",
        "waiting for actions": "Waiting: the policy workers have not answered.",
        "waiting for a slot": "Waiting: all slots are full.",
        "waiting for the learner": "Waiting: in replay, for learning to catch up.",
    },
    "policy worker": {
        "waiting for observations": "Waiting: no group is ready.",
        "loading weights": "Copying the newest weights.",
        "gathering": "Copying observations out of slots.",
        "forward": "Forward passes and sampling.",
        "scattering": "Copying actions into slots.",
    },
    "learner": _LEARNER,
    "gradient learner": _LEARNER,
}
"""Role -> phase -> meaning, of the keys ``share/<role>/<phase>``."""

EVALUATION_KEYS: Mapping[str, str] = {
    "env": "The environment's name.",
    "agent_steps": "Agent steps that the network had learned from.",
    "episodes": "Whole episodes that were played.",
    "mean_return": "Mean return: raw rewards, undiscounted.",
    "interval_95": "Its 95 % bootstrap interval, over episodes of the environment: its agents are not independent.",
    "std_return": "Standard deviation of the returns.",
    "min_return": "The smallest return.",
    "max_return": "The largest return.",
    "mean_length": "Mean length, in agent steps.",
    "frames": "Agent steps of all episodes times the frame skip; agents that act together count one by one.",
    "frames_per_second": "Speed of the evaluation.",
    "deterministic": "Whether the best actions were taken, instead of sampled ones.",
    "seed": "Seed of the evaluation.",
    "tasks": "Of several tasks: name -> mean return and interval. `mean_return` is the mean of theirs.",
    "scores": "Name -> human-normalised score, of Atari games and levels of DMLab-30; of several tasks also their "
    "`mean`, `median` and `mean_capped` (each at most 1), which decides which network is the best.",
    "policies": "Of several policies that play together: name -> mean return and interval, as for `tasks`.",
    "metrics": 'What environments gave as `info["metrics"]`: name -> mean over the episodes.',
    "returns": "Return of each episode.",
    "lengths": "Length of each episode, in agent steps.",
    "video": "With `eval_video`: the video of one more episode, in the run directory; null where none was filmed.",
    "against": "With `eval_against`: opponent -> the network's share of the points in its matches, 1 for a win and 1/2 "
    "for a draw. Their mean decides which network is the best.",
}
"""Key of ``evaluations.jsonl`` -> meaning."""


def metric_names() -> set[str]:
    """All keys that a row of metrics may have, but for the losses of a user's own algorithm."""
    shares = {f"share/{role}/{phase}" for role, phases in PHASES.items() for phase in phases}
    return shares | {metric.name for group in METRICS.values() for metric in group}


def label(name: str) -> str:
    """What the display calls a metric."""
    return next(metric.label for group in METRICS.values() for metric in group if metric.name == name)


def describe_metrics() -> str:
    """The tables of ``docs/metrics.md``, in Markdown."""
    parts = []
    for title, metrics in METRICS.items():
        rows = [(f"`{m.name}`", m.unit, _regimes(m), m.when, m.meaning) for m in metrics]
        parts.append(f"### {title}\n\n{_table(('key', 'unit', 'regimes', 'rows', 'meaning'), rows)}")
    shares = [
        (f"`share/{role}/{phase}`", meaning) for role, phases in PHASES.items() for phase, meaning in phases.items()
    ]
    parts.append(f"### Shares of time\n\n{_table(('key', 'meaning'), shares)}")
    evaluations = [(f"`{name}`", meaning) for name, meaning in EVALUATION_KEYS.items()]
    parts.append(f"### Evaluations\n\n{_table(('key of `evaluations.jsonl`', 'meaning'), evaluations)}")
    return "\n\n".join(parts)


def _regimes(metric: Metric) -> str:
    return "all" if metric.regimes == _ALL else ", ".join(metric.regimes)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(describe_metrics())

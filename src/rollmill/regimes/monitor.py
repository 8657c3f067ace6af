"""Metrics rows, the display's status, and the final account of a run."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.entropy_guard import least_entropy
from rollmill.learning.lag import expected_lag
from rollmill.learning.report import RECENT_EPISODES, LearnerReport, PolicyLag
from rollmill.regimes.metric_rows import row_of, sums_of
from rollmill.regimes.setup import Probed
from rollmill.reporting.display import Display
from rollmill.reporting.health import Health
from rollmill.reporting.ledger_report import Stage, phase_shares
from rollmill.reporting.metrics import MetricsWriter, Record
from rollmill.reporting.status import PolicyStatus, Status, TaskStatus
from rollmill.runtime.ledger import ProcessAccount
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.storage.episodes import EpisodeEnd, episodes_of_each_task, mean_return

_log = logging.getLogger("rollmill.run")

_SPEED_WINDOW_S = 10.0
# Shares of a shorter interval would be noise.
_SHARES_OVER_S = 0.25
# Share of its initial exploration below which an on-policy policy counts as no longer exploring.
_COLLAPSED = 0.02


class Monitor:
    """Converts the learner's reports and the ledger into metrics and a display.

    Args:
        config: The run's configuration.
        probed: Sizes of the environment, such as frameskip.
        writer: Writes rows of metrics; None writes none.
        display: The display; None shows nothing.
        on_report: Called with every report and the seconds since the run started.
        on_row: Called with every row of metrics, after it is written.
        time_before_s: Seconds that earlier sessions of a resumed run took, added to the time in metrics.
        earlier: Rows of metrics of earlier sessions.
        is_resumed: Whether to note the step at which the run resumes.
        prefix: Begins every note.
        num_policies: Policies that share the rows.
    """

    def __init__(
        self,
        config: Config,
        probed: Probed,
        *,
        writer: MetricsWriter | None,
        display: Display | None,
        on_report: Callable[[LearnerReport, float], None] | None = None,
        on_row: Callable[[Record], None] = lambda row: None,
        time_before_s: float = 0.0,
        earlier: Sequence[Record] = (),
        is_resumed: bool = False,
        prefix: str = "",
        num_policies: int = 1,
    ) -> None:
        """Start the clock."""
        self._prefix = prefix
        self._config = config
        self._frameskip = probed.spec.frameskip
        self._num_tasks = len(probed.spec.tasks)
        self._writer = writer
        self._display = display
        self._on_report = on_report
        self._on_row = on_row
        num_rows = max(1, config.num_envs * probed.spec.rows_per_env // num_policies)
        # In policy versions, like the measured lag.
        self._expected_lag: float | None = None
        if isinstance(config.regime, LockstepConfig):
            self._expected_lag = float(config.regime.lag)
        elif isinstance(algorithm := config.algorithm, OnPolicyConfig):
            self._expected_lag = expected_lag(
                num_rows=num_rows,
                rollout_length=config.rollout_length,
                batch_size=algorithm.batch_size,
                sgd_steps_per_batch=algorithm.sgd_steps_per_batch,
            )
        self._started = time.monotonic()
        self._ends_at_s: float | None = None
        self._time_before_s = time_before_s
        self._is_resumed = is_resumed
        self._recent: Sequence[EpisodeEnd] = ()
        self._episodes = 0
        self._episodes_before: int | None = None
        self._speeds: deque[tuple[float, int]] = deque()
        # The ledger and the time at the last row with shares.
        self._accounts: Mapping[str, ProcessAccount] = {}
        self._accounts_at = -math.inf
        # Last known values, for intervals without learning.
        self._shares: Mapping[str, Stage] = {}
        self._lag = PolicyLag()
        self._evaluation_return: float | None = None
        self._env = EnvMetrics({}, {}, {})
        self._env_keys: dict[str, None] = {}
        self._env_refused: set[str] = set()
        self._fast_path = ""
        least = partial(least_entropy, probed.spec.action, share=_COLLAPSED)
        self._health = Health(
            config.total_steps,
            num_rows,
            least_entropy=None if config.in_replay else least,
            has_reward_terms=bool(config.reward_terms),
            earlier=earlier,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for part in (self._display, self._writer):
            try:
                if part is not None:
                    part.close()
            except OSError as failure:
                # for example a full disk; must neither replace the run's error nor fail the run
                _log.warning("%s could not be closed: %s", type(part).__name__, failure)

    def note(self, text: str) -> None:
        """Show a line and write it to ``run.log``."""
        self._tell(text, logging.INFO)

    def warn(self, text: str) -> None:
        """Show a line and write it to ``run.log`` as a warning."""
        self._tell(text, logging.WARNING)

    def _tell(self, text: str, level: int) -> None:
        text = self._prefix + text
        _log.log(level, "%s", text)
        if self._display is not None:
            self._display.note(text)

    def report(
        self,
        report: LearnerReport,
        accounts: Mapping[str, ProcessAccount],
        policies: Mapping[str, PolicyStatus] | None = None,
    ) -> Status:
        """Process one report of the learner.

        Args:
            report: The report.
            accounts: The current ledger.
            policies: Name -> each policy, where there are several.

        Returns:
            What the display shows.
        """
        now = max(0.0, report.at - self._started)
        if self._ends_at_s is None and self._config.max_seconds is not None:
            # Startup does not count; the training time of earlier sessions does.
            self._ends_at_s = now + self._config.max_seconds - report.training_s
        if self._is_resumed:
            self._is_resumed = False
            self.note(f"resumed at step {report.agent_steps:,}")
        if report.fast_path and report.fast_path != self._fast_path:
            self._fast_path = report.fast_path
            self.note(f"learner: {report.fast_path}")
        self._recent, self._episodes = report.recent_episodes, report.episodes
        if self._episodes_before is None:
            self._episodes_before = report.episodes
        shares = {}
        if now - self._accounts_at >= _SHARES_OVER_S:
            shares = phase_shares(accounts, self._accounts or None)
        self._shares = shares or self._shares
        if report.lag is not None and report.lag.mean is not None:
            self._lag = report.lag
        self.take_evaluations()
        status = self._status(report, now, policies or {})
        if self._on_report is not None:
            self._on_report(report, now)
        if report.is_row:
            if shares:  # reports for the display do not shorten the next row's interval
                self._accounts, self._accounts_at = accounts, now
            row = row_of(report, status, shares, env=self._env_means(), time_before_s=self._time_before_s)
            if self._writer is not None:
                self._writer.write(row)
            for warning in self._health.warnings(row):
                self.warn(warning)
            self._on_row(row)
        if self._display is not None:
            self._display.update(status)
        return status

    def take_env_metrics(self, metrics: EnvMetrics) -> None:
        """Takes in what rollout workers have told of their environments, for the next row."""
        self._env = EnvMetrics.merged([self._env, metrics])
        for name, why in metrics.refused.items():
            if name not in self._env_refused:
                self._env_refused.add(name)
                self.warn(f"warning: {why}")

    def _env_means(self) -> dict[str, float | None]:
        """Key -> mean since the previous row; None of keys that have had values before."""
        sums = sums_of(self._env)
        self._env_keys |= dict.fromkeys(sums)
        means: dict[str, float | None] = dict.fromkeys(self._env_keys)
        means |= {key: total / count for key, (total, count) in sums.items()}
        self._env = EnvMetrics({}, {}, {})
        return means

    def take_evaluations(self) -> None:
        """Process the results of evaluations."""
        for found in [] if self._writer is None else self._writer.write_evaluations():
            self._evaluation_return = float(found["mean_return"])
            low, high = found["interval_95"]
            _log.info(
                "evaluation at step %s: mean return %.6g (95 %% interval %.6g to %.6g) of %d episodes",
                f"{int(found['agent_steps']):,}", self._evaluation_return, low, high, found["episodes"],
            )  # fmt: skip
            if points := found.get("against"):
                shares = ", ".join(f"{share:.2f} against {opponent}" for opponent, share in points.items())
                self.note(f"evaluation at step {int(found['agent_steps']):,}: share of the points {shares}")

    @property
    def mean_return(self) -> float | None:
        """Mean raw return of the last 100 episodes, of several tasks the mean of the tasks' means.

        None before an episode of each task has ended.
        """
        return mean_return(self._recent, self._num_tasks)

    @property
    def has_reached_target(self) -> bool:
        """Whether the last 100 episodes reach ``target_return``, and as many have ended in this session.

        Of several tasks, each must have its share of them.
        """
        least = episodes_of_each_task(RECENT_EPISODES, self._num_tasks) if self._num_tasks else 1
        target, mean = self._config.target_return, mean_return(self._recent, self._num_tasks, least=least)
        of_this_session = self._episodes - (self._episodes_before or 0)
        return target is not None and mean is not None and of_this_session >= RECENT_EPISODES and mean >= target

    @property
    def is_time_up(self) -> bool:
        """Whether ``max_seconds`` have passed since the first report."""
        return self._ends_at_s is not None and time.monotonic() - self._started > self._ends_at_s

    def _speed(self, now: float, agent_steps: int) -> float | None:
        """Return agent steps a second over the last ten seconds; None before the second report."""
        self._speeds.append((now, agent_steps))
        while len(self._speeds) > 2 and now - self._speeds[0][0] > _SPEED_WINDOW_S:
            self._speeds.popleft()
        (then, before), (_, after) = self._speeds[0], self._speeds[-1]
        return (after - before) / (now - then) if now > then else None

    def _status(self, report: LearnerReport, now: float, policies: Mapping[str, PolicyStatus]) -> Status:
        speed = self._speed(now, report.agent_steps)
        return Status(
            name=self._config.preset or self._config.env.name,
            agent_steps=report.agent_steps,
            total_steps=self._config.total_steps,
            frames=report.agent_steps * self._frameskip,
            time_s=now,
            steps_per_second=speed,
            frames_per_second=None if speed is None else speed * self._frameskip,
            batches=report.batches,
            sgd_steps=report.sgd_steps,
            policy_version=report.policy_version,
            episodes=self._episodes,
            episode_return=self.mean_return,
            episode_length=statistics.fmean(e.episode_length for e in self._recent) if self._recent else None,
            evaluation_return=self._evaluation_return,
            policy_lag_mean=self._lag.mean,
            policy_lag_max=self._lag.maximum,
            policy_lag_expected=self._expected_lag,
            learning_rate=report.learning_rate,
            ends_at_s=self._ends_at_s,
            time_before_s=self._time_before_s,
            shares=self._shares,
            policies=policies,
            tasks=_tasks_of(report),
            score=report.figures.get("score/mean_capped"),
        )


def _tasks_of(report: LearnerReport) -> dict[str, TaskStatus]:
    """Return name -> each of several tasks."""
    found = {}
    for key, value in report.figures.items():
        name = key.removeprefix("task/").removesuffix("/episode_return")
        if key == f"task/{name}/episode_return":
            score = report.figures.get(f"task/{name}/score")
            found[name] = TaskStatus(value, score, report.figures.get(f"task/{name}/samples"))
    return found

"""What a user's own code may do while a run trains: follow it, steer it and end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.learning.live_numbers import Request, rule_of
from rollmill.runtime.control import AT_ONCE, NOT_SET, ControlBlock
from rollmill.settings.live_settings import live_numbers, upper_end
from rollmill.settings.option_values import plain

if TYPE_CHECKING:
    from rollmill.settings.config import Config


class Callback:
    """Called while a run trains; a subclass overrides the methods that it needs.

    ::

        class Cautious(rollmill.Callback):
            def on_report(self, run, metrics):
                if metrics["agent_steps"] > 1_000_000:
                    run.set(learning_rate=1e-4)

        rollmill.train("atari/pong", callbacks=[Cautious()])

    Methods are called in the main process (of rank 0, with several ranks), one after another. What takes longer than a
    second delays reports and the reaction to Ctrl-C, but not training. An exception ends the run with its traceback.
    """

    def on_start(self, run: LiveRun) -> None:
        """Called once, before the run's processes are started.

        Numbers that are set here hold from the first batch on.
        """

    def on_report(self, run: LiveRun, metrics: Mapping[str, Any]) -> None:
        """Called with each row of metrics, after it was written.

        Args:
            run: The run.
            metrics: The row as ``metrics.jsonl`` has it (docs/metrics.md): None where there was nothing to measure.
        """

    def on_checkpoint(self, run: LiveRun, path: Path) -> None:
        """Called after a checkpoint was written.

        The first one holds the network before anything is learned. The run cannot be loaded then: ``run.metrics`` is
        empty, and ``config.json`` is written with the first row of metrics.

        Args:
            run: The run.
            path: The file, which a later checkpoint may replace.
        """

    def on_end(self, run: LiveRun, ended_by: str) -> None:
        """Called once, when training has ended and everything is saved.

        Args:
            run: The run; it no longer takes requests.
            ended_by: As :attr:`rollmill.Run.ended_by` has it, or "failure" where an exception ends the run.
        """


class LiveRun:
    """A run that trains, as callbacks see it.

    Attributes:
        dir: The run's directory.
        config: Its settings; they do not change.
        metrics: The newest row of metrics; empty before the first one.
    """

    def __init__(
        self,
        directory: Path,
        config: Config,
        controls: Mapping[str, ControlBlock],
        *,
        start_evaluator: Callable[[], object],
    ) -> None:
        self.dir = directory
        self.config = config
        self.metrics: Mapping[str, Any] = {}
        self._controls = controls
        self._start_evaluator: Callable[[], object] | None = start_evaluator
        self._is_stop_wanted = False

    def set(self, *, policy: str | None = None, from_batch: int | None = None, **numbers: float | None) -> None:
        """Set numbers of the learner, which their schedules then no longer decide.

        They are in checkpoints, so a resumed run keeps them.

        Args:
            policy: Name of the policy that they are for; None for all.
            from_batch: The first batch that they hold for: the one that begins when the metric ``batches`` has this
                value. None is the next one, which depends on how fast the run is: in lockstep give a batch that is far
                enough ahead, so that the run stays reproducible. If the learner reaches it first nevertheless, the
                numbers hold from its next batch on, and the run prints a note.
            **numbers: ``learning_rate``, ``entropy_coef``, ``clip_range``, ``value_coef``, ``discount``,
                ``gae_lambda``, ``reward_scale``, ``max_grad_norm``, as the settings ``learner.NAME``, and
                ``adam_beta1``, ``adam_beta2`` and the weight ``reward_weight.NAME``
                of a reward term; None returns a number to its schedule. In the replay regime only
                ``learning_rate``, ``reward_scale``, ``max_grad_norm`` and Adam's betas.

        Raises:
            ValueError: An unknown name or policy, a value out of range, or a batch that has begun already; nothing is
                set then.
        """
        if self._start_evaluator is None:
            return  # The run is over.
        if policy is not None and policy not in self._controls:
            raise ValueError(f"run.set(policy={policy!r}): this run has the policies {', '.join(self._controls)}")
        affected = [
            settings
            for name, settings in zip(self._controls, self.config.policies, strict=True)
            if policy in (None, name)
        ]
        allowed = list(dict.fromkeys(name for settings in affected for name in live_numbers(settings)))
        numbers = {name: plain(value) for name, value in numbers.items()}
        for name, value in numbers.items():
            if name not in allowed:
                whose = "this run" if policy is None else f"policy {policy}"
                raise ValueError(f"run.set({name}={value!r}): {whose} takes {', '.join(allowed)}")
            _check(name, value)
            most = min(upper_end(settings, name) for settings in affected)
            if value is not None and value > most:
                raise ValueError(f"run.set({name}={value!r}): with clip_kind='symmetric' give at most {most}")
        from_batch = plain(from_batch)
        controls = list(self._controls.values()) if policy is None else [self._controls[policy]]
        begun = max(control.begun for control in controls)
        if from_batch is None:
            from_batch = AT_ONCE
        elif isinstance(from_batch, bool) or not isinstance(from_batch, int):
            raise ValueError(f"run.set(from_batch={from_batch!r}): give an integer, or omit it for the next batch")
        elif from_batch <= begun:
            raise ValueError(
                f"run.set(from_batch={from_batch!r}): batch {begun} has begun; give a later one, or omit from_batch "
                "for the next one"
            )
        values = {name: NOT_SET if value is None else float(value) for name, value in numbers.items()}
        for control in controls:
            control.change_numbers(values, from_batch)

    def save(self) -> None:
        """Ask for a checkpoint, which is written after the next batch.

        In lockstep it can be evaluated, but a run resumes from the regular checkpoints alone: only there have all
        environments left their state.
        """
        for control in self._controls.values():
            control.request(Request.CHECKPOINT)

    def evaluate(self) -> None:
        """Ask for an evaluation of the network after the next batch, as ``eval_every`` makes them.

        Its result comes later: in ``evaluations.jsonl``, the trackers and the display.
        """
        if self._start_evaluator is not None:
            self._start_evaluator()
        for control in self._controls.values():
            control.request(Request.EVALUATION)

    def stop(self) -> None:
        """End the run as if it had reached its last step, with everything saved."""
        self._is_stop_wanted = True

    @property
    def is_stop_wanted(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._is_stop_wanted

    def let_go(self) -> None:
        """Let go of the run's shared memory when the run is over: a callback may keep this object for longer."""
        self._controls, self._start_evaluator = {}, None


def _check(name: str, value: object) -> None:
    """Raises ValueError for a value that is not allowed."""
    if value is not None:
        rule_of(name).check(f"run.set: {name}", value, ", or None for its schedule")

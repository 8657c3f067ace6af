"""A sweep's trials in Optuna: which settings come next, which trials are pruned, and what is known in SQLite.

Optuna (Akiba et al. 2019, arXiv:1907.10902) is asked for settings and told results; the runs are Rollmill's own.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rollmill.campaigns.jobs import CampaignError, identity_of
from rollmill.campaigns.space import (
    Choices,
    Dimension,
    Point,
    SpaceError,
    contains,
    grid_of,
    is_on_step,
    point_of,
    size_of,
    untried_point,
)
from rollmill.extras import install_command
from rollmill.runtime.signatures import sign

SAMPLERS: Final = ("tpe", "random", "cmaes", "grid")
PRUNERS: Final = ("median", "hyperband", "none")
DIRECTIONS: Final = ("maximize", "minimize")
STORAGE_FILE: Final = "sweep.db"
# Points of a learning curve at which a pruner may end a trial.
POINTS: Final = 20
# Trials before the sampler models results, and before the pruner ends any.
_STARTUP_TRIALS = 10
_STARTUP_COMPLETE = 5
# No trial is ended in its first fifth.
_WARMUP_POINTS = 4
_HYPERBAND_FACTOR = 3
# So often the sampler may repeat points before it gets one that was not tried.
_MOST_DRAWS = 10
_NAME = "sweep"
_RETRIED, _REPEATED, _ERROR, _VALUES, _METRIC = "retried", "repeated", "error", "values", "metric"
# Optuna's attribute of a trial whose settings were proposed.
_FIXED = "fixed_params"

State = Literal["running", "complete", "pruned", "failed"]


class MissingSweepExtraError(ImportError):
    """Optuna, or a package of one of its samplers, is not installed."""


@dataclass(frozen=True)
class Trial:
    """One point of the space.

    Attributes:
        number: Its number, from 0.
        state: "complete", "pruned", "failed", or "running" if it has not ended.
        settings: Complete key -> value, as JSON data.
        value: The metric's mean over the seeds; of a pruned trial the last one reported. None where there is none.
        values: The metric of each seed.
        curve: Point (1 to 20) -> the metric that the pruner has seen there.
        error: Why it failed.
    """

    number: int
    state: State
    settings: Mapping[str, Any]
    value: float | None
    values: tuple[float, ...] = ()
    curve: Mapping[int, float] | None = None
    error: str = ""


class Study:
    """The trials of a sweep.

    No two trials have the same point: they would train with the same settings and seeds. Where the sampler repeats one,
    its trial in the file is failed, with the attribute "repeated", and is not among those of this class.

    Optuna does not change a trial that has ended. If the file holds values of another metric, it is replaced by one in
    which all trials are open, so that the caller can end each of them again by what its runs hold.

    Args:
        folder: Where the SQLite file is.
        space: What varies.
        sampler: "tpe", "random", "cmaes" or "grid".
        pruner: "median", "hyperband" or "none".
        metric: What the values are.
        direction: "maximize" or "minimize".
        seed: Key of the sampler.
        jobs: Trials at the same time.

    Raises:
        MissingSweepExtraError: A package is not installed.
        SpaceError: The sampler cannot search this space.
        CampaignError: The file cannot be used; also of each method.
    """

    def __init__(
        self,
        folder: Path,
        space: Sequence[Dimension],
        *,
        sampler: str,
        pruner: str,
        metric: str,
        direction: str,
        seed: int,
        jobs: int,
    ) -> None:
        self._optuna = _import_optuna()
        self._space = tuple(space)
        self._seed = seed
        self._grid = grid_of(space) if sampler == "grid" else None
        _check_sampler(sampler, self._space)
        self._file = folder / STORAGE_FILE
        with self._in_file(ValueError, LookupError):  # of what is in a file that is damaged
            if self._file.exists():
                _open_again(self._optuna, self._file, metric, direction)
            self._study = self._optuna.create_study(
                storage=_storage(self._optuna, self._file),
                pruner=_pruner(self._optuna, pruner),
                study_name=_NAME,
                direction=direction,
                load_if_exists=True,
            )
            if _METRIC not in self._study.user_attrs:
                self._study.set_user_attr(_METRIC, metric)
            # With the key of an earlier session, it would draw the same points again.
            self._study.sampler = _sampler(self._optuna, sampler, seed + len(self._all), jobs, folder)
        self._open: dict[int, Any] = {}  # Number -> Optuna's trial.
        for frozen in self._all:
            if frozen.state == self._optuna.trial.TrialState.RUNNING:
                with self._in_file():
                    trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
                    self._suggest(trial)  # Killed in between, it may lack some.
                self._open[frozen.number] = trial
                self._drop_if_repeated(frozen.number)  # Killed before it was.

    @property
    def most_trials(self) -> int | None:
        """How many trials have different points; None for no limit.

        Proposed points between two steps count, as do repeated ones of earlier versions.
        """
        size = size_of(self._space)
        if size is None:
            return None
        begun = [trial.settings for trial in self.trials]
        tried = {point_of(self._space, settings) for settings in begun}
        proposed = [point for point in self._proposed if point_of(self._space, point) not in tried]
        listed = {
            point_of(self._space, settings)
            for settings in (*begun, *proposed)
            if all(is_on_step(dimension, settings.get(dimension.key)) for dimension in self._space)
        }
        return size + len(begun) + len(proposed) - len(listed)

    @property
    def trials(self) -> list[Trial]:
        """All trials that have begun, by number, without failed ones that were tried again."""
        with self._in_file():
            retried = set(self._study.user_attrs.get(_RETRIED, ()))
        waiting = self._optuna.trial.TrialState.WAITING
        return [
            self._trial_of(t)
            for t in self._all
            if t.number not in retried and t.state != waiting and _REPEATED not in t.user_attrs
        ]

    @property
    def open_trials(self) -> list[Trial]:
        """The trials that have not ended."""
        return [trial for trial in self.trials if trial.number in self._open]

    def is_open(self, number: int) -> bool:
        """Whether a trial has begun and not ended."""
        return number in self._open

    def propose(self, settings: Mapping[str, Any]) -> None:
        """Have a point tried next, once: a session that was killed may have proposed it before."""
        point = point_of(self._space, settings)
        if point not in [point_of(self._space, waiting) for waiting in self._proposed]:
            with self._in_file():
                self._study.enqueue_trial(self._encoded(settings))

    def ask(self) -> Trial:
        """Begin the next trial; fewer than :attr:`most_trials` must have begun.

        Its point is a proposed one, or else the sampler's, if that is not the point of another trial.
        """
        for draw in itertools.count():
            if not self._proposed and (self._grid is not None or draw >= _MOST_DRAWS):
                self.propose(self._untried())
            with self._in_file():
                trial = self._study.ask()
                self._suggest(trial)
            self._open[trial.number] = trial
            if not self._drop_if_repeated(trial.number):
                break
        return self._trial_of(self._frozen(trial.number))

    def report(self, number: int, point: int, value: float) -> None:
        """Give the pruner a value of a trial's learning curve, unless it has one of this point."""
        if point not in self._frozen(number).intermediate_values:
            with self._in_file():
                self._open[number].report(value, point)

    def is_hopeless(self, number: int) -> bool:
        """Whether the pruner would end a trial now."""
        with self._in_file():
            return bool(self._open[number].should_prune())

    def complete(self, number: int, values: Sequence[float]) -> None:
        """End a trial with the metric of each seed."""
        self._note(number, _VALUES, list(values))
        self._tell(number, sum(values) / len(values), None)

    def prune(self, number: int) -> None:
        """End a trial that the pruner has given up."""
        self._tell(number, None, self._optuna.trial.TrialState.PRUNED)

    def fail(self, number: int, error: str) -> None:
        """End a trial without a result."""
        self._note(number, _ERROR, error)
        self._tell(number, None, self._optuna.trial.TrialState.FAIL)

    def retry_failed(self) -> int:
        """Propose the points of failed trials again; returns how many."""
        failed = [trial for trial in self.trials if trial.state == "failed"]
        for trial in failed:
            # In this order, and one by one: a kill in between leaves a failed trial, which the next call proposes.
            self.propose(trial.settings)
            with self._in_file():
                self._study.set_user_attr(_RETRIED, [*self._study.user_attrs.get(_RETRIED, ()), trial.number])
        return len(failed)

    @property
    def _proposed(self) -> list[dict[str, Any]]:
        """The settings of points that are to be tried next."""
        waiting = self._optuna.trial.TrialState.WAITING
        return [self._decoded(t.system_attrs.get(_FIXED, {})) for t in self._all if t.state == waiting]

    def _tried(self, before: int | None = None) -> set[Point]:
        """The points of the trials, or of those before one of them."""
        trials = [trial for trial in self.trials if before is None or trial.number < before]
        return {point_of(self._space, trial.settings) for trial in trials}

    def _untried(self) -> dict[str, Any]:
        tried = self._tried()
        if self._grid is not None:
            return next(point for point in self._grid if point_of(self._space, point) not in tried)
        point = untried_point(self._space, tried, self._seed + len(self._all))
        assert point is not None, "the caller begins no more trials than there are points"
        return point

    def _drop_if_repeated(self, number: int) -> bool:
        """Leave out a trial that has begun at the point of an earlier one; returns whether it did."""
        if point_of(self._space, self._trial_of(self._frozen(number)).settings) not in self._tried(number):
            return False
        self._note(number, _REPEATED, True)
        self._tell(number, None, self._optuna.trial.TrialState.FAIL)
        return True

    def _note(self, number: int, name: str, value: object) -> None:
        with self._in_file():
            self._open[number].set_user_attr(name, value)

    def _tell(self, number: int, value: float | None, state: Any) -> None:
        with self._in_file():
            self._study.tell(self._open.pop(number), value, state)

    @contextmanager
    def _in_file(self, *others: type[Exception]) -> Iterator[None]:
        """Use Optuna, which reads and writes the file, without its remarks.

        Args:
            others: More errors that mean a damaged file.

        Raises:
            CampaignError: The file is damaged, locked by another program, or cannot be written.
        """
        from sqlalchemy.exc import SQLAlchemyError  # Optuna's, which is not installed without the extra.

        try:
            with _quiet(self._optuna):
                yield
        except (self._optuna.exceptions.OptunaError, SQLAlchemyError, OSError, RuntimeError, *others) as error:
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise CampaignError(
                f"{self._file} cannot be used ({reason}): if it is locked, end the other program that reads it; if the "
                "disk is full, free space; and repeat the command, which continues."
            ) from error

    def _frozen(self, number: int) -> Any:
        return next(frozen for frozen in self._all if frozen.number == number)

    @property
    def _all(self) -> Any:
        """Optuna's trials, which must not be changed."""
        with self._in_file():
            return self._study.get_trials(deepcopy=False)

    def _trial_of(self, frozen: Any) -> Trial:
        states = self._optuna.trial.TrialState
        names: dict[Any, State] = {
            states.RUNNING: "running",
            states.COMPLETE: "complete",
            states.PRUNED: "pruned",
            states.FAIL: "failed",
        }
        value = frozen.value
        if frozen.state == states.PRUNED and frozen.intermediate_values:
            value = frozen.intermediate_values[max(frozen.intermediate_values)]
        return Trial(
            number=frozen.number,
            state=names[frozen.state],
            settings=self._decoded(frozen.params),
            value=value,
            values=tuple(frozen.user_attrs.get(_VALUES, ())),
            curve=dict(sorted(frozen.intermediate_values.items())),
            error=str(frozen.user_attrs.get(_ERROR, "")),
        )

    def _suggest(self, trial: Any) -> None:
        for dimension in self._space:
            if isinstance(dimension, Choices):
                trial.suggest_categorical(dimension.key, [json.dumps(value) for value in dimension.values])
            elif dimension.is_integer:
                step = int(dimension.step or 1)
                trial.suggest_int(dimension.key, int(dimension.low), int(dimension.high), step=step, log=dimension.log)
            else:
                trial.suggest_float(
                    dimension.key, dimension.low, dimension.high, step=dimension.step, log=dimension.log
                )

    def _encoded(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            dimension.key: json.dumps(dimension.element(settings[dimension.key]))
            if isinstance(dimension, Choices)
            else settings[dimension.key]
            for dimension in self._space
        }

    def _decoded(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The settings; values that are not in the space, in a file that something else has written, are left out."""
        found = {}
        for dimension in self._space:
            if dimension.key in parameters:
                value = parameters[dimension.key]
                value = json.loads(value) if isinstance(dimension, Choices) else value
                if contains(dimension, value):
                    found[dimension.key] = value
        return found


def _storage(optuna: Any, file: Path) -> Any:
    from sqlalchemy.engine import URL

    url = URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)
    return optuna.storages.RDBStorage(url)


def _open_again(optuna: Any, file: Path, metric: str, direction: str) -> None:
    """Replace a file of another metric or direction, atomically, by one with the same trials, all of them open.

    Numbers of trials stay, because they are in the names of runs. What samplers and pruners have noted goes: it follows
    from the old values.
    """
    storage = _storage(optuna, file)
    names = [study.study_name for study in storage.get_all_studies()]
    if _NAME not in names:  # Killed when the file was made.
        storage.engine.dispose()
        return
    old = optuna.load_study(study_name=_NAME, storage=storage)
    if old.user_attrs.get(_METRIC) == metric and old.direction.name.lower() == direction:
        storage.engine.dispose()
        return
    new_file = file.with_suffix(".new")
    new_file.unlink(missing_ok=True)
    new_storage = _storage(optuna, new_file)
    new = optuna.create_study(storage=new_storage, study_name=_NAME, direction=direction)
    retried = old.user_attrs.get(_RETRIED, ())
    for trial in old.get_trials(deepcopy=False):
        is_left_out = trial.number in retried or _REPEATED in trial.user_attrs
        new.add_trial(_opened(optuna, trial, is_left_out=is_left_out))
    new.set_user_attr(_RETRIED, retried)
    new.set_user_attr(_METRIC, metric)
    for each in (storage, new_storage):
        each.remove_session()
        each.engine.dispose()
    new_file.replace(file)


def _opened(optuna: Any, trial: Any, *, is_left_out: bool) -> Any:
    """The trial as if it had not ended, unless another one has its point."""
    states = optuna.trial.TrialState
    ended = states.FAIL if is_left_out else states.RUNNING
    return optuna.trial.create_trial(
        state=ended if trial.state.is_finished() else trial.state,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={name: value for name, value in trial.user_attrs.items() if name == _REPEATED},
        system_attrs={name: value for name, value in trial.system_attrs.items() if name == _FIXED},
    )


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingSweepExtraError(
            f"a sweep needs Optuna, which is not installed ({error}): {install_command('sweep')}"
        ) from error
    return optuna


def check_installed() -> None:
    """Raise :class:`MissingSweepExtraError` without Optuna."""
    _import_optuna()


def _check_sampler(sampler: str, space: Sequence[Dimension]) -> None:
    if sampler != "cmaes":
        return
    try:
        import cmaes  # noqa: F401 - Optuna imports it late
    except ImportError as error:
        raise MissingSweepExtraError(
            f"the sampler cmaes needs a package, which is not installed ({error}): {install_command('sweep')}"
        ) from error
    choices = [dimension.key for dimension in space if isinstance(dimension, Choices)]
    if choices or len(space) < 2:
        what = f"{choices[0]} has choices" if choices else f"there is one setting, {space[0].key}"
        raise SpaceError(f"the sampler cmaes needs at least two ranges of numbers, but {what}: take tpe or random.")


def _sampler(optuna: Any, name: str, seed: int, jobs: int, folder: Path) -> Any:
    if name == "tpe":
        # Trials that run at the same time must not be the same point.
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS, constant_liar=jobs > 1)
    if name == "cmaes":
        found = optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=_STARTUP_TRIALS)
        if not hasattr(found, "_attr_prefix"):
            raise SpaceError("the sampler cmaes of this version of Optuna reads pickles from sweep.db: take tpe.")
        # It restores itself from a pickle in the file. Under a name that follows from the user's key and the folder, it
        # finds only its own: not that of a folder from somebody else.
        own = sign("sampler of a sweep", [str(identity_of(folder)).encode()])
        found._attr_prefix = f"cma:{own['hmac'][:32]}:"
        return found
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(optuna: Any, name: str) -> Any:
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_COMPLETE, n_warmup_steps=_WARMUP_POINTS)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=POINTS, reduction_factor=_HYPERBAND_FACTOR)
    return optuna.pruners.NopPruner()


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep Optuna from logging each trial, and from warning of features that it calls experimental."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield

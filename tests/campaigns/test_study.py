"""Trials in Optuna: what is proposed, pruned, kept and continued."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmill.campaigns.jobs import CampaignError
from rollmill.campaigns.space import Choices, Dimension, Range, SpaceError
from rollmill.campaigns.study import STORAGE_FILE, MissingSweepExtraError, Study

pytest.importorskip("optuna")

RATE = Range("learner.learning_rate", 1e-5, 1e-1, is_integer=False, log=True)
EPOCHS = Range("learner.epochs", 1, 8, is_integer=True)
SIZES = Choices("model.mlp_sizes", ([8], [64, 64]))


def study_in(folder: Path, space: tuple[Dimension, ...] = (RATE, EPOCHS, SIZES), **changes: Any) -> Study:
    options: dict[str, Any] = {"sampler": "tpe", "pruner": "median", "metric": "score"}
    options |= {"direction": "maximize", "seed": 1, "jobs": 1}
    return Study(folder, space, **{**options, **changes})


def test_settings_have_the_types_of_the_space(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for _ in range(5):
        trial = study.ask()
        assert 1e-5 <= trial.settings["learner.learning_rate"] <= 1e-1
        assert trial.settings["learner.epochs"] in range(1, 9)
        assert isinstance(trial.settings["learner.epochs"], int)
        assert trial.settings["model.mlp_sizes"] in ([8], [64, 64])
        assert trial.state == "running"


def test_what_is_proposed_comes_next(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    start = {"learner.learning_rate": 0.05, "learner.epochs": 2, "model.mlp_sizes": [8]}
    study.propose(start)
    assert study.trials == []
    assert study.ask().settings == start


def test_a_proposed_value_may_be_another_type_of_number_than_its_choice(tmp_path: Path) -> None:
    costs = Choices("env.kwargs.step_cost", (0.5, 1.0))
    study = study_in(tmp_path, (costs,))
    study.propose({costs.key: 1})
    assert repr(study.ask().settings[costs.key]) == "1.0"


def test_results_and_open_trials_are_in_the_file(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for _ in range(4):
        study.ask()
    study.complete(0, [1.0, 3.0])
    study.report(1, 1, 0.5)
    study.report(1, 2, 0.25)
    study.prune(1)
    study.fail(2, "it broke")
    study.report(3, 1, 0.125)
    again = study_in(tmp_path)
    complete, pruned, failed, open_ = again.trials
    assert (complete.state, complete.value, complete.values) == ("complete", 2.0, (1.0, 3.0))
    assert (pruned.state, pruned.value, pruned.curve) == ("pruned", 0.25, {1: 0.5, 2: 0.25})
    assert (failed.state, failed.error, failed.value) == ("failed", "it broke", None)
    assert again.open_trials == [open_]
    assert open_.settings == study.trials[3].settings
    again.report(3, 1, 9.0)  # Known from the session before.
    again.report(3, 2, 0.5)
    again.complete(3, [4.0])
    assert again.trials[3].curve == {1: 0.125, 2: 0.5}
    assert [trial.settings for trial in study_in(tmp_path).trials] == [trial.settings for trial in again.trials]


@pytest.mark.slow
def test_with_another_metric_all_trials_are_open_again(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for _ in range(4):
        study.ask()
    study.report(0, 1, 0.5)
    study.complete(0, [1.0])
    study.prune(1)
    study.fail(2, "it broke")
    study.retry_failed()
    before = study.trials
    again = study_in(tmp_path, metric="speed", direction="minimize")
    assert [trial.state for trial in again.trials] == ["running"] * 3
    assert again.open_trials == again.trials, "the failed one that is tried again stays out"
    for old, new in zip(before, again.trials, strict=True):
        assert (new.number, new.settings, new.value, new.curve) == (old.number, old.settings, None, {})
    again.complete(0, [7.0])
    assert again.ask().settings == study._trial_of(study._frozen(2)).settings, "what was proposed comes next"
    kept = study_in(tmp_path, metric="speed", direction="minimize")
    assert kept.trials[0].value == 7.0
    assert not (tmp_path / "sweep.new").exists()
    assert study_in(tmp_path, direction="minimize").trials[0].state == "running", "the metric changed alone"


def test_a_later_session_draws_other_points(tmp_path: Path) -> None:
    first = study_in(tmp_path, sampler="random")
    one = first.ask()
    first.complete(one.number, [1.0])
    two = study_in(tmp_path, sampler="random").ask()
    assert one.settings != two.settings


def test_the_sampler_finds_the_better_side(tmp_path: Path) -> None:
    study = study_in(tmp_path, (RATE, EPOCHS))
    for _ in range(24):
        trial = study.ask()
        study.complete(trial.number, [-abs(trial.settings["learner.epochs"] - 7)])
    late = [trial.settings["learner.epochs"] for trial in study.trials[14:]]
    assert sum(late) / len(late) > 5.5  # 4.5 if it drew blindly


def test_the_median_pruner_ends_what_is_worse_than_half(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for number in range(6):
        study.ask()
        for point in range(1, 11):
            study.report(number, point, float(number))
        study.complete(number, [float(number)])
    for number, value, is_hopeless in ((6, 1.0, True), (7, 4.0, False)):
        study.ask()
        study.report(number, 3, value)
        assert not study.is_hopeless(number)  # Within its first fifth.
        study.report(number, 5, value)
        assert study.is_hopeless(number) == is_hopeless


@pytest.mark.parametrize(
    ("pruner", "is_any"), [pytest.param("hyperband", True, marks=pytest.mark.slow), ("none", False)]
)
def test_other_pruners(pruner: str, is_any: bool, tmp_path: Path) -> None:
    study = study_in(tmp_path, pruner=pruner)
    ended = 0
    for number in range(8):
        study.ask()
        for point in range(1, 21):
            study.report(number, point, float(-number))
            if study.is_hopeless(number):
                ended += 1
                study.prune(number)
                break
        else:
            study.complete(number, [float(-number)])
    assert bool(ended) == is_any


def test_the_smallest_may_be_the_best(tmp_path: Path) -> None:
    study = study_in(tmp_path, (EPOCHS, RATE), direction="minimize")
    for _ in range(24):
        trial = study.ask()
        study.complete(trial.number, [trial.settings["learner.epochs"]])
    late = [trial.settings["learner.epochs"] for trial in study.trials[14:]]
    assert sum(late) / len(late) < 3.5


def test_a_grid_is_gone_through_once_over_two_sessions(tmp_path: Path) -> None:
    space = (EPOCHS, SIZES)
    study = study_in(tmp_path, space, sampler="grid")
    assert study.most_trials == 16
    for _ in range(7):
        study.complete(study.ask().number, [1.0])
    study = study_in(tmp_path, space, sampler="grid")
    for _ in range(9):
        study.complete(study.ask().number, [1.0])
    points = {(t.settings["learner.epochs"], tuple(t.settings["model.mlp_sizes"])) for t in study.trials}
    assert len(points) == 16


def test_a_grid_of_real_steps_is_gone_through_once(tmp_path: Path) -> None:
    steps = Range("learner.kl_target", 0.1, 0.3, is_integer=False, step=0.1)
    study = study_in(tmp_path, (steps, EPOCHS), sampler="grid")
    for _ in range(24):
        study.complete(study.ask().number, [1.0])
    points = {(t.settings["learner.kl_target"], t.settings["learner.epochs"]) for t in study.trials}
    assert points == {(rate, epochs) for rate in (0.1, 0.2, 0.3) for epochs in range(1, 9)}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_no_point_of_a_small_space_is_tried_twice(sampler: str, tmp_path: Path) -> None:
    space = (replace(EPOCHS, high=3), SIZES)
    study = study_in(tmp_path, space, sampler=sampler)
    assert study.most_trials == 6
    for number in range(6):
        if number == 4:
            study = study_in(tmp_path, space, sampler=sampler)
        trial = study.ask()
        if trial.settings["learner.epochs"] == 2:
            study.fail(trial.number, "it broke")
        else:
            study.complete(trial.number, [1.0])
    points = {(t.settings["learner.epochs"], tuple(t.settings["model.mlp_sizes"])) for t in study.trials}
    assert len(points) == len(study.trials) == study.most_trials == 6
    again = study_in(tmp_path, space, sampler=sampler, metric="speed")
    assert [t.number for t in again.open_trials] == [t.number for t in study.trials]


def test_a_repeated_trial_is_left_out_after_a_kill(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    first = study.ask()
    study.propose(first.settings)
    study._study.ask()
    again = study_in(tmp_path)
    assert again.trials == again.open_trials == [first]
    again.propose(first.settings)
    assert again.ask().settings != first.settings


def test_a_start_between_two_steps_is_one_more_point(tmp_path: Path) -> None:
    steps = Range("learner.kl_target", 0.1, 0.3, is_integer=False, step=0.1)
    study = study_in(tmp_path, (steps,))
    study.propose({steps.key: 0.2})
    assert study.most_trials == 3
    study.propose({steps.key: 0.25})
    assert study.most_trials == 4


def test_failed_trials_are_tried_again(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    first, second = study.ask(), study.ask()
    study.fail(first.number, "no memory")
    study.complete(second.number, [1.0])
    assert study.retry_failed() == 1
    assert [trial.number for trial in study.trials] == [1]
    assert study.ask().settings == first.settings
    assert study.retry_failed() == 0


def test_a_point_is_proposed_once_over_killed_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = {"learner.learning_rate": 0.05, "learner.epochs": 2, "model.mlp_sizes": [8]}
    for _ in range(2):
        study_in(tmp_path).propose(start)
    study = study_in(tmp_path)
    failed = study.ask()
    assert failed.settings == start
    assert study._proposed == []
    study.fail(failed.number, "it broke")
    with monkeypatch.context() as killed:
        killed.setattr(study._study, "set_user_attr", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            study.retry_failed()
    again = study_in(tmp_path)
    assert again.retry_failed() == 1
    assert again._proposed == [start]
    assert again.ask().settings == start
    assert [trial.number for trial in again.trials] == [failed.number + 1]


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.slow
def test_cmaes_continues_from_its_own_state_and_runs_nothing_from_the_file(tmp_path: Path) -> None:
    pytest.importorskip("cmaes")
    study = study_in(tmp_path, (RATE, EPOCHS), sampler="cmaes")
    for _ in range(24):
        study.complete(study.ask().number, [1.0])
    own = [key for trial in study._all for key in trial.system_attrs if ":optimizer" in key]
    assert own
    storage, harm = study._study._storage, pickle.dumps(Harm(tmp_path / "harmed")).hex()
    for trial in study._all:
        number = storage.get_trial_id_from_study_id_trial_number(study._study._study_id, trial.number)
        with contextlib.suppress(Exception):  # Those that have ended take no more.
            storage.set_trial_system_attr(number, "cma:optimizer:0", harm)
    open_trial = study.ask()
    number = storage.get_trial_id_from_study_id_trial_number(study._study._study_id, open_trial.number)
    storage.set_trial_system_attr(number, "cma:optimizer:0", harm)
    study.complete(open_trial.number, [1.0])
    again = study_in(tmp_path, (RATE, EPOCHS), sampler="cmaes")
    again.complete(again.ask().number, [1.0])
    assert not (tmp_path / "harmed").exists()


@pytest.mark.slow
def test_cmaes_takes_two_ranges(tmp_path: Path) -> None:
    pytest.importorskip("cmaes")
    study = study_in(tmp_path, (RATE, EPOCHS), sampler="cmaes")
    for _ in range(14):
        study.complete(study.ask().number, [1.0])
    with pytest.raises(SpaceError, match=r"model\.mlp_sizes has choices: take tpe or random"):
        study_in(tmp_path, (RATE, SIZES), sampler="cmaes")
    with pytest.raises(SpaceError, match="there is one setting"):
        study_in(tmp_path, (RATE,), sampler="cmaes")


def test_several_at_a_time(tmp_path: Path) -> None:
    study = study_in(tmp_path, jobs=4)
    numbers = [study.ask().number for _ in range(4)]
    for number in numbers:
        study.complete(number, [1.0])
    assert all(trial.state == "complete" for trial in study.trials)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / STORAGE_FILE).write_text("this is no database" * 100)
    with pytest.raises(CampaignError, match=r"sweep\.db cannot be used"):
        study_in(tmp_path)


def test_a_locked_file_is_named_and_the_study_can_go_on(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    trial = study.ask()
    with contextlib.closing(sqlite3.connect(tmp_path / STORAGE_FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            CampaignError, match=r"sweep\.db cannot be used \(.*locked.*\): if it is locked, end the other"
        ):
            study.complete(trial.number, [1.0])
    assert study_in(tmp_path).open_trials == [trial]


def test_without_optuna_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingSweepExtraError, match="pip install optuna cmaes"):
        study_in(tmp_path)


def test_without_cmaes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(MissingSweepExtraError, match="pip install optuna cmaes"):
        study_in(tmp_path, (RATE, EPOCHS), sampler="cmaes")

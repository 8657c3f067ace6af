"""The out-of-the-box comparison: its verdicts, its table, and how it resumes."""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# In place of `rollmill`: writes a checkpoint, and the first training asks for a stop and waits for its end.
STAND_IN = """
import json, pathlib, signal, sys, time
words = sys.argv[1:]
with open("{calls}", "a") as calls:
    calls.write(" ".join(words) + "\\n")
if words[0] == "train":
    run_dir = pathlib.Path(words[words.index("--run-dir") + 1])
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    (run_dir / "checkpoints" / "checkpoint_1.pt").touch()
    if "--resume" not in words:
        pathlib.Path("{began}").touch()
        time.sleep(60)
else:
    episodes = int(words[words.index("--episodes") + 1])
    print("a line before")
    print(json.dumps({{"agent_steps": 300_000, "returns": [-80.0] * episodes, "lengths": [81] * episodes}}))
"""


class Modules(NamedTuple):
    """Of the comparison."""

    out_of_the_box: Any
    runs: Any
    table: Any
    tasks: Any
    verdicts: Any


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    sys.path.insert(0, str(BENCHMARKS))
    names = ("out_of_the_box", "untuned.runs", "untuned.table", "untuned.tasks", "untuned.verdicts")
    try:
        yield Modules(*map(import_module, names))
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in (*names, "untuned"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def verdicts(modules: Modules) -> ModuleType:
    found: ModuleType = modules.verdicts
    return found


def returns(mean: float, spread: float, *, seeds: int = 2, between: float = 0.0) -> list[list[float]]:
    """Of each seed 20 returns around its mean."""
    around = np.linspace(-spread, spread, 20)
    return [list(mean + between * (index - (seeds - 1) / 2) + around) for index in range(seeds)]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("ours", "theirs", "word"),
        [
            ((100.0, 10.0), (50.0, 10.0), "better"),
            ((50.0, 10.0), (100.0, 10.0), "worse"),
            ((100.0, 10.0), (98.0, 10.0), "equal"),  # the intervals overlap
            ((100.0, 0.1), (98.5, 0.1), "equal"),  # they do not, but 1.5 is below 2 % of the gain of 100
            ((100.0, 0.1), (97.5, 0.1), "better"),
        ],
    )
    def test_a_difference_counts_if_it_is_certain_and_above_the_margin(
        self, verdicts: ModuleType, ours: tuple[float, float], theirs: tuple[float, float], word: str
    ) -> None:
        verdict = verdicts.compare(returns(*ours), returns(*theirs), returns(0.0, 1.0, seeds=1))
        assert verdict.word == word
        assert verdict.difference.value == pytest.approx(ours[0] - theirs[0])
        assert not verdict.is_wide
        assert not verdict.neither_learned

    def test_seeds_that_differ_are_undecided(self, verdicts: ModuleType) -> None:
        verdict = verdicts.compare(returns(80.0, 1.0, between=100.0), returns(60.0, 1.0), [[0.0]])
        assert (verdict.word, verdict.is_wide) == ("equal", True)

    def test_two_that_learned_nothing_are_equal_and_said_to_be(self, verdicts: ModuleType) -> None:
        verdict = verdicts.compare([[-200.0] * 5] * 2, [[-200.0] * 5] * 2, [[-200.0] * 5])
        assert (verdict.word, verdict.neither_learned) == ("equal", True)
        assert verdict.difference == verdicts.Interval(0.0, 0.0, 0.0)

    def test_the_interval_is_over_seeds_and_episodes(self, verdicts: ModuleType) -> None:
        # Without chance in evaluation: both seeds are the first with probability 1/4, and the second as well.
        between = verdicts.mean_interval([[0.0] * 4, [10.0] * 4])
        assert between == verdicts.Interval(5.0, 0.0, 10.0)
        # Without chance in training: the standard error of the mean of all episodes.
        values = np.random.default_rng(0).normal(size=400)
        within = verdicts.mean_interval([list(values[:200]), list(values[200:])])
        in_evaluation = 1.96 * np.sqrt(values[:200].var() / 200 + values[200:].var() / 200) / 2
        in_training = 1.96 * (values[:200].mean() - values[200:].mean()) / 2 / np.sqrt(2)
        assert (within.high - within.low) / 2 == pytest.approx(np.hypot(in_evaluation, in_training), rel=0.2)

    def test_the_same_returns_give_the_same_interval(self, verdicts: ModuleType) -> None:
        assert verdicts.mean_interval(returns(1.0, 3.0)) == verdicts.mean_interval(returns(1.0, 3.0))

    def test_equal_libraries_are_rarely_told_apart_unless_seeds_differ(self, verdicts: ModuleType) -> None:
        # With two seeds, both of one lie above both of the other in a third of all cases.
        alike = verdicts.false_verdicts(2, 0.0, episodes=20, repetitions=30)
        apart = verdicts.false_verdicts(2, 50.0, episodes=20, repetitions=30)
        assert alike < 0.15 < apart < 0.55

    def test_no_returns_are_refused(self, verdicts: ModuleType) -> None:
        with pytest.raises(ValueError, match="no returns: at least one episode of one seed is needed"):
            verdicts.mean_interval([[1.0], []])


class TestTasks:
    def test_has_enough_environments_of_every_kind(self, modules: Modules) -> None:
        tasks = modules.tasks.TASKS
        assert len({task.env for task in tasks}) >= 20
        assert sum(task.family == "atari" and task.algorithm == "ppo" for task in tasks) == 10
        assert {"gym", "mujoco", "minigrid", "vizdoom", "atari"} == {task.family for task in tasks}
        assert len({task.name for task in tasks}) == len(tasks)

    def test_selects_by_parts_of_names(self, modules: Modules) -> None:
        chosen = modules.tasks.selected(["acrobot:dqn", "hopper"])
        assert [task.name for task in chosen] == [
            *("gym/Acrobot-v1:dqn", "mujoco/Hopper-v5:ppo", "mujoco/Hopper-v5:sac", "mujoco/Hopper-v5:td3")
        ]
        assert modules.tasks.selected([]) == modules.tasks.TASKS
        with pytest.raises(ValueError, match="--only acrobot:td3: fits no task"):
            modules.tasks.selected(["hopper", "acrobot:td3"])

    def test_every_published_result_belongs_to_a_task(self, modules: Modules) -> None:
        zoo = json.loads((BENCHMARKS / "results" / "rl_baselines3_zoo.json").read_text())
        wanted = {(task.zoo, task.algorithm) for task in modules.tasks.TASKS}
        assert {(row["env"], row["algorithm"]) for row in zoo["rows"]} <= wanted


def write_result(modules: Modules, places: Any, job: Any, mean: float, **changed: Any) -> None:
    task = job.task
    record = {
        "steps": job.steps,
        "sampled": task.sampled,
        "returns": [mean] * task.episodes,
        "machine": "a machine",
        "commit": "abc1234",
        "versions": {"stable_baselines3": "2.9.2"},
        **changed,
    }
    modules.runs.write_record(places.results / f"{job.name}.json", record)


class TestRuns:
    def test_an_interrupted_run_resumes_and_a_finished_one_is_skipped(self, modules: Modules, tmp_path: Path) -> None:
        runs = modules.runs
        script, calls, began = tmp_path / "stand_in.py", tmp_path / "calls", tmp_path / "began"
        script.write_text(STAND_IN.format(calls=calls, began=began))
        places = runs.Places(
            results=tmp_path / "results", runs=tmp_path / "runs", rollmill=(sys.executable, str(script))
        )
        (task,) = modules.tasks.selected(["acrobot:ppo"])
        (job,) = runs.jobs_of([task], ["rollmill"], [3])
        stop = threading.Event()

        def stop_when_it_trains() -> None:
            while not began.exists() and not stop.wait(0.05):
                pass
            stop.set()

        watcher = threading.Thread(target=stop_when_it_trains)
        watcher.start()
        try:
            with pytest.raises(runs.StoppedError):
                runs.run_job(places, job, stop, 100.0)
        finally:
            stop.set()
            watcher.join()
        assert runs.read_result(places, job) is None
        result = runs.run_job(places, job, threading.Event(), 100.0)
        assert runs.read_result(places, job) == result
        assert (result["agent_steps"], result["returns"]) == (300_000, [-80.0] * 50)
        run_dir = places.runs / f"{job.name}-300000"
        assert calls.read_text().splitlines() == [
            f"train gym/Acrobot-v1 --total-steps 300000 --seed 3 --run-dir {run_dir} --quiet",
            f"train --resume --run-dir {run_dir} --quiet",
            f"eval {run_dir} --episodes 50 --seed 3 --json --deterministic",
        ]

    def test_a_result_of_another_budget_is_none(self, modules: Modules, tmp_path: Path) -> None:
        places = modules.runs.Places(results=tmp_path, runs=tmp_path)
        (task,) = modules.tasks.selected(["acrobot:ppo"])
        (job,) = modules.runs.jobs_of([task], ["sb3"], [1])
        for changed in ({"steps": 1}, {"sampled": True}, {"returns": [1.0]}):
            write_result(modules, places, job, -80.0, **changed)
            assert modules.runs.read_result(places, job) is None
        write_result(modules, places, job, -80.0)
        assert modules.runs.read_result(places, job) is not None

    def test_a_failure_says_where_to_look_and_the_rest_runs(
        self, modules: Modules, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        runs = modules.runs
        script = tmp_path / "stand_in.py"
        script.write_text("import sys\nsys.exit('no such game')\n")
        places = runs.Places(results=tmp_path, runs=tmp_path / "runs", rollmill=(sys.executable, str(script)))
        jobs = runs.jobs_of(modules.tasks.selected(["acrobot"]), ["rollmill"], [1])
        failures = modules.out_of_the_box.run_all(
            places, jobs, at_once=2, timeout_seconds=100.0, stop=threading.Event()
        )
        assert failures == 2
        assert "gym/Acrobot-v1 dqn rollmill seed 1: failed with code 1: " in capfd.readouterr().err
        assert "no such game" in (places.runs / f"{jobs[0].name}.log").read_text()

    def test_random_play_is_run_once_for_each_environment_and_cheap_runs_first(self, modules: Modules) -> None:
        jobs = modules.runs.jobs_of(modules.tasks.selected(["pendulum-v1"]), ["random", "sb3"], [3, 4])
        pendulum = [job.describe() for job in jobs if job.task.env == "gym/Pendulum-v1"]
        assert pendulum == [
            "gym/Pendulum-v1 random random seed 1",
            *(f"gym/Pendulum-v1 ppo sb3 seed {seed}" for seed in (3, 4)),
            *(f"gym/Pendulum-v1 {name} sb3 seed {seed}" for name in ("sac", "td3") for seed in (3, 4)),
        ]

    def test_the_estimate_follows_how_long_runs_took(self, modules: Modules) -> None:
        jobs = modules.runs.jobs_of(modules.tasks.selected(["acrobot"]), ["sb3"], [1, 2])
        progress = modules.out_of_the_box.Progress(jobs, 2)
        expected = sum(job.minutes for job in jobs)
        assert progress.minutes_left == pytest.approx(expected / 2)
        progress.finish(jobs[0], 3 * jobs[0].minutes)
        progress.finish(jobs[1], 0.0, succeeded=False)
        assert progress.minutes_left == pytest.approx(3 * (expected - jobs[0].minutes - jobs[1].minutes) / 2)
        assert progress.describe().startswith("2 of 4 done, about 0 h ")


def test_the_table_counts_complete_rows(modules: Modules, tmp_path: Path) -> None:
    places = modules.runs.Places(results=tmp_path, runs=tmp_path)
    tasks = modules.tasks.selected(["acrobot", "mountaincar-v0:ppo"])
    means = {"rollmill": -80.0, "sb3": -100.0, "random": -500.0}
    for job in modules.runs.jobs_of(tasks[:2], modules.runs.LIBRARIES, [1, 2]):
        if (job.library, job.algorithm, job.seed) != ("sb3", "dqn", 2):
            write_result(modules, places, job, means[job.library])
    text = modules.table.table(tasks, places, [1, 2])
    assert (
        "| Acrobot-v1 | 300,000 | -80.0 [-80.0, -80.0] | -100.0 [-100.0, -100.0] | +20.0 [+20.0, +20.0] | **better** "
        "| -500.0 | -73.5 (1M) |"
    ) in text
    assert "| MountainCar-v0 | 200,000 | not run | not run |  |  |  | -110.4 (1M) |" in text
    assert "-100.0 [-100.0, -100.0] (1 of 2 seeds) | +20.0 [+20.0, +20.0] | (**better**)" in text
    assert "all seeds: 1 (better 1, equal 0, worse 0). Incomplete rows, which are not counted: 1." in text
    assert "all seeds: 0 (better 0, equal 0, worse 0). Incomplete rows, which are not counted: 1." in text
    assert "Stable-Baselines3 2.9.2: 3 runs on a machine." in text


def test_standing_still_is_no_gain(modules: Modules, tmp_path: Path) -> None:
    places = modules.runs.Places(results=tmp_path, runs=tmp_path)
    (task,) = modules.tasks.selected(["mountaincarcontinuous:ppo"])
    means = {"rollmill": 0.0, "sb3": 0.0, "random": -33.0}
    for job in modules.runs.jobs_of([task], modules.runs.LIBRARIES, [1, 2]):
        write_result(modules, places, job, means[job.library])
    assert "| equal: neither learned | -33.0 |" in modules.table.table([task], places, [1, 2])
    assert "equal: neither learned" not in modules.table.table([replace(task, idle=None)], places, [1, 2])

"""Networks that wait to be evaluated: their results, the best of them, failures, and the end of the evaluator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rollmill.envs.config import EnvConfig
from rollmill.evaluation.in_training import Evaluations, evaluate_until, play_pending
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.reporting.metric_table import EVALUATION_KEYS
from rollmill.runtime.signed_files import signed
from rollmill.settings.options import to_json
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead
from rollmill.storage.checkpoint_file import read_header
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue

MakeRun = Callable[..., Path]
CARTPOLE = EnvConfig(name="gym/CartPole-v1")


def network(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    specs = {"obs": ArraySpec(shape=(4,), dtype="float32")}
    action = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
    return ActorCritic(specs, action, ModelConfig()).state_dict()


def queue_of(run_dir: Path, *steps: int) -> EvaluationQueue:
    queue = EvaluationQueue(run_dir, every_steps=1)
    for place in steps:
        queue.leave(network(place), place)
    return queue


def store_of(run_dir: Path) -> CheckpointStore:
    return CheckpointStore(run_dir / "checkpoints", CheckpointConfig())


def test_pending_networks_are_played_in_their_order_and_the_best_is_kept(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10, 20, 30)
    play_pending(run_dir, Evaluations(CARTPOLE, 4), checkpoints=store_of(run_dir))
    assert queue.pending() == []
    records = queue.records()
    assert [record["agent_steps"] for record in records] == [10, 20, 30]
    for record in records:
        assert record["episodes"] == len(record["returns"]) == 4
        assert record["mean_return"] == pytest.approx(sum(record["returns"]) / 4)
        assert "video" not in record
        assert set(EVALUATION_KEYS) - set(record) == {"video", "against"}
        assert set(record) <= set(EVALUATION_KEYS)
    best = max(reversed(records), key=lambda record: record["mean_return"])
    header = read_header(run_dir / "checkpoints" / "best.pt")
    assert header[1:] == (best["agent_steps"], best["mean_return"], "evaluation_return", "mean return")


def test_the_seed_decides_the_episodes(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = EvaluationQueue(run_dir, every_steps=1)
    for steps, seed in ((10, 1), (20, 1), (30, 2)):
        queue.leave(network(0), steps)
        play_pending(run_dir, Evaluations(CARTPOLE, 4), checkpoints=store_of(run_dir), seed=seed)
    lengths = [record["lengths"] for record in queue.records()]
    assert lengths[0] == lengths[1] != lengths[2]


def test_the_environment_that_is_given_is_played_whatever_the_files_name(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10)
    content = signed({**to_json(EnvConfig(name="os:system")), **to_json(ModelConfig())})
    (run_dir / "config.json").write_text(json.dumps(content))
    short = EnvConfig(name=CARTPOLE.name, max_episode_steps=3)
    play_pending(run_dir, Evaluations(short, 2), checkpoints=store_of(run_dir))
    assert queue.records()[-1]["lengths"] == [3, 3]


def test_one_of_every_so_many_networks_is_filmed(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10, 20)
    play_pending(run_dir, Evaluations(CARTPOLE, 2, film_every=2), checkpoints=store_of(run_dir))
    queue.leave(network(30), 30)
    play_pending(run_dir, Evaluations(CARTPOLE, 2, film_every=2), checkpoints=store_of(run_dir))
    videos = [record["video"] for record in queue.records()]
    assert videos == ["videos/steps_000000000010.mp4", None, "videos/steps_000000000030.mp4"]
    assert sorted(path.name for path in (run_dir / "videos").iterdir()) == [Path(videos[0]).name, Path(videos[2]).name]
    assert queue.video_of(10) == run_dir / videos[0]
    assert queue.video_of(20) is None


def test_a_film_that_fails_is_a_warning(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10)
    (run_dir / "videos").write_text("a file in place of the folder")
    with pytest.warns(UserWarning, match="no video was written: .*cannot be created"):
        play_pending(run_dir, Evaluations(CARTPOLE, 2, film_every=1), checkpoints=store_of(run_dir))
    assert [(record["agent_steps"], record["video"]) for record in queue.records()] == [(10, None)]


def test_a_network_that_was_interrupted_stays_pending(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10, 20)
    play_pending(run_dir, Evaluations(CARTPOLE, 2), checkpoints=store_of(run_dir), is_stop_wanted=lambda: True)
    assert len(queue.pending()) == 2
    assert queue.records() == []
    play_pending(run_dir, Evaluations(CARTPOLE, 2), checkpoints=store_of(run_dir))
    assert len(queue.records()) == 2


def test_a_network_whose_evaluation_fails_is_set_aside(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10, 20)
    torn, good = queue.pending()
    torn.write_bytes(torn.read_bytes()[:100])
    with pytest.warns(UserWarning, match=f"no evaluation of {torn.name}: .*{torn.name}") as found:
        play_pending(run_dir, Evaluations(CARTPOLE, 2), checkpoints=store_of(run_dir))
    assert len(found) == 1
    assert queue.pending() == []
    assert torn.with_suffix(".failed").exists()
    assert not good.exists()
    assert [record["agent_steps"] for record in queue.records()] == [20]


def test_an_evaluation_whose_environment_fails_is_a_warning_with_its_traceback(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10)
    broken = EnvConfig(name=CARTPOLE.name, kwargs={"unknown": 1})
    with pytest.warns(UserWarning, match=r"(?s)no evaluation of .*Traceback.*unexpected keyword argument 'unknown'"):
        play_pending(run_dir, Evaluations(broken, 2), checkpoints=store_of(run_dir))
    assert (queue.pending(), queue.records()) == ([], [])


def test_the_evaluator_waits_for_the_run_and_plays_networks_as_they_appear(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    config = run_dir / "config.json"
    aside = config.rename(run_dir / "aside")
    queue = queue_of(run_dir, 10)
    waits: list[int] = []

    def while_waiting() -> None:
        waits.append(len(queue.records()))
        if len(waits) == 1:
            aside.rename(config)  # The learner has started.

    evaluate_until(
        {run_dir: store_of(run_dir)},
        Evaluations(CARTPOLE, 2),
        is_stop_wanted=lambda: len(waits) == 2,
        while_waiting=while_waiting,
    )
    assert waits == [0, 1]
    assert queue.pending() == []


def test_an_evaluator_that_is_told_to_stop_plays_nothing(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE.name)
    queue = queue_of(run_dir, 10)
    evaluate_until({run_dir: store_of(run_dir)}, Evaluations(CARTPOLE, 2), is_stop_wanted=lambda: True)
    assert len(queue.pending()) == 1

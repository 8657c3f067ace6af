"""Recording an agent's episodes as a Minari dataset."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import rollmill
from rollmill.cli.program import main
from rollmill.envs.errors import UnknownEnvironment
from rollmill.evaluation import episode_length
from rollmill.evaluation.demonstrations import DemonstrationError, read_dataset, record
from rollmill.evaluation.episode_length import EndlessEpisodeError
from rollmill.extras import MissingPackageError
from rollmill.runtime.seeds import int_seed

pytest.importorskip("minari")

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 8,
    "learner.batch_size": 64,
    "learner.minibatches": 1,
    "rollout.num_workers": 1,
    "model.mlp_sizes": "8",
    "total_steps": 128,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rollmill.Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        yield rollmill.train("gym/CartPole-v1", run_dir=tmp_path_factory.mktemp("run"), quiet=True, **SMALL)


def test_a_dataset_has_the_episodes_that_were_played(run: rollmill.Run) -> None:
    told: list[int] = []
    found = record(run.dir, "cartpole/test-v0", episodes=6, progress=lambda done, last: told.append(done))
    assert told == [1, 2, 3, 4, 5, 6]
    dataset = read_dataset("cartpole/test-v0")
    assert dataset.total_episodes == 6
    assert dataset.total_steps == found.steps == found.returns.sum()
    assert dataset.action_space == gymnasium.spaces.Discrete(2)
    for number, episode in enumerate(dataset.iterate_episodes()):
        assert len(episode.observations) == len(episode.rewards) + 1
        assert episode.terminations[-1] or episode.truncations[-1]
        env = gymnasium.make("CartPole-v1")
        assert np.array_equal(env.reset(seed=int_seed(0, "recorded episode", number))[0], episode.observations[0])
        for step, action in enumerate(episode.actions):
            assert np.allclose(env.step(int(action))[0], episode.observations[step + 1])


def test_the_same_seed_records_the_same_episodes(run: rollmill.Run) -> None:
    one, other = (record(run.dir, f"cartpole/{name}-v0", episodes=3, seed=4) for name in ("one", "other"))
    assert np.array_equal(one.returns, other.returns)
    assert (one.folder.name, other.folder.name) == ("one-v0", "other-v0")


@pytest.mark.parametrize("name", ["no name", "cartpole/test", "", "../out-v0"])
def test_names_that_no_dataset_can_have(run: rollmill.Run, name: str) -> None:
    with pytest.raises(DemonstrationError, match="is no name of a new dataset"):
        record(run.dir, name, episodes=1)


def test_a_name_that_is_taken_is_refused(run: rollmill.Run) -> None:
    record(run.dir, "cartpole/taken-v0", episodes=1)
    with pytest.raises(DemonstrationError, match=r"there is a dataset 'cartpole/taken-v0' already"):
        record(run.dir, "cartpole/taken-v0", episodes=1)
    with pytest.raises(DemonstrationError, match=r"no dataset 'cartpole/other-v7'.*cartpole/taken-v0"):
        read_dataset("cartpole/other-v7")


@pytest.mark.slow
def test_a_native_environment_cannot_be_recorded(run: rollmill.Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("envpool")
    native = rollmill.train("envpool/CartPole-v1", run_dir=tmp_path_factory.mktemp("native"), quiet=True, **SMALL)
    with pytest.raises(UnknownEnvironment, match="has only a native vector environment"):
        record(native.dir, "cartpole/native-v0", episodes=1)


class Reusing(gymnasium.Env[Any, Any]):
    """Writes all observations into one array."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.shown = np.zeros(1, np.float32)
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.shown += 1
        return self.shown, 1.0, bool(self.shown[0] >= 5), False, {}


@pytest.mark.slow
def test_an_environment_may_write_into_the_same_array_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    run = rollmill.train(Reusing, run_dir=tmp_path / "run", quiet=True, **SMALL)
    record(run.dir, "reusing/test-v0", episodes=1)
    (episode,) = read_dataset("reusing/test-v0").iterate_episodes()
    assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


class Camera(gymnasium.Env[Any, Any]):
    """Shows noise, which JPEG would change, in a shape that JPEG cannot have."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.shown(), 1.0, self.steps == 3, False, {}

    def shown(self) -> Any:
        return self.np_random.integers(256, size=(40, 40, 4), dtype=np.uint8)


@pytest.mark.slow
def test_pictures_are_recorded_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    run = rollmill.train(Camera, run_dir=tmp_path / "run", quiet=True, **SMALL)
    record(run.dir, "camera/test-v0", episodes=1)
    (episode,) = read_dataset("camera/test-v0").iterate_episodes()
    expected = np.random.Generator(np.random.PCG64(int_seed(0, "recorded episode", 0)))
    assert np.array_equal(episode.observations, expected.integers(256, size=(4, 40, 40, 4), dtype=np.uint8))


@pytest.mark.parametrize(
    ("error", "told"), [(OSError("No space left"), DemonstrationError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_dataset_is_written_whole_or_not_at_all(
    run: rollmill.Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: type[BaseException]
) -> None:
    from minari.dataset.minari_storage import MinariStorage

    name = f"cartpole/half-{told.__name__}-v0"

    def fail(*arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(MinariStorage, "update_metadata", fail)
        with pytest.raises(told, match=r"No space left|^$"):
            record(run.dir, name, episodes=1)
    assert record(run.dir, name, episodes=1).folder.exists()


def test_a_folder_that_is_no_dataset_is_refused_and_stays(run: rollmill.Run) -> None:
    folder = record(run.dir, "cartpole/beside-v0", episodes=1).folder.with_name("mine-v0")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(DemonstrationError, match="mine-v0 exists and is no dataset"):
        record(run.dir, "cartpole/mine-v0", episodes=1)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_name_that_is_taken_while_episodes_are_played_stays_with_the_other(run: rollmill.Run) -> None:
    def take(done: int, last: float) -> None:
        if done == 1:
            record(run.dir, "cartpole/raced-v0", episodes=1, seed=7)

    with pytest.raises(DemonstrationError, match=r"raced-v0' cannot be written to .*not empty"):
        record(run.dir, "cartpole/raced-v0", episodes=2, progress=take)
    dataset = read_dataset("cartpole/raced-v0")
    assert len(list(dataset.iterate_episodes())) == 1
    root = dataset.storage.data_path.parents[2]
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []


def test_a_name_may_have_no_namespace(run: rollmill.Run) -> None:
    assert record(run.dir, "alone-v0", episodes=1).folder.exists()


class Slashed(Reusing):
    """Its observations have names that are paths."""

    observation_space = gymnasium.spaces.Dict({"arm": gymnasium.spaces.Dict({"a/b": Reusing.observation_space})})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"arm": {"a/b": super().reset(seed=seed)[0]}}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, *rest = super().step(action)
        return {"arm": {"a/b": seen}}, *rest


@pytest.mark.slow
def test_names_that_a_dataset_cannot_have_are_refused(tmp_path: Path) -> None:
    run = rollmill.train(Slashed, run_dir=tmp_path / "run", quiet=True, **SMALL)
    with pytest.raises(DemonstrationError, match="an entry 'a/b', but datasets of Minari have no '/' in names"):
        record(run.dir, "cartpole/slashed-v0", episodes=1)


@pytest.mark.parametrize("package", ["minari", "h5py"])
def test_a_dataset_that_cannot_be_read_is_refused(
    run: rollmill.Run, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    name = f"cartpole/read-{package}-v0"
    record(run.dir, name, episodes=1)
    if package == "h5py":
        find = importlib.util.find_spec
        monkeypatch.setattr("rollmill.extras.find_spec", lambda name: None if name == "h5py" else find(name))
        expected: tuple[type[Exception], str] = (MissingPackageError, "reading recorded episodes needs h5py")
    else:

        def raises(name: str) -> Any:
            raise ValueError("minari version 9 is not supported")

        monkeypatch.setattr("minari.load_dataset", raises)
        expected = (DemonstrationError, "cannot be read: minari version 9 is not supported")
    with pytest.raises(expected[0], match=expected[1]):
        read_dataset(name)


def test_the_package_that_writes_is_needed_before_anything_is_played(
    run: rollmill.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("rollmill.extras.find_spec", lambda name: None if name == "h5py" else find(name))
    with pytest.raises(MissingPackageError, match=r"needs h5py.*minari"):
        record(run.dir, "cartpole/unwritten-v0", episodes=1, progress=lambda *_: pytest.fail("it was played"))


class Broken(Reusing):
    """Breaks after many episodes, so that it can be trained in."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.episodes > 1_000:
            raise ValueError("the wheel came off")
        return super().step(action)


@pytest.mark.slow
def test_an_error_of_the_environment_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    run = rollmill.train(Broken, run_dir=tmp_path / "run", quiet=True, **SMALL)
    monkeypatch.setattr(Broken, "episodes", 2_000)
    with pytest.raises(ValueError, match="the wheel came off") as raised:
        record(run.dir, "broken/test-v0", episodes=1)
    assert not isinstance(raised.value, DemonstrationError)


class Endless(Reusing):
    """Does not end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.shown, 1.0, False, False, {}


@pytest.mark.slow
def test_episodes_that_do_not_end_are_given_up_or_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    run = rollmill.train(Endless, run_dir=tmp_path / "run", quiet=True, **SMALL)
    monkeypatch.setattr(episode_length, "_WARNED_OF_LENGTH", 20)
    monkeypatch.setattr(episode_length, "_TAKEN_FOR_ENDLESS", 30)
    with (
        pytest.warns(UserWarning, match=r"has not ended after 20 .*--max-episode"),
        pytest.raises(EndlessEpisodeError, match=r"has not ended after 30 steps, with 0 of 2 episodes .*--max-episode"),
    ):
        record(run.dir, "endless/test-v0", episodes=2)
    assert record(run.dir, "endless/test-v0", episodes=2, max_episode_steps=40).steps == 80
    assert main(["record", str(run.dir), "endless/cli-v0", "--episodes", "2", "--max-episode-steps", "7"]) == 0
    assert read_dataset("endless/cli-v0").total_steps == 14


class Match:
    """A match of two agents with PettingZoo's parallel interface."""

    possible_agents = ("ann", "bob")
    metadata: ClassVar[dict[str, Any]] = {}
    render_mode = None

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return Reusing.observation_space

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return Reusing.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        no = dict.fromkeys(self.agents, False)
        return self._shown(), dict.fromkeys(self.agents, 0.0), no, no, {agent: {} for agent in self.agents}

    def close(self) -> None:
        pass

    def _shown(self) -> dict[str, Any]:
        return {agent: np.zeros(1, np.float32) for agent in self.agents}


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{}, {"env.max_episode_steps": 9}], ids=["without a limit", "with a limit"])
def test_a_match_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    run = rollmill.train(Match, run_dir=tmp_path / "run", quiet=True, **SMALL, **limit)
    with pytest.raises(DemonstrationError, match="has several agents"):
        record(run.dir, "match/test-v0", episodes=1)


def test_an_array_of_one_element_gets_a_single_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    run = rollmill.train("test/cell", run_dir=tmp_path / "run", quiet=True, **SMALL)
    assert record(run.dir, "cell/test-v0", episodes=2).steps == 6
    assert {episode.actions.shape for episode in read_dataset("cell/test-v0").iterate_episodes()} == {(3,)}

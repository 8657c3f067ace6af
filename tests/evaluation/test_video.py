"""Films and what is filmed."""

from __future__ import annotations

import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from PIL import Image

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.envs.registry import register_env
from rollmill.evaluation.agent import load
from rollmill.evaluation.lineup import lineup_of_agent
from rollmill.evaluation.rows import play
from rollmill.evaluation.snapshot import NoRunError
from rollmill.evaluation.stage import NotRenderableError, open_stage
from rollmill.evaluation.video import (
    Frame,
    VideoError,
    check_video_path,
    enlarge,
    film_episode,
    play_episode,
    write_mp4,
)
from rollmill.evaluation.watch import watch
from rollmill.evaluation.window import Window
from rollmill.extras import MissingPackageError

from .conftest import MakeRun, Unlinked


def read_mp4(path: Path) -> NDArray[np.uint8]:
    """All pictures of a film, uint8 ``[N, H, W, 3]``, as ffmpeg decodes them."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "image2pipe", "-c:v", "ppm", "-"]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    header = data[: data.index(b"\n255\n") + 5]
    width, height = (int(word) for word in header.split()[1:3])
    frames = np.frombuffer(data, np.uint8).reshape(-1, len(header) + width * height * 3)
    return frames[:, len(header) :].reshape(-1, height, width, 3)


def test_enlarging_repeats_pixels_and_gives_even_sizes() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (45, 61, 3), np.uint8)
    large = enlarge(picture, 480)
    assert large.shape == (496, 672, 3)
    np.testing.assert_array_equal(large[:495:11, :671:11], picture)
    assert enlarge(np.zeros((500, 333, 3), np.uint8)).shape == (500, 334, 3)


def test_an_episode_is_filmed_to_its_end(make_run: MakeRun, tmp_path: Path) -> None:
    agent = load(make_run("test/striped"))
    path = tmp_path / "films" / "a.mp4"
    film = film_episode(lineup_of_agent(agent), agent.snapshot.env, path, 0, caption=False)
    assert film == (path, 10.0, 5, True)
    video = read_mp4(path)
    assert video.shape == (5, 496, 672, 3)
    # The picture of each step is the one after it; H.264 keeps grey values within a few steps.
    np.testing.assert_allclose(
        video.mean((1, 2, 3)), [40 * step * 495 * 671 / (496 * 672) for step in range(1, 6)], atol=6
    )
    assert [p.name for p in path.parent.iterdir()] == ["a.mp4"]


def test_a_caption_is_below_the_picture(make_run: MakeRun, tmp_path: Path) -> None:
    agent = load(make_run("test/striped"))
    film = film_episode(lineup_of_agent(agent), agent.snapshot.env, tmp_path / "a.mp4", 0)
    video = read_mp4(film.path)
    assert video.shape == (5, 496 + 32, 672, 3)
    assert video[0, 496:].max() > 200, "text is bright"
    assert not np.array_equal(video[0, 496:], video[4, 496:])


@pytest.mark.parametrize("limit", [{"longest_s": 0.1}, {"budget_s": 0.0}, {"is_stop_wanted": lambda: True}])
def test_a_long_film_is_cut(make_run: MakeRun, tmp_path: Path, limit: dict[str, Any]) -> None:
    agent = load(make_run("test/striped", kwargs={"limit": 100}))
    film = film_episode(lineup_of_agent(agent), agent.snapshot.env, tmp_path / "a.mp4", 0, **limit)
    assert not film.complete
    assert film.frames < 5


def test_a_failure_leaves_no_half_film(make_run: MakeRun, tmp_path: Path) -> None:
    agent = load(make_run("test/striped"))

    def frames() -> Any:
        yield from play_episode(lineup_of_agent(agent), agent.snapshot.env, 0)
        raise RuntimeError("the simulator died")

    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "a.mp4").write_bytes(b"the old one")
    with pytest.raises(RuntimeError, match="died"):
        write_mp4(tmp_path / "films" / "a.mp4", frames())
    assert [p.name for p in (tmp_path / "films").iterdir()] == ["a.mp4"]
    assert (tmp_path / "films" / "a.mp4").read_bytes() == b"the old one"


def test_an_encoder_that_does_not_start_is_told(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = load(make_run("test/striped"))
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "none"))
    with pytest.raises(VideoError, match=r"ffmpeg does not start.*rollmill doctor"):
        film_episode(lineup_of_agent(agent), agent.snapshot.env, tmp_path / "a.mp4", 0)


def test_a_film_that_the_encoder_cannot_finish_replaces_none(make_run: MakeRun, tmp_path: Path) -> None:
    agent = load(make_run("test/striped"))
    (tmp_path / "a.mp4").write_bytes(b"the old one")
    # The largest file that a process may write, as a full disk would limit it.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(VideoError, match="cannot be written"):
            film_episode(lineup_of_agent(agent), agent.snapshot.env, tmp_path / "a.mp4", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.glob("*.mp4")] == ["a.mp4"]
    assert (tmp_path / "a.mp4").read_bytes() == b"the old one"


def test_a_name_with_a_colon_is_no_protocol(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = load(make_run("test/striped"))
    monkeypatch.chdir(tmp_path)
    for name in ("12:30.mp4", "exp:1/a.mp4"):
        film_episode(lineup_of_agent(agent), agent.snapshot.env, name, 0)
        assert read_mp4(tmp_path / name).size


def test_no_frames_no_film(tmp_path: Path) -> None:
    def none() -> Any:
        yield from ()

    with pytest.raises(ValueError, match="no frames"):
        write_mp4(tmp_path / "a.mp4", none())


def test_frames_tell_the_episode_so_far(make_run: MakeRun) -> None:
    agent = load(make_run("test/striped"))
    frames = list(play_episode(lineup_of_agent(agent), agent.snapshot.env, 0))
    assert [(f.reward_sum, f.length, f.ended, f.fps) for f in frames] == [
        (2.0 * n, n, n == 5, 20.0) for n in range(1, 6)
    ]
    assert [int(f.picture[0, 0, 0]) for f in frames] == [40, 80, 120, 160, 200]


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("test/blind", []),
        ("test/windowed", ['with render_mode="rgb_array" it raised AssertionError: ']),
        ("test/unlinked", ['with render_mode="rgb_array" it raised OSError: libGL.so.1: cannot open']),
        (
            "test/unlinked_and_sightless",
            ["it raised OSError: libGL.so.1: cannot open, and without it, render() raised AttributeError: 'Unlinked"],
        ),
    ],
)
def test_an_environment_that_does_not_draw_shows_its_image_observation(
    make_run: MakeRun, name: str, notes: list[str]
) -> None:
    agent = load(make_run(name))
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        pictures = [frame.picture for frame in play_episode(lineup_of_agent(agent), agent.snapshot.env, 0)]
    assert pictures[0].shape == (12, 16, 3)
    assert [int(picture.mean()) for picture in pictures] == [1, 2, 3, 4, 5]
    assert len(noted) == len(notes)
    for one, text in zip(noted, notes, strict=True):
        assert f"{name} is shown as it is observed: " in str(one.message)
        assert text in str(one.message)


def test_a_vector_that_does_not_draw_shows_its_image_observation(make_run: MakeRun) -> None:
    register_env("test/unlinked_vector", _unlinked_vector, vector=True)
    agent = load(make_run("test/unlinked_vector"))
    with pytest.warns(UserWarning, match="it raised OSError: libGL"):
        frames = list(play_episode(lineup_of_agent(agent), agent.snapshot.env, 0))
    assert frames[-1].picture.shape == (12, 16, 3)
    assert frames[-1].fps == 20


def _unlinked_vector(num_envs: int, render_mode: str | None = None) -> Any:
    vector = SyncVectorEnv([lambda: Unlinked(render_mode)] * num_envs)
    vector.metadata = {**vector.metadata, "render_fps": 20}
    return vector


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test/mixed", "neither renders nor observes images .with render_mode=.* it raised TypeError: Mixed"),
        ("test/unlinked_and_blind", "neither renders .*with render_mode=.* it raised OSError: libGL.so.1: cannot open"),
        ("test/broken", "an RGB picture"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(make_run: MakeRun, name: str, message: str) -> None:
    agent = load(make_run(name))
    with pytest.raises(NotRenderableError, match=message):
        next(play_episode(lineup_of_agent(agent), agent.snapshot.env, 0))


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        ("float32", 0.5, 128),
        ("float64", 1.0, 255),
        ("float32", 0.0, 0),
        ("float32", 200.0, 200),
        ("int64", 200, 200),
        ("uint8", 200, 200),
    ],
)
def test_pictures_of_other_types_keep_their_colours(make_run: MakeRun, dtype: str, value: float, shown: int) -> None:
    agent = load(make_run("test/painted", kwargs={"dtype": dtype, "value": value}))
    frame = next(play_episode(lineup_of_agent(agent), agent.snapshot.env, 0))
    assert frame.picture.dtype == np.uint8
    assert (frame.picture == shown).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dtype": "float32", "value": 300.5}, "picture of float32 with values from 300.5 to 300.5: give numbers"),
        ({"dtype": "float32", "value": "nan"}, "picture of float32 with values from nan to nan"),
        ({"dtype": "int32", "value": -1}, "picture of int32 with values from -1 to -1"),
        ({"dtype": "bool", "value": True}, "picture of bool: give numbers from 0 to 255"),
        ({"sizes": [[0, 5]]}, r"of shape \(0, 5, 3\)"),
    ],
)
def test_pictures_of_unknown_meaning_are_refused(make_run: MakeRun, kwargs: dict[str, Any], message: str) -> None:
    agent = load(make_run("test/painted", kwargs=kwargs))
    with pytest.raises(NotRenderableError, match=message):
        next(play_episode(lineup_of_agent(agent), agent.snapshot.env, 0))


def test_pictures_of_another_size_are_fitted_into_the_first_one(make_run: MakeRun, tmp_path: Path) -> None:
    sizes = [[240, 320], [240, 321], [480, 640], [120, 100]]
    agent = load(make_run("test/painted", kwargs={"sizes": sizes, "value": 200}))
    with pytest.warns(UserWarning, match="from 320 x 240 to 321 x 240: the film keeps the first size") as noted:
        film = film_episode(lineup_of_agent(agent), agent.snapshot.env, tmp_path / "a.mp4", 0, caption=False)
    assert len(noted) == 1
    assert film.complete
    video = read_mp4(film.path)
    assert video.shape == (4, 480, 640, 3)
    np.testing.assert_allclose(video[:3], 200, atol=6)
    np.testing.assert_allclose(video[3, :230, :190], 200, atol=12)
    assert video[3, 250:].max() < 12
    assert video[3, :, 210:].max() < 12


@pytest.mark.slow
def test_an_atari_game_is_filmed_in_colour_and_is_the_game_that_is_played(make_run: MakeRun) -> None:
    pytest.importorskip("ale_py")
    agent = load(make_run("atari/breakout"))
    frames: list[Frame] = []
    for frame in play_episode(lineup_of_agent(agent), agent.snapshot.env, 3):
        frames.append(frame)
        if len(frames) == 40:
            break
    assert frames[0].picture.shape == (210, 160, 3)
    assert frames[0].fps == 15.0
    assert np.ptp(frames[-1].picture.astype(int), axis=2).max() > 100, "not grey"

    # What has moved in the agent's own view has moved in the film too: ball and paddle are at the same places.
    env = EnvConfig(name="atari/breakout")
    with open_stage(env, 3, box="clip") as stage:
        seen, shown = [], []
        lineup = lineup_of_agent(agent, deterministic=False)
        for count, _ in enumerate(play(lineup.players, lineup.who(1), stage, probe(env)), start=1):
            if count in (25, 40):
                assert stage._shown is not None
                seen.append(stage._shown.observation["obs"][0, -1].astype(float))
                shown.append(
                    np.asarray(Image.fromarray(stage.picture()).convert("L").resize((84, 84), Image.Resampling.BOX))
                )
            if count == 40:
                break
    moved_seen = np.abs(seen[1] - seen[0])
    moved_shown = np.abs(shown[1].astype(float) - shown[0])
    assert np.corrcoef(moved_seen.ravel(), moved_shown.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("name", "shape", "fps"),
    [("CartPole-v1", (400, 600, 3), 30), ("Pong-v5", (210, 160, 3), 15), ("Basic-v1", (240, 320, 3), 35 / 4)],
)
def test_envpool_draws_itself(make_run: MakeRun, name: str, shape: tuple[int, ...], fps: float) -> None:
    pytest.importorskip("envpool")
    agent = load(make_run(f"envpool/{name}"))
    frame = next(play_episode(lineup_of_agent(agent), agent.snapshot.env, 0))
    assert frame.picture.shape == shape
    assert frame.picture.std() > 5
    assert frame.fps == fps


def test_a_film_of_doom_takes_as_long_as_the_episode(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("vizdoom")
    agent = load(make_run("vizdoom/basic", max_episode_steps=7))
    film = film_episode(lineup_of_agent(agent), agent.snapshot.env, tmp_path / "a.mp4", 0)
    _, seconds = imageio_ffmpeg.count_frames_and_secs(str(film.path))
    assert seconds == pytest.approx(film.frames * 4 / 35, abs=0.05)


# ---------------------------------------------------------------------------------------------------------- watching


@pytest.fixture
def _headless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_headless")
def test_watching_without_a_display_writes_a_video(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("test/striped")
    said: list[str] = []
    assert watch(run_dir, say=said.append) == [10.0]
    assert len(read_mp4(run_dir / "watch.mp4")) == 5
    assert said == [f"123 agent steps   return 10.0   {run_dir / 'watch.mp4'}"]
    assert watch(run_dir, episodes=2, video=tmp_path / "b.mp4", say=said.append) == [10.0, 10.0]
    assert (tmp_path / "b.mp4").exists()


@pytest.mark.usefixtures("_headless")
def test_following_films_each_new_checkpoint(make_run: MakeRun) -> None:
    run_dir = make_run("test/striped")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) < 3:
            make_run("test/striped", agent_steps=1000 * len(said))

    watch(run_dir, episodes=3, follow=True, say=say)
    assert [line.split()[0] for line in said] == ["123", "1,000", "2,000"]


@pytest.mark.usefixtures("_headless")
def test_watching_a_run_that_is_not_there_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NoRunError, match="there is no such directory"):
        watch(tmp_path / "frist")
    assert not (tmp_path / "frist").exists()


@pytest.mark.usefixtures("_headless")
def test_a_window_needs_a_display() -> None:
    with pytest.raises(NotRenderableError, match=r"use --video FILE.mp4"):
        Window("rollmill")


def test_without_its_packages_a_video_is_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # as if it were not installed
    message = "a video needs imageio_ffmpeg, not installed here: pip install imageio-ffmpeg pillow"
    with pytest.raises(MissingPackageError, match=message):
        check_video_path(tmp_path / "films" / "a.mp4")
    assert not (tmp_path / "films").exists()
    with pytest.raises(MissingPackageError, match=message):
        rollmill.tournament(["random", "random"], env="no/such", videos=tmp_path)

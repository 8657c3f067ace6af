"""Videos of agents in their environment, as mp4."""

from __future__ import annotations

import math
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.evaluation.lineup import Lineup
from rollmill.evaluation.rows import play
from rollmill.evaluation.stage import Picture, open_stage
from rollmill.evaluation.tasks import shown_as_task, spec_of
from rollmill.extras import check_extra
from rollmill.specs import EnvSpec

_LEAST_HEIGHT = 480
_CAPTION_HEIGHT = 32
_LONGEST_S = 180.0
_RENDERING_BUDGET_S = 60.0


class VideoError(ValueError):
    """A video cannot be written to the given path or format."""


class Frame(NamedTuple):
    """One step of a recorded episode.

    Attributes:
        picture: uint8 ``[H, W, 3]``.
        reward_sum: Sum of the raw rewards so far.
        length: Agent steps so far.
        ended: Whether this is the episode's last picture.
        fps: Pictures a second for real-time playback.
    """

    picture: Picture
    reward_sum: float
    length: int
    ended: bool
    fps: float


class Film(NamedTuple):
    """A written video.

    Attributes:
        path: The mp4 file.
        episode_return: Return of the recorded part of the episode.
        frames: Pictures.
        complete: Whether the recording reaches the end of the episode.
    """

    path: Path
    episode_return: float
    frames: int
    complete: bool


def play_episode(
    lineup: Lineup, env: EnvConfig, seed: int, *, task: int = 0, spec: EnvSpec | None = None
) -> Iterator[Frame]:
    """Play one episode and yield the frame of every step, including the true final one.

    Args:
        lineup: Who plays.
        env: The environment; built here, and closed with the iterator.
        seed: Seed of the environment.
        task: Which of several tasks.
        spec: The environment's spec, if it is known.

    Raises:
        NotRenderableError: The environment cannot be rendered.
    """
    group_size, box = lineup.group_size, lineup.box
    if spec is None:  # scripted players have no network that could need to know the task
        spec = spec_of(lineup.snapshots, env) if env.tasks else probe(env, group_size=group_size)
    with open_stage(env.of_task(task), seed, box=box, group_size=group_size, agents=spec.agents) as stage:
        steps = play(lineup.players, lineup.who(stage.num_rows), shown_as_task(stage, spec, task), spec)
        total = 0.0
        for length, outcome in enumerate(steps, start=1):
            total += float(outcome.reward[0])
            ended = stage.is_over(outcome)
            yield Frame(stage.picture(), total, length, ended, stage.fps)
            if ended:
                return


def film_episode(
    lineup: Lineup,
    env: EnvConfig,
    path: Path | str,
    seed: int,
    *,
    task: int = 0,
    spec: EnvSpec | None = None,
    caption: bool = True,
    longest_s: float = _LONGEST_S,
    budget_s: float = _RENDERING_BUDGET_S,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> Film:
    """Play one episode and write it as an mp4.

    Args:
        lineup: Who plays.
        env: The environment.
        path: The file; its directory is created. An existing file is replaced when the new one is complete.
        seed: Of the environment.
        task: Which of several tasks.
        spec: The environment's spec, if it is known.
        caption: Whether a line below the picture shows the steps and the return so far.
        longest_s: Maximum length of the video in seconds.
        budget_s: Maximum wall-clock seconds; a simulator without a GPU may need a second for each frame.
        is_stop_wanted: Called at every frame; True ends the film there.
    """
    last: list[Frame] = []
    started = time.monotonic()

    def frames() -> Iterator[Frame]:
        for frame in play_episode(lineup, env, seed, task=task, spec=spec):
            last[:] = [frame]
            yield frame
            is_long = frame.length >= longest_s * frame.fps or time.monotonic() - started >= budget_s
            if is_stop_wanted() or is_long:
                return

    written = write_mp4(path, frames(), caption=env.of_task(task).name if caption else None)
    return Film(Path(path), last[0].reward_sum, written, last[0].ended)


def check_video_path(path: Path | str) -> Path:
    """Check that a video can be written, and create its folder.

    Raises:
        MissingPackageError: The packages that write videos are not installed.
        VideoError: The name does not end in .mp4, or its folder cannot be created or written to.
    """
    path = Path(path)
    if path.suffix.lower() != ".mp4":
        raise VideoError(f"video {str(path)!r}: give a name that ends in .mp4, the only supported format")
    check_extra("video", "a video")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VideoError(
            f"the folder of the video {path} cannot be created ({error.strerror}): give another one"
        ) from error
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise VideoError(
            f"the video {path} cannot be written: it is a folder, or in one that you may not write to; give another "
            "name (--video FILE.mp4)"
        )
    return path


def write_mp4(path: Path | str, frames: Iterator[Frame], *, caption: str | None = None) -> int:
    """Encode frames as H.264, enlarged to a readable size with every pixel kept a square.

    Args:
        path: The file; written to a temporary file and renamed when complete.
        frames: At least one. The first frame's ``fps`` and size are used; pictures of another size are cut, or filled
            up with black.
        caption: First word of a line below the picture, before steps and return; None for no line.

    Returns:
        Number of pictures.

    Raises:
        MissingPackageError: The packages that write videos are not installed.
        ValueError: There is no frame.
        VideoError: The file cannot be written.
    """
    path = check_video_path(path)
    # Absolute, because ffmpeg takes what comes before a colon in a relative path for a protocol.
    aside = path.absolute().with_name(f".writing-{os.getpid()}-{path.stem}.mp4")
    try:
        count = _encode(aside, _of_one_size(frames), caption)
        aside.replace(path)
    except _EncoderError as error:
        raise VideoError(
            f"the video {path} cannot be written ({error}): make room on the disk; rollmill doctor checks ffmpeg"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
        close = getattr(frames, "close", None)
        if close is not None:
            close()  # ends the environment of an unfinished generator
    return count


class _EncoderError(Exception):
    """The encoder does not start, or has failed."""


def _encode(path: Path, frames: Iterator[Frame], caption: str | None) -> int:
    """Write a film and return the number of its pictures.

    Raises:
        ValueError: There is no frame.
        _EncoderError: The encoder does not start, or the file is not whole.
    """
    import imageio_ffmpeg

    frame = next(frames, None)
    if frame is None:
        raise ValueError(f"no frames were given for {path}; an episode has at least one")
    height, width = _render(frame, caption).shape[:2]
    # The encoder's colour format needs even sizes; `_render` returns them, so nothing is rescaled.
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=frame.fps, codec="libx264", quality=7, macro_block_size=2
    )
    try:
        writer.send(None)
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise _EncoderError(f"ffmpeg does not start: {reason}") from error
    count = 0
    try:
        while frame is not None:
            picture = np.ascontiguousarray(_render(frame, caption))
            try:
                writer.send(picture)
            except OSError as error:
                raise _EncoderError(str(error).splitlines()[0]) from error
            count += 1
            frame = next(frames, None)
    finally:
        writer.close()
    # The encoder's last words are lost, and without the end of the file, its index, no player can show it.
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-c", "copy", "-f", "null", "-"]
    if subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode:
        raise _EncoderError("the file is not complete")
    return count


def enlarge(picture: Picture, least_height: int = _LEAST_HEIGHT) -> Picture:
    """Repeat pixels so that the picture has at least this height and even sizes."""
    factor = max(1, math.ceil(least_height / picture.shape[0]))
    large = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(large, ((0, large.shape[0] % 2), (0, large.shape[1] % 2), (0, 0)))


def _of_one_size(frames: Iterator[Frame]) -> Iterator[Frame]:
    """Yield frames in the size of the first one: others are cut, and filled up with black."""
    size: tuple[int, int] | None = None
    is_told = False
    for frame in frames:
        height, width = frame.picture.shape[:2]
        size = size or (height, width)
        if (height, width) == size:
            yield frame
            continue
        if not is_told:
            is_told = True
            warnings.warn(
                f"the pictures change their size, from {size[1]} x {size[0]} to {width} x {height}: the film keeps the "
                "first size, and cuts others or fills them up with black",
                stacklevel=2,
            )
        cut = frame.picture[: size[0], : size[1]]
        missing = ((0, size[0] - cut.shape[0]), (0, size[1] - cut.shape[1]), (0, 0))
        yield frame._replace(picture=np.pad(cut, missing))


def _render(frame: Frame, caption: str | None) -> Picture:
    picture = enlarge(frame.picture)
    if caption is None:
        return picture
    from PIL import Image, ImageDraw, ImageFont

    strip = Image.new("RGB", (picture.shape[1], _CAPTION_HEIGHT), (16, 16, 16))
    text = f"{caption}   step {frame.length:,}   return {frame.reward_sum:,.1f}"
    draw = ImageDraw.Draw(strip)
    size = 16
    while draw.textlength(text, font=ImageFont.load_default(size)) > picture.shape[1] - 16 and size > 8:
        size -= 1
    draw.text((8, 6), text, fill=(235, 235, 235), font=ImageFont.load_default(size))
    return np.concatenate([picture, np.asarray(strip)])

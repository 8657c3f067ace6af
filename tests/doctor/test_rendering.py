"""Displays, libraries and ffmpeg: those of this machine, and what does not work."""

from __future__ import annotations

import sys
from pathlib import Path

import imageio_ffmpeg
import pytest

from rollmill.doctor import rendering


def test_without_a_display_videos_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert rendering.check_display().found == "none: rollmill watch writes videos"


def test_a_display_that_nothing_answers_at_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":987")
    found = rendering.check_display()
    assert found.state == "warning"
    assert found.found.startswith(":987, but no window can be opened there")


def test_egl_is_needed_by_mujoco_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(rendering, "_load_problem", lambda library: f"{library}: cannot open shared object file")
    found = rendering.check_egl()
    assert (found.state, found.found) == ("warning", "libEGL.so.1: cannot open shared object file")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert rendering.check_egl().found == "not used: MUJOCO_GL=osmesa"
    monkeypatch.setitem(sys.modules, "mujoco", None)  # as if it were not installed
    assert rendering.check_egl().found.startswith("not needed")


def test_ffmpeg_says_its_version_or_why_it_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGEIO_FFMPEG_EXE", raising=False)
    there = rendering.check_ffmpeg()
    assert there.state == "ok"
    assert there.found.startswith("ffmpeg version ")
    assert there.found.endswith(imageio_ffmpeg.get_ffmpeg_exe())
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    broken = rendering.check_ffmpeg()
    assert broken.state == "warning"
    assert "does not run" in broken.found
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # as if it were not installed
    absent = rendering.check_ffmpeg()
    assert (absent.state, absent.advice) == ("ok", "for videos: pip install imageio-ffmpeg pillow")


def test_sound_is_needed_by_vizdoom_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_load_problem", lambda library: f"{library}: cannot open shared object file")
    assert rendering.check_sound().advice == "for env.vizdoom.sound: apt install libopenal1"
    monkeypatch.setitem(sys.modules, "vizdoom", None)  # as if it were not installed
    assert rendering.check_sound().found.startswith("not needed")


def test_libraries_are_loaded_to_see_whether_they_can() -> None:
    assert rendering._load_problem("libc.so.6") == ""
    assert "cannot open shared object file" in rendering._load_problem("libno_such.so.9")

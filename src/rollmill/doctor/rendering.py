"""Checks of what windows, videos and sound need."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess

from rollmill.doctor.finding import Finding
from rollmill.extras import install_command, missing_modules

_WITHIN_S = 20.0


def check_display() -> Finding:
    """Whether ``rollmill watch`` can open a window."""
    from rollmill.evaluation.stage import has_display

    if not has_display():
        return Finding("display", "ok", "none: rollmill watch writes videos")
    name = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    try:
        import tkinter

        tkinter.Tk().destroy()
    except Exception as error:  # without tkinter its exception class is undefined
        advice = "install tkinter (apt install python3-tk), correct DISPLAY, or use rollmill watch --video FILE.mp4"
        return Finding("display", "warning", f"{name}, but no window can be opened there ({error})", advice)
    return Finding("display", "ok", f"{name}: rollmill watch opens a window")


def check_egl() -> Finding:
    """Whether MuJoCo can draw without a display."""
    check = "EGL"
    chosen = os.environ.get("MUJOCO_GL", "egl")
    if missing_modules("mujoco"):
        return Finding(check, "ok", "not needed: MuJoCo, which draws with it, is not installed")
    if chosen != "egl":
        return Finding(check, "ok", f"not used: MUJOCO_GL={chosen}")
    if problem := _load_problem("libEGL.so.1"):
        advice = "for videos of MuJoCo: apt install libegl1, or apt install libosmesa6 and MUJOCO_GL=osmesa"
        return Finding(check, "warning", problem, advice)
    return Finding(check, "ok", "libEGL.so.1 loads: MuJoCo can be filmed without a display")


def check_ffmpeg() -> Finding:
    """Whether videos can be encoded."""
    if missing_modules("video"):
        return Finding(
            "ffmpeg", "ok", "not installed: no videos are written", f"for videos: {install_command('video')}"
        )
    try:
        program = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_WITHIN_S, check=True)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        advice = "apt install ffmpeg, or name a working one with IMAGEIO_FFMPEG_EXE"
        return Finding("ffmpeg", "warning", f"does not run ({error})", advice)
    version = done.stdout.partition("\n")[0].partition(" Copyright")[0]
    return Finding("ffmpeg", "ok", f"{version}, {program}")


def check_sound() -> Finding:
    """Whether VizDoom can give sound."""
    if missing_modules("vizdoom"):
        return Finding("OpenAL", "ok", "not needed: VizDoom, whose sound it mixes, is not installed")
    if problem := _load_problem("libopenal.so.1"):
        advice = "for env.vizdoom.sound: apt install libopenal1"
        return Finding("OpenAL", "ok", f"{problem}: VizDoom has no sound", advice)
    return Finding("OpenAL", "ok", "libopenal.so.1 loads: VizDoom's sound can be an observation")


def _load_problem(library: str) -> str:
    """Why a shared library cannot be loaded; empty if it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""

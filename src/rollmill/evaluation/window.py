"""A window that shows pictures, with only the standard library."""

from __future__ import annotations

import time

from rollmill.evaluation.stage import NotRenderableError, Picture
from rollmill.evaluation.video import enlarge

_HEIGHT = 420


class WindowClosedError(RuntimeError):
    """The user has closed the window."""


class Window:
    """A window, opened on construction.

    Args:
        title: The window's title.

    Raises:
        NotRenderableError: No window can be opened.
    """

    def __init__(self, title: str) -> None:
        try:
            import tkinter

            self._root = tkinter.Tk(className=title)
        except Exception as error:  # without tkinter its exception class is undefined
            raise NotRenderableError(f"no window can be opened here ({error}): use --video FILE.mp4 instead") from error
        self._tkinter = tkinter
        self._root.protocol("WM_DELETE_WINDOW", self.close)
        self._picture = tkinter.Label(self._root)
        self._picture.pack()
        self._caption = tkinter.Label(self._root, anchor="w")
        self._caption.pack(fill="x")
        self._open = True

    def show(self, picture: Picture, caption: str, until: float) -> None:
        """Show a picture until ``time.monotonic()`` reaches ``until``.

        Raises:
            WindowClosedError: The window is closed.
        """
        large = enlarge(picture, _HEIGHT)
        header = f"P6 {large.shape[1]} {large.shape[0]} 255 ".encode()
        if self._open:
            image = self._tkinter.PhotoImage(data=header + large.tobytes(), format="PPM")
            self._picture.configure(image=image)
            self._caption.configure(text=caption)
        while self._open:
            self._root.update()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.02))
        raise WindowClosedError("the window was closed")

    def close(self) -> None:
        """Close the window; may be called twice."""
        if self._open:
            self._open = False
            self._root.destroy()

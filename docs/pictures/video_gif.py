r"""Convert a part of a video that `rollmill watch --video` has written to the animations of the documentation.

rollmill watch RUN_DIR --video battle.mp4
python docs/pictures/video_gif.py battle.mp4 docs/pictures/battle.gif --first 5 --seconds 8
"""

from __future__ import annotations

import argparse
from pathlib import Path

import imageio.v3 as iio
from PIL import Image

COLOURS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--first", type=float, default=0.0, help="second of the video to begin at (default: 0)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of the part (default: 8)")
    parser.add_argument("--fps", type=float, default=10.0, help="pictures a second (default: 10)")
    parser.add_argument("--width", type=int, default=320, help="in pixels (default: 320)")
    arguments = parser.parse_args()

    fps = float(iio.immeta(arguments.video, plugin="FFMPEG")["fps"])
    every = max(1, round(fps / arguments.fps))
    begin, end = round(arguments.first * fps), round((arguments.first + arguments.seconds) * fps)
    pictures = []
    for number, frame in enumerate(iio.imiter(arguments.video, plugin="FFMPEG")):
        if number >= end:
            break
        if number >= begin and (number - begin) % every == 0:
            picture = Image.fromarray(frame)
            size = (arguments.width, round(picture.height * arguments.width / picture.width))
            pictures.append(picture.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS))
    if not pictures:
        parser.error(f"{arguments.video} has no picture between {begin / fps:.1f} and {end / fps:.1f} s")
    duration = round(1000 * every / fps)
    pictures[0].save(
        arguments.output, save_all=True, append_images=pictures[1:], duration=duration, loop=0, optimize=True
    )
    print(f"{arguments.output}: {len(pictures)} pictures, {arguments.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

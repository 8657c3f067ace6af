r"""Draw the README's animation: an agent before and after training, beside its learning curve.

rollmill train gym/LunarLander-v3 --regime lockstep --seed 1 --run-dir runs/lander --target-return 250 \
    --num-envs 32 --rollout-length 128 --learner.batch-size 4096 --learner.minibatches 32 --learner.epochs 4 \
    --learner.discount 0.999 --learner.gae-lambda 0.98 --learner.entropy-coef 0.01
python docs/pictures/agent_gif.py runs/lander docs/pictures/agent.gif
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from PIL import Image, ImageDraw, ImageFont

from rollmill.evaluation.agent import load
from rollmill.evaluation.video import play_episode
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import Curve, curve_of
from rollmill.settings.run_config import load_config

HEIGHT = 240
COLOURS = 64
LONGEST = 400  # agent steps of one episode that are shown
HOLD_MS = 1200  # how long the last picture of an episode stays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--episodes", type=int, default=2, help="episodes of the trained agent (default: %(default)s)")
    parser.add_argument("--every", type=int, default=4, help="show every n-th agent step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first episode (default: %(default)s)")
    arguments = parser.parse_args()

    curve = curve_of(read_metrics(arguments.run_dir), "agent_steps", "episode_return")
    before, after = float(curve.x[0]), float(curve.x[-1])
    stages = [("initial.pt", "before training", before, arguments.seed)] + [
        ("latest", f"after {after / 1e6:.2g} M agent steps", after, arguments.seed + episode)
        for episode in range(arguments.episodes)
    ]
    pictures: list[Image.Image] = []
    durations: list[int] = []
    for checkpoint, caption, steps, seed in stages:
        panel = draw_curve(curve, steps)
        shown = list(episode_pictures(arguments.run_dir, checkpoint, seed, arguments.every, caption))
        pictures += [beside(picture, panel) for picture, _ in shown]
        durations += [duration for _, duration in shown[:-1]] + [HOLD_MS]
    write_gif(arguments.output, pictures, durations)
    print(f"{arguments.output}: {len(pictures)} pictures, {arguments.output.stat().st_size / 1e6:.2f} MB")


def episode_pictures(
    run_dir: Path, checkpoint: str, seed: int, every: int, caption: str
) -> Iterator[tuple[Image.Image, int]]:
    """Every n-th picture of one episode and how many milliseconds it is shown."""
    path = run_dir / "checkpoints" / checkpoint if checkpoint.endswith(".pt") else checkpoint
    agent = load(run_dir, checkpoint=str(path))
    font = ImageFont.load_default(13)
    steps = islice(play_episode(agent, load_config(run_dir).env, seed), LONGEST)
    for step in steps:
        if step.length % every and not step.ended:
            continue
        large = Image.fromarray(step.picture)
        picture = large.resize((round(large.width * HEIGHT / large.height), HEIGHT), Image.Resampling.LANCZOS)
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, 0, picture.width, 20), fill="black")
        draw.text((6, 2), f"{caption}: return {step.reward_sum:.0f}", fill="white", font=font)
        yield picture, max(20, round(1000 * every / step.fps))


def draw_curve(curve: Curve, steps: float) -> Image.Image:
    """The learning curve, with a mark at the agent that is shown."""
    figure = Figure(figsize=(HEIGHT / 60, HEIGHT / 80), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(curve.x, curve.y, color="#0072B2", linewidth=1.8)
    axes.plot([steps], [float(np.interp(steps, curve.x, curve.y))], "o", color="#D55E00", markersize=8)
    axes.set_xlabel("agent steps")
    axes.set_ylabel("return, mean of 100 episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Both pictures in one, side by side."""
    both = Image.new("RGB", (left.width + right.width, HEIGHT), "white")
    both.paste(left, (0, 0))
    both.paste(right, (left.width, 0))
    return both


def write_gif(path: Path, pictures: list[Image.Image], durations: list[int]) -> None:
    """Write an endless GIF in one palette, so that unchanged pixels cost nothing."""
    samples = pictures[:: max(1, len(pictures) // 8)]
    sheet = Image.new("RGB", (samples[0].width, HEIGHT * len(samples)))
    for row, sample in enumerate(samples):
        sheet.paste(sample, (0, row * HEIGHT))
    palette = sheet.quantize(COLOURS)
    reduced = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    reduced[0].save(path, save_all=True, append_images=reduced[1:], duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draw losses: of curves that lab/curves.py has trained, seeds of one recipe in one colour, or of a run.

pip install '.[docs]'
python lab/plot_curves.py docs/growing.svg --against operations
python lab/plot_curves.py docs/growing-hours.svg --against hours --step_times FILE
python lab/plot_curves.py docs/bert-mini.png --run OUTPUT_DIR --unigram 6.60

By default these are the held-out losses of growing models. FILE is that of lab/curves.py. Of a run, training losses are
drawn as well, each and smoothed.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from lab.curve_recipes import kept
from lab.curves import seconds_of, total

AXES = {"operations": "TFLOP of matrix products", "hours": "hours", "steps": "optimizer steps"}
GROWING = ("8 layers", "stacking, 8 layers", "MSLT, 8 layers")
SMOOTHING = 20  # log steps


def draw_run(axes: Axes, output_dir: Path, unigram: float | None) -> None:
    """The losses of a run's metrics.jsonl."""
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def points(name: str) -> tuple[list[int], list[float]]:
        return [line["step"] for line in lines if name in line], [line[name] for line in lines if name in line]

    steps, losses = points("mlm_loss")
    smooth = [np.mean(losses[max(0, i + 1 - SMOOTHING) : i + 1]) for i in range(len(losses))]
    axes.plot(steps, losses, color="0.8", linewidth=0.8, label="training, each log step")
    axes.plot(steps, smooth, label=f"training, mean of {SMOOTHING} log steps")
    axes.plot(*points("held_out_mlm_loss"), "o-", label="held out")
    if unigram:
        axes.axhline(unigram, linestyle=":", color="0.4", label="unigram cross-entropy")
    axes.set(xlabel="optimizer step", ylabel="masked-token loss (nats)", ylim=(None, 8))


def draw_curves(axes: Axes, names: list[str], against: str, step_s: dict[str, float]) -> str | None:
    """The held-out losses of curves whose names begin with these; what is wrong, or None."""
    at = {
        "operations": lambda step, curve: total(step, curve, "flops"),
        "hours": lambda step, curve: seconds_of(step, curve, step_s, 1 / 3600),
        "steps": lambda step, _: float(step),
    }[against]
    unit = 1e12 if against == "operations" else 1
    drawn = [(n, name, curve) for n, name in enumerate(names) for curve in kept().values()]
    drawn = [(n, name, curve) for n, name, curve in drawn if curve["name"].startswith(name)]
    for number, name, curve in drawn:
        points = [(at(step, curve), loss) for step, loss in curve["held_out"]]
        if points[0][0] is None:
            return f"{curve['name']}: its {against} are not known; expected --step_times for hours"
        label = name if curve["name"] == name else None
        axes.plot([x / unit for x, _ in points], [y for _, y in points], color=f"C{number}", label=label)
    axes.set(xlabel=AXES[against], ylabel="held-out masked-token loss, nats")
    return None if drawn else "none of these curves is trained; see lab/curves.py"


def main() -> int:
    """Read the losses, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--run", type=Path, metavar="OUTPUT_DIR", help="draw this run instead of curves")
    parser.add_argument("--unigram", type=float, help="unigram cross-entropy of --run, as evaluate prints it")
    parser.add_argument("--against", choices=tuple(AXES), default="operations")
    parser.add_argument("--curve", action="append", help="beginning of a curve's name; repeatable")
    parser.add_argument("--step_times", type=Path, metavar="FILE", help="JSON: seconds of a step by a curve's name")
    arguments = parser.parse_args()
    step_s = json.loads(arguments.step_times.read_text(encoding="utf-8")) if arguments.step_times else {}
    figure, axes = plt.subplots(figsize=(7, 4))
    if arguments.run:
        draw_run(axes, arguments.run, arguments.unigram)
    elif wrong := draw_curves(axes, arguments.curve or list(GROWING), arguments.against, step_s):
        parser.error(wrong)
    axes.legend()
    figure.tight_layout()
    figure.savefig(arguments.picture, dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Draw the held-out losses of curves that lab/curves.py has trained, seeds of one recipe in one colour.

pip install '.[docs]'
python lab/plot_curves.py docs/growing.svg --against operations
python lab/plot_curves.py docs/growing-hours.svg --against hours --step_times FILE

By default these are the curves of growing models. FILE is that of lab/curves.py.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from lab.curve_recipes import OF_OPERATIONS
from lab.curves import kept, seconds_of, total

AXES = {"operations": "TFLOP of matrix products", "hours": "hours", "steps": "optimizer steps"}


def main() -> int:
    """Read the curves, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--against", choices=tuple(AXES), default="operations")
    parser.add_argument("--curve", action="append", help="beginning of a curve's name; repeatable")
    parser.add_argument("--step_times", type=Path, metavar="FILE", help="JSON: seconds of a step by a curve's name")
    arguments = parser.parse_args()
    step_s = json.loads(arguments.step_times.read_text(encoding="utf-8")) if arguments.step_times else {}
    figure, axes = plt.subplots(figsize=(7, 4))
    drawn = 0
    for number, name in enumerate(arguments.curve or OF_OPERATIONS):
        for curve in kept().values():
            if not curve["name"].startswith(name):
                continue
            at = {
                "operations": lambda step, curve=curve: total(step, curve, "flops"),
                "hours": lambda step, curve=curve: seconds_of(step, curve, step_s, 1 / 3600),
                "steps": float,
            }[arguments.against]
            points = [(at(step), loss) for step, loss in curve["held_out"]]
            if points[0][0] is None:
                parser.error(f"{curve['name']}: its {arguments.against} are not known; expected --step_times for hours")
            unit = 1e12 if arguments.against == "operations" else 1
            label = name if curve["name"] == name else None
            axes.plot([x / unit for x, _ in points], [y for _, y in points], color=f"C{number}", label=label)
            drawn += 1
    if not drawn:
        parser.error("none of these curves is trained; see lab/curves.py")
    axes.set(xlabel=AXES[arguments.against], ylabel="held-out masked-token loss, nats")
    axes.legend()
    figure.tight_layout()
    figure.savefig(arguments.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Draw the masked-token loss of a run: training (smoothed over 20 log steps) and held out.

pip install '.[docs]'
python lab/plot_curve.py OUTPUT_DIR docs/bert-mini.png [--unigram 6.60]
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

SMOOTHING = 20  # log steps


def main() -> None:
    """Read metrics.jsonl, write a PNG."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument(
        "--unigram", type=float, help="unigram cross-entropy of the held-out tokens, as evaluate prints it"
    )
    arguments = parser.parse_args()
    lines = [
        json.loads(line) for line in (arguments.output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    steps, losses = zip(*((line["step"], line["mlm_loss"]) for line in lines if "mlm_loss" in line), strict=True)
    held_steps, held_losses = zip(
        *((line["step"], line["held_out_mlm_loss"]) for line in lines if "held_out_mlm_loss" in line), strict=True
    )
    smooth = [np.mean(losses[max(0, i + 1 - SMOOTHING) : i + 1]) for i in range(len(losses))]

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(steps, losses, color="0.8", linewidth=0.8, label="training, each log step")
    axes.plot(steps, smooth, label=f"training, mean of {SMOOTHING} log steps")
    axes.plot(held_steps, held_losses, "o-", label="held out")
    if arguments.unigram:
        axes.axhline(arguments.unigram, linestyle=":", color="0.4", label="unigram cross-entropy")
    axes.set(xlabel="optimizer step", ylabel="masked-token loss (nats)", ylim=(None, 8))
    axes.legend()
    figure.tight_layout()
    figure.savefig(arguments.png, dpi=110)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draw the pictures of the pages from kept results: curves of lab/curves/, bands of runs/references/, lab/scaling.json.

python docs/pictures/make.py        writes docs/pictures/*.svg and docs/pictures/badges/*.svg

plan.svg is computed by the planner, house.svg from the imports of the package.
"""

import ast
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # works from a checkout that is not installed

import chart  # noqa: E402

from bert_horovod.costs.clusters import DeviceSheet, device_of, parse_rate  # noqa: E402
from bert_horovod.costs.planner import LINK_SHARE, SPREAD, Network, plan_phase  # noqa: E402
from bert_horovod.recipe.fields import parse_toml  # noqa: E402
from bert_horovod.recipe_files.loading import load_recipe  # noqa: E402
from bert_horovod.runs.reference_curves import DIRECTORY, read_reference  # noqa: E402
from lab import minutes_results  # noqa: E402
from lab.curve_recipes import KEPT, kept  # noqa: E402
from lab.curves import seconds_of, total  # noqa: E402

PICTURES = Path(__file__).parent
SAME_MINUTES = KEPT / "same-minutes.jsonl"
PACKAGE = ROOT / "bert_horovod"
ON_SLOW_LINK = {  # curves of lab/curves/, by the name in the picture
    "float16": "continued, float16",
    "int8": "continued, int8",
    "1-bit Adam": "continued, 1-bit Adam, longer",
    "DreamDDP": "continued, DreamDDP, 8",
}
GROWING = {"from scratch": "8 layers", "stacking": "stacking, 8 layers", "MSLT": "MSLT, 8 layers"}


def curves() -> dict[str, dict]:
    """The kept curves by name."""
    return {curve["name"]: curve for curve in kept().values()}


def loss() -> str:
    """Training loss of three seeds of BERT-mini with its band, and held-out losses."""
    found = read_reference(DIRECTORY / "bert-mini.json")
    middles = [(window + 0.5) * found.window for window in range(len(found.means))]
    bounds = [found.bounds(window) for window in range(len(found.means))]
    run = json.loads((KEPT / "bert-mini.json").read_text(encoding="utf-8"))
    end = middles[-1]
    return chart.line_chart(
        "BERT-mini learns from 64 MB of books",
        "masked-token loss; training: mean of 3 seeds and band; held out: one run on two CPU cores",
        chart.linear("optimizer steps of 128 rows of 64 tokens", range(0, 5000, 500), "{:,}".format),
        chart.linear("loss, nats", range(3, 11)),
        [
            chart.Line("training", list(zip(middles, found.means, strict=True)), 0),
            chart.Line("held out", run["held_out"], 1, dots=True),
            chart.Line("word frequency", [(0, run["unigram"]), (end, run["unigram"])], 5, dashed=True),
        ],
        [(middle, bound.low, bound.high) for middle, bound in zip(middles, bounds, strict=True)],
    )


def slow_link() -> str:
    """Held-out loss against hours on a link of 100 Mb/s."""
    step_s = json.loads((KEPT / "step_times-100mbit.json").read_text(encoding="utf-8"))
    there = curves()
    lines = []
    for i, (name, key) in enumerate(ON_SLOW_LINK.items()):
        curve = there[key]
        hours = [(seconds_of(step, curve, step_s, 1 / 3600), at) for step, at in curve["held_out"]]
        lines.append(chart.Line(name, hours, i))
    return chart.line_chart(
        "Fewer bytes reach the same loss sooner on a slow link",
        "BERT-mini from 1,000 trained steps, 2 hosts at 100 Mb/s; held-out masked-token loss",
        chart.linear("hours", [i / 10 for i in range(10)]),
        chart.linear("held-out loss, nats", [3.9, 4.0, 4.1, 4.2, 4.3, 4.4, 4.5, 4.6], "{:.1f}".format),
        lines,
    )


def growing() -> str:
    """Held-out loss against operations, of models that grow."""
    there = curves()
    lines = [
        chart.Line(
            name if not seed else "",
            [(total(step, there[key + seed], "flops") / 1e12, at) for step, at in there[key + seed]["held_out"]],
            i,
        )
        for i, (name, key) in enumerate(GROWING.items())
        for seed in ("", ", seed 2", ", seed 3")
    ]
    return chart.line_chart(
        "Stacking learns with fewer operations; MSLT falls behind",
        "BERT-mini with 8 layers, three seeds each; held-out masked-token loss",
        chart.linear("TFLOP of matrix products", range(0, 450, 50)),
        chart.linear("held-out loss, nats", [4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0], "{:.1f}".format),
        lines,
    )


def same_minutes() -> str:
    """Held-out loss against minutes: 20 minutes of each contestant, the mean of its seeds."""
    found = minutes_results.curves(minutes_results.Results(SAME_MINUTES).lines.values())
    shown = {name: points for (unit, length, name), points in found.items() if (unit, length) == ("minutes", 20)}
    losses = [point["loss"] for points in shown.values() for point in points]
    return chart.line_chart(
        "Same words, same minutes",
        "BERT-mini on two CPU cores; 10 million words of books; held-out masked-token loss",
        chart.linear("minutes since the start, compilation included", range(0, 25, 5)),
        chart.linear("held-out loss, nats", range(math.floor(min(losses)), math.ceil(max(losses)) + 1)),
        [
            chart.Line(minutes_results.NAMES[name], [(each["minutes"], each["loss"]) for each in points], i, dots=True)
            for i, (name, points) in enumerate(shown.items())
        ],
    )


def scaling() -> str:
    """Efficiency by hosts, link and micro-batches."""
    kept_scaling = json.loads((ROOT / "lab" / "scaling.json").read_text(encoding="utf-8"))
    groups = [
        (f"{row['hosts']} hosts, {row['link']}, K = {row['micro_batches']}", list(row["efficiency"].values()))
        for row in kept_scaling
    ]
    return chart.bar_chart(
        "Efficiency falls with the link, and rises with the micro-batches of a step (K)",
        "rows/s of a host over those of one host, in %; BERT-small, compute 20 times as fast as a CPU core",
        groups,
        list(kept_scaling[0]["efficiency"]),
    )


def plan() -> str:
    """The efficiency that the planner computes, by ranks and link."""
    recipe = load_recipe(ROOT / "run" / "recipes" / "bert-large-lamb-64k.toml")
    device = device_of(DeviceSheet("A100", 0.0, 0.35, "", "", SPREAD), "--", recipe.numerics.precision, "device")
    ranks = [2**i for i in range(9)]
    lines = []
    for i, rate in enumerate(("100Gb/s", "25Gb/s", "10Gb/s", "1Gb/s")):
        network = Network(parse_rate(rate, "--link"), LINK_SHARE, 5e-5)
        plans = [plan_phase(recipe, 0, n, device, network) for n in ranks]
        lines.append(chart.Line(rate.replace("Gb", " Gb"), [(p.world_size, p.efficiency) for p in plans], i, dots=True))
    return chart.line_chart(
        "The plan of BERT-large: efficiency by ranks and link",
        "bert-horovod plan, 65,536 rows of 128 a step, hosts of one A100, float16 gradients",
        chart.Axis("ranks", ranks, lambda value: math.log2(value) / 8),
        chart.linear("efficiency", [0, 0.2, 0.4, 0.6, 0.8, 1], "{:.0%}".format),
        lines,
    )


def floors() -> list[list[str]]:
    """The rooms of each floor from the top, as docs/architecture.md lists them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    return [rooms for cell in cells if (rooms := re.findall(r"`(\w+)/`", cell))]


def arrows(rooms: list[str]) -> set[tuple[str, str]]:
    """Which room imports from which."""
    found = set()
    for room in rooms:
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
                parts = (name or "").split(".")
                if parts[0] == "bert_horovod" and len(parts) > 1 and parts[1] in rooms and parts[1] != room:
                    found.add((room, parts[1]))
    return found


def house() -> str:
    """Rooms on their floors, and who imports whom."""
    rows = floors()
    high, box, width = 62, 32, 108
    height = chart.TOP + high * len(rows) + 10
    places = {}
    for i, rooms in enumerate(rows):
        shift = 40 * (-1) ** i if len(rooms) == 1 else 0  # so that lines pass rooms that stand alone
        gap = chart.WIDTH / (len(rooms) + 1)
        for j, room in enumerate(rooms):
            places[room] = (gap * (j + 1) + shift, chart.TOP + high * i + box / 2 + 6)
    parts = []
    for a, b in sorted(arrows(list(places))):
        (x1, y1), (x2, y2) = places[a], places[b]
        if y1 == y2:
            continue
        y1, y2 = y1 + box / 2, y2 - box / 2
        bend = (y2 - y1) / 2
        parts.append(
            f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}" '
            'style="fill: none; stroke: var(--c0); opacity: 0.3"/>'
        )
    for room, (x, y) in places.items():
        parts.append(
            f'<rect class="card" x="{x - width / 2:.0f}" y="{y - box / 2:.0f}" width="{width}" height="{box}" rx="5"/>'
        )
        parts.append(chart.text(x, y + 5, room, "middle"))
    return chart.document(
        "The rooms of bert_horovod, and what they import",
        "a room imports only from rooms below it; errors.py and wording.py, which all import, are left out",
        parts,
        height,
    )


DRAWN: dict[str, Callable[[], str]] = {
    "loss": loss,
    "slow-link": slow_link,
    "growing": growing,
    "scaling": scaling,
    "plan": plan,
    "house": house,
} | ({"same-minutes": same_minutes} if SAME_MINUTES.is_file() else {})


def badges() -> dict[str, str]:
    """The badges of README by name, from pyproject.toml: pictures of the project itself need no network."""
    project = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first, end = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()
    tensorflow = next(each for each in project["dependencies"] if each.startswith("tensorflow=="))
    version = re.match(r"tensorflow==(\d+\.\d+)", tensorflow)[1]
    return {
        "python": chart.badge("Python", f"3.{first} to 3.{int(end) - 1}", "#1f6fb2"),
        "tensorflow": chart.badge("TensorFlow", version, "#c2571a"),
        "licence": chart.badge("licence", "Apache 2.0", "#2f8f4e"),
    }


if __name__ == "__main__":
    (PICTURES / "badges").mkdir(exist_ok=True)
    pictures = {name: draw() for name, draw in DRAWN.items()}
    for name, picture in (pictures | {f"badges/{name}": badge for name, badge in badges().items()}).items():
        path = PICTURES / f"{name}.svg"
        path.write_text(picture, encoding="utf-8")
        print(f"{path}: {path.stat().st_size:,} bytes")

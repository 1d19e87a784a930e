"""Charts as SVG that is readable on light and dark pages: plain text, colours of the report page, no library."""

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 800, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 64, 56
# The colours of bert_horovod/reporting/page.html; a browser takes the second set on a dark screen.
STYLE = """<style>
svg { --paper: #fff; --ink: #1c1e21; --faint: #666c75; --line: #d9dce1; --card: #f6f7f9;
  --c0: #1f6fb2; --c1: #c2571a; --c2: #2f8f4e; --c3: #8a4fbf; --c4: #b3304f; --c5: #6b6b16; }
@media (prefers-color-scheme: dark) { svg { --paper: #15171a; --ink: #e6e8eb; --faint: #9aa1ab; --line: #363b42;
  --card: #1e2125; --c0: #6cb2f0; --c1: #f09a5e; --c2: #6fce8e; --c3: #c39af0; --c4: #f08ba3; --c5: #cfcf62; } }
text { fill: var(--ink); font: 14px system-ui, sans-serif; }
.title { font-size: 17px; font-weight: 600; } .faint { fill: var(--faint); }
.paper { fill: var(--paper); } .grid { stroke: var(--line); } .card { fill: var(--card); stroke: var(--line); }
polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
</style>"""


class Line(NamedTuple):
    """A curve, with its name, if it has one, at its end."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int  # of c0 to c5
    dots: bool = False  # a dot at each point
    dashed: bool = False


class Axis(NamedTuple):
    """An axis: its words, its numbers, and where a value lies between 0 and 1."""

    title: str
    ticks: Sequence[float]
    place: Callable[[float], float]
    words: Callable[[float], str] = "{:g}".format


def linear(title: str, ticks: Sequence[float], words: Callable[[float], str] = "{:g}".format) -> Axis:
    """An axis from its first to its last number."""
    return Axis(title, ticks, lambda value: (value - ticks[0]) / (ticks[-1] - ticks[0]), words)


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "", fill: str = "") -> str:
    """Words at a point."""
    given = (f' class="{kind}"' if kind else "") + (f' style="fill: {fill}"' if fill else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{given}>{escape(words)}</text>'


def document(title: str, subtitle: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    """The whole picture."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            STYLE,
            '<rect class="paper" width="100%" height="100%" rx="6"/>',
            text(20, 28, title, kind="title"),
            text(20, 48, subtitle, kind="faint"),
            *parts,
            "</svg>\n",
        )
    )


def badge(label: str, value: str, colour: str) -> str:
    """A small sign: a label on grey, a value on a colour; readable on light and dark pages."""
    left, right = (12 + 6.7 * len(words) for words in (label, value))
    signs = "".join(
        f'<text x="{x:.1f}" y="14" textLength="{width - 12:.1f}" fill="#fff">{escape(words)}</text>'
        for x, width, words in ((6, left, label), (left + 6, right, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11.5"><title>{escape(f"{label}: {value}")}</title>'
        f'<clipPath id="round"><rect width="{left + right:.1f}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#round)"><rect width="{left:.1f}" height="20" fill="#555c66"/>'
        f'<rect x="{left:.1f}" width="{right:.1f}" height="20" fill="{colour}"/></g>{signs}</svg>\n'
    )


def line_chart(
    title: str,
    subtitle: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    band: Sequence[tuple[float, float, float]] = (),
) -> str:
    """A chart of curves.

    Args:
        title: what it shows.
        subtitle: of what, and how many.
        x: the axis below; y: the axis at the left.
        lines: curves, whose names stand at their ends.
        band: x, low and high of an area behind the first curve.
    """
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(a: float, b: float) -> tuple[float, float]:
        return LEFT + wide * x.place(a), TOP + high * (1 - y.place(b))

    parts = []
    for tick in y.ticks:
        height = at(x.ticks[0], tick)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}H{LEFT + wide}"/>')
        parts.append(text(LEFT - 8, height + 5, y.words(tick), "end", "faint"))
    parts += [text(at(tick, y.ticks[0])[0], TOP + high + 20, x.words(tick), "middle", "faint") for tick in x.ticks]
    parts.append(text(LEFT + wide / 2, HEIGHT - 14, x.title, "middle"))
    middle = TOP + high / 2
    parts.append(f'<g transform="rotate(-90 18 {middle:.1f})">{text(18, middle, y.title, "middle")}</g>')
    if band:
        edge = [at(a, high_) for a, _, high_ in band] + [at(a, low) for a, low, _ in reversed(band)]
        parts.append(f'<polygon points="{_pairs(edge)}" style="fill: var(--c{lines[0].colour}); opacity: 0.18"/>')
    ends = []
    for line in lines:
        places, colour = [at(a, b) for a, b in line.points], f"var(--c{line.colour})"
        dashes = ' stroke-dasharray="6 5"' if line.dashed else ""
        parts.append(f'<polyline points="{_pairs(places)}" style="stroke: {colour}"{dashes}/>')
        if line.dots:
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" style="fill: {colour}"/>' for a, b in places]
        ends.append([places[-1][0] + 8, places[-1][1] + 5, line.name, colour])
    ends = sorted((end for end in ends if end[2]), key=lambda end: end[1])
    for i, end in enumerate(ends):  # a name that would lie on another one moves down
        end[1] = max([end[1], *(other[1] + 17 for other in ends[:i] if abs(other[0] - end[0]) < 100)])
    parts += [text(a, b, name, fill=colour) for a, b, name, colour in ends]
    return document(title, subtitle, parts)


def bar_chart(title: str, subtitle: str, groups: Sequence[tuple[str, Sequence[float]]], names: Sequence[str]) -> str:
    """Bars of shares from 0 to 1, one for each name in each group."""
    wide, high = WIDTH - LEFT - 20, HEIGHT - TOP - BOTTOM - 30
    top, step = TOP + 30, wide / len(groups)
    bar = (step - 24) / len(names)
    parts = []
    for i, name in enumerate(names):
        parts.append(f'<rect x="{LEFT + 190 * i}" y="{TOP}" width="12" height="12" style="fill: var(--c{i})"/>')
        parts.append(text(LEFT + 190 * i + 18, TOP + 11, name))
    for tick in (0, 0.25, 0.5, 0.75, 1):
        height = top + high * (1 - tick)
        parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}H{LEFT + wide}"/>')
        parts.append(text(LEFT - 8, height + 5, f"{tick:.0%}", "end", "faint"))
    for i, (group, values) in enumerate(groups):
        left = LEFT + i * step + 12
        for j, value in enumerate(values):
            x, height = left + j * bar, high * value
            y = top + high - height
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" height="{height:.1f}" style="fill: var(--c{j})"/>'
            )
            parts.append(text(x + bar / 2 - 1, y - 4, f"{100 * value:.0f}", "middle", "faint"))
        for k, words in enumerate(group.split(", ")):
            parts.append(text(left + (step - 24) / 2, top + high + 20 + 17 * k, words, "middle"))
    return document(title, subtitle, parts)


def _pairs(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in places)

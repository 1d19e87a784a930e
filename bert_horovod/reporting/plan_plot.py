"""Draw plans as SVG: for each phase and number of ranks, the parts of a step's time."""

from collections.abc import Sequence
from html import escape

from bert_horovod.costs.planner import PhasePlan

PARTS = {  # of a step, from the bottom: heading and colour
    "forward_backward_s": ("forward and backward", "#4c78a8"),
    "accumulation_s": ("accumulation", "#72b7b2"),
    "update_s": ("update", "#54a24b"),
    "waiting_s": ("waiting for the slowest", "#eeca3b"),
    "exposed_s": ("exposed communication", "#e45756"),
    "exposed_input_s": ("exposed input", "#b279a2"),
}
_WIDTH, _BAR, _GAP, _LEFT, _PANEL, _HEIGHT = 860, 44, 16, 40, 300, 180


def plan_svg(title: str, plans: Sequence[PhasePlan]) -> str:
    """An SVG document: a panel for each phase, in it a bar for each number of ranks, made of the parts of a step."""
    phases = sorted({plan.phase for plan in plans})
    most = max(sum(plan.phase == phase for plan in plans) for phase in phases)
    width = max(_WIDTH, _LEFT + most * (_BAR + _GAP) + _GAP)
    parts = [_text(_LEFT, 24, title, 16)]
    x = _LEFT
    for heading, colour in PARTS.values():
        parts += [f'<rect x="{x}" y="36" width="10" height="10" fill="{colour}"/>', _text(x + 14, 45, heading, 12)]
        x += 40 + 7 * len(heading)
    for row, phase in enumerate(phases):
        top = 70 + row * _PANEL
        parts.append(_text(_LEFT, top + 12, f"phase {phase}: shares of a step; efficiency and days above", 13))
        for i, plan in enumerate(plan for plan in plans if plan.phase == phase):
            x, y = _LEFT + i * (_BAR + _GAP), top + 60 + _HEIGHT
            for name, (_, colour) in PARTS.items():
                height = _HEIGHT * getattr(plan, name) / plan.step_s
                y -= height
                parts.append(f'<rect x="{x}" y="{y:.2f}" width="{_BAR}" height="{height:.2f}" fill="{colour}"/>')
            middle = x + _BAR / 2
            parts += [
                _text(middle, top + 40, f"{plan.efficiency:.0%}", 12, "middle"),
                _text(middle, top + 54, f"{plan.days:.3g} d", 11, "middle"),
                _text(middle, top + 76 + _HEIGHT, str(plan.world_size), 12, "middle"),
            ]
    height = 70 + len(phases) * _PANEL
    parts.append(_text(_LEFT, height - 8, "ranks", 12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'

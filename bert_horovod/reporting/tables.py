"""Measurements of the step as one table."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "configuration": ("configuration", str),
    "step_s": ("step s", "{:.4g}".format),
    "rows_per_s": ("rows/s", "{:.1f}".format),
    "tokens_per_s": ("tokens/s", "{:,.0f}".format),
    "flops_per_s": ("GFLOP/s", lambda value: f"{value / 1e9:.1f}"),
    "share": ("products/step", "{:.1%}".format),
    "forward_backward_share": ("products/fwd+bwd", "{:.1%}".format),
    "memory_bytes": ("peak GiB", lambda value: f"{value / 2**30:.2f}"),
    "first_step_s": ("first step s", "{:.1f}".format),
}


def ratio(value: float) -> str:
    """A ratio of two rates of rows/s, as in "1.25 x"."""
    return f"{value:.2f} x"


def table(rows: list[dict[str, Any]], extra: dict[str, tuple[str, Callable[[Any], str]]] | None = None) -> str:
    """Lines with a heading; a column that no row has is left out, a value that a row lacks is "-".

    Args:
        rows: values by key of COLUMNS or `extra`.
        extra: further columns, to the right: heading and how a value is written, by key.
    """
    columns = {
        key: column
        for key, column in (COLUMNS | (extra or {})).items()
        if any(row.get(key) is not None for row in rows)
    }
    cells = [[heading for heading, _ in columns.values()]]
    cells += [["-" if row.get(key) is None else write(row[key]) for key, (_, write) in columns.items()] for row in rows]
    return lines(cells)


def lines(cells: Sequence[Sequence[str]], most: int | None = None) -> str:
    """Rows of cells as lines of text: the first column is aligned to the left, the others to the right.

    Args:
        cells: of each row as many.
        most: characters of a line, at most: other columns go to further tables, which begin with the first column
            again; None: as many as there are.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if most is not None:
        fitting = max(2, sum(total <= most for total in accumulate(widths, lambda total, width: total + 2 + width)))
        if fitting < len(widths):
            rest = [[line[0], *line[fitting:]] for line in cells]
            return "\n".join((lines([line[:fitting] for line in cells]), lines(rest, most)))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )

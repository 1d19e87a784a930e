"""Measurements of the step, and results of `bench scaling`, as tables for a terminal or a page."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import read_given_json

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
    """Lines with a heading; a column that no row has is left out, a value that a row lacks is "-"."""
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

    `most`: characters of a line, at most: other columns go to further tables, which begin with the first column again.
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


def heading(scaling: dict[str, Any]) -> str:
    """A line with the configuration, the micro-batches and the rounds."""
    return f"{scaling['configuration']}; {scaling['micro_batches']} micro-batch(es) a rank; rounds: {scaling['rounds']}"


def cells(scaling: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row of headings, then a row for each layout."""
    priced = any(line["price_per_billion_tokens"] is not None for line in scaling["lines"])
    head = ("layout", "ranks", "step s", "rows/s", "tokens/s", "speed-up", "efficiency", "exposed s")
    rows = [head + ((f"{scaling['currency']} a billion tokens".strip(),) if priced else ())]
    for line in scaling["lines"]:
        unknown = line["speed_up"] is None  # 1M1G was not measured
        row = (
            line["layout"],
            str(line["ranks"]),
            f"{line['step_s']:.4g}",
            f"{line['rows_per_s']:.1f}",
            f"{line['tokens_per_s']:,.0f}",
            "-" if unknown else f"{line['speed_up']:.2f}",
            "-" if unknown else f"{line['efficiency']:.1%}",
            f"{line['exposed_s']:.3f}",
        )
        rows.append(row + ((f"{line['price_per_billion_tokens']:,.2f}",) if priced else ()))
    return rows


def scaling_table(path: Path) -> dict[str, Any]:
    """The file's table for the page: title, head and rows; raises ReportedError."""
    expected = "what `bert-horovod bench scaling --output` writes"
    scaling = read_given_json(path, "--scaling", expected)
    try:
        head, *rows = cells(scaling)
        return {"title": f"Weak scaling: {heading(scaling)}", "head": head, "rows": rows}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"--scaling {path}: expected {expected} ({error!r})") from error

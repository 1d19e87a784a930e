"""The results of `bench scaling` as a table, for a terminal or a page."""

from pathlib import Path
from typing import Any

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import read_given_json


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

"""One HTML file about a run, or a comparison of several; it opens from disk and needs no network.

bert-horovod report RUN --output report.html               a run: its curves and figures
bert-horovod report DIR                                    all runs below a directory, in a table that sorts
bert-horovod report RUN --watch                            a page on this host that follows the run
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.opened_flags import OpenRun, opens_run
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.commands.shared.price_flags import add_price_arguments, read_prices
from bert_horovod.errors import ReportedError, UserError
from bert_horovod.storage.places import is_url

if TYPE_CHECKING:
    from bert_horovod.costs.prices import Prices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    runs = parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="output_dir of a run, which may be running, its execution.mirror, or a directory with runs below it",
    )
    opens_run(runs)
    parser.add_argument("--output", type=Path, metavar="FILE", help="HTML file to write (default: report.html)")
    add_price_arguments(parser)
    parser.add_argument(
        "--scaling", type=Path, metavar="FILE", help="what `bench scaling --output` wrote; adds its table"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page on this host, renewed every 5 seconds")
    port = parser.add_argument("--port", type=int, default=0, metavar="N", help="port of --watch (default: a free one)")
    read_with(port, "with --watch", lambda arguments: arguments.watch)


def run(arguments: argparse.Namespace) -> None:
    """Write the page, or serve it until Ctrl-C."""
    from bert_horovod.commands.shared.output_flags import require_output_file
    from bert_horovod.reporting.page import page, serve
    from bert_horovod.reporting.tables import scaling_table
    from bert_horovod.storage.writing import write_output

    if arguments.watch and arguments.output:
        raise UserError("--watch serves the page and --output writes it; give one of them")
    if arguments.watch and (urls := [run.url for run in arguments.runs if is_url(run.given)]):
        raise UserError(f"--watch {urls[0]}: expected an output_dir, because a mirror changes at each checkpoint only")
    if not 0 <= arguments.port < 1 << 16:
        raise UserError(f"--port {arguments.port}: expected 1 to 65535, or 0 for a free one")
    output = arguments.output = arguments.output or Path("report.html")
    if not arguments.watch:
        require_output_file(arguments)
    prices, ranks = read_prices(arguments)
    tables = [scaling_table(arguments.scaling)] if arguments.scaling else []

    if arguments.watch:
        serve(lambda: _found(arguments.runs, prices, ranks, tables, watched=True), arguments.port)
        return
    found = _found(arguments.runs, prices, ranks, tables)
    for reason in found["left_out"]:
        print(f"bert-horovod: warning: left out: {reason}", file=sys.stderr)
    text = page(found)
    write_output(output, text)
    what = f"{len(found['runs'])} runs, " if len(found["runs"]) > 1 else ""
    print(f"{output}: {what}{len(text.encode()) / 1000:,.0f} kB; open it in a browser")


def _found(
    named: list[OpenRun],
    prices: "Prices | None",
    ranks: int | None,
    tables: list[dict[str, Any]],
    watched: bool = False,
) -> dict[str, Any]:
    """The page's content; raises ReportedError if a run that is named, or if every run that is found, is unreadable."""
    from bert_horovod.reporting.page import content, find_runs, names_of
    from bert_horovod.reporting.run_record import points_of_each, read_run, schema

    paths = [run.directory for run in named]
    directories = find_runs(paths)
    runs: list[dict] = []
    left_out: list[str] = []
    for directory, name in zip(directories, names_of(directories), strict=True):
        try:
            read = read_run(directory, prices, ranks, points_of_each(len(directories)))
            runs.append(read | {"name": name, "directory": _named(directory, named)})
        except ReportedError as error:
            if directory in paths or len(left_out) + 1 == len(directories):
                raise
            left_out.append(f"{name}: {error}")
    return content(runs, schema(), watched, tables, left_out)


def _named(directory: Path, named: list[OpenRun]) -> str:
    return next((run.named(directory) for run in named if directory.is_relative_to(run.directory)), str(directory))

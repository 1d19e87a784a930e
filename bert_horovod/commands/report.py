"""One HTML file about a run, or about several side by side; it opens from disk and needs no network.

bert-horovod report RUN [RUN ...] --output report.html
bert-horovod report RUN --watch                            a page on this host that follows the run
"""

import argparse
from pathlib import Path

from bert_horovod.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output_dir of a run; it may be running")
    parser.add_argument("--output", type=Path, metavar="FILE", help="HTML file to write (default: report.html)")
    parser.add_argument(
        "--cluster", type=Path, metavar="FILE", help="prices and power, as for plan; adds costs to the page"
    )
    parser.add_argument(
        "--scaling", type=Path, metavar="FILE", help="what `bench scaling --output` wrote; adds its table"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page on this host, renewed every 5 seconds")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port of --watch (default: a free one)")


def run(arguments: argparse.Namespace) -> None:
    """Write the page, or serve it until Ctrl-C."""
    from bert_horovod.costs.clusters import read_cluster
    from bert_horovod.reporting.page import content, page
    from bert_horovod.reporting.run_record import names_of, read_run, schema
    from bert_horovod.reporting.scaling_table import scaling_table
    from bert_horovod.reporting.serving_page import serve
    from bert_horovod.storage.writing import require_output, write_output

    cluster = read_cluster(arguments.cluster) if arguments.cluster else None
    tables = [scaling_table(arguments.scaling)] if arguments.scaling else []
    if arguments.watch and arguments.output:
        raise UserError("--watch serves the page and --output writes it; give one of them")
    if not 0 <= arguments.port < 1 << 16:
        raise UserError(f"--port {arguments.port}: expected 1 to 65535, or 0 for a free one")
    output = arguments.output or Path("report.html")
    if not arguments.watch:
        require_output(output)

    def found(watched: bool) -> dict:
        runs = [read_run(directory, cluster) for directory in arguments.runs]
        for run, name in zip(runs, names_of(arguments.runs), strict=True):
            run["name"] = name
        return content(runs, schema(), watched, tables)

    if arguments.watch:
        serve(lambda: found(True), arguments.port)
        return
    text = page(found(False))
    write_output(output, text)
    print(f"{output}: {len(text.encode()) / 1000:,.0f} kB; open it in a browser")

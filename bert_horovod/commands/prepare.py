"""Turn text into a token store, which is what pretrain reads.

Plain text, JSON Lines (a string field "text") or Wikipedia dumps (.xml, pages-articles), each plain or .gz, .bz2, .xz
or .zst. Running the same command again on a finished store checks it.
"""

import argparse
from typing import TYPE_CHECKING

from bert_horovod.collectives.launched import launch
from bert_horovod.errors import UserError

if TYPE_CHECKING:
    from concurrent.futures import Executor


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say which text is read and how."""
    parser.add_argument(
        "--input",
        action="append",
        required=True,
        metavar="PATH",
        help="a file, a directory or a glob pattern in quotes; repeatable",
    )
    parser.add_argument("--cased", action="store_true", help="keep upper case and accents (default: uncased)")
    parser.add_argument(
        "--documents",
        choices=("file", "blank_line"),
        default="file",
        help="file: a plain file is a document, a blank line ends a paragraph; blank_line: a blank "
        "line ends a document and a line is a sentence. A line of JSON Lines is a document "
        "(default: %(default)s)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_text_arguments(parser)
    parser.add_argument("--vocab", required=True, help="a WordPiece vocab.txt; make one with: bert-horovod vocab")
    parser.add_argument("--output_dir", required=True, help="the store to make: a new or empty directory")
    parser.add_argument(
        "--held_out",
        type=float,
        default=0.01,
        help="fraction of sections that are never trained on (default: %(default)s)",
    )
    parser.add_argument(
        "--shard_bytes", type=int, default=32 << 20, help="bytes of text in a shard (default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="processes on this machine (default: one a core, if there is work for them); under mpirun every rank but "
        "the first is one",
    )


def run(arguments: argparse.Namespace) -> None:
    """Prepare the store and print what became of the text."""
    launched = launch()
    if launched.size > 1:
        if launched.launcher == "horovodrun":
            raise UserError("prepare does not run under horovodrun; start it with mpirun or srun, or with --workers N")
        from bert_horovod.corpus.preparing.pool import mpi_pool

        with mpi_pool(launched.size) as executor:
            if executor is not None:
                _prepare(arguments, launched.size - 1, executor)
    else:
        _prepare(arguments, arguments.workers, None)


def _prepare(arguments: argparse.Namespace, workers: int | None, executor: "Executor | None") -> None:
    from bert_horovod.corpus.preparing.planning import Settings
    from bert_horovod.corpus.preparing.preparation import prepare, summary

    settings = Settings(arguments.documents, arguments.held_out, arguments.shard_bytes)
    result = prepare(
        arguments.input,
        arguments.vocab,
        arguments.output_dir,
        lowercase=not arguments.cased,
        settings=settings,
        workers=workers,
        executor=executor,
    )
    print(summary(result))

"""The part of `evaluate` that judges checkpoints by minimal pairs."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_horovod.commands.shared.flags import require_least, whole_text
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.commands.shared.progress import shown_progress
from bert_horovod.corpus.reading.pair_files import COLUMNS, FILE, Pairs, read_pairs
from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.wording import counted, some

if TYPE_CHECKING:
    from bert_horovod.runs.opening import OpenCheckpoint


def add_pairs(parser: argparse.ArgumentParser, either: argparse._ActionsContainer) -> None:
    """Declare --pairs, as an argument of `either`, and the flags that are read with it."""
    either.add_argument(
        "--pairs",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="instead of rows, minimal pairs: files (JSON Lines, CSV or TSV), or directories of them, of two sentences "
        "of which one is right",
    )
    of_pairs = [
        parser.add_argument(
            "--text_columns",
            metavar="GOOD,BAD",
            default=",".join(COLUMNS),
            help="columns of the right and of the wrong sentence (default: %(default)s)",
        ),
        parser.add_argument(
            "--every", type=int, default=1, metavar="N", help="take each N-th pair of a file (default: %(default)s)"
        ),
        parser.add_argument(
            "--within_words", action="store_true", help="with a token, mask the later tokens of its word too"
        ),
        parser.add_argument(
            "--checkpoints",
            choices=("newest", "all"),
            default="newest",
            help="of a run: which are judged (default: %(default)s)",
        ),
        parser.add_argument(
            "--precision",
            choices=("float32", "bfloat16"),
            default="float32",
            help="of matrix products (default: %(default)s)",
        ),
    ]
    for action in of_pairs:
        read_with(action, "with --pairs", lambda arguments: arguments.pairs is not None)


def judge_by_pairs(arguments: argparse.Namespace) -> None:
    """Judge and print; raises ReportedError if the checkpoint, a file or an argument is wrong."""
    require_least("--every", arguments.every)
    require_least("--micro_batch", arguments.micro_batch)
    from bert_horovod.runs.opening import RUN, kept_checkpoints

    given: OpenCheckpoint = arguments.checkpoint
    checkpoints, several = [given], arguments.checkpoints == "all"
    if several:
        if given.url or given.kind is not RUN:
            raise UserError(f"--checkpoints all: {given} is no run's output_dir; leave it out")
        checkpoints = kept_checkpoints(given)
    columns = tuple(whole_text(arguments.text_columns).split(","))
    pairs = read_pairs(arguments.pairs, columns).every(arguments.every)
    if equal := pairs.equal():
        print(f"bert-horovod: equal sentences, which count as a tie: {some(equal, 10)}", file=sys.stderr)
    judged = list(_judged(arguments, pairs, checkpoints))
    if not judged:
        raise UserError(f"--checkpoint {given}: none of its checkpoints can be read")
    if arguments.json:
        print(json.dumps({"checkpoints": judged} if several else judged[0]))
    else:
        print(checkpoints_table(judged) if several else pairs_table(judged[0]))


def _judged(
    arguments: argparse.Namespace, pairs: Pairs, checkpoints: "list[OpenCheckpoint]"
) -> Iterator[dict[str, Any]]:
    """Yield the accuracies of each checkpoint, with its name; of several, those that have none are named on stderr."""
    from bert_horovod.inference.outputs import NotFiniteError
    from bert_horovod.runs.checkpoint import is_removed

    for number, given in enumerate(checkpoints, 1):
        what = f"judging {number} of {len(checkpoints)}" if len(checkpoints) > 1 else "judging"
        try:
            judged = _judge_one(arguments, pairs, given, what)
        except ReportedError as error:
            is_its_own = is_removed(given.directory) or isinstance(error, DamagedData | NotFiniteError)
            if arguments.checkpoints != "all" or not is_its_own:
                raise
            print(f"bert-horovod: left out: {error}", file=sys.stderr)
        else:
            yield judged


def _judge_one(arguments: argparse.Namespace, pairs: Pairs, given: "OpenCheckpoint", what: str) -> dict[str, Any]:
    from bert_horovod.inference.masked_tokens import read_masked_model
    from bert_horovod.inference.pair_scores import PairScorer, PairTokens
    from bert_horovod.interchange.suitability import require_vocabulary

    checkpoint, pretrained = given.whole(lambda whole: (whole, read_masked_model(whole)))
    vocabulary = require_vocabulary(checkpoint, pretrained.vocabulary)
    model, settings = pretrained.model, pretrained.tokenizer_settings
    tokens = PairTokens(pairs, vocabulary, settings, model.max_position_embeddings)
    scorer = PairScorer(tokens, model, arguments.within_words, arguments.precision, arguments.micro_batch)
    with shown_progress(what, "pairs") as progress:
        return {"checkpoint": str(checkpoint), **scorer(pretrained.parameters, progress)}


def pairs_table(judged: dict[str, Any]) -> str:
    """The accuracies of a checkpoint by group, for people."""
    from bert_horovod.reporting.tables import lines

    tables = []
    for kind, groups in judged["groups"].items():
        cells = [[kind.replace("_", " "), "pairs", "ties", "accuracy", "standard error"]]
        cells += [
            [" ".join(name.split()), f"{group['pairs']:,}", str(group["ties"]), *_shares(group)]
            for name, group in groups.items()
        ]
        tables.append(lines(cells))
    accuracy, error = _shares(judged)
    files = counted(len(judged["groups"][FILE]), "file")
    return "\n\n".join(
        [
            *tables,
            f"{judged['checkpoint']}: {counted(judged['pairs'], 'pair')}, {counted(judged['ties'], 'tie')}\n"
            f"accuracy {accuracy}, standard error {error} (the mean over {files}; chance: 50 %)",
        ]
    )


def checkpoints_table(judged: list[dict[str, Any]]) -> str:
    """The accuracy of each checkpoint, for people."""
    from bert_horovod.reporting.tables import lines

    rows = [[Path(each["checkpoint"]).name, *_shares(each), str(each["ties"])] for each in judged]
    return lines([["checkpoint", "accuracy", "standard error", "ties"], *rows])


def _shares(group: dict[str, Any]) -> tuple[str, str]:
    error = group["standard_error"]
    return f"{group['accuracy']:.1%}", "-" if error is None else f"{error:.1%}"

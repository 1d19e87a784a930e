"""Let a fine-tuned checkpoint answer: labels with probabilities, numbers, parts of a context, entities, or vectors.

bert-horovod predict --checkpoint RUN --input texts.csv --output answers.csv
bert-horovod predict --checkpoint RUN --input texts.csv --vectors vectors.npy
echo "a fine film" | bert-horovod predict --checkpoint RUN --input -

Question answering takes SQuAD's files (.json) and tables with the columns question and context. If the name of the
output ends in .json, it gets the answers' texts by question id, for `score`; a directory gets the files that
fine-tuning writes.

Entity recognition tags the words of CoNLL files and of JSON Lines with `tokens`. In plain texts (.txt), tables (.csv)
and JSON Lines with `text` it finds spans of characters. A table of answers has the columns of the input too, unless
--keep says otherwise.

--vectors takes any checkpoint, and texts of one column, or of the lines of a .txt. Row i of the .npy file is the vector
of text i. Several ranks share the texts: bert-horovod launch -np 8 -hostfile hosts -- predict ...
"""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bert_horovod.collectives.launched import launch, started_by
from bert_horovod.commands.shared.flags import require_number, whole_text
from bert_horovod.commands.shared.opened_flags import add_checkpoint
from bert_horovod.commands.shared.output_flags import require_output, require_output_file
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.commands.shared.progress import shown_progress
from bert_horovod.commands.shared.ranks import as_rank
from bert_horovod.commands.shared.table_flags import add_dialect
from bert_horovod.corpus.reading.sources import suffixes
from bert_horovod.corpus.reading.table_files import require_table_name
from bert_horovod.errors import ReportedError, UserError
from bert_horovod.finetuning.kinds.kinds import KINDS, kind_of_checkpoint, open_predictor
from bert_horovod.finetuning.text_data import dialect_of, threshold_of
from bert_horovod.inference.options import Options
from bert_horovod.inference.predicting import Predictor
from bert_horovod.storage.writing import is_stdout

if TYPE_CHECKING:
    from bert_horovod.runs.opening import OpenCheckpoint

_LEFT_OUT = (None, False, "all", "none")  # values of flags that change nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_checkpoint(parser, "fine-tuned: ")
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help="TSV, CSV or JSON Lines (.jsonl), SQuAD's .json, for entities also CoNLL and .txt; -: lines of "
        "standard input, answered as they come, two texts with a tab between",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="TSV, CSV or JSON Lines, by its suffix; not with -")
    text_columns = parser.add_argument(
        "--text_columns",
        metavar="A[,B]",
        help="columns of text (default: those that the checkpoint was trained on; for entities as finetune --task ner)",
    )
    keep = parser.add_argument(
        "--keep",
        default="all",
        metavar="A[,B]",
        help="columns of a table that stand beside its answers: all, none, or their names (default: %(default)s)",
    )
    of_tables = text_columns, *add_dialect(parser)
    for action in (*of_tables, keep):
        read_with(action, "with a file as --input", lambda arguments: arguments.input != "-")
    for action in of_tables:  # --keep has a message of its own there
        read_with(action, "with a table as --input", lambda it: suffixes(Path(it.input))[0] != ".json")
    threshold = parser.add_argument(
        "--threshold",
        metavar="X",
        help="of any number of labels: a text gets those with at least this probability (default: as trained)",
    )
    parser.add_argument(
        "--sequence_length", type=int, metavar="N", help="most tokens of an example (default: as in training)"
    )
    doc_stride = parser.add_argument(
        "--doc_stride",
        type=int,
        metavar="N",
        help="question answering: from window to window (default: as in training)",
    )
    null = parser.add_argument(
        "--null_score_threshold",
        type=float,
        metavar="X",
        help="question answering: no answer if the null odds are above (default: 0 if it was trained to abstain)",
    )
    _add_vectors(parser)
    for action in (keep, threshold, doc_stride, null):
        read_with(action, "without --vectors", lambda arguments: arguments.vectors is None)


def _add_vectors(parser: argparse.ArgumentParser) -> None:
    vectors = parser.add_argument(
        "--vectors", type=Path, metavar="FILE", help="in place of --output: write the texts' vectors to this .npy file"
    )
    of_vectors = [
        parser.add_argument(
            "--vectors_dtype",
            choices=("float32", "float16"),
            default="float32",
            help="of the numbers in the file (default: %(default)s)",
        ),
        parser.add_argument(
            "--dimensions", type=int, metavar="N", help="of a vector, the first ones (default: as the checkpoint says)"
        ),
        parser.add_argument(
            "--prompt",
            metavar="NAME",
            help="of the checkpoint's prompts, which stands before each text (default: that of the column's name), or "
            "none",
        ),
        parser.add_argument(
            "--windows",
            action="store_true",
            help="a text of more tokens than --sequence_length gets the mean of its windows' vectors (default: it is "
            "cut)",
        ),
        parser.add_argument(
            "--precision",
            choices=("float32", "bfloat16", "float16"),
            default="float32",
            help="in which vectors are computed (default: %(default)s)",
        ),
    ]
    for action in of_vectors:
        read_with(action, "with --vectors", lambda arguments: arguments.vectors is not None)
    read_with(vectors, "with a file as --input", lambda arguments: arguments.input != "-")


def run(arguments: argparse.Namespace) -> None:
    """Predict."""
    require_number("--null_score_threshold", arguments.null_score_threshold)
    lines, vectors = arguments.input == "-", arguments.vectors
    if vectors and arguments.output:
        raise UserError("--output and --vectors are two places for the answers; give one of them")
    if lines != (arguments.output is None and vectors is None):
        raise UserError("--output: expected with a file as --input, and not with lines of standard input (-)")
    columns = tuple(whole_text(arguments.text_columns).split(",")) if arguments.text_columns else ()
    keep = {"all": None, "none": ()}.get(arguments.keep, tuple(whole_text(arguments.keep).split(",")))
    if keep and (repeated := [name for number, name in enumerate(keep) if name in keep[:number]]):
        raise UserError(f"--keep names {repeated[0]!r} twice; expected each column once")
    dialect = dialect_of(vars(arguments))
    threshold = None
    if arguments.threshold is not None and (threshold := threshold_of(arguments.threshold)) is None:
        raise UserError("--threshold dev: no dev set is read here; leave it out: the checkpoint has its threshold")
    options = Options(
        columns,
        arguments.sequence_length,
        arguments.doc_stride,
        arguments.null_score_threshold,
        threshold,
        () if vectors else keep,
        dialect,
        arguments.prompt,
        arguments.dimensions,
        arguments.windows,
        arguments.precision,
    )
    config = _configuration(arguments.checkpoint)
    if vectors:
        _write_vectors(arguments, config, options)
        return
    if (launched := started_by()).size > 1:
        raise UserError(f"{launched.launcher} started {launched.size} processes; only --vectors is shared by ranks")
    kind = kind_of_checkpoint(config)
    if kind:
        _refuse_flags(arguments, kind.predictor, str(config.get("architectures")))
    if not lines:
        _look(arguments, kind.predictor if kind else Predictor, config, options)
    from bert_horovod.runtime.devices import use_devices

    use_devices(0, 1, 0)
    predictor = open_predictor(arguments.checkpoint, options)
    if lines:
        for line in lines_of(sys.stdin):
            print(predictor.predict_line(line), flush=True)
        return
    with shown_progress("predicting", "rows") as progress:
        report = predictor.predict_file(Path(arguments.input), arguments.output, progress)
    print(report, file=sys.stderr if is_stdout(arguments.output) else sys.stdout)


def _write_vectors(arguments: argparse.Namespace, config: dict[str, Any], options: Options) -> None:
    """Write the texts' vectors, as one of the launcher's ranks."""
    if arguments.vectors.suffix != ".npy":
        raise UserError(f"--vectors {arguments.vectors}: expected a name that ends with .npy")
    from bert_horovod.inference.embedding_predictor import EmbeddingPredictor

    launched = launch()

    def write() -> None:
        from bert_horovod.collectives.starting import connect
        from bert_horovod.runtime.devices import use_devices

        if launched.rank == 0:  # which alone writes
            require_output_file(arguments, "vectors")
        EmbeddingPredictor.look_at_texts(Path(arguments.input), config, options)
        world = connect(launched)
        use_devices(world.local_rank, world.local_size, 0)
        predictor = arguments.checkpoint.whole(lambda whole: EmbeddingPredictor(whole, options))
        with shown_progress("predicting", "rows", quiet=world.rank > 0) as progress:
            report = predictor.write_vectors(
                Path(arguments.input), arguments.vectors, arguments.vectors_dtype, progress, world
            )
        world.shutdown()
        if world.rank == 0:
            print(report)

    as_rank(launched, write)


def _refuse_flags(arguments: argparse.Namespace, predictor: type[Predictor], named: str) -> None:
    """Raise UserError for a flag that only other kinds of checkpoints than this one, whose class is `named`, read."""
    for name in dict.fromkeys(flag for kind in KINDS for flag in kind.predictor.reads):
        if name not in predictor.reads and (value := getattr(arguments, name)) not in _LEFT_OUT:
            given = f"--{name}" if value is True else f"--{name} {value}"
            raise UserError(f"{given}: a checkpoint {named} does not read it; leave it out")


def _look(arguments: argparse.Namespace, predictor: type[Predictor], config: dict[str, Any], options: Options) -> None:
    """Find mistakes in paths and columns; what cannot be known without reading the checkpoint is left to its reader."""
    output = arguments.output
    if output.is_dir():
        require_output(arguments)
    if not (output.is_dir() and predictor.fills_directories):
        if predictor.writes_table(Path(arguments.input), options):
            require_table_name("--output", output)
        require_output_file(arguments)
    predictor.look(Path(arguments.input), config, options)


def _configuration(checkpoint: "OpenCheckpoint") -> dict[str, Any]:
    """What config.json says; of a TF1 checkpoint nothing, because TensorFlow is not imported yet."""
    from bert_horovod.interchange.google import Tf1

    try:
        return {} if isinstance(checkpoint.reader, Tf1) else checkpoint.reader.configuration
    except ReportedError:
        return {}  # it is told later, or an older checkpoint of the run is read


def lines_of(stream: TextIO) -> Iterator[str]:
    """Yield a stream's lines as they come; bytes that are not UTF-8 become U+FFFD, and the first such line is told."""
    raw = getattr(stream, "buffer", None) or io.BytesIO(stream.read().encode("utf-8", "replace"))
    warned = False
    for number, line in enumerate(raw, 1):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not warned and "\ufffd" in text and "\ufffd".encode() not in line:
            warned = True
            print(
                f"bert-horovod: warning: line {number} of standard input has bytes that are not UTF-8; these are "
                "left out",
                file=sys.stderr,
            )
        yield text

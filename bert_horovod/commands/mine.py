"""Find hard negatives: for each pair of a query and a passage, wrong passages that a model takes for right ones.

bert-horovod mine --checkpoint VECTORS --input pairs.csv --output triples.jsonl
bert-horovod mine --vectors queries.npy,passages.npy --input pairs.csv --corpus passages.csv --output triples.jsonl

Each query is compared with all passages of the pairs and of --corpus, exactly. Passages that a pair calls right for the
same query are no negatives, nor are texts that differ from these in blanks or case alone. The output is what finetune
--task embedding trains on. After an interruption the same command goes on.
"""

import argparse
import re
import shlex
import time
from pathlib import Path

from bert_horovod.collectives.launched import started_by
from bert_horovod.commands.shared.flags import require_least, require_number, whole_text
from bert_horovod.commands.shared.opened_flags import opens_checkpoint
from bert_horovod.commands.shared.output_flags import require_output_file
from bert_horovod.commands.shared.parser import read_with
from bert_horovod.commands.shared.progress import shown_progress
from bert_horovod.commands.shared.table_flags import add_dialect
from bert_horovod.corpus.reading.table_files import require_columns
from bert_horovod.errors import UserError
from bert_horovod.finetuning.text_data import dialect_of
from bert_horovod.wording import counted, duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    opens_checkpoint(
        parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="what makes vectors of the texts")
    )
    parser.add_argument(
        "--vectors",
        metavar="Q.npy,P.npy",
        help="in place of --checkpoint: files of predict --vectors, a row for each row of --input, and one for each "
        "passage of --corpus, or without it of --input; scores are their inner products",
    )
    parser.add_argument("--input", required=True, type=Path, metavar="FILE", help="pairs: TSV, CSV or JSON Lines")
    parser.add_argument(
        "--text_columns", default="query,passage", metavar="A,B", help="of the pairs (default: %(default)s)"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FILE", help="further passages: a table, or a text a line (.txt)"
    )
    add_dialect(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON Lines with a list of negatives in each row, or TSV or CSV with a column for each",
    )
    parser.add_argument(
        "--per_query", type=int, default=1, metavar="N", help="negatives of a pair (default: %(default)s)"
    )
    parser.add_argument(
        "--ranks",
        default="10-50",
        metavar="A-B",
        help="the places from which they come, from 1, among the passages that may be negatives (default: %(default)s)",
    )
    sampling = parser.add_argument(
        "--sampling",
        choices=("random", "top"),
        default="random",
        help="drawn from these places, or the first ones (default: %(default)s)",
    )
    seed = parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default: %(default)s)")
    read_with(seed, "with --sampling random", lambda arguments: arguments.sampling == sampling.default)
    parser.add_argument(
        "--margin",
        metavar="X",
        help="negatives score at least so much below the right passage, as in 0.05, or in 5%% of its score",
    )
    parser.add_argument("--max_score", type=float, metavar="X", help="negatives score at most so much")
    opens_checkpoint(
        parser.add_argument(
            "--reranker",
            type=Path,
            metavar="PATH",
            help="a checkpoint of finetune --task reranking, whose scores decide",
        ),
        "--reranker",
    )
    parser.add_argument(
        "--scores", action="store_true", help="write a column of scores too: the right passage's, the negatives'"
    )


def run(arguments: argparse.Namespace) -> None:
    """Mine, and print a summary."""
    if (launched := started_by()).size > 1:
        raise UserError(f"{launched.launcher} started {launched.size} processes; mine is one: start it alone")
    if (arguments.checkpoint is None) == (arguments.vectors is None):
        raise UserError("--checkpoint or --vectors: expected one of them, which says what a text's vector is")
    columns, ranks, margin = _columns(arguments), _ranks(arguments), _margin(arguments.margin)
    require_number("--max_score", arguments.max_score)
    require_least("--seed", arguments.seed, 0)
    files = tuple(map(Path, whole_text(arguments.vectors).split(","))) if arguments.vectors else ()
    if arguments.vectors and len(files) != 2:
        raise UserError(f"--vectors {arguments.vectors}: expected two files, of queries and of passages: Q.npy,P.npy")
    if arguments.output.suffix.lower() not in (".tsv", ".csv", ".jsonl"):
        raise UserError(f"--output {arguments.output}: expected a name that ends with .jsonl, .csv or .tsv")
    require_output_file(arguments, more_inputs=files)
    dialect = dialect_of(vars(arguments))
    require_columns(arguments.input, columns, "--text_columns", dialect)

    from bert_horovod.finetuning.kinds.kinds import open_predictor
    from bert_horovod.finetuning.mining import Miner, Mining, kept_directory, load_vectors, negative_columns
    from bert_horovod.finetuning.query_passages import read_query_passages
    from bert_horovod.inference.embedding_predictor import EmbeddingPredictor
    from bert_horovod.inference.options import Options
    from bert_horovod.inference.text_predictor import RerankPredictor
    from bert_horovod.runtime import lazy_tensorflow as tf
    from bert_horovod.runtime.devices import use_devices

    begun, output = time.monotonic(), arguments.output
    pairs = read_query_passages(
        arguments.input, columns, arguments.corpus, output.absolute().parent, dialect, not files
    )
    if files:
        of_passages = "row of --corpus" if arguments.corpus else "passage of --input"
        vectors = [
            load_vectors(files[0], pairs.queries, len(pairs.queries), "row of --input"),
            load_vectors(files[1], pairs.passages, pairs.given, of_passages),
        ]
        if (widths := [vector.array.shape[1] for vector in vectors])[0] != widths[1]:
            raise UserError(f"--vectors: of {widths[0]} and of {widths[1]} numbers; expected files of one checkpoint")
    use_devices(0, 1, 0)
    tf.config.experimental.enable_tensor_float_32_execution(False)  # else GPUs would round factors to 10 bits
    predictor, reranker = None, arguments.reranker and open_predictor(arguments.reranker, Options())
    if not isinstance(reranker, RerankPredictor | None):
        raise UserError(f"--reranker {arguments.reranker}: expected a checkpoint of finetune --task reranking")
    if arguments.checkpoint:
        predictor = arguments.checkpoint.whole(lambda whole: EmbeddingPredictor(whole, Options()))
    of = [(each.checkpoint.weights_hash(), each.length, each.config) for each in (predictor, reranker) if each]
    stats = [file.stat() for file in files]
    choice = Mining(
        ranks,
        arguments.per_query,
        *margin,
        arguments.max_score,
        arguments.sampling == "random",
        arguments.seed,
        arguments.scores,
    )
    miner = Miner(pairs, choice, reranker)
    with kept_directory(output, miner.key(of, [(stat.st_size, stat.st_mtime_ns) for stat in stats])) as directory:
        if predictor:
            vectors = miner.encode(predictor, directory, shown_progress)
        found, right = miner.search(vectors, directory, shown_progress)
        total = miner.write(found, right, output)
    negatives, mean = total["negatives"], total["scores"] / max(1, total["negatives"])
    of_negatives = f", {mean:.4f} of negatives" if negatives else ""
    if not negatives:
        print("warning: no pair has a negative; expected another --margin, --max_score or --ranks, or more --corpus")
    names = ",".join([*columns, *negative_columns(output, choice.per_query)])
    words = "--train_file", str(output), "--text_columns", names
    print(
        f"read        {counted(len(pairs.query), 'pair')} of {len(pairs.queries.first):,} queries, with "
        f"{counted(len(pairs.passages.first), 'passage')}\n"
        f"negatives   {negatives:,}; {counted(total['fewer'], 'pair')} with fewer than {choice.per_query}, "
        f"{total['none']:,} of them with none\n"
        f"scores      on average {right.mean():.4f} of right passages{of_negatives}\n"
        f"left out    {counted(total['near'], 'candidate')} above --margin or --max_score\n"
        f"written     {output}, in {duration(time.monotonic() - begun)}\n"
        f"train       bert-horovod finetune --task embedding {shlex.join(words)} ..."
    )


def _columns(arguments: argparse.Namespace) -> tuple[str, str]:
    columns = tuple(whole_text(arguments.text_columns).split(","))
    if len(columns) != 2 or not all(columns) or columns[0] == columns[1]:
        raise UserError(f"--text_columns {arguments.text_columns}: expected two names, of the query and the passage")
    if ours := [name for name in columns if re.fullmatch(r"negative(_\d+)?|scores", name)]:
        raise UserError(f"--text_columns {arguments.text_columns}: mine writes {ours[0]!r} itself; rename the column")
    return columns[0], columns[1]


def _ranks(arguments: argparse.Namespace) -> tuple[int, int]:
    require_least("--per_query", most := arguments.per_query)
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", arguments.ranks)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1 <= first <= last:
        raise UserError(f"--ranks {arguments.ranks}: expected two places, from 1 on, as in 10-50")
    if last - first + 1 < most:
        raise UserError(f"--ranks {arguments.ranks}: {last - first + 1} places, but --per_query {most}")
    return first, last


def _margin(text: str | None) -> tuple[float | None, bool]:
    """The value of --margin, and whether it is a share of the right passage's score."""
    if text is None:
        return None, False
    number = text.removesuffix("%")
    try:
        value = float(number) / (1 if number == text else 100)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"--margin {text}: expected a number from 0 on, as in 0.05, or a share of the score, as in 5%")
    return value, number != text

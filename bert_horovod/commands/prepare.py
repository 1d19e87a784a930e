"""Turn text into a token store, for pretrain to read.

bert-horovod prepare --input corpus.txt --vocab vocab.txt --output_dir STORE
bert-horovod prepare --input enwiki-latest-pages-articles.xml.bz2 --vocab vocab.txt --output_dir STORE --workers 8

It reads plain text, JSON Lines, CSV, TSV, Wikipedia dumps (.xml, pages-articles) or Common Crawl's texts (.warc.wet),
each plain or .gz, .bz2, .xz or .zst; Parquet; a directory that `datasets` saved (Arrow). Running the same command
again on a finished store checks it.
"""

import argparse
import importlib
import json
import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bert_horovod.collectives.launched import launch
from bert_horovod.commands.shared.flags import CHECKPOINT, RECIPE, add_overrides
from bert_horovod.commands.shared.parser import read_with, takes_urls
from bert_horovod.errors import ReportedError, UserError

if TYPE_CHECKING:
    from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
    from bert_horovod.recipe.sections import Recipe


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for the text and its format."""
    inputs = parser.add_argument(
        "--input",
        action="extend",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files, directories or glob patterns, here or elsewhere (s3://, gs://, abfs://, hf://datasets/..., "
        "https://), or - for standard input; repeatable",
    )
    takes_urls(inputs)
    parser.add_argument(
        "--text_field",
        default="text",
        metavar="NAME",
        help="the field of JSON Lines, or the column of Parquet, CSV or TSV, that holds the text; article.abstract is "
        "the field abstract within article (default: %(default)s)",
    )
    parser.add_argument(
        "--bad_lines",
        choices=("stop", "skip"),
        help="what to do with a line or row that cannot be read; the manifest counts skipped ones (default: "
        "stop among the first 1,000 of a file, then skip)",
    )
    cased = parser.add_argument("--cased", action="store_true", help="keep upper case and accents (default: uncased)")
    documents = parser.add_argument(
        "--documents",
        choices=("file", "blank_line", "paragraph_lines"),
        default="file",
        help="file: a plain file is a document, a blank line ends a paragraph; blank_line: a blank "
        "line ends a document and a line is a sentence; paragraph_lines: a blank line ends a document and a line is a "
        "paragraph, as in CC-100. A line of JSON Lines or a row of a table is a document (default: %(default)s)",
    )
    parser.add_argument(
        "--split",
        metavar="letters|K",
        help="the texts are sequences (DNA, RNA, proteins), plain files are FASTA: cut them into letters, or into "
        "k-mers of K letters",
    )
    for action in (cased, documents):
        read_with(action, "without --split", lambda arguments: arguments.split is None)


def documents_of(arguments: argparse.Namespace) -> str:
    """What --split says, or else --documents."""
    from bert_horovod.corpus.reading.sequences import parse_split

    return arguments.documents if arguments.split is None else parse_split(arguments.split)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_text_arguments(parser)
    tokenizer = parser.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument(
        "--vocab",
        help="a WordPiece vocab.txt (bert-horovod vocab makes one), or a checkpoint, whose tokenizer "
        f"is taken: {CHECKPOINT}",
    )
    tokenizer.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="a directory with a tokenizer.json of any kind, such as RoBERTa's, and tokenizer_config.json",
    )
    parser.add_argument("--output_dir", required=True, help="write the store to this new or empty directory")
    parser.add_argument(
        "--held_out",
        type=float,
        default=0.01,
        help="fraction of sections to hold out from training (default: %(default)s)",
    )
    parser.add_argument(
        "--shard_bytes",
        type=int,
        default=32 << 20,
        help="bytes of text in a block, the unit of work; up to a thousand blocks are a shard each, more are joined "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="processes on this machine (default: one a core, if there is work for them)",
    )
    parts = parser.add_argument_group("parts of the work, each by a call of its own, on any machine")
    which = parts.add_mutually_exclusive_group()
    which.add_argument(
        "--part",
        nargs="?",
        const=True,
        metavar="K/N",
        help="make part K of N alone; whoever ends last joins them to the store. Without a value in a SLURM array, as "
        "/N in an Indexed Job of Kubernetes: their variables tell K",
    )
    which.add_argument(
        "--join",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="make no part: join those in --output_dir, and in these --output_dirs of calls with --part",
    )
    index = parser.add_argument_group("the row index, which pretrain makes otherwise")
    index.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="make the row index of each phase of this recipe too, with the same workers; else pretrain makes "
        f"it: {RECIPE}",
    )
    add_overrides(index, "data.packing=false")
    for action in index._group_actions[1:]:
        read_with(action, "with --recipe", lambda arguments: arguments.recipe is not None)


def run(arguments: argparse.Namespace) -> None:
    """Prepare the store and print a summary."""
    launched = launch()
    if launched.size > 1:
        raise UserError(
            f"found rank {launched.rank} of {launched.size} of {launched.launcher}: each would make the whole store; "
            "on one machine --workers N shares the work, on several machines --part K/N, one call on each (if nothing "
            "has started this process as a rank: unset that launcher's variables, such as HOROVOD_RANK)"
        )
    from bert_horovod.batches.layout import check_vocabulary
    from bert_horovod.corpus.preparing.planning import Settings, find_part
    from bert_horovod.corpus.preparing.preparation import Preparation
    from bert_horovod.corpus.preparing.summary import SharedResult, part_summary, summary
    from bert_horovod.corpus.reading.finding import require_inputs
    from bert_horovod.corpus.store import Store

    part = None if arguments.part is None else find_part(arguments.part, os.environ)
    require_inputs(arguments.input)
    recipe = _recipe(arguments) if arguments.recipe else None
    if arguments.tokenizer:
        path, vocabulary, tokenizer_settings = _of_directory(Path(arguments.tokenizer), arguments.cased)
    else:
        path, vocabulary, tokenizer_settings = named_tokenizer(arguments.vocab, arguments.cased)
    documents = documents_of(arguments)
    if arguments.split:
        _require_split(documents, tokenizer_settings, arguments)
    if recipe:  # a mistake in it is told before hours of work
        check_vocabulary(recipe, Store(Path(arguments.output_dir), {}, (), vocabulary, tokenizer_settings), padded=True)
    settings = Settings(
        documents=documents,
        held_out=arguments.held_out,
        shard_bytes=arguments.shard_bytes,
        text_field=arguments.text_field,
        bad_lines=arguments.bad_lines,
        tokenizer=tokenizer_settings,
    )
    preparation = Preparation(
        arguments.input, path, Path(arguments.output_dir), vocabulary, settings, arguments.workers
    )
    if part is not None:
        prepared = preparation.make_part(part, _command())
    elif arguments.join is not None:
        prepared = preparation.join(arguments.join, _command())
    else:
        prepared = preparation.make()
    if isinstance(prepared, SharedResult):
        print(part_summary(prepared))
        return
    try:
        if recipe:
            _make_indexes(prepared.path, recipe, arguments.workers)
    finally:  # the store is finished, whatever becomes of the index
        print(summary(prepared, _start(arguments.tokenizer or arguments.vocab), _recipe_flags(arguments)))


def _require_split(documents: str, settings: "TokenizerSettings", arguments: argparse.Namespace) -> None:
    """Raise UserError for a tokenizer that does not cut sequences, or that cuts them otherwise than --split says."""
    from bert_horovod.corpus.reading.sequences import LETTERS, cut_letters, token_letters
    from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer

    if not isinstance(settings, JsonTokenizer):
        raise UserError(
            f"--split {arguments.split}: {arguments.tokenizer or arguments.vocab} cuts words; expected --tokenizer DIR "
            f"made with bert-horovod vocab --split {arguments.split} --input ... --output DIR/tokenizer.json"
        )
    cut = cut_letters(json.loads(settings.text).get("pre_tokenizer"))
    if cut and cut != token_letters(documents):
        raise UserError(
            f"--split {arguments.split}: the tokenizer cuts sequences otherwise; expected --split "
            f"{LETTERS if cut == 1 else cut}"
        )


def _command() -> str:
    """This call as a message shows it, without --part and --join."""
    words, given = [], iter(sys.argv[1:])
    leaving_out = False
    for word in given:
        if word.startswith("--"):
            leaving_out = word.partition("=")[0] in ("--part", "--join")
        if not leaving_out:
            words.append(word)
    return shlex.join(["bert-horovod", *words])


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    """The recipe; its reader, which knows every exchange, is found by name: preparing text must not need that."""
    loading = importlib.import_module("bert_horovod.recipe_files.loading")
    return loading.load_recipe(arguments.recipe, arguments.overrides)


def _recipe_flags(arguments: argparse.Namespace) -> str:
    """The recipe that was given, as words of a command line; "" if none was."""
    if not arguments.recipe:
        return ""
    recipe = arguments.recipe.absolute() if arguments.recipe.is_file() else arguments.recipe  # else a shipped one
    return shlex.join([str(recipe), *(word for override in arguments.overrides for word in ("--set", override))])


def _make_indexes(path: Path, recipe: "Recipe", workers: int | None) -> None:
    """Make the row index of each phase of a recipe, by workers."""
    from bert_horovod.batches.text.crews import Crew, PoolCrew
    from bert_horovod.batches.text.index import index_path
    from bert_horovod.batches.text.making import make_index
    from bert_horovod.corpus.preparing.pool import local_pool
    from bert_horovod.corpus.store import open_store

    store = open_store(path)
    lengths = dict.fromkeys(phase.sequence_length for phase in recipe.phase)
    kinds = [(length, recipe.objective.pair, recipe.data.packing) for length in lengths]
    missing = [kind for kind in kinds if not index_path(store, *kind, None).is_dir()]
    if not missing:
        return
    workers = min(len(os.sched_getaffinity(0)) if workers is None else workers, len(store.shards))
    with local_pool(workers) if workers > 1 else nullcontext() as executor:
        for kind in missing:
            crew = Crew() if executor is None else PoolCrew(executor, path)
            make_index(store, index_path(store, *kind, None), *kind, crew, missing=True)


def _start(named: str) -> str | None:
    """What --vocab or --tokenizer names, if it is a checkpoint with weights, to go on from."""
    from bert_horovod.runs.opening import find_checkpoint

    try:
        find_checkpoint(Path(named)).reader.weights()
    except ReportedError:
        return None
    return os.path.abspath(named)


def _of_directory(path: Path, cased: bool) -> tuple[Path, list[str], "TokenizerSettings"]:
    """As named_tokenizer, of what --tokenizer names."""
    from bert_horovod.interchange.tokenizer_files import read_tokenizer

    if cased:
        raise UserError(f"--cased with --tokenizer {path}, which itself says whether it lower-cases; leave --cased out")
    tokenizer = read_tokenizer(path, None) if path.is_dir() else None
    if tokenizer is None or tokenizer.vocabulary is None:
        raise UserError(
            f"--tokenizer {path}: expected a directory with a tokenizer.json; write it in Python with transformers: "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR)"
        )
    return path, tokenizer.vocabulary, tokenizer.settings


def named_tokenizer(vocab: str, cased: bool, flag: str = "--vocab") -> tuple[Path, list[str], "TokenizerSettings"]:
    """What a flag names, a vocab.txt or a checkpoint, its vocabulary, and how text is normalised and cut."""
    from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
    from bert_horovod.corpus.reading.vocabulary import read_vocabulary
    from bert_horovod.interchange.suitability import require_vocabulary
    from bert_horovod.runs.opening import find_checkpoint, is_checkpoint

    path = Path(vocab)
    if not (path.is_dir() or is_checkpoint(path)):
        return path, read_vocabulary(path), TokenizerSettings(lowercase=not cased)

    path, tokenizer = find_checkpoint(path, flag).whole(lambda whole: (whole.directory, whole.reader.tokenizer))
    mend = f"bert-horovod import {vocab} DIR {'--cased' if cased else '--cased (or --uncased)'}, then {flag} DIR"
    if tokenizer.reason is None and not cased:
        raise UserError(f"{flag} {vocab}: nothing tells whether text is to be lower-cased for it; {mend}")
    if cased and tokenizer.reason is not None and tokenizer.settings.lowercase:
        raise UserError(
            f"--cased with {flag} {vocab}, which lower-cases ({tokenizer.reason}); leave --cased out, or if that is "
            f"wrong: {mend}"
        )
    vocabulary = require_vocabulary(path, tokenizer.vocabulary, flag=f"{flag} ")
    return path, vocabulary, tokenizer.settings.cased_as(False if cased else None)

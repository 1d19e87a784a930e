"""Learn a WordPiece vocabulary from text, extend one by the words of a domain, or make a tokenizer of sequences.

bert-horovod vocab --input corpus.txt --size 30522 --output vocab.txt
bert-horovod vocab --extend bert-base --input reports.txt --output vocab.txt
bert-horovod vocab --input genome.fa --split 6 --output kmers/tokenizer.json

The same text gives the same file, byte for byte. Use the same --cased and --documents as for `prepare`. --extend adds
the pieces that save most tokens on the text and keeps the ids of all old tokens; `import --vocab` then gives a
checkpoint embeddings for them.
"""

import argparse
import importlib
import json
import shlex
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from bert_horovod.commands.prepare import add_text_arguments, documents_of, named_tokenizer
from bert_horovod.commands.shared.flags import CHECKPOINT
from bert_horovod.errors import UserError, file_error
from bert_horovod.storage.places import is_url
from bert_horovod.wording import counted

if TYPE_CHECKING:
    from bert_horovod.corpus.reading.sources import SourceFile
    from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings

_SIZE = 30522
_TOKENIZER = "tokenizer.json"
_MOST_INPUTS = 5  # listed in the next command; of more, as of a glob pattern without quotes, the line would be too long
_NAMED = 10  # new pieces that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_text_arguments(parser)
    parser.add_argument("--size", type=int, help=f"tokens in the vocabulary (default: {_SIZE})")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        help="the file to write, such as vocab.txt; with --split DIR/tokenizer.json",
    )
    parser.add_argument(
        "--extend", metavar="BASE", help=f"keep this vocabulary and add pieces: a vocab.txt, or {CHECKPOINT}"
    )
    parser.add_argument(
        "--add",
        type=int,
        metavar="N",
        help="with --extend, pieces to add: into the places of [unused...] tokens first, then behind (default: as many "
        "as there are such places)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Learn or extend, and write the vocabulary."""
    from bert_horovod.commands.shared.flags import require_least  # not before: --help needs no NumPy
    from bert_horovod.commands.shared.output_flags import require_output_file
    from bert_horovod.corpus.reading.finding import find_sources, standard_input
    from bert_horovod.corpus.reading.formats import require_text_field

    require_least("--add", arguments.add)
    if arguments.add is not None and arguments.extend is None:
        raise UserError("--add: expected --extend BASE too; --size sets the size of a new vocabulary")
    if arguments.size is not None and arguments.extend is not None:
        raise UserError("--size with --extend: expected --add N, the number of pieces to add")
    documents = documents_of(arguments)
    if arguments.split and arguments.extend is not None:
        raise UserError("--split with --extend: expected one of them; a vocabulary of sequences is made anew")
    if arguments.split and arguments.output.name != _TOKENIZER:
        raise UserError(f"--output {arguments.output}: expected DIR/{_TOKENIZER} with --split")
    base = None if arguments.extend is None else _base(arguments)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, standard_input(arguments.input, Path(directory)) as files:
        sources = find_sources(files)
        require_text_field(sources, arguments.text_field)
        if arguments.extend is not None:
            _refuse_within(arguments.output, Path(arguments.extend))
        files_here = [source.path for source in sources if isinstance(source.path, Path)]
        require_output_file(arguments, more_inputs=files_here, makes_parent=True)
        if arguments.split:
            _make_sequence_tokenizer(arguments, documents, sources, start)
        elif base is None:
            _learn(arguments, sources, start)
        else:
            _extend(arguments, sources, start, base)


def _module(name: str) -> ModuleType:
    """A module that --extend or --split alone need, by name, so that it is no part of the core."""
    return importlib.import_module(f"bert_horovod.corpus.reading.{name}")


def _refuse_within(output: Path, base: Path) -> None:
    """Raise UserError if the output would be in the checkpoint whose vocabulary it extends."""
    if base.is_dir() and base.resolve() in output.resolve().parents:
        raise UserError(
            f"--output {output} is within --extend {base}, whose vocabulary belongs to trained embeddings; name "
            "another file"
        )


def _write(arguments: argparse.Namespace, sources: "list[SourceFile]", vocabulary: list[str], start: float) -> None:
    from bert_horovod.corpus.reading.vocabulary import vocabulary_hash, write_vocabulary

    write_vocabulary(arguments.output, vocabulary)
    print(
        f"{arguments.output}: {len(vocabulary):,} tokens from {len(sources):,} files in "
        f"{time.monotonic() - start:.1f} s, SHA-256 {vocabulary_hash(vocabulary)}"
    )


def _learn(arguments: argparse.Namespace, sources: "list[SourceFile]", start: float) -> None:
    """Learn, write, and print a new vocabulary's summary."""
    from bert_horovod.corpus.reading.vocabulary import learn_vocabulary

    size = _SIZE if arguments.size is None else arguments.size
    vocabulary = learn_vocabulary(
        sources, size, not arguments.cased, arguments.documents, arguments.text_field, arguments.bad_lines
    )
    _write(arguments, sources, vocabulary, start)
    if len(vocabulary) < size:
        print(
            f"the text has too few different words for --size {size}; this vocabulary works, more text gives a fuller "
            "one"
        )
    print(f"next: {_next_command(arguments)}")


def _make_sequence_tokenizer(
    arguments: argparse.Namespace, split: str, sources: "list[SourceFile]", start: float
) -> None:
    """Make and write the tokenizer of sequences, and what transformers reads beside it."""
    from bert_horovod.interchange.any_tokenizer import general_config
    from bert_horovod.storage.writing import write_output

    config = arguments.output.with_name("tokenizer_config.json")
    if not arguments.output.exists() and config.exists():
        raise UserError(f"--output {arguments.output}: {config} is there, of another tokenizer; name a new directory")
    size = _SIZE if arguments.size is None else arguments.size
    settings = _module("sequence_tokenizer").learn_sequence_tokenizer(
        sources, split, size, arguments.text_field, arguments.bad_lines
    )
    try:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, f"cannot write {arguments.output}: {error.strerror}") from error
    write_output(arguments.output, settings.text)  # first: the other alone would be refused by the next call
    write_output(config, json.dumps(general_config(settings), indent=2) + "\n")
    print(
        f"{arguments.output}: {len(settings.facts.vocabulary):,} tokens from {counted(len(sources), 'file')} in "
        f"{time.monotonic() - start:.1f} s"
    )
    print(f"next: {_next_command(arguments)}")


class _Base(NamedTuple):
    """The vocabulary to extend."""

    vocabulary: list[str]
    settings: "TokenizerSettings"
    wanted: int  # pieces to add


def _base(arguments: argparse.Namespace) -> _Base:
    """Read --extend and --add."""
    _, vocabulary, settings = named_tokenizer(arguments.extend, arguments.cased, "--extend")
    if settings.unusual:
        raise UserError(
            f"--extend {arguments.extend} cuts words in a way of its own ({', '.join(settings.unusual)}), which the "
            "count of words does not know; extend the vocabulary of another checkpoint"
        )
    wanted = len(_module("vocabulary_extension").unused_places(vocabulary)) if arguments.add is None else arguments.add
    if not wanted:
        raise UserError(f"--extend {arguments.extend} has no [unused...] tokens to replace; expected --add N")
    return _Base(vocabulary, settings, wanted)


def _extend(arguments: argparse.Namespace, sources: "list[SourceFile]", start: float, base: _Base) -> None:
    """Extend a vocabulary, write it, and print what it saves."""
    from bert_horovod.corpus.reading.vocabulary import count_words

    counts = count_words(sources, base.settings, arguments.documents, arguments.text_field, arguments.bad_lines)
    extension = _module("vocabulary_extension").extend_vocabulary(base.vocabulary, counts, base.wanted)
    _write(arguments, sources, extension.vocabulary, start)
    added, in_unused = len(extension.saved), extension.in_unused
    print(f"added {added:,} pieces, {in_unused:,} in places of [unused...] tokens and {added - in_unused:,} behind")
    if added < base.wanted:
        print(f"these are fewer than {base.wanted:,}, because no further piece saves tokens")
    before, after = extension.tokens_before, extension.tokens_after
    print(
        f"tokens a word: {before / extension.words:.4f} before, {after / extension.words:.4f} after: "
        f"{(before - after) / before:.2%} fewer, on {extension.words:,} words and punctuation marks"
    )
    by_saving = sorted(extension.saved.items(), key=lambda item: -item[1])
    most = [f"{piece} {saved:,}" for piece, saved in by_saving[:_NAMED]]
    print(f"the pieces that save most tokens: {', '.join(most) or 'none'}")
    if Path(arguments.extend).is_file():
        print(f"next: {_next_command(arguments)}")
    else:
        words = ["import", arguments.extend, "DIR", "--vocab", str(arguments.output.absolute())]
        print(f"next: {shlex.join(['bert-horovod', *words])}")


def _next_command(arguments: argparse.Namespace) -> str:
    """The command that prepares the same text, as it can be typed in any directory."""
    inputs = [name if name == "-" or is_url(name) else str(Path(name).absolute()) for name in arguments.input]
    words = ["bert-horovod", "prepare", "--input", *(inputs if len(inputs) <= _MOST_INPUTS else ["..."])]
    output = Path(arguments.output).absolute()
    words += (
        ["--split", arguments.split, "--tokenizer", str(output.parent)] if arguments.split else ["--vocab", str(output)]
    )
    words += ["--output_dir", "STORE"]
    words += ["--cased"] if arguments.cased else []
    for flag, default in (("documents", "file"), ("text_field", "text"), ("bad_lines", None)):
        if (value := getattr(arguments, flag)) != default:
            words += [f"--{flag}", value]
    return shlex.join(words)

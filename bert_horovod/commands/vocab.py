"""Learn a WordPiece vocabulary from text.

bert-horovod vocab --input corpus.txt --size 30522 --output vocab.txt

The same text gives the same file, byte for byte. Use the same --cased and --documents as for `prepare`.
"""

import argparse
import shlex
import tempfile
import time
from pathlib import Path

from bert_horovod.commands.prepare import add_text_arguments

_MOST_INPUTS = 5  # listed in the next command; of more, as of a glob pattern without quotes, the line would be too long


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_text_arguments(parser)
    parser.add_argument("--size", type=int, default=30522, help="tokens in the vocabulary (default: %(default)s)")
    parser.add_argument("--output", required=True, type=Path, help="the file to write, such as vocab.txt")


def run(arguments: argparse.Namespace) -> None:
    """Learn and write the vocabulary."""
    from bert_horovod.corpus.reading.finding import find_sources, standard_input
    from bert_horovod.corpus.reading.vocabulary import learn_vocabulary, vocabulary_hash, write_vocabulary
    from bert_horovod.storage.writing import require_output

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, standard_input(arguments.input, Path(directory)) as files:
        sources = find_sources(files)
        require_output(arguments.output, [source.path for source in sources], makes_parent=True)
        vocabulary = learn_vocabulary(
            sources, arguments.size, not arguments.cased, arguments.documents, arguments.text_field, arguments.bad_lines
        )
    write_vocabulary(arguments.output, vocabulary)
    seconds = time.monotonic() - start
    print(
        f"{arguments.output}: {len(vocabulary):,} tokens from {len(sources):,} files in {seconds:.1f} s, "
        f"SHA-256 {vocabulary_hash(vocabulary)}"
    )
    if len(vocabulary) < arguments.size:
        print(
            f"the text has too few different words for --size {arguments.size}; this vocabulary works, more text "
            "gives a fuller one"
        )
    print(f"next: {_next_command(arguments)}")


def _next_command(arguments: argparse.Namespace) -> str:
    """The command that prepares the same text, as it can be typed in any directory."""
    inputs = [name if name == "-" else str(Path(name).absolute()) for name in arguments.input]
    words = ["bert-horovod", "prepare", "--input", *(inputs if len(inputs) <= _MOST_INPUTS else ["..."])]
    words += ["--vocab", str(Path(arguments.output).absolute()), "--output_dir", "STORE"]
    words += ["--cased"] if arguments.cased else []
    for flag, default in (("documents", "file"), ("text_field", "text"), ("bad_lines", None)):
        if (value := getattr(arguments, flag)) != default:
            words += [f"--{flag}", value]
    return shlex.join(words)

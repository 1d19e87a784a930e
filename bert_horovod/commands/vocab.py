"""Learn a WordPiece vocabulary from text.

The same text gives the same file, byte for byte. Use the same --cased and --documents as for `prepare`.
"""

import argparse
import tempfile
import time
from pathlib import Path

from bert_horovod.commands.prepare import add_text_arguments


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
    cased = " --cased" if arguments.cased else ""
    print(f"next: bert-horovod prepare --input ... --vocab {arguments.output} --output_dir DIR{cased}")

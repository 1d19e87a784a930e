#!/usr/bin/env python3
"""Text to token store: speed of one core, memory, and disk, beside a peer in the same sitting.

python lab/data.py --books DIR --vocab VOCAB.txt [--wikipedia DUMP] [--large BYTES]

Every line is a process of its own, held to one core. Its time is that of reading, tokenizing, writing and verifying;
imports and the loading of the vocabulary are left out, as they do not grow with the text. Memory is what the process
took at the most, above what it had before the first text (TensorFlow's own). --large also prepares so many bytes of
text, the books again and again with a number in each document, as JSON Lines and as Parquet (zstd, 1,000 rows a group).
"""

import argparse
import gzip
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

BATCH_LINES = 512


def prepare_alone(inputs: str, vocabulary: str) -> tuple[float, float, float, float]:
    """Prepare and verify: seconds, bytes of text, bytes on disk, bytes of memory above those before the first text."""
    from bert_horovod.corpus.preparing.planning import Settings
    from bert_horovod.corpus.preparing.preparation import Preparation
    from bert_horovod.corpus.reading.vocabulary import read_vocabulary
    from bert_horovod.corpus.store import verify

    with tempfile.TemporaryDirectory() as directory:
        prepared = Preparation(
            [inputs], vocabulary, Path(directory, "store"), read_vocabulary(vocabulary), Settings(), workers=1
        ).make()
        start = time.perf_counter()
        verify(prepared.path)
        made, (before, peak) = prepared.made, prepared.made.memory
        return made.worker_seconds + time.perf_counter() - start, made.made_bytes, prepared.store_bytes, peak - before


def tokenizers_alone(inputs: str, vocabulary: str) -> tuple[float, float, float, float]:
    """Hugging Face tokenizers over the same lines, ids only, nothing written: seconds and bytes of text."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
    seconds = size = 0.0
    for path in sorted(Path(inputs).glob("*.txt")):
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        size += sum(len(line.encode()) + 1 for line in lines)
        start = time.perf_counter()
        for begin in range(0, len(lines), BATCH_LINES):
            for encoding in tokenizer.encode_batch(lines[begin : begin + BATCH_LINES], add_special_tokens=False):
                encoding.ids  # noqa: B018 (made when asked for)
        seconds += time.perf_counter() - start
    return seconds, size, 0.0, 0.0


def on_one_core(measure: Callable[[str, str], tuple], *arguments: str) -> tuple[float, float, float, float]:
    """Call a function in a fresh process that may use one core only."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=_hold_to_one_core) as pool:
        return pool.apply(measure, arguments)


def _hold_to_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def unpack(books: Path, directory: Path) -> Path:
    """The books as plain text files."""
    directory.mkdir()
    for path in sorted(books.glob("*.txt.gz")):
        (directory / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return directory


def write_large(books: Path, path: Path, size: int) -> Path:
    """So many bytes of text as JSON Lines: the books' paragraphs in documents of about 8 KB, each with a number."""
    texts = [text for book in sorted(books.glob("*.txt")) for text in _documents(book.read_text(encoding="utf-8"))]
    written = number = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            text = f"Document {number}.\n\n{texts[number % len(texts)]}"
            file.write(json.dumps({"text": text}) + "\n")
            written += len(text)
            number += 1
    return path


def write_parquet(lines: Path, path: Path) -> Path:
    """The documents of a JSON Lines file as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema({"text": pa.string()})
    with open(lines, encoding="utf-8") as file, parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := [json.loads(line) for line in islice(file, 1000)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))
    return path


def _documents(text: str, size: int = 8192) -> list[str]:
    documents, held = [], ""
    for paragraph in text.split("\n\n"):
        held = f"{held}\n\n{paragraph}" if held else paragraph
        if len(held) >= size:
            documents.append(held)
            held = ""
    return documents


def xml_bytes(dump: Path) -> int:
    """Bytes of a dump's XML."""
    from bert_horovod.corpus.reading.finding import find_sources
    from bert_horovod.corpus.reading.sources import SourceReader

    [source] = find_sources([str(dump)])
    with SourceReader(source) as reader:
        return sum(len(block) for _, block in reader.blocks())


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True, help="a directory of .txt.gz files")
    parser.add_argument("--vocab", required=True, help="a WordPiece vocab.txt, uncased")
    parser.add_argument("--wikipedia", type=Path, help="a dump, .xml or .xml.bz2")
    parser.add_argument("--large", type=int, default=0, help="bytes of text to generate and prepare too")
    arguments = parser.parse_args()

    def line(what: str, size: float, seconds: float, disk: float = 0.0, memory: float = 0.0) -> None:
        cells = (f"{disk:.2f}" if disk else "-", f"{memory / 1e6:,.0f}" if memory else "-")
        rate = f"{size / 1e6 / seconds:.2f}" if seconds else "-"
        print(f"{what:<46} {size / 1e6:>9,.1f} {rate:>8} {cells[0]:>13} {cells[1]:>10}", flush=True)

    print(f"{'one core':<46} {'MB':>9} {'MB/s':>8} {'disk / text':>13} {'memory MB':>10}")
    with tempfile.TemporaryDirectory() as directory:
        books = unpack(arguments.books, Path(directory, "books"))
        for _ in range(2):  # A B A B
            seconds, size, disk, memory = on_one_core(prepare_alone, str(books), arguments.vocab)
            line("prepare and verify, books, plain text", size, seconds, disk / size, memory)
            seconds, size, *_ = on_one_core(tokenizers_alone, str(books), arguments.vocab)
            line("Hugging Face tokenizers, ids only", size, seconds)
        if arguments.wikipedia:
            seconds, size, disk, memory = on_one_core(prepare_alone, str(arguments.wikipedia), arguments.vocab)
            line(
                "prepare and verify, Wikipedia dump, of XML",
                xml_bytes(arguments.wikipedia),
                seconds,
                disk / size,
                memory,
            )
        if arguments.large:
            path = write_large(books, Path(directory, "large.jsonl"), arguments.large)
            parquet = write_parquet(path, Path(directory, "large.parquet"))
            for _ in range(2):  # A B A B
                for what, file in (("JSON Lines", path), ("Parquet", parquet)):
                    seconds, size, disk, memory = on_one_core(prepare_alone, str(file), arguments.vocab)
                    line(f"prepare and verify, generated {what}", size, seconds, disk / size, memory)


if __name__ == "__main__":
    main()

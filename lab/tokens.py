#!/usr/bin/env python3
"""Text to token ids: speed of one core beside the tokenizers library, equal ids, and the memory of prepare's workers.

python lab/tokens.py --books DIR --wikipedia DUMP --tokenizers DIR [--vocab VOCAB.txt] [--workers 1 4 16]

--tokenizers is a directory for five tokenizers, which are trained on the books if they are not there yet. Sentences are
those that prepare cuts. Each tokenizer has a process of its own, held to one core, where the library and the program
take turns; times are those of the processor. --workers then prepares the books by so many workers, and adds up their
memory (proportional set size) ten times a second.
"""

import argparse
import gzip
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

KINDS = ("gpt2", "roberta", "modernbert", "unigram", "word_piece")
TRAINED_ON = 20_000_000  # characters
BATCH_CHARACTERS = 1 << 16  # as prepare's


def train(kind: str, texts: Iterator[str]) -> Any:
    """A tokenizer of a kind, with the parts of the published ones."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    trainer: Any = trainers.BpeTrainer(
        vocab_size=50_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=30_000, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    elif kind == "word_piece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(vocab_size=30_000, special_tokens=special, show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "roberta")
        tokenizer.normalizer = normalizers.NFC() if kind == "modernbert" else None
    tokenizer.train_from_iterator(texts, trainer)
    if kind == "modernbert":
        names = [
            "|||IP_ADDRESS|||",
            *(" " * length for length in range(24, 1, -1)),
            *map("[unused{}]".format, range(83)),
        ]
        tokenizer.add_tokens([AddedToken(name, normalized=True) for name in names])
    return tokenizer


def sentences_of(path: str, joint: str) -> Iterator[list[str]]:
    """Batches of sentences as prepare makes them."""
    from bert_horovod.corpus.reading.finding import find_sources
    from bert_horovod.corpus.reading.formats import read_sections
    from bert_horovod.corpus.reading.pieces import Piece, piece_reader
    from bert_horovod.corpus.reading.sentences import split_sentences

    batch: list[str] = []
    characters = 0
    for source in find_sources([path]):
        with piece_reader(Piece(source, 0, source.bytes), "text", "stop") as reader:
            for section in read_sections(reader, "file"):
                first, *others = split_sentences(section.text) or [""]
                batch += [first, *(joint + sentence for sentence in others)]
                characters += len(section.text)
                if characters >= BATCH_CHARACTERS:
                    yield batch
                    batch, characters = [], 0
    if batch:
        yield batch


def compare(path: str, inputs: list[str]) -> list[tuple[float, float, float, int, int]]:
    """For each input: bytes, seconds of the library and of the program, sentences, and sentences whose ids differ."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy as np

    from bert_horovod.corpus.reading.tokenizer import Tokenizer
    from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, JsonTokenizer, SpecialTokens, library_tokenizer
    from bert_horovod.corpus.reading.vocabulary import read_vocabulary

    if path.endswith(".json"):
        settings: Any = JsonTokenizer(
            text=Path(path).read_text(encoding="utf-8"),
            special_tokens=SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
        )
        vocabulary = settings.facts.vocabulary
    else:
        settings, vocabulary = UNCASED, read_vocabulary(path)
    library, tokenizer = library_tokenizer(vocabulary, settings), Tokenizer(vocabulary, settings)
    compared = []
    for each in inputs:
        size = seconds = own_seconds = 0.0
        count = different = 0
        for batch in sentences_of(each, settings.joint):
            size += sum(len(sentence.encode()) + 1 for sentence in batch)
            start = time.process_time()
            expected = [encoding.ids for encoding in library.encode_batch_fast(batch, add_special_tokens=False)]
            middle = time.process_time()
            ids, lengths = tokenizer(batch)
            own_seconds += time.process_time() - middle
            seconds += middle - start
            rows = np.split(ids, np.cumsum(lengths)[:-1])
            different += sum(row.tolist() != other for row, other in zip(rows, expected, strict=True))
            count += len(batch)
        compared.append((size, seconds, own_seconds, count, different))
    return compared


def memory_of_workers(books: Path, vocabulary: str, workers: int) -> tuple[float, float, float]:
    """Prepare: seconds, and the highest memory in bytes (PSS) of all workers together and of the process above them."""
    root = Path(__file__).resolve().parents[1]
    flag = "--vocab" if Path(vocabulary).is_file() else "--tokenizer"
    with tempfile.TemporaryDirectory() as directory:
        words = [sys.executable, "-m", "bert_horovod", "prepare", "--input", books, flag, vocabulary]
        words += ["--output_dir", Path(directory, "store"), "--workers", str(workers), "--shard_bytes", str(1 << 20)]
        start = time.perf_counter()
        process = subprocess.Popen(words, cwd=root, stdout=subprocess.DEVNULL)
        most = above = 0.0
        while process.poll() is None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
            most = max(most, sum(map(memory, children)))
            above = max(above, memory(str(process.pid)))
            time.sleep(0.1)
        return time.perf_counter() - start, most, above


def memory(process: str) -> int:
    """Proportional set size in bytes; 0 if the process has ended."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(rollup.partition("\nPss:")[2].split()[0]) * 1024 if "\nPss:" in rollup else 0


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True, help="a directory of .txt.gz files")
    parser.add_argument("--wikipedia", help="a dump, .xml or .xml.bz2")
    parser.add_argument("--tokenizers", type=Path, required=True, help="a directory for the tokenizers that are made")
    parser.add_argument("--vocab", help="a WordPiece vocab.txt, uncased: BERT's own is measured too")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of tokenizers")
    parser.add_argument("--workers", nargs="*", type=int, default=[], help="their memory, by how many there are")
    arguments = parser.parse_args()
    arguments.tokenizers.mkdir(parents=True, exist_ok=True)
    contestants = {"BERT": arguments.vocab} if arguments.vocab else {}
    for kind in arguments.kinds:
        path = arguments.tokenizers / f"{kind}.json"
        contestants[kind] = str(path)
        if not path.exists():
            texts = "\n".join(
                gzip.decompress(book.read_bytes()).decode() for book in sorted(arguments.books.glob("*.gz"))
            )
            train(kind, iter(texts[:TRAINED_ON].split("\n"))).save(str(path))
    inputs = [str(arguments.books), *([arguments.wikipedia] if arguments.wikipedia else [])]
    print(f"{'one core':<12}{'text':<36}{'MB':>7}{'library MB/s':>14}{'here MB/s':>11}{'ratio':>7}{'different':>18}")
    for name, path in contestants.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            lines = pool.apply(compare, (path, inputs))
        for each, (size, seconds, own, count, different) in zip(inputs, lines, strict=True):
            rates = f"{size / 1e6:>7.1f}{size / 1e6 / seconds:>14.2f}{size / 1e6 / own:>11.2f}{seconds / own:>7.1f}"
            print(f"{name:<12}{Path(each).name[:34]:<36}{rates}{different:>8} of {count}", flush=True)
    for workers in arguments.workers:
        seconds, most, above = memory_of_workers(arguments.books, arguments.vocab or path, workers)
        print(f"{workers} workers: {most / 1e6:,.0f} MB, the process above them {above / 1e6:,.0f} MB, {seconds:.0f} s")


if __name__ == "__main__":
    main()

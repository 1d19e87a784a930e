"""A toy entity recognition: good and fine films and plots are entities, and what is bad or poor is of another type."""

from pathlib import Path

import numpy as np

from bert_horovod.corpus.reading.tagged_files import conll_text
from tests.toy_glue import WORDS

TRAIN, DEV = 240, 31  # sentences
FILLERS = [word for word in WORDS[9:] if not word.startswith("##")]
FAST = (
    "phase.0.learning_rate=1e-2",
    "phase.0.global_batch=4",  # rows
    "execution.xla='off'",
    "execution.log_steps=1",
    "execution.keep_checkpoints=9",
    "execution.trackers=[]",
)


def sentences(count: int, seed: int, longest: int = 12) -> list[list[list[str]]]:
    """Words with their tags: B-GOOD or B-BAD and, if a second word follows, I-."""
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        words: list[list[str]] = []
        while len(words) < int(random.integers(3, longest)):
            if random.random() < 0.3:
                kind = int(random.integers(2))
                first = WORDS[5 + 2 * kind + int(random.integers(2))]
                words.append([first, f"B-{('GOOD', 'BAD')[kind]}"])
                if random.random() < 0.6:
                    words.append(["films", f"I-{('GOOD', 'BAD')[kind]}"])  # of two pieces
            words.append([str(random.choice(FILLERS)), "O"])
        made.append(words)
    return made


def write_ner(directory: Path, train: int = TRAIN, dev: int = DEV, test: int = 0) -> Path:
    """Write train.tsv, dev.tsv and, if it has sentences, test.tsv; every tenth dev sentence is longer than a row."""
    directory.mkdir()
    for name, count, seed in (("train", train, 3), ("dev", dev, 4), ("test", test, 5)):
        if count:
            made = sentences(count - count // 10, seed) + sentences(count // 10, seed + 10, longest=70)
            (directory / f"{name}.tsv").write_text(conll_text(made), encoding="utf-8")
    return directory

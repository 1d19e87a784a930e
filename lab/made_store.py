"""Token stores of random sentences, for what needs no text that means anything."""

import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.preparing.preparation import Preparation
from bert_horovod.corpus.reading.vocabulary import read_vocabulary
from bert_horovod.corpus.store import Store, open_store

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SENTENCES, LONGEST = 200, 50  # of a document; tokens of a sentence: 25 on average, as in books


def make_store(path: Path, vocabulary_size: int, documents: int) -> Store:
    """Make and open a store of so many documents of 5,000 tokens, the k-th word as frequent as 1 / k (Zipf)."""
    words = [f"word{number}" for number in range(vocabulary_size - len(SPECIAL_TOKENS))]
    random = np.random.default_rng(0)
    lengths = random.integers(1, LONGEST, documents * SENTENCES)
    places = (len(words) + 1) ** random.random(lengths.sum()) - 1
    drawn = iter([words[place] for place in places.astype(int).tolist()])
    lines = [" ".join(islice(drawn, length)) for length in lengths.tolist()]
    texts = ["\n".join(lines[begin : begin + SENTENCES]) for begin in range(0, len(lines), SENTENCES)]
    with tempfile.TemporaryDirectory() as scratch:
        text, vocabulary = Path(scratch, "text.txt"), Path(scratch, "vocab.txt")
        text.write_text("\n\n".join(texts), encoding="utf-8")
        vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n", encoding="utf-8")
        settings = Settings(documents="blank_line", held_out=0.05)
        Preparation([str(text)], vocabulary, path, read_vocabulary(vocabulary), settings, workers=1).make()
    return open_store(path)

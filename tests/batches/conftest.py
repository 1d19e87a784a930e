"""Toy token stores: random sentences of ordinary tokens, cut into sections, documents and shards."""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from bert_horovod.corpus.store import FORMAT, Shard, Store, open_store, write_manifest, write_shard

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = SPECIAL + [f"word{i}" for i in range(993)]


@pytest.fixture
def make_store(tmp_path) -> Callable[..., Store]:
    """A function that writes and opens a toy store; each call makes another one."""
    made = []

    def make(shards: int = 3, documents: int = 20, sections: int = 2, sentences: int = 30, longest: int = 30,
             held_out: float = 0.0, vocabulary: list[str] = VOCABULARY) -> Store:
        """Random sizes: up to so many sections a document, sentences a section, tokens a sentence."""
        path = tmp_path / f"store-{len(made)}"
        path.mkdir()
        made.append(path)
        random = np.random.default_rng(len(made))
        text = "\n".join(vocabulary) + "\n"
        (path / "vocab.txt").write_text(text, encoding="utf-8")
        entries = [write_shard(path, number, toy_shard(random, documents, sections, sentences, longest, held_out), 1)
                   for number in range(shards)]
        write_manifest(path, {"format": FORMAT, "shards": entries,
                              "vocabulary": {"sha256": hashlib.sha256(text.encode()).hexdigest()}})
        return open_store(path)

    return make


def toy_shard(random: np.random.Generator, documents: int, sections: int, sentences: int, longest: int,
              held_out: float) -> Shard:
    per_document = random.integers(1, sections + 1, documents)
    per_section = random.integers(1, sentences + 1, per_document.sum())
    per_sentence = random.integers(1, longest + 1, per_section.sum())
    starts = [np.concatenate(([0], np.cumsum(sizes))).astype(np.uint32)
              for sizes in (per_sentence, per_section, per_document)]
    return Shard(tokens=random.integers(len(SPECIAL), len(VOCABULARY), per_sentence.sum()).astype(np.uint16),
                 sentences=starts[0], sections=starts[1], documents=starts[2],
                 held_out=random.random(len(per_section)) < held_out,
                 document_hashes=np.zeros((documents, 2), np.uint64))

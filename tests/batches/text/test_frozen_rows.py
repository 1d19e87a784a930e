"""Rows stay what they are, bit by bit: every run that resumes depends on their order, content, pairs and masks."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from bert_horovod.batches.text.index import open_index
from bert_horovod.batches.text.mask_rates import MaskRate
from bert_horovod.batches.text.rows import Rows
from bert_horovod.batches.words import token_roles
from bert_horovod.corpus.store import Store
from bert_horovod.recipe.settings import Objective
from tests.toys import VOCABULARY, toy_shard, write_store

# SHA-256 of all arrays of two epochs, by "pair packing split length".
FROZEN = json.loads((Path(__file__).parents[2] / "golden" / "rows.json").read_text(encoding="utf-8"))
CASES = list(
    itertools.product(("next_sentence", "sentence_order", "none"), (True, False), ("train", "held_out"), (128, 512))
)


@pytest.fixture(scope="module", params=["shards of one part", "shards of some parts"])
def various(tmp_path_factory, request) -> Store:
    """Eleven parts, of long documents and of short ones in turn, with held-out sections and duplicates."""
    random = np.random.default_rng(58)
    kinds = ((2, 2, 600, 50), (60, 3, 12, 40), (7, 1, 150, 60))  # documents, sections, sentences, longest
    parts = [toy_shard(random, *kinds[number % 3], 0.2, len(VOCABULARY)) for number in range(11)]
    shards = [parts[:4], parts[4:5], parts[5:9], parts[9:]] if request.param == "shards of some parts" else parts
    path = tmp_path_factory.mktemp("frozen") / "store"
    return write_store(path, shards, duplicates=(0, 5, 66, 90, 150))


def rows_hash(store: Store, pair: str, packing: bool, split: str, length: int) -> str:
    """SHA-256 of two epochs of rows."""
    index = open_index(store, length, pair, packing, split)
    objective = Objective(pair=pair)
    rows = Rows(store, index, token_roles(store, objective), objective, MaskRate(0.15, 0.15), 7)
    digest = hashlib.sha256()
    positions = np.arange(2 * rows.count)
    for part in np.array_split(positions, -(-len(positions) // 1000)):
        for name, array in sorted(rows.assemble(part).items()):
            digest.update(f"{name} {array.dtype} {array.shape[1:]}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(("pair", "packing", "split", "length"), CASES)
def test_rows_are_those_of_earlier_versions(various, pair, packing, split, length):
    assert rows_hash(various, pair, packing, split, length) == FROZEN[f"{pair} {packing} {split} {length}"]

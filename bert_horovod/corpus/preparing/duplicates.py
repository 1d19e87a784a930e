"""Documents that repeat others, found by their hashes in bounded memory."""

from collections.abc import Sequence

import numpy as np

from bert_horovod.corpus.shard import Shard

_PASS_DOCUMENTS = 1 << 22  # documents sorted in memory at once, about 200 MB


def find_duplicates(shards: Sequence[Shard]) -> np.ndarray:
    """Numbers of the documents, counted over all shards, whose text is that of an earlier one: int64, ascending."""
    total = sum(len(shard.document_hashes) for shard in shards)
    passes = max(1, -(-total // _PASS_DOCUMENTS))
    duplicates = [_repeated(*_hashes_of_pass(shards, number, passes)) for number in range(passes)]
    return np.sort(np.concatenate(duplicates))


def count_tokens(shards: Sequence[Shard], documents: np.ndarray) -> int:
    """Tokens in these documents (numbers counted over all shards, ascending)."""
    tokens = first = 0
    for shard in shards:
        last = first + len(shard.documents) - 1
        mine = documents[np.searchsorted(documents, first) : np.searchsorted(documents, last)] - first
        bounds = np.asarray(shard.sentences)[np.asarray(shard.sections)[np.asarray(shard.documents)]].astype(np.int64)
        tokens += int((bounds[mine + 1] - bounds[mine]).sum())
        first = last
    return tokens


def _hashes_of_pass(shards: Sequence[Shard], number: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of pass `number`, uint64 [n, 2], and the numbers of their documents, int64 [n].

    A hash is in pass number (its first 64 bits modulo `passes`), so equal hashes are in the same pass.
    """
    hashes: list[np.ndarray] = [np.zeros((0, 2), np.uint64)]
    documents: list[np.ndarray] = [np.zeros(0, np.int64)]
    first = 0
    for shard in shards:
        chosen = np.flatnonzero(np.asarray(shard.document_hashes[:, 0]) % np.uint64(passes) == number)
        hashes.append(shard.document_hashes[chosen])
        documents.append(chosen + first)
        first += len(shard.document_hashes)
    return np.concatenate(hashes), np.concatenate(documents)


def _repeated(hashes: np.ndarray, documents: np.ndarray) -> np.ndarray:
    order = np.lexsort((documents, hashes[:, 1], hashes[:, 0]))
    same = (hashes[order[1:]] == hashes[order[:-1]]).all(axis=1)
    return documents[order[1:][same]]

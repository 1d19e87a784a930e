"""Compares the shards of stores of format 2 with their hashes: once, before they are cut, or beside training.

Their pages have no checksums, so a damaged byte is found only by reading a whole shard.
"""

import random
import threading
from pathlib import Path

from bert_horovod.corpus.manifest import EARLIER_FORMAT
from bert_horovod.corpus.store import Store, damaged_shards
from bert_horovod.corpus.tokens import EARLIER_ARRAYS, hash_directory
from bert_horovod.errors import ReportedError, damaged
from bert_horovod.storage.reading import Verified, identity


def require_whole(store: Store, number: int, directory: Path) -> None:
    """Raise DamagedData if a shard of format 2 is not whole; it is not read if it is remembered as such.

    `directory`: where this is remembered, that of the store's row indexes.
    """
    if store.manifest["format"] != EARLIER_FORMAT:
        return
    shard_entry = store.manifest["shards"][number]
    shard = store.path / shard_entry["name"]
    files = [shard / f"{name}.npy" for name in EARLIER_ARRAYS]
    record = Verified(directory / f"verified-{store.hash[:32]}.jsonl")
    try:
        seen = identity(files)
        if record.names().get(shard_entry["name"]) == seen:
            return
        if hash_directory(shard) != shard_entry["sha256"]:
            raise damaged_shards(store.path, [shard_entry["name"]])
    except OSError as error:
        raise damaged(error, error.filename or shard, "see which: bert-horovod verify") from error
    record.remember(shard_entry["name"], seen)


class Watch:
    """Goes through a store's shards in a thread; call it often: it raises what the thread has found."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._problem: ReportedError | None = None
        self._store, self._directory = store, directory
        if store.manifest["format"] == EARLIER_FORMAT:
            threading.Thread(target=self._go, name="verification", daemon=True).start()

    def __call__(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _go(self) -> None:
        shards = len(self._store.shards)
        first = random.randrange(shards)  # so that hosts that share the record also share the work
        try:
            for i in range(shards):
                require_whole(self._store, (first + i) % shards, self._directory)
        except ReportedError as error:
            self._problem = error

"""A token store as the dataset of a run."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bert_horovod.batches.text.crews import rank_crew
from bert_horovod.batches.text.index import index_path
from bert_horovod.batches.text.making import make_index
from bert_horovod.batches.text.rows import Rows, open_rows
from bert_horovod.batches.words import PriorityWords, read_priority_words
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.stores import data_dirs
from bert_horovod.recipe.sections import Recipe


@dataclass(frozen=True)
class StoreDataset:
    """A token store as the dataset of a run; see batches.source.Dataset. `index_dir`: see open_index."""

    store: Store
    recipe: Recipe
    index_dir: Path | None = None
    phases_before: int = 0  # of the run: its streams of rows go on behind theirs

    @property
    def path(self) -> Path:
        return self.store.path

    @property
    def flags(self) -> str:
        """The flags that name the data, for messages about what to type."""
        return data_dirs({"": self.store}, self.index_dir)

    @cached_property
    def hash(self) -> str:
        path = self.recipe.objective.priority_words
        return data_hash(self.store, read_priority_words(path, self.vocabulary, self.tokenizer_settings))

    @property
    def text_key(self) -> str:
        return self.store.text_key

    @property
    def vocabulary(self) -> list[str]:
        return self.store.vocabulary

    @property
    def tokenizer_settings(self) -> TokenizerSettings:
        return self.store.tokenizer_settings

    @property
    def tokens(self) -> int:
        return self.store.manifest["totals"]["tokens"]

    def make_files(self, phase: int, world: World) -> None:
        settings = (self.recipe.phase[phase].sequence_length, self.recipe.objective.pair, self.recipe.data.packing)
        path = index_path(self.store, *settings, self.index_dir)
        if found := rank_crew(path.parent, not path.is_dir(), world):
            crew, missing = found
            make_index(self.store, path, *settings, crew, missing)

    def open(self, phase: int, split: str, build: bool = True) -> Rows:
        return open_rows(self.store, self.recipe, phase, split, self.index_dir, build, self.phases_before)


def data_hash(store: Store, priority: PriorityWords | None) -> str:
    """SHA-256, in hexadecimal, of a store and of the words that are masked before others."""
    return store.hash if priority is None else hashlib.sha256(f"{store.hash} {priority.hash}".encode()).hexdigest()

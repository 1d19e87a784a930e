"""Several token stores as one dataset: each has its own index, order, epochs and held-out part; a row is of one store.

mixing.py says which store a position of the run takes its row from.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from bert_horovod.batches.mixing import Order, rows_of_period, shares_of, size_shares
from bert_horovod.batches.order import stream_seed
from bert_horovod.batches.text.index import NoRows, RowIndex
from bert_horovod.batches.text.mask_rates import mask_rate
from bert_horovod.batches.text.rows import InRun, Rows, open_held_out_rows, open_phase_index, phase_seed, stair_slots
from bert_horovod.batches.text.store_dataset import StoreDataset, data_hash
from bert_horovod.batches.words import read_priority_words, token_roles
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.store import Store
from bert_horovod.corpus.stores import Stores, data_dirs, train_tokens
from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import Numbers
from bert_horovod.recipe.sections import Recipe


class Mixture:
    """The rows of several stores in one order; see batches.source.Source.

    `rows`: of the stores with a share, by name; `shares`: of tokens, by name, of all. An epoch is as many rows as the
    epochs of these stores have together. `tokens`: those of an epoch of each, [CLS] and [SEP] included.
    """

    def __init__(
        self, rows: Mapping[str, Rows], order: Order, shares: Mapping[str, Fraction], tokens: Mapping[str, int]
    ) -> None:
        self.shares = {name: float(shares[name]) for name in sorted(shares)}
        self.names = tuple(self.shares)
        self.order, self._rows = order, [rows.get(name) for name in self.names]
        present = [store for store in self._rows if store]
        self.count = sum(store.count for store in present)
        self.sequences = present[0].sequences
        self.slots = present[0].slots
        self.counts = {name: store.count for name, store in zip(self.names, self._rows, strict=True) if store}
        self.tokens = {name: tokens[name] for name in self.counts}

    def assemble(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Make the rows at these positions; arrays as in Rows.assemble, and `stores`: int32 [R], numbers of `names`."""
        positions = np.asarray(positions, np.int64)
        stores, own = self.order.at(np.maximum(positions, 0))
        own = np.where(positions < 0, -1, own)
        places = [np.flatnonzero(stores == number) for number in np.unique(stores)]
        parts = [self._rows[stores[mine[0]]].assemble(own[mine]) for mine in places]
        batch = {"stores": stores.astype(np.int32)}
        for name, array in parts[0].items():
            # Rows on another stair of the mask rate may have fewer slots.
            width = max(part[name].shape[1] for part in parts)
            batch[name] = np.zeros((len(positions), width), array.dtype)
            for mine, part in zip(places, parts, strict=True):
                batch[name][mine, : part[name].shape[1]] = part[name]
        return batch

    def epochs(self, rows: int) -> dict[str, float]:
        """How many epochs of each store the first rows of the phase are."""
        read = self.order.read(rows)
        return {
            name: float(number) / self.counts[name] if name in self.counts else 0.0
            for name, number in zip(self.names, read, strict=True)
        }


@dataclass(frozen=True)
class HeldOutParts:
    """The held-out rows of several stores, each judged alone, and the weights of their mean, by name."""

    rows: dict[str, Rows]
    weights: dict[str, float]


@dataclass(frozen=True)
class MixedDataset:
    """Token stores as the dataset of a run; see batches.source.Dataset. `index_dir`: see open_index."""

    stores: Stores
    recipe: Recipe
    index_dir: Path | None = None
    phases_before: int = 0  # of the run: its streams of rows go on behind theirs

    @property
    def _first(self) -> Store:
        return next(iter(self.stores.values()))

    @property
    def path(self) -> Path:
        return Path(", ".join(f"{name}={store.path}" for name, store in self.stores.items()))

    @property
    def flags(self) -> str:
        return data_dirs(self.stores, self.index_dir)

    @cached_property
    def hash(self) -> str:
        words = read_priority_words(self.recipe.objective.priority_words, self.vocabulary, self.tokenizer_settings)
        return self._sum({name: data_hash(store, words) for name, store in self.stores.items()})

    @cached_property
    def text_key(self) -> str:
        return self._sum({name: store.text_key for name, store in self.stores.items()})[:32]

    @staticmethod
    def _sum(hashes: dict[str, str]) -> str:
        return hashlib.sha256(" ".join(f"{name}={each}" for name, each in hashes.items()).encode()).hexdigest()

    @property
    def vocabulary(self) -> list[str]:
        return self._first.vocabulary

    @property
    def tokenizer_settings(self) -> TokenizerSettings:
        return self._first.tokenizer_settings

    @property
    def tokens(self) -> int:
        return sum(dataset.tokens for dataset in self._datasets.values())

    @cached_property
    def _datasets(self) -> dict[str, StoreDataset]:
        return {name: StoreDataset(store, self.recipe, self.index_dir) for name, store in self.stores.items()}

    def make_files(self, phase: int, world: World) -> None:
        for dataset in self._datasets.values():
            dataset.make_files(phase, world)

    def open(self, phase: int, split: str, build: bool = True) -> Mixture | HeldOutParts:
        if split == "train":
            return open_mixture(self.stores, self.recipe, phase, self.index_dir, build, self.phases_before)
        return open_held_out(self.stores, self.recipe, phase, self.index_dir, build)


def dataset_of(stores: Stores, recipe: Recipe, index_dir: Path | None = None) -> StoreDataset | MixedDataset:
    """The dataset of these stores: of one without a name, that store's alone. Raises UserError as check_mixtures."""
    check_mixtures(recipe, stores)
    return StoreDataset(stores[""], recipe, index_dir) if "" in stores else MixedDataset(stores, recipe, index_dir)


def check_mixtures(recipe: Recipe, stores: Stores) -> None:
    """Raise UserError unless each table of weights in the recipe names exactly these stores."""
    phases = {f"phase.{i}.mixture": phase.mixture for i, phase in enumerate(recipe.phase)}
    for key, mixture in {"data.mixture": recipe.data.mixture, **phases}.items():
        if not isinstance(mixture, Numbers):
            continue
        weights = dict(mixture)
        said = f"{key} = {mixture}"
        if "" in stores:
            example = " ".join(f"--data_dir {name}=DIR" for name in weights)
            raise UserError(
                f"{said}, and {data_dirs(stores)} names one store; expected {example}, or no {key.rpartition('.')[2]}"
            )
        if missing := [name for name in stores if name not in weights]:
            raise UserError(
                f"{said} has no weight of {', '.join(missing)}, which --data_dir names; 0 leaves a store out"
            )
        if unknown := [name for name in weights if name not in stores]:
            raise UserError(
                f"{said} has a weight of {', '.join(unknown)}; expected the names of --data_dir: {', '.join(stores)}"
            )


def weights_of_phase(recipe: Recipe, phase: int, tokens: Mapping[str, int]) -> dict[str, Fraction]:
    """The stores' shares of tokens in a phase, by name; `tokens`: those that each has for training."""
    mixture = recipe.phase[phase].mixture or recipe.data.mixture
    if isinstance(mixture, Numbers):
        return shares_of(dict(mixture))
    return size_shares(tokens, recipe.data.mixture_temperature)


def positions_of_epoch(index: RowIndex) -> int:
    """The tokens of an epoch's rows, [CLS] and [SEP] included."""
    return int(index.templates.rows @ index.templates.lengths.sum(axis=1, dtype=np.int64))


def open_mixture(
    stores: Stores,
    recipe: Recipe,
    phase: int,
    index_dir: Path | None = None,
    build: bool = True,
    phases_before: int = 0,
) -> Mixture:
    """The rows that a run of this recipe reads in a phase; arguments and errors as in open_rows."""
    indexes, mixture = {}, recipe.phase[phase].mixture or recipe.data.mixture
    for name, store in stores.items():
        if not isinstance(mixture, Numbers) or dict(mixture)[name]:
            indexes[name] = open_phase_index(store, recipe, phase, "train", index_dir, build)
    tokens = {name: positions_of_epoch(index) for name, index in indexes.items()}
    shares = weights_of_phase(recipe, phase, tokens)
    used = {name: index for name, index in indexes.items() if shares[name]}
    means = {name: Fraction(tokens[name], index.rows) for name, index in used.items()}
    phase_of_all = phases_before + phase
    seed, rate = phase_seed(recipe, phase_of_all), mask_rate(recipe, recipe.phase[phase])
    of_period = rows_of_period({name: shares[name] for name in used}, means)
    order = Order(dict.fromkeys(stores, 0) | of_period, seed, phase_of_all)
    slots = np.max([stair_slots(index, rate) for index in used.values()], axis=0)
    sequences = max(index.sequences for index in used.values())
    rows, roles = {}, token_roles(next(iter(stores.values())), recipe.objective)
    for number, (name, store) in enumerate(stores.items()):
        if name not in used:
            continue
        in_run = InRun(partial(order.of_run, number), slots, sequences)
        of_store = stream_seed(seed, int(hashlib.sha256(name.encode()).hexdigest()[:15], 16))
        rows[name] = Rows(store, used[name], roles, recipe.objective, rate, of_store, in_run)
    return Mixture(rows, order, shares, tokens)


def open_held_out(
    stores: Stores, recipe: Recipe, phase: int, index_dir: Path | None = None, build: bool = True
) -> HeldOutParts:
    """The held-out rows of each store that has some; errors as in open_rows if none has."""
    rows, without = {}, []
    roles = token_roles(next(iter(stores.values())), recipe.objective)
    for name, store in stores.items():
        try:
            rows[name] = open_held_out_rows(store, roles, recipe, phase, index_dir, build)
        except NoRows as error:
            without.append(error)
    if not rows:
        raise without[0]
    weights = weights_of_phase(recipe, phase, train_tokens(stores))
    return HeldOutParts(rows, {name: float(weights[name]) for name in rows})

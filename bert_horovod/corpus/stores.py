"""The token stores of a run, by their names: --data_dir NAME=DIR, once for each; or one --data_dir DIR without a name.

A dict of the opened stores, in the order of their names. One store without a name has the name "".
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from bert_horovod.corpus.store import Store, open_store
from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import Numbers
from bert_horovod.storage.places import is_url

Stores = dict[str, Store]


def named_paths(words: Sequence[str | Path]) -> dict[str, Path]:
    """The paths that --data_dir names, by name in order; raises UserError if they cannot be told apart."""
    paths: dict[str, Path] = {}
    for word in map(str, words):
        name, equals, path = word.partition("=")
        if not equals or not Numbers.KEY.fullmatch(name) or os.path.exists(word):
            name, path = "", word
        if name in paths and name:
            raise UserError(f"--data_dir {word}: {name}={paths[name]} has this name already; give each store its own")
        if "" in {name, *paths} and len(words) > 1:
            raise UserError(
                f"--data_dir {paths.get('', word)}: several stores need names, with which data.mixture weighs them; "
                "expected NAME=DIR, as in --data_dir general=DIR --data_dir own=DIR, with names that match "
                f"{Numbers.KEY.pattern}"
            )
        if not path:
            raise UserError(f"--data_dir {word}: expected NAME=DIR, found no DIR: is a variable not set?")
        if is_url(path):
            raise UserError(f"--data_dir {word}: expected a path on this machine: copy the store here first")
        paths[name] = Path(path)
    return {name: paths[name] for name in sorted(paths)}


def open_stores(words: Sequence[str | Path]) -> Stores:
    """Open the stores that --data_dir names; raises ReportedError, also if they cannot be mixed."""
    (first_name, first_path), *others = named_paths(words).items()
    first = open_store(first_path)
    stores = {first_name: first}
    for name, path in others:
        store = open_store(path, like=first)
        said = f"--data_dir {name}={store.path} and --data_dir {first_name}={first.path}"
        if store.vocabulary != first.vocabulary:
            pairs = enumerate(zip_longest(store.vocabulary, first.vocabulary))
            place = next(i for i, (theirs, ours) in pairs if theirs != ours)
            raise UserError(
                f"{said} have two vocabularies, which first differ at id {place}; prepare both with the same --vocab"
            )
        if store.tokenizer_settings != first.tokenizer_settings:
            raise UserError(
                f"{said} have two tokenizers ({store.tokenizer_settings}; {first.tokenizer_settings}); prepare both "
                "with the same --vocab and the same settings of text"
            )
        for earlier, other in stores.items():
            if store.hash == other.hash:
                raise UserError(
                    f"--data_dir {name}={store.path} and {earlier}={other.path} are one store; name it once"
                )
        stores[name] = store
    return stores


def data_dirs(stores: Stores, index_dir: Path | None = None) -> str:
    """The flags that name the stores, and the directory of their indexes, for messages about what to type."""
    words = [("--data_dir", f"{name}={store.path}" if name else store.path) for name, store in stores.items()]
    words += [("--index_dir", index_dir)] if index_dir else []
    return " ".join(f"{flag} {shlex.quote(str(word))}" for flag, word in words)


def train_tokens(stores: Mapping[str, Store]) -> dict[str, int]:
    """The tokens that stores have for training, without held-out and repeated ones; by name."""
    totals = {
        name: store.manifest["totals"] | {"repeated": store.manifest["duplicates"]} for name, store in stores.items()
    }
    return {
        name: max(1, of["tokens"] - of["held_out_tokens"] - of["repeated"]["tokens"]) for name, of in totals.items()
    }

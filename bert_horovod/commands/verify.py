"""Check a token store: every hash, every offset, every count.

bert-horovod verify STORE

If shards are damaged, it names them and exits with 1.
"""

import argparse

from bert_horovod.commands.shared.flags import add_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_path(parser, "STORE", "--data_dir", "DIR", "token store, made by: bert-horovod prepare")


def run(arguments: argparse.Namespace) -> None:
    """Check the store and print its totals."""
    from bert_horovod.corpus.manifest import COUNTS
    from bert_horovod.corpus.store import verify

    store = verify(arguments.data_dir)
    totals = store.manifest["totals"]
    for name in (*COUNTS, "held_out_sections", "held_out_tokens", "unknown_tokens"):
        print(f"{name:18} {totals[name]:15,}")
    print(f"{'vocabulary':18} {len(store.vocabulary):15,} tokens, {store.tokenizer_settings}")
    print(f"{arguments.data_dir}: {len(store.shards)} shards, all as they were written; store hash {store.hash}")

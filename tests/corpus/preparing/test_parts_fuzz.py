"""Damaged parts of an unfinished store are made again, and nothing outside of the store is touched."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bert_horovod.corpus.preparing.planning import Settings
from bert_horovod.corpus.preparing.preparation import prepare
from bert_horovod.corpus.store import ARRAYS
from bert_horovod.errors import ReportedError
from tests.corpus.conftest import PARAGRAPH
from tests.corpus.preparing.test_preparation import tree
from tests.mutations import Change, apply, bounded, changes, sandbox

SETTINGS = Settings(shard_bytes=1500)
FILES = ["plan.json", "plan.json", *("first/part.json",) * 3, *(f"first/{name}.npy" for name in ARRAYS)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> tuple[list[str], Path, Path, Path]:
    """Inputs, their vocabulary, their finished store, and an unfinished one that lacks its last part."""
    directory = tmp_path_factory.mktemp("parts")
    inputs = []
    for name in "abc":
        (directory / f"{name}.txt").write_text("\n\n".join([f"{name}. {PARAGRAPH}"] * 12), encoding="utf-8")
        inputs.append(str(directory / f"{name}.txt"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *re.findall(r"\w+|[^\w\s]", PARAGRAPH.lower())]
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(dict.fromkeys([*words, *"abc"])) + "\n", encoding="utf-8")
    finished = directory / "finished"
    prepare(inputs, vocabulary, finished, settings=SETTINGS)
    unfinished = directory / "unfinished"
    shutil.copytree(finished, unfinished)
    for part in sorted(unfinished.glob("shard-*")):
        content = json.loads((part / "part.json").read_text(encoding="utf-8"))["part"]
        part.rename(unfinished / f"shard-{content['task']}-{content['number']:03d}")
    *_, last = sorted(unfinished.glob("shard-*"))
    shutil.rmtree(last)
    manifest = json.loads((unfinished / "manifest.json").read_text(encoding="utf-8"))
    head = {key: manifest[key] for key in ("format", "settings", "vocabulary")}
    places = {name: [Path(name).stat().st_size, Path(name).stat().st_mtime_ns] for name in inputs}
    (unfinished / "plan.json").write_text(json.dumps({"head": head, "sources": places}), encoding="utf-8")
    (unfinished / "manifest.json").unlink()
    return inputs, vocabulary, finished, unfinished


@bounded(12)
@given(st.lists(changes(FILES), min_size=0, max_size=2))
@example([])
@example([("first/part.json", Change("add", 0, None))])
@example([("first/tokens.npy", Change("sparse"))])
def test_what_is_damaged_is_made_again(tmp_path_factory, stores, made):
    inputs, vocabulary, finished, unfinished = stores
    with sandbox(unfinished, tmp_path_factory.getbasetemp() / "parts_box") as box:
        first, *_ = sorted(box.directory.glob("shard-*"))
        for name, change in made:
            path = box.directory / name.replace("first", first.name)
            if path.is_file():
                apply(path, change, box.outside)
        prepared = box.read(lambda: prepare(inputs, vocabulary, box.directory, settings=SETTINGS))
        if isinstance(prepared, ReportedError):
            assert "expected the same command" in str(prepared) or "plan.json: Is a directory" in str(prepared)
            assert any(name == "plan.json" for name, _ in made)
        else:
            assert tree(box.directory) == tree(finished)
            assert made or prepared.kept_parts == len(list(unfinished.glob("shard-*"))) > 0

"""A damaged or hostile Hugging Face directory is refused with one message, and nothing else happens."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bert_horovod.errors import ReportedError
from bert_horovod.interchange.huggingface import Pretrained, read_directory
from bert_horovod.model.shapes import pretraining_shapes
from tests import toy_glue
from tests.interchange.conftest import VOCABULARY
from tests.mutations import Change, apply, bounded, changes, sandbox
from tests.toy_glue import write_checkpoint

MODEL = replace(toy_glue.MODEL, vocab_size=len(VOCABULARY), hidden_size=4, intermediate_size=8)
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"
FILES = ["config.json", "config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"]
SHARDED_FILES = ["config.json", INDEX, INDEX, SHARD, "tokenizer.json", "tokenizer.json", "added_tokens.json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A directory as the program writes it."""
    return write_checkpoint(tmp_path_factory.mktemp("original") / "whole", model=MODEL, words=VOCABULARY)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, whole) -> Path:
    """A directory with weights in two files, in three dtypes, and the vocabulary in tokenizer.json."""
    path = tmp_path_factory.mktemp("original") / "sharded"
    shutil.copytree(whole, path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    (path / "vocab.txt").unlink()
    names = sorted(tensors)
    kinds = (np.float16, np.float64, np.float32)
    tensors = {name: tensors[name].astype(kinds[i % 3]) for i, name in enumerate(names)}
    files = {name: SHARD.replace("00001", f"0000{1 + i % 2}") for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, path / file)
    (path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}), encoding="utf-8")
    vocabulary = {token: i for i, token in enumerate(VOCABULARY[:-1])}
    tokenizer = {
        "model": {"type": "WordPiece", "vocab": vocabulary},
        "added_tokens": [{"id": 0, "content": VOCABULARY[0]}],
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (path / "added_tokens.json").write_text(json.dumps({VOCABULARY[-1]: len(VOCABULARY) - 1}), encoding="utf-8")
    last = str(len(VOCABULARY) - 1)
    settings = {"added_tokens_decoder": {"0": {"content": VOCABULARY[0]}, last: {"content": VOCABULARY[-1]}}}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


def assert_is_whole(found: Pretrained) -> None:
    """All that users of a directory rely on."""
    shapes = pretraining_shapes(found.model, True)
    for name, values in found.parameters.items():
        assert (values.dtype, values.shape) == (np.float32, shapes[name])
        assert np.isfinite(values).all()
    assert {name for name in shapes if name.startswith("bert.") and "pooler" not in name} <= found.parameters.keys()
    assert type(found.tokenizer_settings.lowercase) is bool
    if found.vocabulary is not None:
        assert len(found.vocabulary) <= found.model.vocab_size
        assert all(type(token) is str and token.encode() is not None for token in found.vocabulary)


@bounded(16)
@given(st.lists(changes(FILES), min_size=1, max_size=2))
def test_any_change_is_refused_or_harmless(tmp_path_factory, whole, made):
    with sandbox(whole, tmp_path_factory.getbasetemp() / "whole_box") as box:
        read_changed(box, made)


@bounded(16)
@given(st.lists(changes(SHARDED_FILES), min_size=1, max_size=2))
def test_any_change_of_a_sharded_directory_is_refused_or_harmless(tmp_path_factory, sharded, made):
    with sandbox(sharded, tmp_path_factory.getbasetemp() / "sharded_box") as box:
        read_changed(box, made)


def read_changed(box, made) -> None:
    # Links out of a directory are what Hugging Face's own cache is made of.
    for name, change in made:
        if (box.directory / name).is_file() and change.kind not in ("link_out", "link_to_nothing"):
            apply(box.directory / name, change, box.outside)
    pretrained = box.read(read_directory, box.directory)
    if not isinstance(pretrained, ReportedError):
        assert_is_whole(pretrained)


def test_a_directory_of_links_as_hugging_face_caches_it_is_read(whole, tmp_path):
    for path in whole.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert_is_whole(read_directory(tmp_path))


@pytest.mark.parametrize("name", ["../../outside/secret", "/etc/passwd", "..", "", "a\0b", "n" * 300, None, 3, ["x"]])
def test_weights_outside_of_the_directory_are_refused(tmp_path, sharded, name):
    with sandbox(sharded, tmp_path / "box") as box:
        path = box.directory / INDEX
        path.write_text(json.dumps({"weight_map": {"x": name}}), encoding="utf-8")
        assert INDEX in str(box.read(read_directory, box.directory))


def test_a_tensor_that_the_model_has_not_takes_no_memory(tmp_path, whole):
    with sandbox(whole, tmp_path / "box") as box:
        tensors = load_file(box.directory / "model.safetensors")
        file = box.directory / "model.safetensors"
        save_file(tensors | {"zz.another_head": np.zeros(2, np.float32)}, file)
        content = file.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        entry = header["zz.another_head"]
        extra = 3 << 28  # elements: 1.5 GB, in a file with a hole
        entry["dtype"], entry["shape"] = "F16", [extra]
        entry["data_offsets"][1] = entry["data_offsets"][0] + 2 * extra
        last = max(values["data_offsets"][1] for values in header.values())
        packed = json.dumps(header).encode()
        assert last == entry["data_offsets"][1]
        file.write_bytes(len(packed).to_bytes(8, "little") + packed + content[end:])
        with open(file, "r+b") as hole:
            hole.truncate(8 + len(packed) + last)
        pretrained = box.read(read_directory, box.directory)
        assert isinstance(pretrained, ReportedError) or pretrained.parameters.keys() == tensors.keys()


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer_config.json"])
def test_a_directory_in_a_files_place_is_not_taken_for_none(tmp_path, whole, name):
    with sandbox(whole, tmp_path / "box") as box:
        apply(box.directory / name, Change("directory"), box.outside)
        assert name in str(box.read(read_directory, box.directory))

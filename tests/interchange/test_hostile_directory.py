"""A damaged or hostile Hugging Face directory is refused with one message, and nothing else happens."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_horovod.errors import ReportedError
from bert_horovod.interchange.huggingface import Pretrained, read_directory
from bert_horovod.model.shapes import pretraining_shapes
from tests import toy_glue
from tests.interchange.conftest import VOCABULARY
from tests.mutations import put_in_its_place, sandbox
from tests.toy_glue import write_checkpoint

MODEL = replace(toy_glue.MODEL, vocab_size=len(VOCABULARY), hidden_size=4, intermediate_size=8)
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "tokenizer_config.json", "vocab.txt")
VALUES = (
    *(None, -1, 1 << 64, -(10**4000), float("nan"), "", "../../outside/secret", "a\0b", "\ud800", "n" * 5000),
    *([], {}, [[[[[None]]]]], ["x"], {"": {}}),
)
CONTENTS = (
    *(b"", b"\0", b"[]", b"null", b"\xff\xfe", b'{"\\ud800": "\\ud800"}', b"[" * 100_000, b'{"a":' * 100_000),
    *(b"9" * 5000, b"\x80\x04K\x01.", (1 << 60).to_bytes(8, "little"), (2).to_bytes(8, "little") + b"{}"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A directory as the program writes it."""
    return write_checkpoint(tmp_path_factory.mktemp("original") / "whole", model=MODEL, words=VOCABULARY)


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


def read_changed(whole: Path, place: Path, name: str, content: bytes) -> None:
    """Refused, or as whole as before, with this content of a file."""
    with sandbox(whole, place) as box:
        (box.directory / name).write_bytes(content)
        pretrained = box.read(read_directory, box.directory)
        if not isinstance(pretrained, ReportedError):
            assert_is_whole(pretrained)


@pytest.mark.parametrize("name", FILES)
def test_any_content_of_a_file_is_refused_or_harmless(tmp_path, whole, name):
    content = (whole / name).read_bytes()
    for changed in (*CONTENTS, content + b"\0", *(content[: len(content) * i // 8] for i in range(8))):
        read_changed(whole, tmp_path / "box", name, changed)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_any_value_in_a_json_file_is_refused_or_harmless(tmp_path, whole, name):
    settings = json.loads((whole / name).read_text(encoding="utf-8"))
    for key in (*settings, "added"):
        for value in VALUES:
            read_changed(whole, tmp_path / "box", name, json.dumps(settings | {key: value}).encode())


@pytest.mark.parametrize("key", ["dtype", "shape", "data_offsets"])
def test_any_value_in_the_header_of_the_weights_is_refused_or_harmless(tmp_path, whole, key):
    content = (whole / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    name = next(name for name in header if name != "__metadata__")
    for value in (*VALUES, [0, 1 << 62], [1 << 62, 0], "F16", "I64"):
        changed = json.dumps(header | {name: header[name] | {key: value}}).encode()
        read_changed(whole, tmp_path / "box", WEIGHTS, len(changed).to_bytes(8, "little") + changed + content[end:])


def test_a_directory_of_links_as_hugging_face_caches_it_is_read(whole, tmp_path):
    for path in whole.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert_is_whole(read_directory(tmp_path))


@pytest.mark.parametrize("name", ["../../outside/secret", "/etc/passwd", "..", "", "a\0b", "n" * 300, None, 3, ["x"]])
def test_weights_outside_of_the_directory_are_refused(tmp_path, whole, name):
    with sandbox(whole, tmp_path / "box") as box:
        (box.directory / WEIGHTS).unlink()
        (box.directory / INDEX).write_text(json.dumps({"weight_map": {"x": name}}), encoding="utf-8")
        assert INDEX in str(box.read(read_directory, box.directory))


def test_a_tensor_that_the_model_has_not_takes_no_memory(tmp_path, whole):
    with sandbox(whole, tmp_path / "box") as box:
        tensors = load_file(box.directory / WEIGHTS)
        file = box.directory / WEIGHTS
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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["directory", "fifo", "link_loop", "sparse"])
def test_what_is_no_file_is_refused_by_name(tmp_path, whole, name, kind):
    with sandbox(whole, tmp_path / "box") as box:
        put_in_its_place(box.directory / name, kind, box.outside)
        assert name in str(box.read(read_directory, box.directory))

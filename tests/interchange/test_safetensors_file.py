"""PyTorch's files of weights: their tensors are read, and nothing in them runs."""

import importlib.metadata
import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.interchange.huggingface import read_directory
from bert_horovod.interchange.safetensors_file import map_torch_file
from tests.corpus.test_damaged_store import Payload


@pytest.fixture
def tensors(pretraining_directory, torch) -> dict:
    """The directory's tensors as PyTorch's; their file is removed."""
    path = pretraining_directory / "model.safetensors"
    loaded = {name: torch.from_numpy(value.copy()) for name, value in load_file(path).items()}
    path.unlink()
    return loaded


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "before 1.6"])
def test_a_directory_of_pytorchs_is_read_as_one_of_safetensors(pretraining_directory, tensors, torch, options):
    buffers = {"bert.embeddings.position_ids": torch.arange(24)}  # as transformers saved them before 4.31
    torch.save(tensors | buffers, pretraining_directory / "pytorch_model.bin", **options)
    parameters = read_directory(pretraining_directory).parameters
    for name, value in parameters.items():
        np.testing.assert_array_equal(value, tensors[name].numpy(), err_msg=name)
    assert parameters.keys() == tensors.keys() - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


@pytest.mark.full
def test_shards_and_narrow_numbers(pretraining_directory, tensors, torch):
    files = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: value.bfloat16() for name, value in tensors.items() if files[name] == file}
        torch.save(part, pretraining_directory / file)
    (pretraining_directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    for name, value in read_directory(pretraining_directory).parameters.items():
        np.testing.assert_array_equal(value, tensors[name].bfloat16().float().numpy(), err_msg=name)


def test_parameters_that_learn_are_read_too(tmp_path, torch):
    torch.save(dict(torch.nn.Linear(2, 3).named_parameters()), tmp_path / "pytorch_model.bin")  # no state_dict
    assert {name: array.shape for name, array in map_torch_file(tmp_path / "pytorch_model.bin").items()} == {
        "weight": (3, 2),
        "bias": (3,),
    }


@pytest.mark.full
def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, torch):
    ran = tmp_path / "ran"
    for number, content in enumerate(({"a": Payload(ran)}, Payload(ran))):
        path = tmp_path / f"{number}.bin"
        torch.save(content, path)
        with pytest.raises(UserError, match=r"may be code, or is damaged: it is not read; take the model.safetensors"):
            map_torch_file(path)
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(UserError, match="may be code, or is damaged: it is not read"):
            map_torch_file(path)
    assert not ran.exists()


@pytest.mark.parametrize(("version", "found"), [(None, "found no torch"), ("2.5.1", "found torch 2.5.1")])
def test_without_a_pytorch_that_reads_safely_it_is_refused(tmp_path, monkeypatch, version, found):
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(UserError, match=rf"{found}: pip install 'torch>=2\.6\.0', or convert it .*safe_serialization"):
        map_torch_file(tmp_path / "pytorch_model.bin")


@pytest.mark.full
@pytest.mark.parametrize("kept", [0, 10, 2000, -1])
def test_a_damaged_file_is_one_message(pretraining_directory, tensors, torch, kept):
    path = pretraining_directory / "pytorch_model.bin"
    torch.save(tensors, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ReportedError, match="damaged") as caught:
        map_torch_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_a_pointer_and_other_contents(tmp_path, torch):
    path = tmp_path / "pytorch_model.bin"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match="is a pointer of Git LFS"):
        map_torch_file(path)
    torch.save([torch.zeros(2)], path)
    with pytest.raises(UserError, match="holds no dict of tensors by name"):
        map_torch_file(path)

"""What a path is, is told by the files there."""

import pytest

from bert_horovod.errors import ReportedError
from bert_horovod.runs.opening import find_checkpoint, open_checkpoint

HUGGING_FACE = ("config.json", "model.safetensors")
GOOGLES = ("bert_model.ckpt.index", "bert_config.json")


@pytest.mark.parametrize(
    ("files", "path", "kind", "place"),
    [
        (HUGGING_FACE, "", "a Hugging Face directory", ""),
        (("config.json", "pytorch_model.bin"), "", "a Hugging Face directory", ""),
        ((*HUGGING_FACE, "training/hashes.json"), "", "a checkpoint of a run", ""),
        (GOOGLES, "", "a TF1 checkpoint", "bert_model.ckpt"),
        (GOOGLES, "bert_model.ckpt", "a TF1 checkpoint", "bert_model.ckpt"),
        ((*GOOGLES, "config.json"), "", "a TF1 checkpoint", "bert_model.ckpt"),
        ((*GOOGLES, *HUGGING_FACE), "", "a Hugging Face directory", ""),
        (("checkpoints/step-00000010/config.json",), "", "a run's output_dir", "checkpoints/step-00000010"),
        (("checkpoints/step-00000010/x", "checkpoints/step-9/x"), "", "a run's", "checkpoints/step-00000010"),
    ],
)
def test_the_kind_of_a_path_and_what_is_read_there(tmp_path, files, path, kind, place):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    opened = find_checkpoint(tmp_path / path)
    assert opened.kind.name.startswith(kind)
    assert opened.reader.place == tmp_path / place


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "--flag: there is none at "),
        (("run.json",), "is a run without a checkpoint yet; expected a Hugging Face directory of BERT, ALBERT"),
        (("config.json.index", "model.ckpt-5.index"), "holds several checkpoints"),
        (("config.json",), "config.json is damaged: expected JSON"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_told_early(tmp_path, files, message):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ReportedError, match=message):
        open_checkpoint(tmp_path, "--flag")

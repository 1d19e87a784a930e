"""Ranks whose files differ are told so before the first step, by the name of the file: two real processes."""

import shutil
from pathlib import Path

import pytest

from bert_horovod.collectives.world import World
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.outcome import require_same_files
from bert_horovod.finetuning.text_data import glue_data
from bert_horovod.training.loop import train
from tests import toy_squad
from tests.toy_glue import write_checkpoint, write_glue

FAST = ("execution.xla='off'", "execution.tensorboard=false")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("toy") / "checkpoint")


def refusal(world: World, task: str, checkpoint: Path, data_dirs: list[Path], output_dir: Path) -> str:
    """A job for two_ranks: how a run is refused where each rank has a directory of its own."""
    output_dir.mkdir(parents=True, exist_ok=True)
    directory = data_dirs[world.rank]
    if task == "squad":
        job = toy_squad.job_of(directory, checkpoint, output_dir, world_size=world.size)
    else:
        finetuning = Finetuning(Texts(glue_data(task, Files(directory))), checkpoint)
        job = finetuning.job(output_dir, 1, FAST, world.size)
    with pytest.raises(UserError) as caught:
        train(job, world)
    return str(caught.value)


def both(two_ranks, *arguments) -> str:
    """What both ranks are told; it is the same."""
    first, second = (answer.value for answer in two_ranks.run(refusal, *arguments))
    assert first == second
    return first


@pytest.mark.full
@pytest.mark.parametrize(
    ("split", "said"), [("train", "the train file"), ("dev", "the dev file"), ("test", r"the test (SST-2) file")]
)
def test_a_file_that_differs_between_ranks_is_named_at_the_start(two_ranks, checkpoint, tmp_path, split, said):
    mine = write_glue(tmp_path / "mine")
    (mine / "test.tsv").write_text("index\tsentence\n0\tgood film\n1\tbad\n")
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    changed = theirs / f"{split}.tsv"
    changed.write_text("".join(changed.read_text().splitlines(keepends=True)[:-1]))  # other steps and rows, too
    message = both(two_ranks, "sst2", checkpoint, [mine, theirs], tmp_path / "out")
    assert message == (
        f"{said} of rank 1 ({changed}) is not that of rank 0 ({mine / changed.name}): every host needs the same copy "
        "of it"
    )
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.full
def test_a_test_file_that_one_rank_lacks_is_named(two_ranks, checkpoint, tmp_path):
    mine = write_glue(tmp_path / "mine")
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    (theirs / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    message = both(two_ranks, "sst2", checkpoint, [mine, theirs], tmp_path / "out")
    assert f"the test (SST-2) file of rank 1 ({theirs / 'test.tsv'}) is not that of rank 0 (no such file)" in message


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_file_of_squad_that_differs_in_its_right_answers_alone_is_named(two_ranks, checkpoint, tmp_path, split):
    mine = toy_squad.write_squad(tmp_path / "mine", train=8, dev=4)
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    path = theirs / f"{split}-v1.1.json"
    path.write_text(path.read_text().replace(f'"id": "{split}3"', '"id": "other"'))
    message = both(two_ranks, "squad", checkpoint, [mine, theirs], tmp_path / "out")
    assert message.startswith(f"the {split} file of rank 1 ({path}) is not that of rank 0")


def test_one_rank_agrees_with_itself():
    require_same_files({"dev": (Path("dev.tsv"), ["a", 1])}, World())

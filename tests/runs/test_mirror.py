"""Checkpoints in a bucket, on a real server, and in a directory: copied behind the run, and fetched by a start."""

import argparse
import json
import os
import re
import shutil
import threading
from pathlib import Path
from types import ModuleType

import pytest

from bert_horovod.commands import report, status
from bert_horovod.commands.shared.opened_flags import open_named
from bert_horovod.commands.shared.parser import open_values
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import DamagedData, ReportedError, RunError, UserError
from bert_horovod.runs import mirror, mirroring
from bert_horovod.runs.checkpoint import path_of, paths, step_of
from bert_horovod.runs.directory import RunRecord, Start, claim
from bert_horovod.runs.mirror import bring_newest, copies, lag_of
from bert_horovod.runs.mirroring import Mirror
from bert_horovod.runs.resuming import load_newest
from bert_horovod.runs.saving import prune
from bert_horovod.storage import connections, remote
from bert_horovod.storage.places import is_url, parse_place
from bert_horovod.tasks.pretraining import Pretraining
from tests.runs.test_checkpoint import POSITION, random_state
from tests.servers import S3Server
from tests.toy_runs import metrics, newest, save, train_recipe
from tests.toys import toy_recipe

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]
STEPS = (10, 20, 30, 40)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, store) -> Path:
    """A run's directory with a checkpoint of each of STEPS."""
    output_dir = tmp_path_factory.mktemp("saved") / "run"
    recipe = toy_recipe(execution={"keep_checkpoints": len(STEPS)})
    os.close(claim(output_dir, recipe, store.hash))
    for step in STEPS:
        save(output_dir, random_state(step), recipe, store, POSITION)
    (output_dir / "metrics.jsonl").write_text('{"step": 10, "loss": 1.5}\n')
    return output_dir


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An S3 server, to which this process connects."""
    with pytest.MonkeyPatch.context() as patch:
        s3 = S3Server(tmp_path_factory.mktemp("server"))
        for name, value in s3.variables.items():
            patch.setenv(name, value)
        yield s3
        s3.kill()


class Box:
    """A run's directory, without checkpoints at first, and its mirror."""

    def __init__(self, saved: Path, directory: Path, url: str, store, **execution):
        self.saved, self.directory, self.url, self.store = saved, directory, url, store
        self.recipe = toy_recipe(execution={"mirror": url, "keep_checkpoints": 2, **execution})
        self.run = RunRecord(store.hash, Start())
        self.said: list[str] = []
        self.output_dir = self.empty("run")
        (self.output_dir / "metrics.jsonl").write_text('{"step": 10, "loss": 1.5}\n')

    def empty(self, name: str) -> Path:
        """A claimed directory, as of a start on another machine."""
        os.close(claim(self.directory / name, self.recipe, self.store.hash))
        return self.directory / name

    def open(self) -> Mirror:
        newest = next(reversed(paths(self.output_dir)), None)
        return Mirror(self.output_dir, self.recipe.execution, self.said.append, newest)

    def save(self, step: int) -> Path:
        """Put a checkpoint of `saved` into the run's directory."""
        return shutil.copytree(path_of(self.saved, step), path_of(self.output_dir, step))

    def copy(self, copying: Mirror, *steps: int) -> None:
        """Save these checkpoints one after another, each until its copy is there."""
        for step in steps:
            copying.offer(self.save(step))
            settle(copying)

    def steps(self) -> list[int]:
        return [copy.step for copy in copies(parse_place(self.url, ""))[0]]

    def bring(self, name: str = "elsewhere") -> Path | None:
        return bring_newest(self.empty(name), self.url, self.recipe, self.run)


@pytest.fixture(params=["s3", "file"])
def box(request, tmp_path, saved, store):
    """A Box whose mirror is in a bucket, or in a directory."""
    if request.param == "s3":
        request.getfixturevalue("server")
    url = f"s3://lab/{tmp_path.name}[1]" if request.param == "s3" else str(tmp_path / "another disk" / "mirror[1]")
    return Box(saved, tmp_path, url, store)


def settle(copying: Mirror) -> None:
    copying.finish(lambda: None, lambda: True)


def test_a_start_elsewhere_goes_on_from_the_newest_copy(box, capsys):
    copying = box.open()
    box.copy(copying, *STEPS)
    copying.close()
    assert box.steps() == [30, 40]  # as on disk, the newest two
    fetched = box.bring()
    assert "fetched" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in fetched.rglob("*") if path.is_file()} == {
        path.name: path.read_bytes() for path in path_of(box.saved, 40).rglob("*") if path.is_file()
    }
    assert (box.directory / "elsewhere" / "metrics.jsonl").read_text() == '{"step": 10, "loss": 1.5}\n'
    assert load_newest(box.directory / "elsewhere", Pretraining(True)).progress.step == 40
    assert bring_newest(box.directory / "elsewhere", box.url, box.recipe, box.run) is None  # there is no newer one


def test_a_slow_mirror_takes_the_newest_and_disk_keeps_what_it_reads(box, monkeypatch):
    reading, go_on = threading.Event(), threading.Event()
    write = remote.write

    def slow(place, content):
        if place.name == "config.json":
            reading.set()
            assert go_on.wait(30)
        write(place, content)

    monkeypatch.setattr(remote, "write", slow)
    copying = box.open()
    copying.offer(box.save(10))
    assert reading.wait(30)
    for step in STEPS[1:]:
        copying.offer(box.save(step))
    assert copying.holds() == {10, 40}
    prune(box.output_dir, path_of(box.output_dir, 40), box.recipe.execution, 0, copying.holds())
    assert [step_of(path.name) for path in paths(box.output_dir)] == [10, 30, 40]
    assert "has nothing yet; 40 steps behind" in lag_of(box.output_dir)
    go_on.set()
    settle(copying)
    assert box.steps() == [10, 40]
    assert lag_of(box.output_dir) == f"{parse_place(box.url, '')} has step 40, the newest"
    copying.close()


def test_a_lag_that_cannot_be_recorded_ends_no_copying(saved, store, tmp_path):
    box = Box(saved, tmp_path, str(tmp_path / "mirror"), store)
    (box.output_dir / mirror.LAG).mkdir()  # as little to be written as on a full disk
    copying = box.open()
    box.copy(copying, 10, 20)
    copying.close()
    assert box.steps() == [10, 20]


def test_a_server_that_is_killed_is_told_and_gets_the_newest_later(saved, store, tmp_path, server, monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE_S", 0.5)
    monkeypatch.setattr(mirroring, "RETRY_S", 0.3)
    box = Box(saved, tmp_path, "s3://lab/killed", store)
    copying = box.open()
    box.copy(copying, 10)
    write, killed = remote.write, []

    def kill_in_the_middle(place, content):
        if place.name == "model.safetensors" and not killed:
            killed.append(place)
            server.kill()
        write(place, content)

    monkeypatch.setattr(remote, "write", kill_in_the_middle)
    copying.offer(box.save(20))
    with pytest.raises(RunError, match=r"lacks the checkpoint of step 20: cannot write .*run the same command again"):
        settle(copying)
    assert "step-00000020 is not in execution.mirror yet: cannot write" in "".join(box.said)
    assert "has step 10; 10 steps behind, for" in lag_of(box.output_dir)
    assert "cannot write" in lag_of(box.output_dir)
    server.restart()  # it comes back empty
    copying.finish(lambda: None, lambda: False)
    copying.close()
    assert box.steps() == [20]


def test_a_kill_between_two_objects_leaves_the_checkpoint_before(box, monkeypatch):
    copying, write = box.open(), remote.write
    box.copy(copying, 10)

    def die(place, content):
        if place.name == "complete.json":
            copying.close()
            raise RunError("killed")
        write(place, content)

    monkeypatch.setattr(remote, "write", die)
    copying.offer(box.save(20))
    with pytest.raises(RunError, match="lacks the checkpoint of step 20: killed"):
        settle(copying)
    assert box.steps() == [10]
    assert step_of(box.bring().name) == 10
    monkeypatch.undo()
    for name in ("step-00000015/partial.json", "step-00000015/left-over", "step-00000020/left-over", "of-a-user"):
        change(box, name, b"")
    again = box.open()  # which copies the newest, and removes what is half-written
    settle(again)
    again.close()
    assert box.steps() == [10, 20]
    left = mirror.mirrored_files(parse_place(box.url, ""))
    assert left.keys() == {"step-00000010", "step-00000020"}
    assert not {"left-over", "partial.json"} & left["step-00000020"].keys()
    assert remote.read(parse_place(box.url, "") / "checkpoints" / "of-a-user") == b""


def test_what_may_be_wrong_is_withdrawn(box):
    copying = box.open()
    box.copy(copying, 10, 20, 30)
    assert box.steps() == [20, 30]
    copying.withdraw(20)
    assert box.steps() == [20]


def change(box: Box, name: str, content: bytes | None) -> None:
    place = parse_place(box.url, "") / "checkpoints" / name
    remote.remove(place) if content is None else remote.write(place, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"changed", "step-00000020/config.json is damaged: its content is not what"),
        ("model.safetensors", b"x", "step-00000020/model.safetensors is missing, or is not as long"),
        ("model.safetensors", None, "step-00000020/model.safetensors is missing"),
        ("complete.json", b"{", "complete.json is damaged"),
        ("complete.json", None, "complete.json is missing"),
        ("complete.json", b'{"step": 20, "time": 0, "files": {"../x": {"bytes": 0, "sha256": ""}}}', "has the name"),
    ],
)
def test_a_damaged_copy_is_named_and_the_one_before_is_taken(saved, store, tmp_path, capsys, name, content, message):
    box = Box(saved, tmp_path, str(tmp_path / "mirror"), store)
    copying = box.open()
    box.copy(copying, 10, 20)
    copying.close()
    if content == b"changed":  # of the same length
        content = remote.read(parse_place(box.url, "") / "checkpoints" / "step-00000020" / name).swapcase()
    change(box, f"step-00000020/{name}", content)
    before = files_of(box)
    assert step_of(box.bring().name) == 10
    assert message in capsys.readouterr().err
    url = Path(f"file://{box.url}")
    assert open_named(url, "--checkpoint").directory.name == "step-00000010"
    change(box, "step-00000010/model.safetensors", b"x")
    with pytest.raises(DamagedData, match=r"all checkpoints of execution\.mirror = .* are damaged"):
        box.bring("third")
    with pytest.raises(DamagedData, match="step-000000"):
        open_named(url, "--checkpoint")
    again = Mirror(box.output_dir, box.recipe.execution, box.said.append, box.save(30))
    settle(again)  # another checkpoint comes, and what is damaged stays
    again.close()
    assert before.items() - files_of(box).items() == {
        entry for entry in before.items() if entry[0].endswith("step-00000010/model.safetensors")
    }
    assert box.steps()[-1] == 30


def test_damaged_records_are_not_an_empty_mirror(box, capsys):
    copying = box.open()
    box.copy(copying, 10, 20)
    copying.close()
    whole = files_of(box)
    for step in (10, 20):
        change(box, f"step-{step:08d}/complete.json", b"")
    with pytest.raises(
        DamagedData, match=r"all checkpoints of execution\.mirror = .* are damaged.*move its checkpoints/"
    ):
        box.bring()
    assert "complete.json is damaged" in capsys.readouterr().err
    shutil.rmtree(path_of(box.output_dir, 20))  # a start that has a checkpoint goes on from it
    again = box.open()
    settle(again)
    again.close()
    assert whole.keys() <= files_of(box).keys()
    assert box.steps() == [10]


def files_of(box: Box) -> dict[str, bytes]:
    """The content of each file of the mirror's checkpoints."""
    found = remote.find(parse_place(box.url, "") / "checkpoints")[0]
    return {str(entry.place): remote.read(entry.place) for entry in found}


def test_a_damaged_owner_is_told_and_the_checkpoints_tell_whose_they_are(box):
    copying = box.open()
    box.copy(copying, 10)
    copying.close()
    (object_of_owner,) = mirror.owners(parse_place(box.url, ""))
    remote.write(object_of_owner, b'{"writer": "ab')
    with pytest.raises(DamagedData, match=r"owners/00000001.json is damaged: .* remove this file and run the same"):
        box.bring()
    remote.remove(object_of_owner)
    with pytest.raises(UserError, match=r"belongs to a run .*other data"):
        bring_newest(box.empty("other"), box.url, box.recipe, RunRecord("0" * 64, Start()))
    assert step_of(box.bring().name) == 10
    box.open().close()
    assert [place.name for place in mirror.owners(parse_place(box.url, ""))] == ["00000001.json"]


def test_of_starts_at_the_same_time_one_takes_the_mirror(saved, store, tmp_path):
    boxes = [Box(saved, tmp_path / str(number), str(tmp_path / "mirror"), store) for number in range(4)]
    together, opened, refused = threading.Barrier(4), [], []

    def start(box: Box) -> None:
        together.wait(30)
        try:
            opened.append(box.open())
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start, args=[box]) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(opened) + len(refused) == 4
    assert opened
    assert all("another start takes execution.mirror" in text for text in refused)
    assert mirror.owner(parse_place(boxes[0].url, ""))[1]["writer"] in {copying._writer for copying in opened}
    for copying in opened:
        copying.close()


def test_another_runs_mirror_and_other_things_are_refused(box, store):
    box.open().close()
    other = toy_recipe(optimizer={"weight_decay": 0.3})
    for recipe, run, words in (
        (other, box.run, "another recipe: optimizer.weight_decay"),
        (box.recipe, RunRecord("0" * 64, Start()), "other data"),
    ):
        with pytest.raises(UserError, match=f"execution.mirror = .* belongs to a run .*{words}"):
            bring_newest(box.directory / "run", box.url, recipe, run)
    elsewhere = parse_place(box.url, "") / "owners"
    with pytest.raises(UserError, match=r"holds other things \(00000001.json\)"):
        bring_newest(box.directory / "run", str(elsewhere), box.recipe, box.run)
    with pytest.raises(UserError, match="lies in --output_dir"):
        bring_newest(box.output_dir, str(box.output_dir / "mirror"), box.recipe, box.run)


def test_a_mirror_that_was_away_for_a_while_is_not_taken_for_that_of_another_run(saved, store, tmp_path):
    box = Box(saved, tmp_path, str(tmp_path / "mirror"), store)
    box.open().close()
    copying = box.open()
    for step in (10, 20, 30):
        copying.offer(box.save(step))
        settle(copying)
        if step == 10:
            (tmp_path / "mirror").rename(tmp_path / "away")
        elif step == 20:  # into an empty place, which vanishes as the disk is back
            shutil.rmtree(tmp_path / "mirror")
            (tmp_path / "away").rename(tmp_path / "mirror")
    copying.close()
    assert box.steps() == [10, 30]
    (warning,) = box.said
    assert re.search(r"mirror is empty: the copies up to step 10 are not there.*not mounted", warning)
    (tmp_path / "mirror").rename(tmp_path / "away")
    box.open().close()
    assert "mirror is empty: the copies up to step 30 are not there" in box.said[-1]


def test_a_checkpoint_whose_copy_vanishes_half_written_is_copied_again(saved, store, tmp_path, monkeypatch):
    monkeypatch.setattr(mirroring, "RETRY_S", 0.1)
    box, write = Box(saved, tmp_path, str(tmp_path / "mirror"), store), remote.write

    def vanish(place, content):
        write(place, content)
        if place.name == "recipe.toml" and not box.said:  # the last file but the record
            shutil.rmtree(tmp_path / "mirror")

    monkeypatch.setattr(remote, "write", vanish)
    copying = box.open()
    copying.offer(box.save(10))
    copying.finish(lambda: None, lambda: False)
    copying.close()
    assert "became another place while it was being written" in box.said[-1]
    assert (box.steps(), copies(parse_place(box.url, ""))[1]) == ([10], [])


def test_of_two_runs_on_one_mirror_the_older_ends(box):
    older = box.open()
    newer = box.open()
    older.offer(box.save(10))
    with pytest.raises(UserError, match=r"was taken over by a run on .*: two write to it"):
        settle(older)
    with pytest.raises(UserError, match="taken over"):
        older.check()
    newer.offer(path_of(box.output_dir, 10))
    settle(newer)
    assert box.steps() == [10]
    for each in (older, newer):
        each.close()


def test_of_two_starts_at_once_one_is_refused(box, monkeypatch):
    found = mirroring.owner(parse_place(box.url, ""))
    box.open().close()
    monkeypatch.setattr(mirroring, "owner", lambda place: found)  # both have looked before one wrote
    with pytest.raises(UserError, match=r"another start takes execution\.mirror"):
        box.open()


def parsed(command: ModuleType, *words: object) -> argparse.Namespace:
    """The words of a command, parsed and opened."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(list(map(str, words)))
    arguments.parser = parser
    open_values(arguments)
    return arguments


def test_commands_take_a_mirrors_url(box, capsys):
    copying = box.open()
    box.copy(copying, 10)
    copying.close()
    for path in (box.url, f"{box.url}/checkpoints/step-00000010"):
        opened = open_named(Path(path), "--checkpoint")
        assert len(opened.whole(lambda whole: whole.reader.read().parameters)) > 10
        place = parse_place(box.url, "") if is_url(box.url) else box.url  # a mirror here is named as it was given
        assert str(opened) == f"{place}/checkpoints/step-00000010"
    opened, local = parsed(report, box.url, box.output_dir).runs
    (run,) = report._found([opened], None, None, [])["runs"]
    assert run["directory"] == str(parse_place(box.url, ""))
    (run,) = report._found([local], None, None, [])["runs"]
    assert ["mirror", f"{parse_place(box.url, '')} has step 10, the newest"] in run["figures"]
    status.run(parsed(status, box.url, "--json"))
    assert json.loads(capsys.readouterr().out)["last_checkpoint"].endswith("checkpoints/step-00000010")


def train_apart(world, store: Path, directory: Path, recipe, start: str, max_steps: int | None = None) -> None:
    """As a start on two machines without a common disk: each rank has an output_dir of its own; a job for two_ranks."""
    store, output_dir = open_store(store), directory / f"{start}-{world.rank}"
    if world.rank == 0:
        os.close(claim(output_dir, recipe, store.hash))
        if recipe.execution.mirror:
            bring_newest(output_dir, recipe.execution.mirror, recipe, RunRecord(store.hash, Start()))
    world.barrier()
    train_recipe(recipe, store, output_dir, world, max_steps=max_steps)


@pytest.mark.timeout(1500)
def test_new_hosts_without_a_common_disk_resume_bit_for_bit(tmp_path, store, two_ranks):
    sections = {"exchange": {"method": "onebit_adam", "dense": 0.25}, "phase": {"steps": 12}}
    sections["model"] = {"num_hidden_layers": 1}
    recipe = toy_recipe(**sections, execution={"mirror": str(tmp_path / "mirror"), "checkpoint_steps": 5})
    two_ranks.run(train_apart, store.path, tmp_path, toy_recipe(**sections), "alone")
    two_ranks.run(train_apart, store.path, tmp_path, recipe, "first", max_steps=8)
    shutil.rmtree(tmp_path / "first-0")
    shutil.rmtree(tmp_path / "first-1")
    two_ranks.run(train_apart, store.path, tmp_path, recipe, "second")
    alone, second = (newest(tmp_path / f"{start}-0") for start in ("alone", "second"))
    tensors = sorted(path.relative_to(alone) for path in alone.rglob("*.safetensors"))
    assert len(tensors) == 4  # with a part of each rank
    assert [(second / name).read_bytes() for name in tensors] == [(alone / name).read_bytes() for name in tensors]
    losses = [[line["loss"] for line in metrics(path.parent.parent)] for path in (alone, second)]
    assert len(losses[0]) == 12
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://me:secret@lab/x", "has a user or a password before @"),
        ("https://host/x?X-Amz-Signature=secret", "is signed"),
        ("https://host/x", "expected a place to write to"),
        ("nowhere://x", "no such scheme"),
    ],
)
def test_a_mirror_that_cannot_be_or_holds_a_secret_is_refused(url, message):
    with pytest.raises(UserError, match=message) as caught:
        toy_recipe(execution={"mirror": url})
    assert "secret@" not in str(caught.value)
    assert "=secret" not in str(caught.value)


def test_a_mirror_without_a_whole_checkpoint_is_no_checkpoint(saved, store, tmp_path):
    box = Box(saved, tmp_path, f"file://{tmp_path}/mirror", store)
    box.open().close()
    for name in ("partial.json", "config.json"):
        change(box, f"step-00000010/{name}", b"{}")
    with pytest.raises(ReportedError, match="no complete checkpoint; half-written: step-00000010"):
        open_named(Path(box.url), "--checkpoint")

"""Experiment trackers get settings and metrics; none ends a run, makes it wait, or learns a secret."""

import contextlib
import importlib.util
import io
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_horovod.errors import UserError
from bert_horovod.recipe.fields import flat_table
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_table
from bert_horovod.runs import trackers
from bert_horovod.runs.trackers import Trackers, first_line_without_secrets, require_trackers
from tests.horovod_runs import run_command
from tests.toy_runs import logged, metrics, pretrain_arguments, train
from tests.toys import toy_recipe

KEY = "0123456789abcdef0123456789abcdef01234567"
NUMBERS = {"step": 3, "loss": 2.5, "gradient_norm": None, "time": 1e9, "incident": "words"}


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs the extra {package}")


class Recorder:
    """A tracker that keeps what it gets; tests make it slow, or let it fail."""

    made: list["Recorder"]
    begins = staticmethod(lambda: None)
    logs = staticmethod(lambda step: None)

    def __init__(self, about: trackers.About) -> None:
        self.about, self.lines, self.failed = about, [], None
        self.made.append(self)
        type(self).begins()
        about.keep_id(about.known_id or "new")

    def log(self, step: int, metrics: dict[str, float], when: float) -> None:
        type(self).logs(step)
        self.lines.append((step, metrics, when))

    def finish(self, failed: bool) -> None:
        self.failed = failed


@pytest.fixture
def recorder(monkeypatch):
    kind = type("Recorder", (Recorder,), {"made": []})
    monkeypatch.setitem(trackers.TRACKERS, "recorder", kind)
    return kind


def opened(directory: Path) -> tuple[Trackers, list[str]]:
    lines: list[str] = []
    return Trackers(("recorder",), directory, {"model": {"hidden_size": 8}}, lines.append), lines


def fail(*_: object) -> None:
    raise ConnectionError("cannot reach https://me:hidden@example.org/api")


def test_a_tracker_gets_settings_and_numbers_and_the_end(recorder, tmp_path):
    made, said = opened(tmp_path)
    made.log(NUMBERS)
    made.log({"step": 4, "incident": "words"})
    made.close(False)
    (tracker,) = recorder.made
    assert (tracker.about.name, tracker.about.settings) == (tmp_path.name, {"model.hidden_size": 8})
    assert tracker.lines == [(3, {"loss": 2.5}, 1e9)]
    assert (tracker.failed, said) == (False, [])


def test_a_resumed_run_goes_on_with_the_same_id(recorder, tmp_path):
    for _ in range(2):
        opened(tmp_path)[0].close(True)
    assert [tracker.about.known_id for tracker in recorder.made] == [None, "new"]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"recorder": "new"}
    assert [tracker.failed for tracker in recorder.made] == [True, True]
    for damaged in ("{", '{"recorder": 3}'):
        (tmp_path / "trackers.json").write_text(damaged)
        opened(tmp_path)[0].close(False)
        assert recorder.made[-1].about.known_id is None


def test_a_tracker_that_does_not_begin_is_one_warning_without_secrets(recorder, tmp_path):
    recorder.begins = staticmethod(fail)
    made, said = opened(tmp_path)
    for _ in range(5):
        made.log(NUMBERS)
    made.close(False)
    assert said == [
        "warning: recorder: ConnectionError: cannot reach https://***@example.org/api. The run goes on, and "
        "metrics.jsonl has all its lines",
        "warning: recorder has not got 5 lines of metrics; metrics.jsonl has them all",
    ]


def test_after_a_line_that_failed_further_ones_are_sent(recorder, tmp_path):
    recorder.logs = staticmethod(lambda step: fail() if step == 3 else None)
    made, said = opened(tmp_path)
    for step in (3, 4):
        made.log(NUMBERS | {"step": step})
    made.close(False)
    assert [step for step, _, _ in recorder.made[0].lines] == [4]
    assert "recorder has not got 1 lines" in said[-1]


def test_a_tracker_that_hangs_holds_up_neither_the_run_nor_its_end(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "CLOSE_S", 0.2)
    monkeypatch.setattr(trackers, "WAITING", 3)
    go_on = threading.Event()
    recorder.logs = staticmethod(lambda step: go_on.wait())
    made, said = opened(tmp_path)
    for step in range(10):
        made.log(NUMBERS | {"step": step})
    made.close(False)
    go_on.set()
    assert said[0].startswith("warning: recorder: 3 lines wait for it, and further ones are left out. The run goes on")
    assert said[-1] == "warning: recorder did not end within 0 s; the last lines may be missing there"


def test_values_of_variables_that_hold_secrets_are_not_said(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    assert first_line_without_secrets(f"refused {KEY} of http://a:b@c/d\nmore") == "refused *** of http://***@c/d"
    monkeypatch.setenv("A_SECRET", KEY[:20])
    for secret, told in ((KEY, "***"), (f"http://a:{'b' * 30}@c", "http://***@c")):
        assert first_line_without_secrets("x" * 480 + secret) == "x" * 480 + told


def test_settings_have_names_with_points():
    table = flat_table(recipe_to_table(toy_recipe()))
    assert table["model.hidden_size"] == 32
    assert table["phase.0.steps"] == 20
    assert table["execution.trackers"] == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["comet"], r"execution\.trackers = \['comet'\]: expected one of tensorboard, wandb, mlflow"),
        ("wandb", r"expected a list of strings"),
        (["wandb", "wandb"], "expected each once"),
    ],
)
def test_other_trackers_are_refused(value, message):
    with pytest.raises(UserError, match=message):
        recipe_from_table({"execution": {"trackers": value}})


def test_a_tracker_that_is_not_installed_is_told_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"mlflow is not installed; .*pip install 'bert_horovod\[mlflow\]'"):
        require_trackers(("mlflow",))


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Both trackers without a network, and a key that nobody has."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "")  # as if it were not set
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(trackers, "CLOSE_S", 600)


@needs("mlflow")
@pytest.mark.full
def test_mlflow_has_one_run_with_settings_losses_and_scores_after_a_resume(offline, tmp_path, store):
    from mlflow import MlflowClient

    execution = {"trackers": ["mlflow"], "evaluate_steps": 2}
    for last in (3, 6):
        run = train(store, tmp_path / "my-bert", last, execution=execution)
    client = MlflowClient()
    experiment = client.get_experiment_by_name("bert_horovod")
    (tracked,) = client.search_runs([experiment.experiment_id])
    assert (tracked.info.run_name, tracked.info.status) == ("my-bert", "FINISHED")
    assert tracked.data.params["model.hidden_size"] == "32"
    assert tracked.data.params["data_sha256"] == store.hash
    losses = {entry.step: entry.value for entry in client.get_metric_history(tracked.info.run_id, "loss")}
    assert losses == {line["step"]: line["loss"] for line in metrics(run)}
    name = "held_out_mlm_loss"
    held_out = {entry.step: entry.value for entry in client.get_metric_history(tracked.info.run_id, name)}
    assert held_out == {line["step"]: line[name] for line in logged(run) if name in line}
    client.delete_run(tracked.info.run_id)  # a run that is gone there begins a new one
    train(store, run, 8, execution=execution)
    assert len(client.search_runs([experiment.experiment_id])) == 1


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of W&B's log: LevelDB's format of logs, behind a header of 7 bytes."""
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@needs("wandb")
@pytest.mark.full
def test_wandb_offline_has_settings_and_losses_under_one_id_and_no_key(offline, tmp_path, store):
    from wandb.proto.wandb_internal_pb2 import Record

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        for last in (3, 6):
            run = train(store, tmp_path / "my-bert", last, execution={"trackers": ["wandb"]})
    identity = json.loads((run / "trackers.json").read_text())["wandb"]
    files = sorted((run / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb"))
    losses, settings, names = {}, {}, set()
    for file in files:
        for content in wandb_records(file):
            record = Record()
            record.ParseFromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                names.add(record.run.display_name)
                settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if kind == "history":
                line = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                losses |= {line["step"]: line["loss"]} if "loss" in line else {}
    assert len(files) == 2
    assert names == {"my-bert"}
    assert losses == pytest.approx({line["step"]: line["loss"] for line in metrics(run)})
    assert settings["model.hidden_size"] == 32
    for file in (run / "wandb").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
    assert "wandb" not in shown.getvalue().lower()


@needs("wandb")
@needs("mlflow")
@pytest.mark.full
def test_a_run_whose_trackers_cannot_be_reached_ends_well_and_soon(tmp_path, store):
    with socket.create_server(("127.0.0.1", 0)) as server:  # never answers
        address = f"127.0.0.1:{server.getsockname()[1]}"
        sections = {"phase": {"steps": 3}, "execution": {"trackers": ["wandb", "mlflow"]}}
        words = pretrain_arguments(tmp_path, store, tmp_path / "run", **sections)
        servers = {"WANDB_BASE_URL": f"http://{address}", "MLFLOW_TRACKING_URI": f"http://me:hidden-word@{address}"}
        done = run_command("pretrain", *words, **servers, WANDB_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert "at step 3 of 3" in done.stdout
    for name in ("wandb", "mlflow"):
        assert f"warning: {name} did not end within 30 s" in done.stdout
    assert KEY not in done.stdout + done.stderr
    assert "hidden-word" not in done.stdout + done.stderr

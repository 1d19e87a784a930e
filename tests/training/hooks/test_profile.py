"""Traces of steps: written whole, whatever ends them."""

from pathlib import Path

import pytest

from bert_horovod.errors import UserError
from bert_horovod.training.hooks.base import Hook
from tests.toy_runs import train, train_recipe
from tests.toys import toy_recipe


def train_profiled(store, output_dir: Path, max_steps: int, steps: list[int], **numerics) -> None:
    train(store, output_dir, max_steps, execution={"profile_steps": steps}, numerics=numerics)


def traced(output_dir: Path) -> list[Path]:
    """The traces, each with the mark of a step in it."""
    traces = sorted((output_dir / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))
    assert all(b"train" in path.read_bytes() for path in traces)
    return traces


def test_a_range_of_steps_is_traced_and_the_place_is_said(store, tmp_path, capsys):
    train_profiled(store, tmp_path, 5, [2, 3])
    assert len(traced(tmp_path)) == 1
    output = capsys.readouterr().out
    assert output.count(f"trace of steps 2 to 3: tensorboard --logdir {tmp_path / 'tensorboard'}") == 1


def test_no_range_traces_nothing(store, tmp_path, capsys):
    train_profiled(store, tmp_path, 2, [])
    assert traced(tmp_path) == []
    assert "trace of" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_ends_inside_the_range_writes_the_trace_and_a_resumed_one_the_rest(store, tmp_path, capsys):
    train_profiled(store, tmp_path, 3, [2, 6])
    assert "trace of steps 2 to 3: " in capsys.readouterr().out
    train_profiled(store, tmp_path, 5, [2, 6])
    assert "trace of steps 4 to 5: " in capsys.readouterr().out
    train_profiled(store, tmp_path, 8, [2, 6])
    assert "trace of steps 6 to 6: " in capsys.readouterr().out
    assert len(traced(tmp_path)) == 3


@pytest.mark.full
def test_a_run_that_is_asked_to_stop_inside_the_range_writes_the_trace(store, tmp_path, capsys):
    class Stopping(Hook):
        def begin(self, step: int) -> None:
            (tmp_path / "stop").touch()

    recipe = toy_recipe(execution={"profile_steps": [1, 8]})
    train_recipe(recipe, store, tmp_path, max_steps=8, hooks=(Stopping,))
    assert "trace of steps 1 to 1: " in capsys.readouterr().out
    assert len(traced(tmp_path)) == 1


@pytest.mark.full
def test_a_run_that_fails_inside_the_range_writes_the_trace(store, tmp_path, capsys):
    with pytest.raises(UserError, match="2 updates in a row"):
        train_profiled(store, tmp_path, 8, [1, 8], precision="float16", initial_loss_scale=2.0**40, max_skipped_steps=2)
    assert "trace of steps 1 to 2: " in capsys.readouterr().out
    assert len(traced(tmp_path)) == 1

"""lab/gpu.py: pieces of work in processes of their own, within a budget, into one file."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bert_horovod.cluster.doctor.facts import horovod_with
from bert_horovod.corpus.store import verify
from bert_horovod.model.parameters import QUERY, layer_prefix
from lab import gpu, gpu_correctness, gpu_input, gpu_jobs, gpu_peer, gpu_ranks
from lab.gpu_correctness import BANDS, Trained, compare, out_of_bands
from lab.gpu_sections import gpu_kernels, step_precision, strict
from lab.gpu_work import work_recipe
from tests.lab.scripts import imported_by_help, run_here, run_script

WEIGHT = layer_prefix(0) + QUERY + ".weight"


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Sets the program that does a job's work."""
    path = tmp_path / "child.py"
    monkeypatch.setattr(gpu, "CHILD", path)
    return path.write_text


def trained(losses: list[float], gradient: float = 1.0, skipped: int = 0) -> Trained:
    return Trained(losses, {WEIGHT: np.float32([gradient, 0.5]), "tiny": np.float32([1e-9])}, skipped)


@pytest.mark.slow
def test_smoke_does_every_section_and_writes_them(tmp_path):
    output = tmp_path / "gpu.json"
    done = run_script("gpu", "--smoke", "--output", output)
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert report["version"] == gpu.VERSION
    assert "--smoke" in report["command"]
    assert list(report["sections"]) == list(gpu.SECTIONS)
    skipped = {section for section, entries in report["sections"].items() if entries[0]["status"] == "skipped"}
    assert skipped == {"peer"} | (set() if horovod_with() else {"ranks"})
    others = [entry for section, entries in report["sections"].items() for entry in entries if section not in skipped]
    assert {entry["status"] for entry in others} == {"done"}, done.stdout
    assert "--peer_python names one that has" in report["sections"]["peer"][0]["reason"]
    facts = {section: entries[0].get("found") for section, entries in report["sections"].items()}
    assert facts["device"]["gpu"] is None
    assert facts["correctness"]["dropout_bytes_that_differ"] == {"plain": 0, "compiled": 0}
    assert 0 < facts["correctness"]["xla_elementwise"]["gradient_difference"] < BANDS["float32"].gradient
    assert facts["step"]["rows_per_s"] > 0
    assert facts["step"]["memory_bytes"] > 2**20
    assert len(facts["kernels"]["kernels"]) == 10
    assert facts["input"]["store"] == "made in memory"
    assert 0 <= facts["input"]["input_wait_share"] < 1
    if "ranks" not in skipped:
        assert [line["ranks"] for line in facts["ranks"]["lines"]] == [1, 2]
        assert facts["ranks"]["lines"][1]["link"]["bytes_per_s"] > 0
    assert "step: toy, recompute layer" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("section", "key"), [("step", "rows_per_s"), ("input", "input_rows_per_s")])
def test_one_gpu_needs_neither_horovod_nor_tensorflow_text(section, key):
    [job, *_] = [job for job in gpu_jobs.smoke_jobs("float32", 0, "", None) if job.section == section]
    program = (
        "import runpy, sys\n"
        "sys.modules |= dict.fromkeys(('horovod', 'tensorflow_text'))\n"  # None: importing them fails
        f"sys.argv = ['', {json.dumps({'section': section, **job.work})!r}]\n"
        f"runpy.run_path({str(gpu.CHILD)!r}, run_name='__main__')"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[key] > 0


def test_ranks_are_left_out_with_the_reason(monkeypatch):
    work = {"ranks": 2}
    monkeypatch.setattr(gpu_ranks, "horovod_with", list)
    assert "one GPU" in gpu_ranks.scaling({"ranks": 1})["absent"]
    assert "no Horovod" in gpu_ranks.scaling(work)["absent"]
    monkeypatch.setattr(gpu_ranks, "horovod_with", lambda: ["Gloo"])
    monkeypatch.setattr(gpu_ranks, "gpus", lambda: {"names": ["A100", "A100"]})
    assert "without NCCL" in gpu_ranks.scaling(work)["absent"]


def test_the_made_store_is_sound_and_its_words_are_as_frequent_as_in_text(tmp_path):
    store = verify(gpu_input.make_store(tmp_path / "store", 1000).path)
    tokens = store.shards[0].tokens
    assert (tokens.min(), tokens.max()) == (len(gpu_input.SPECIAL_TOKENS), 999)
    counts = np.bincount(tokens)[len(gpu_input.SPECIAL_TOKENS) :]
    # The k-th word's share is log(1 + 1/k) / log(number of words + 1).
    assert counts[0] / len(tokens) == pytest.approx(np.log(2) / np.log(996), rel=0.02)


def test_rows_are_made_from_a_store(tmp_path):
    [job] = [job for job in gpu_jobs.smoke_jobs("float32", 0, "", None) if job.section == "input"]
    store = gpu_input.make_store(tmp_path / "store", 200)
    assert gpu_input.rows_alone(work_recipe(job.work), store, tmp_path, 0.01) > 0


def test_pytorch_is_asked_for_without_the_variables_of_tensorflow(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ntest -z "$PYTHONPATH$LD_LIBRARY_PATH" && echo \'["2.9", false]\'\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", "/of/tensorflow")
    assert gpu_peer.peer({"python": str(python), "device": "cuda"}) == {
        "absent": f"torch 2.9 of {python} has no CUDA; --peer_python names one that has"
    }
    assert "no torch and transformers" in gpu_peer.peer({"python": "/bin/false", "device": "cuda"})["absent"]


def test_losses_and_gradients_that_are_equal_to_rounding_are_within_the_bands():
    compared = compare(trained([7.0, 6.00001]), trained([7.0, 6.0]))
    assert compared["loss_difference"] == pytest.approx(1e-5 / 6, rel=1e-3)
    assert out_of_bands(compared, BANDS["float32"]) == []


@pytest.mark.parametrize("loss", [6.01, 5.99, float("nan"), float("inf")])
def test_a_wrong_loss_is_noticed(loss):
    problems = out_of_bands(compare(trained([7.0, loss]), trained([7.0, 6.0])), BANDS["float32"])
    assert len(problems) == 1
    assert problems[0].startswith("losses differ by")


@pytest.mark.parametrize("gradient", [1.001, -1.0, float("nan")])
def test_a_wrong_gradient_is_noticed_and_named(gradient):
    problems = out_of_bands(compare(trained([7.0], gradient), trained([7.0])), BANDS["float32"])
    assert len(problems) == 1
    assert WEIGHT in problems[0]


def test_a_gradient_that_is_nothing_but_rounding_does_not_count():
    mine = trained([7.0])
    mine.gradients["tiny"][:] = -1e-9
    assert out_of_bands(compare(mine, trained([7.0])), BANDS["float32"]) == []


def test_a_step_that_only_one_device_skips_is_noticed():
    problems = out_of_bands(compare(trained([7.0], skipped=1), trained([7.0])), BANDS["float16"])
    assert problems == ["1 steps were skipped, expected 0 as on the CPU"]


def test_dropout_bytes_are_random_and_those_of_another_row_are_others(monkeypatch):
    before = gpu_correctness.dropout_bytes("/CPU:0", False)
    assert [list(part.shape) for part in before] == list(gpu_correctness.DROPOUT_SHAPES)
    assert len(np.unique(before[0])) == 256
    assert gpu_correctness.bytes_that_differ("/CPU:0", False) == 0
    monkeypatch.setattr(gpu_correctness, "FIRST_ROW", 6)
    assert np.array_equal(gpu_correctness.dropout_bytes("/CPU:0", False)[2][0], before[2][1])


def test_what_a_job_found_is_its_entry(child):
    child("import json, sys; print('a library talks'); print(json.dumps({'work': json.loads(sys.argv[1])}))")
    entry = gpu.perform(gpu.Job("step", "toy", {"rows": 3}), 100)
    assert (entry["name"], entry["status"]) == ("toy", "done")
    assert entry["found"] == {"work": {"section": "step", "rows": 3}}
    assert 0 < entry["seconds"] < 60


def test_a_job_that_fails_is_an_entry_with_its_last_words(child):
    child(
        "import atexit, sys\n"
        "atexit.register(lambda: print('a library says goodbye', file=sys.stderr))\n"
        "def broken():\n    raise ValueError('no such kernel')\n"
        "broken()"
    )
    entry = gpu.perform(gpu.Job("step", "toy", {}), 100)
    assert entry["status"] == "failed"
    assert entry["reason"] == "ended with 1: ValueError: no such kernel"
    assert any("in broken" in line for line in entry["last_lines"])


def test_problems_are_a_failure_that_keeps_what_was_found(child):
    child('print(\'{"losses": [1.0], "problems": ["losses differ"]}\')')
    entry = gpu.perform(gpu.Job("correctness", "float32", {}), 100)
    assert (entry["status"], entry["reason"]) == ("failed", "losses differ")
    assert entry["found"] == {"losses": [1.0]}


def test_a_job_without_an_end_is_ended_at_its_limit(child):
    child("import time; time.sleep(300)")
    entry = gpu.perform(gpu.Job("step", "toy", {}, limit_s=0.5), 100)
    assert (entry["status"], entry["reason"]) == ("failed", "no answer within 0 s")
    assert entry["seconds"] < 60


def test_a_job_that_is_cut_short_by_the_budgets_end_is_no_failure(child):
    child("import time; time.sleep(300)")
    entry = gpu.perform(gpu.Job("step", "toy", {}, least_s=0.1), 0.5)
    assert entry["status"] == "skipped"
    assert "at the budget's end: give more --budget_s" in entry["reason"]


def test_a_job_that_the_budget_has_no_time_for_is_skipped(child):
    child("raise SystemExit('was run')")
    entry = gpu.perform(gpu.Job("step", "toy", {}, least_s=20), 12.4)
    assert entry["status"] == "skipped"
    assert entry["reason"] == "12 s of the budget were left, it needs 20 s: give more --budget_s"


def test_a_failure_leaves_the_others_alone_and_is_the_exit_code(child, tmp_path, capsys, monkeypatch):
    child(
        "import json, sys\n"
        "work = json.loads(sys.argv[1])\n"
        "if work['section'] == 'matrix': raise SystemExit('no products')\n"
        "device = {'gpu': 'H100', 'gpus': 1, 'tensorflow': '2', 'precision': 'bfloat16', 'horovod_with': []}\n"
        "rates = {'rows_per_s': 12.5, 'share': 0.4, 'memory_bytes': 2**30, 'estimated_memory_bytes': 2**31}\n"
        "print(json.dumps(device if work['section'] == 'device' else rates))"
    )
    output = tmp_path / "gpu.json"
    words = ["gpu.py", "--smoke", "--output", str(output), "--only", "matrix", "--only", "step"]
    monkeypatch.setattr("sys.argv", words)
    assert gpu.main() == 1
    sections = json.loads(output.read_text())["sections"]
    assert {section: [entry["status"] for entry in entries] for section, entries in sections.items()} == {
        "device": ["done"],
        "step": ["done", "done"],
        "matrix": ["failed"],
    }
    table = capsys.readouterr().out
    assert "12.5 rows/s (40.0% of the data sheet), 1.00 GiB (estimate 2.00)" in table
    assert "failed: ended with 1: no products" in table


def test_every_job_of_a_gpu_has_a_recipe_and_the_valuable_come_first():
    plan = gpu_jobs.jobs("float16", 2, "python3", None)
    assert {job.section for job in plan} == set(gpu.SECTIONS) - {"device"}
    assert [job.section for job in plan[:4]] == ["correctness"] * 3 + ["step"]
    names = [(job.section, job.name) for job in plan]
    assert len(set(names)) == len(names)
    steps = [job.work for job in plan if job.section not in ("correctness", "matrix")]
    assert {work_recipe(work).numerics.precision for work in steps} == {"float16"}
    assert {work_recipe(work).execution.recompute for work in steps} == {"none", "attention", "layer"}
    assert {work_recipe(work).execution.xla for work in steps} == {"layers", "elementwise", "off"}


def test_the_peer_is_timed_on_every_shape_that_is_a_goal():
    peers = [job.work for job in gpu_jobs.jobs("bfloat16", 1, "python3", None) if job.section == "peer"]
    assert sorted((work["size"], work["length"]) for work in peers) == sorted(shape[:2] for shape in gpu_jobs.SHAPES)


def test_kernels_are_those_of_the_gpus_streams(tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for plane_name, line_name in (
        ("/device:GPU:0", "Stream #13(Compute)"),
        ("/device:GPU:0", "XLA Ops"),
        ("/host:CPU", "Stream"),
    ):
        plane = space.planes.add(name=plane_name)
        plane.event_metadata[1].name = "gemm"
        plane.event_metadata[2].name = "fusion"
        line = plane.lines.add(name=line_name)
        for kind, milliseconds in ((1, 4), (2, 1), (1, 2)):
            line.events.add(metadata_id=kind, duration_ps=milliseconds * 10**9)
    path = tmp_path / "trace"
    path.write_bytes(space.SerializeToString())
    assert [tuple(entry) for entry in gpu_kernels(path)] == [("gemm", 3.0, 1.0), ("fusion", 0.5, 0.5)]  # of two steps


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float16"), ((6, 1), "float32"), (None, "bfloat16")],
)
def test_the_precision_is_one_that_the_gpu_accelerates(capability, precision):
    assert step_precision(capability) == precision


def test_numbers_that_are_not_finite_are_words_in_json():
    assert strict({"a": [1.0, float("nan")], "b": (float("inf"), None)}) == {"a": [1.0, "nan"], "b": ["inf", None]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "x.json", "--only", "speed"], "invalid choice: 'speed'"),
        (["--output", "x.json", "--budget_s", "0"], "--budget_s 0.0: expected more than 0"),
        (["--output", "/nowhere/x.json"], "its directory does not exist"),
        ([], "--output"),
    ],
)
def test_a_bad_value_is_refused_before_anything_runs(words, message):
    done = run_here("gpu", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_help_does_without_tensorflow():
    assert "tensorflow" not in imported_by_help("gpu")

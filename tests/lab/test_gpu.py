"""lab/gpu.py: pieces of work in processes of their own, within a budget, into one file; what counts as wrong."""

import json
from argparse import Namespace

import numpy as np
import pytest

from bert_horovod import __main__
from bert_horovod.cluster.doctor.facts import horovod_with
from bert_horovod.corpus.store import verify
from bert_horovod.model.parameters import QUERY, layer_prefix
from lab import curves, gpu, gpu_correctness, gpu_parts, gpu_plan
from lab.curve_recipes import CURVES, key_of
from lab.gpu_correctness import BANDS, Trained, compare, out_of_bands
from lab.gpu_parts import SPECIAL_TOKENS, make_store, step_precision, strict
from tests.lab.scripts import run_script

WEIGHT = layer_prefix(0) + QUERY + ".weight"
DEVICE = {
    "precision": "float16",
    "compute_capability": [9, 0],
    "gpu": "H100",
    "tensorflow": "2",
    "gpus": 2,
    "without_kernels": None,
    "horovod_with": ["NCCL"],
}


@pytest.fixture
def child(tmp_path):
    """Makes a job whose process runs this program."""

    def job(program: str, section: str = "input", **fields) -> gpu.Job:
        path = tmp_path / "child.py"
        path.write_text(program)
        return gpu.Job(section, "toy", [str(path)], **fields)

    return job


def trained(losses: list[float], gradient: float = 1.0, skipped: int = 0, tiny: float = 1e-9) -> Trained:
    return Trained(losses, {WEIGHT: np.float32([gradient, 0.5]), "tiny": np.float32([tiny])}, skipped)


@pytest.mark.slow
def test_smoke_does_every_section_and_writes_them(tmp_path):
    output = tmp_path / "gpu.json"
    done = run_script("gpu", "--smoke", "--budget_s", 1400, "--output", output)
    assert done.returncode == 0, done.stdout
    report = json.loads(output.read_text())
    sections = report["sections"]
    assert set(sections) == set(gpu.SECTIONS) - {"curves"}
    status = {section: {entry["status"] for entry in entries} for section, entries in sections.items()}
    lacking = {"kernels", "peer", "same_minutes", "tests"} | (set() if horovod_with() else {"ranks", "link"})
    assert {section for section, kinds in status.items() if kinds == {"skipped"}} - {"link"} == lacking - {"link"}
    assert "the kernels cannot be used here: this rank has no GPU" in sections["kernels"][0]["reason"]
    assert "--peer_python names one that has" in sections["peer"][0]["reason"]
    facts = {section: entries[-1].get("found") for section, entries in sections.items()}
    assert facts["correctness"]["dropout_bytes_that_differ"] == {"plain": 0, "compiled": 0}
    assert facts["correctness"]["triton"] == {"absent": "this rank has no GPU"}
    assert 0 < facts["correctness"]["elementwise"]["gradient_difference"] < BANDS["float32"].gradient
    assert [entry["name"] for entry in sections["resume"]] == ["K = 4", "K = 1"]
    for entry in sections["resume"]:
        assert entry["found"]["hashes"]["whole"] == entry["found"]["hashes"]["resumed"]
    assert facts["step"]["memory_bytes"] == pytest.approx(facts["step"]["estimated_memory_bytes"], rel=0.5)
    assert facts["step"]["estimated_memory_bytes"] > 2**20


def with_kernels(job: gpu.Job) -> bool:
    return job.name.removesuffix(", cuBLAS alone").endswith(", kernels")


def arguments(*words: str) -> Namespace:
    return gpu.parse(["--output", "gpu.json", *words])


def test_correctness_comes_first_and_the_peer_is_timed_on_every_shape(tmp_path):
    plan = gpu.jobs(DEVICE, arguments(), tmp_path)
    assert [job.section for job in plan[:3]] == ["kernels", "correctness", "step"]
    assert {job.section for job in plan} == set(gpu.SECTIONS) - {"device"}
    assert len({(job.section, job.name) for job in plan}) == len(plan)
    assert all(0 < job.expected_s < job.limit_s <= gpu.BUDGET_S for job in plan)
    assert sum(job.section == "peer" for job in plan) == len(gpu_plan.SHAPES)
    steps = [job for job in plan if job.section == "step"]
    assert {job.recipe.numerics.precision for job in steps} == {"float16"}
    assert {with_kernels(job) for job in steps} == {True, False}
    assert {job.recipe.execution.kernels for job in steps if not with_kernels(job)} == {"xla"}
    without = gpu.jobs(DEVICE | {"without_kernels": "no"}, arguments(), tmp_path)
    assert not any(map(with_kernels, without))


@pytest.mark.parametrize(
    ("changed", "words", "section", "reason"),
    [
        ({"gpus": 1}, (), "ranks", "it needs two GPUs, this host has 1"),
        ({"horovod_with": []}, (), "ranks", "Horovod is not installed"),
        ({"horovod_with": []}, (), "link", "Horovod is not installed"),
        ({}, (), "curves", "--data_dir names no token store of books"),
        ({}, ("--data_dir", "books"), "curves", "--small_data_dir names no token store of books"),
        ({}, (), "same_minutes", "--contest_dir names no texts of lab/same_minutes.py"),
        ({"gpu": None}, (), "tests", "it is for a GPU"),
    ],
)
def test_what_a_machine_lacks_is_skipped_with_the_reason_and_costs_no_time(tmp_path, changed, words, section, reason):
    plan = gpu.jobs(DEVICE | changed, arguments(*words), tmp_path)
    entries = [gpu.perform(job, 1000) for job in plan if job.section == section and job.lacking]
    assert any(entry["status"] == "skipped" and reason in entry["reason"] for entry in entries)


def test_the_list_has_every_piece_with_its_seconds(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu.py", "--list"])
    assert gpu.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "piece"
    assert any(line.startswith("step: large 128, 64 rows, kernels") for line in lines)
    assert any(line.startswith("link: 1 Gb/s, int8") for line in lines)


def test_the_made_store_is_sound_and_its_words_are_as_frequent_as_in_text(tmp_path):
    store = verify(make_store(tmp_path / "store", 1000).path)
    tokens = store.shards[0].tokens
    assert (tokens.min(), tokens.max()) == (len(SPECIAL_TOKENS), 999)
    counts = np.bincount(tokens)[len(SPECIAL_TOKENS) :]
    # The k-th word's share is log(1 + 1/k) / log(number of words + 1).
    assert counts[0] / len(tokens) == pytest.approx(np.log(2) / np.log(996), rel=0.02)


@pytest.mark.parametrize(
    ("there", "problem"),
    [
        (trained([7.0, 6.00001]), None),
        (trained([7.0, 6.01]), "losses differ by"),
        (trained([7.0, float("nan")]), "losses differ by"),
        (trained([7.0, float("inf")]), "losses differ by"),
        (trained([7.0, 6.0], 1.001), WEIGHT),
        (trained([7.0, 6.0], float("nan")), WEIGHT),
        (trained([7.0, 6.0], skipped=1), "1 steps were skipped, expected 0 as on the CPU"),
        (trained([7.0, 6.0], tiny=-1e-9), None),  # nothing but rounding
    ],
)
def test_what_is_equal_to_rounding_is_within_the_bands_and_the_rest_is_named(there, problem):
    problems = out_of_bands(compare(there, trained([7.0, 6.0])), BANDS["float32"])
    assert len(problems) == (problem is not None)
    assert all(problem in each for each in problems)


def test_dropout_bytes_of_another_row_are_others(monkeypatch):
    before = gpu_correctness.dropout_bytes("/CPU:0", False)
    assert gpu_correctness.bytes_that_differ("/CPU:0", False) == 0
    monkeypatch.setattr(gpu_correctness, "FIRST_ROW", 6)
    assert np.array_equal(gpu_correctness.dropout_bytes("/CPU:0", False)[2][0], before[2][1])


@pytest.mark.full
def test_a_run_that_resumes_otherwise_is_a_problem(tmp_path, monkeypatch):
    store = make_store(tmp_path / "store", 200)
    contents = iter([b"a", b"b"])  # whole, resumed

    def pretrain(directory, store, output_dir):
        newest = output_dir / "checkpoints" / "step-8"
        (newest / "training").mkdir(parents=True)
        (newest.parent / "step-4").mkdir(exist_ok=True)
        (newest / "model.safetensors").write_bytes(next(contents))
        (newest / "training" / "optimizer.safetensors").write_bytes(b"slots")
        (output_dir / "autotuning.json").write_text('{"choices": {"a": "", "b": ""}}')
        return 3.0

    monkeypatch.setattr(gpu_parts, "_pretrain", pretrain)
    found = gpu_parts.resume({"store": str(store.path), "settings": [], "steps": 8})
    assert found["problems"] == ["model.safetensors differs after a resume"]
    assert (found["choices"], found["seconds"]) == (2, [3.0, 3.0])


def test_a_curve_comes_with_its_seconds_and_with_the_mean_of_its_checkpoints(tmp_path, monkeypatch):
    name, store, ran = "25 % masked", make_store(tmp_path / "store", 200), []
    key = key_of(CURVES[name].recipe, store.hash, None, 1)
    held_out = [(2, 5.0), (4, 4.0)]
    lines = [{"step": 1, "step_s": 3.0}, {"step": 2, "step_s": 1.0}, {"step": 2, "held_out_mlm_loss": 5.0}]
    lines += [{"step": 4, "step_s": 0.5}, {"step": 4, "held_out_mlm_loss": 4.0}]

    def run(words):
        ran.append(words)
        (tmp_path / key).mkdir(exist_ok=True)
        (tmp_path / key / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return json.dumps({"held_out_mlm_loss": 3.9 if words[3].endswith("mean") else 4.0})

    monkeypatch.setattr(gpu_parts, "_run", run)
    monkeypatch.setattr(gpu_parts, "kept", lambda: {key: {"name": name, "held_out": held_out}})
    found = gpu_parts.curve({"name": name, "store": str(store.path), "work": str(tmp_path)})
    assert found["training_s"] == [[2, 4.0], [4, 5.0]]
    said = gpu.result("curves", {"status": "done", "found": found}, DEVICE)
    assert said == "loss 4.0000 at step 4 after 5 s; last 4.0000; mean 3.9000"
    assert {"--gpu", "--keep", name} < set(ran[0])
    assert curves.parse(ran[0][1:]).curve == [name]
    assert [words[2] for words in ran[1:]] == ["average", "evaluate", "evaluate"]
    for words in ran[1:]:
        __main__.parse(words[1:])


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "section", "status", "reason", "found"),
    [
        ("print('a library talks'); print('{\"rows\": 3}')", "input", "done", None, {"rows": 3}),
        ("import os; print('{\"a\": \"%s\"}' % os.environ['XLA_FLAGS'])", "input", "done", None, {"a": "--one --two"}),
        ("raise ValueError('no such kernel')", "input", "failed", "ended with 1: ValueError: no such kernel", None),
        ('print(\'{"a": 1, "problems": ["losses differ"]}\')', "input", "failed", "losses differ", {"a": 1}),
        ("raise SystemExit('error: out of memory: OOM')", "step", "done", None, {"out_of_memory": True}),
    ],
)
def test_a_job_is_an_entry_with_its_last_line_or_words(child, monkeypatch, program, section, status, reason, found):
    monkeypatch.setenv("XLA_FLAGS", "--one")
    entry = gpu.perform(child(program, section, xla_flags="--two"), 100)
    assert (entry["name"], entry["status"], entry.get("reason"), entry.get("found")) == ("toy", status, reason, found)


@pytest.mark.full
@pytest.mark.parametrize(
    ("limits", "left_s", "status", "reason"),
    [
        ({"limit_s": 0.5}, 100, "failed", "no answer within 0 s"),
        ({"expected_s": 0.1}, 0.5, "skipped", "at the budget's end: the same command goes on"),
        ({"expected_s": 20}, 12.4, "skipped", "12 s of the budget were left, it takes 20 s: the same command goes on"),
    ],
)
def test_a_job_ends_at_its_limit_and_at_the_budgets_end(child, limits, left_s, status, reason):
    entry = gpu.perform(child("import time; time.sleep(300)", **limits), left_s)
    assert entry["status"] == status
    assert reason in entry["reason"]


@pytest.mark.full
def test_a_failure_leaves_the_others_alone_and_what_was_found_is_kept(child, tmp_path, capsys, monkeypatch):
    device = DEVICE | {"data_sheet_flops_per_s": {"float16": 1e12}}
    facts = {"rows_per_s": 12.5, "flops_per_s": 4e11, "memory_bytes": 2**30, "estimated_memory_bytes": 2**31}
    plan = [child("raise SystemExit('no rows')"), gpu.Job("step", "toy", ["-c", f"print({json.dumps(facts)!r})"])]
    monkeypatch.setattr(gpu, "part", lambda name, work: ["-c", f"print({json.dumps(device)!r})"])
    monkeypatch.setattr(gpu, "jobs", lambda *_: plan)
    output = tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--output", str(output)])
    assert gpu.main() == 1
    sections = json.loads(output.read_text())["sections"]
    status = {section: [entry["status"] for entry in entries] for section, entries in sections.items()}
    assert status == {"device": ["done"], "input": ["failed"], "step": ["done"]}
    table = capsys.readouterr().out
    assert "12.5 rows/s (40.0% of the data sheet), 1.00 GiB (estimate 2.00)" in table
    assert "failed: ended with 1: no rows" in table

    plan[0] = plan[0]._replace(command=["-c", "print('{}')"])  # is done again, and what is done is not
    plan[1] = plan[1]._replace(command=["-c", "raise SystemExit('once more')"])
    monkeypatch.setattr(gpu, "result", lambda *_: "")
    assert gpu.main() == 0
    assert json.loads(output.read_text())["sections"]["step"] == sections["step"]
    device["gpu"] = "H200"
    assert gpu.main() == 2
    assert "has figures with gpu H100, this is H200; give another file" in capsys.readouterr().err
    output.write_text("[]")
    assert gpu.main() == 1
    assert "holds no figures of lab/gpu.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float16"), ((6, 1), "float32"), (None, "bfloat16")],
)
def test_the_precision_is_one_that_the_gpu_accelerates(capability, precision):
    assert step_precision(capability) == precision


def test_numbers_that_are_not_finite_are_words_in_json():
    assert strict({"a": [1.0, float("nan")], "b": (float("inf"), None)}) == {"a": [1.0, "nan"], "b": ["inf", None]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {"errors": [{"errors": {"output": [0.02, 0.01]}}], "broken": {"verdict": "output: error 0.4"}},
            "largest error 0.0200; a broken kernel: output: error 0.4",
        ),
        ({"broken": None}, "errors were not looked at; a broken kernel: not noticed, or not tried"),
    ],
)
def test_parts_of_the_kernels_that_failed_do_not_end_the_others(found, said):
    assert gpu.result("kernels", {"status": "done", "found": found}, DEVICE) == said

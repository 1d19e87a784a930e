"""lab/gpu.py: pieces of work in processes of their own, within a budget, into one file; what counts as wrong."""

import json
from argparse import Namespace

import numpy as np
import pytest

from bert_horovod.cluster.doctor.facts import horovod_with
from bert_horovod.corpus.store import verify
from bert_horovod.model.parameters import QUERY, layer_prefix
from bert_horovod.recipe_files.loading import load_recipe
from lab import gpu, gpu_plan
from lab.gpu_correctness import BANDS, Trained, compare, out_of_bands
from lab.made_store import SPECIAL_TOKENS, make_store
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
    assert load_recipe(tmp_path / "input.toml").numerics.precision == "float16"
    without = gpu.jobs(DEVICE | {"without_kernels": "no"}, arguments(), tmp_path)
    assert not any(map(with_kernels, without))


def test_the_made_store_is_sound_and_its_words_are_as_frequent_as_in_text(tmp_path):
    store = verify(make_store(tmp_path / "store", 1000, documents=50).path)
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


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "section", "status", "reason", "found"),
    [
        ("print('a library talks'); print('{\"rows\": 3}')", "input", "done", None, {"rows": 3}),
        ("import os; print('{\"a\": \"%s\"}' % os.environ['XLA_FLAGS'])", "input", "done", None, {"a": "--one --two"}),
        ("print('[0]<stdout>:{\"a\": 1}'); print('[1]<stdout>:bye')", "link", "done", None, {"a": 1}),
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
def test_a_failure_leaves_the_others_alone_and_what_was_found_is_kept(child, tmp_path, capsys, monkeypatch):
    device = dict(DEVICE)
    plan = [child("raise SystemExit('no rows')"), gpu.Job("step", "toy", ["-c", "print('{\"rows_per_s\": 12.5}')"])]
    monkeypatch.setattr(gpu, "part", lambda name, work: ["-c", f"print({json.dumps(device)!r})"])
    monkeypatch.setattr(gpu, "jobs", lambda *_: plan)
    output = tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--output", str(output)])
    assert gpu.main() == 1
    sections = json.loads(output.read_text())["sections"]
    status = {section: [entry["status"] for entry in entries] for section, entries in sections.items()}
    assert status == {"device": ["done"], "input": ["failed"], "step": ["done"]}

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

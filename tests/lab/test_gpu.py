"""lab/gpu.py: pieces of work in processes of their own, within a budget, into one file; what counts as wrong."""

import json
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bert_horovod.cluster.doctor.facts import horovod_with
from bert_horovod.commands.shared.parser import parse, refuse_unread
from bert_horovod.commands.shared.step_flags import step_recipe
from bert_horovod.corpus.store import verify
from bert_horovod.costs.derived import derive
from bert_horovod.model.parameters import QUERY, layer_prefix
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runtime.devices import CHOICES_FLAGS
from lab import compute, gpu, gpu_parts, gpu_plan, same_minutes
from lab.gpu_correctness import BANDS, Trained, compare, out_of_bands
from lab.made_store import SPECIAL_TOKENS, make_store
from tests.horovod_runs import PATIENCE_S, PROJECT
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
    assert {(job.recipe.execution.kernels, with_kernels(job)) for job in steps} == {("triton", True), ("xla", False)}
    assert load_recipe(tmp_path / "input.toml").numerics.precision == "float16"
    without = gpu.jobs(DEVICE | {"without_kernels": "no"}, arguments(), tmp_path)
    assert not any(map(with_kernels, without))


def test_the_page_says_how_long_all_pieces_and_a_budget_take(tmp_path):
    page = (PROJECT / "docs" / "gpu.md").read_text(encoding="utf-8")
    seconds = sum(job.expected_s for job in gpu.jobs(gpu_plan.ASSUMED, arguments(), tmp_path))
    assert f"# the pieces, with seconds: {seconds / 60:.0f} minutes\n" in page
    assert "# eight minutes of it;" in page
    assert gpu.BUDGET_S == 8 * 60


def own_commands(command: list[str]) -> list[list[str]]:
    """The commands of bert_horovod in a job's: also the one that `launch` starts."""
    if Path(command[0]).stem == "operations":
        command = [*gpu_plan.BENCH, "step", *command[1:]]
    if "bert_horovod" not in command:
        return []
    words = command[command.index("bert_horovod") + 1 :]
    return [words, words[words.index("--") + 1 :]] if "--" in words else [words]


@pytest.mark.parametrize("words", [(), ("--smoke",)])
def test_every_command_is_one_that_its_program_takes(tmp_path, words):
    """Flags are parsed and settings make a recipe."""
    given = ("--data_dir", "books", "--small_data_dir", "few", "--contest_dir", "texts")
    for job in gpu.jobs(DEVICE, arguments(*given, *words), tmp_path):
        script, *flags = job.command
        if commands := own_commands(job.command):
            parsed = [parse(["bert-horovod", *each]) for each in commands]
            for each in parsed:
                refuse_unread(each)
            recipe = step_recipe(each) if "model" in each else load_recipe(each.recipe, each.overrides)
            derive(recipe, recipe.phase[0], getattr(parsed[0], "ranks", None) or 1)
        elif script.endswith("gpu_parts.py"):
            assert flags[0] in gpu_parts.PARTS
        elif not script.endswith("gpu_kernels.py"):
            {"compute.py": compute, "same_minutes.py": same_minutes}[Path(script).name].parse(flags)
        assert script == "-m" or Path(script).is_file()


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
        (
            "raise SystemExit('bert-horovod: error: the Triton kernels failed\\nW0000 a library talks')",
            *("step", "failed", "ended with 1: bert-horovod: error: the Triton kernels failed", None),
        ),
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

    plan[1] = plan[1]._replace(command=["-c", "raise SystemExit('once more')"])  # what is done is not done again
    plan[0] = plan[0]._replace(expected_s=1e6)
    assert gpu.main() == 1  # what has failed stays until it is tried again
    assert json.loads(output.read_text())["sections"] == sections | {"device": mock.ANY}
    capsys.readouterr()
    plan[0] = plan[0]._replace(command=["-c", "print('{}')"], expected_s=1.0)
    plan.append(gpu.Job("tune", "toy", ["-c", "print('{}')"]))
    assert gpu.main() == 0
    assert json.loads(output.read_text())["sections"]["step"] == sections["step"]
    said = capsys.readouterr().err
    assert said.index("tune: toy") < said.index("input: toy")  # what has failed may fail again: the rest comes first
    device["gpu"] = "H200"
    assert gpu.main() == 2
    assert "has figures with gpu H100, this is H200; give another file" in capsys.readouterr().err
    output.write_text("[]")
    assert gpu.main() == 1
    assert "holds no figures of lab/gpu.py" in capsys.readouterr().err


@pytest.mark.full
def test_jobs_with_the_same_flags_share_xlas_choices(child, tmp_path):
    program = "import json, os; print(json.dumps({'flags': os.environ['XLA_FLAGS'].split()}))"
    directories = []
    for flags in ("", "", gpu_plan.CUBLAS_ALONE):
        job = gpu.with_choices(child(program, "step", xla_flags=flags), tmp_path / "gpu.json")
        given = gpu.perform(job, 100)["found"]["flags"]
        assert [each for each in given if each == flags] == [flags] * bool(flags)
        directories += [{each.partition("=")[2] for each in given[-len(CHOICES_FLAGS) :]}]
    assert directories[0] == directories[1] != directories[2]
    assert all(Path(directory).is_dir() for each in directories for directory in each)


GRANDCHILD = """
import subprocess, sys
sleeper = subprocess.Popen(["sleep", "1000"])
open({path!r}, "w").write(str(sleeper.pid))
"""


def is_gone(path: Path) -> bool:
    """Whether the process whose id is in the file has ended, soon."""
    end = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    for _ in range(200):
        with suppress(FileNotFoundError):
            if Path(f"/proc/{path.read_text()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


@pytest.mark.full
def test_what_a_failed_job_has_started_ends_with_it(child, tmp_path):
    path = tmp_path / "pid"
    program = GRANDCHILD.format(path=str(path)) + "raise SystemExit('no rows')"
    assert gpu.perform(child(program), 100)["status"] == "failed"
    assert is_gone(path)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_job_at_work_ends_with_the_program(tmp_path, number):
    path = tmp_path / "pid"
    program = GRANDCHILD.format(path=str(path)) + "sleeper.wait()"
    patched = "import runpy, signal, sys, lab.gpu_plan as plan; "
    patched += f"signal.signal({int(number)}, signal.SIG_DFL); "  # under nohup it would be ignored, and stay so
    patched += f"plan.part = lambda *_: ['-c', {program!r}]; "
    patched += f"sys.argv = ['gpu.py', '--output', {str(tmp_path / 'gpu.json')!r}]; "
    patched += "runpy.run_path('lab/gpu.py', run_name='__main__')"
    with subprocess.Popen([sys.executable, "-c", patched], cwd=PROJECT, stderr=subprocess.DEVNULL) as process:
        try:
            while not path.exists():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 128 + number
        finally:
            process.kill()
    assert is_gone(path)


@pytest.mark.parametrize(
    ("section", "found", "said"),
    [
        ("tune", {"settings": {"micro_batch": 64}, "search_s": 60.25}, "settings micro_batch 64; search_s 60.25"),
        (
            "peer",
            {"lines": [{"step_s": 0.5, "hugging_face": 1.25}, {"step_s": 0.625}]},
            "step_s 0.5; hugging_face 1.25 | step_s 0.625",
        ),
        (
            "same_minutes",
            {"lines": [{"key": "x" * 400, "step_s": 2.0}, {"losses": [{"loss": 3.0}]}]},
            "step_s 2 | losses loss 3",
        ),
        (
            "ranks",
            {"lines": [{"layout": "1M2G", "price": 1.0, "efficiency": 0.96875}]},
            "layout 1M2G; efficiency 0.9688",
        ),
    ],
)
def test_a_piece_shows_its_main_figures_of_each_of_its_lines_too(section, found, said):
    assert gpu.result(section, {"status": "done", "found": found}) == said

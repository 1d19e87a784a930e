"""`bench scaling`, as it is typed, and those who read its file."""

import json
from pathlib import Path

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from tests.horovod_runs import PATIENCE_S, PROJECT
from tests.reporting.toy_record import write_run
from tests.toys import TOY_STEP

CLUSTER = PROJECT / "run" / "clusters" / "t4-10gbit.toml"


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(recipe_to_toml(recipe_from_table(TOY_STEP)), encoding="utf-8")
    return path


def bench(*words: object) -> int:
    """Run `bench scaling`; its exit code."""
    return dispatch(parse(["bert-horovod", "bench", "scaling", *map(str, words)]))


@pytest.mark.full
def test_a_rank_is_measured_and_plan_and_report_read_it(recipe, tmp_path, capsys):
    output = tmp_path / "scaling.json"
    words = (
        "--recipe",
        recipe,
        "-H",
        "localhost:1",
        "--micro_batches",
        1,
        "--steps",
        2,
        "--cluster",
        CLUSTER,
        "--output",
        output,
    )
    assert bench(*words) == 0
    told = capsys.readouterr()
    heading, head, line = told.out.splitlines()
    assert "1 micro-batch(es) a rank; rounds: 1" in heading
    assert head.split()[:2] == ["layout", "ranks"]
    assert head.endswith("USD a billion tokens")
    assert line.split()[0] == "1M1G"
    assert "1/1 1M1G: " in told.err
    measurements = json.loads(output.read_text(encoding="utf-8"))
    assert measurements["lines"][0]["rows_per_s"] * measurements["lines"][0]["step_s"] == pytest.approx(4)
    words = ["--recipe", str(recipe), "--compute", str(output), "--link", "10Gb/s", "--json"]
    assert not dispatch(parse(["bert-horovod", "plan", *words]))
    device = json.loads(capsys.readouterr().out)["device"]
    assert device["name"] == f"as in {output}"
    compute = measurements["compute"]
    rate = compute["flops_per_s"] * compute["step_s"] / compute["forward_backward_s"]
    assert device["flops_per_s"] == pytest.approx(rate)
    run, page = write_run(tmp_path / "run"), tmp_path / "page.html"
    assert not dispatch(parse(["bert-horovod", "report", str(run), "--scaling", str(output), "--output", str(page)]))
    assert "Weak scaling: 2 x 32" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_hosts_are_measured_one_after_another(recipe, tmp_path, start_cluster, capfd):
    box = start_cluster(2, "100mbit")
    output = tmp_path / "scaling.json"
    words = ["python", "-m", "bert_horovod", "bench", "scaling", "--recipe", recipe, "-H", "node1:1,node2:1"]
    done = box.run(
        "node1", [*map(str, words), "--steps", "3", "--output", str(output)], timeout=PATIENCE_S, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    measurements = json.loads(output.read_text(encoding="utf-8"))
    assert [line["layout"] for line in measurements["lines"]] == ["1M1G", "2M1G"]
    assert [line["exposed_s"] == 0 for line in measurements["lines"]] == [True, False]  # one rank sends nothing
    assert 8 * measurements["link"]["bytes_per_s"] < 2e8

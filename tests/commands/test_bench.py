"""`bert-horovod bench step` and `bench scaling`, as they are typed, and those who read the latter's file."""

import json
from pathlib import Path

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.commands.bench import scaling
from bert_horovod.commands.shared.step_flags import step_recipe
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml, shipped_recipe
from tests.horovod_runs import PATIENCE_S, PROJECT
from tests.reporting.toy_record import write_run
from tests.toys import TOY_STEP, toy_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "toy.toml"
    path.write_text(recipe_to_toml(recipe_from_table(TOY_STEP)), encoding="utf-8")
    return path


@pytest.fixture
def bench(recipe, capsys):
    """A function that runs the command on the toy recipe and returns what it prints."""

    def run(*words: str) -> str:
        assert dispatch(parse(["bert-horovod", "bench", "step", "--recipe", str(recipe), *words])) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_numbers_of_a_step_agree_with_each_other(bench, precision):
    words = ("--set", f"numerics.precision={precision}", "--set", "phase.0.global_batch=4", "--steps", "3", "--json")
    timing = json.loads(bench(*words))
    assert timing["rows_per_s"] * timing["step_s"] == pytest.approx(4)
    assert timing["tokens_per_s"] == pytest.approx(32 * timing["rows_per_s"])
    assert timing["share"] * timing["step_s"] == pytest.approx(timing["products_s"])
    assert timing["forward_backward_share"] * timing["forward_backward_s"] == pytest.approx(timing["products_s"])
    assert 0 < timing["step_s"] < timing["first_step_s"]
    assert timing["memory_bytes"] > 100 << 20
    assert precision in timing["configuration"]


@pytest.mark.full
def test_the_trace_is_told_below_the_table(bench, tmp_path):
    settings = ("execution.micro_batch=2", "phase.0.sequence_length=16", "phase.0.global_batch=2")
    words = [word for each in settings for word in ("--set", each)]
    heading, row, *_, told = bench(*words, "--steps", "2", "--trace", str(tmp_path / "trace")).splitlines()
    columns = ("configuration", "step s", "rows/s", "tokens/s", "GFLOP/s", "products/step", "peak GiB", "first step s")
    assert all(column in heading for column in columns)
    assert "2 x 32, 2 rows x 16, float32, adamw, XLA" in row
    (written,) = (tmp_path / "trace").rglob("*.xplane.pb")
    assert told == f"trace: {written}"


def test_a_size_is_measured_one_micro_batch_a_step_on_any_number_of_ranks():
    for words, rows in (([], 16), (["--set", "execution.micro_batch=4"], 4)):
        arguments = parse(["bert-horovod", "bench", "step", "--model", "base", *words])
        assert step_recipe(arguments, ranks=3).phase[0].global_batch == 3 * rows
    arguments = parse(["bert-horovod", "bench", "step", "--set", "phase.0.global_batch=64"])
    assert step_recipe(arguments, ranks=3).phase[0].global_batch == 64


@pytest.mark.full
def test_steps_on_rows_of_a_store_are_timed(tmp_path, store, capsys):
    recipe, tuned = tmp_path / "toy.toml", tmp_path / "tuned.toml"
    recipe.write_text(recipe_to_toml(toy_recipe(execution={"micro_batch": 32})), encoding="utf-8")
    tuned.write_text("[execution]\nmicro_batch = 8\n")
    words = ["--recipe", str(recipe), "--data_dir", str(store.path), "--tuned", str(tuned), "--steps", "2", "--json"]
    assert dispatch(parse(["bert-horovod", "bench", "step", *words])) == 0
    timing = json.loads(capsys.readouterr().out)
    assert timing["rows_per_s"] * timing["step_s"] == pytest.approx(32)
    assert timing["micro_batches"] == 4  # of which two are timed
    assert "products_s" not in timing
    assert timing["configuration"].startswith("2 x 32, 8 rows x 32")


CLUSTER = PROJECT / "run" / "clusters" / "t4-10gbit.toml"


@pytest.mark.full
def test_a_rank_is_measured_and_plan_and_report_read_it(recipe, tmp_path, capsys):
    output = tmp_path / "scaling.json"
    flags = f"--recipe {recipe} -H localhost:1 --micro_batches 1 --steps 2 --cluster {CLUSTER} --output {output}"
    assert dispatch(parse(["bert-horovod", "bench", "scaling", *flags.split()])) == 0
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


@pytest.mark.parametrize("named", ["quickstart", "quickstart.toml"])
def test_the_processes_of_scaling_get_the_file_of_a_recipe_that_comes_with_the_program(named):
    words = scaling._step_words(parse(["bert-horovod", "bench", "scaling", "--recipe", named]))
    assert words == ["--recipe", str(shipped_recipe("quickstart")), "--steps", "10"]


@pytest.mark.slow
def test_hosts_are_measured_one_after_another(recipe, tmp_path, start_cluster, capfd):
    box = start_cluster(2, "100mbit")
    output = tmp_path / "scaling.json"
    flags = f"--recipe {recipe} -H node1:1,node2:1 --steps 3 --output {output}"
    words = ["python", "-m", "bert_horovod", "bench", "scaling", *flags.split()]
    done = box.run("node1", words, timeout=PATIENCE_S, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    measurements = json.loads(output.read_text(encoding="utf-8"))
    assert [line["layout"] for line in measurements["lines"]] == ["1M1G", "2M1G"]
    assert [line["exposed_s"] == 0 for line in measurements["lines"]] == [True, False]  # one rank sends nothing
    assert 8 * measurements["link"]["bytes_per_s"] < 2e8

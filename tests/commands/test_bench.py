"""`bert-horovod bench compute`, as it is typed."""

import json
from pathlib import Path

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from tests.toys import TOY_STEP


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "toy.toml"
    path.write_text(recipe_to_toml(recipe_from_table(TOY_STEP)), encoding="utf-8")
    return path


@pytest.fixture
def bench(recipe, capsys):
    """A function that runs the command on the toy recipe and returns what it prints."""

    def run(*words: str) -> str:
        assert dispatch(parse(["bert-horovod", "bench", "compute", "--recipe", str(recipe), *words])) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_numbers_of_a_step_agree_with_each_other(bench, precision):
    timing = json.loads(bench("--set", f"numerics.precision={precision}", "--steps", "3", "--json"))
    assert timing["rows_per_s"] * timing["step_s"] == pytest.approx(4)
    assert timing["tokens_per_s"] == pytest.approx(32 * timing["rows_per_s"])
    assert timing["share"] * timing["step_s"] == pytest.approx(timing["products_s"])
    assert timing["forward_backward_share"] * timing["forward_backward_s"] == pytest.approx(timing["products_s"])
    assert 0 < timing["step_s"] < timing["first_step_s"]
    assert timing["memory_bytes"] > 100 << 20
    assert precision in timing["configuration"]


@pytest.mark.full
def test_the_profile_is_a_trace_beside_the_table(bench, tmp_path):
    words = ("--rows", "2", "--length", "16", "--steps", "2", "--profile", str(tmp_path / "trace"))
    heading, row, *_, told = bench(*words).splitlines()
    for column in (
        "configuration",
        "step s",
        "rows/s",
        "tokens/s",
        "GFLOP/s",
        "products/step",
        "peak GiB",
        "first step s",
    ):
        assert column in heading
    assert "2 x 32, 2 rows x 16, float32, adamw, XLA" in row
    (written,) = (tmp_path / "trace").rglob("*.xplane.pb")
    assert told == f"trace: {written}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "--steps 0: expected at least 1"),
        (["--rows", "-1"], "--rows -1: expected at least 1"),
        (["--length", "7"], "--length 7: expected at least 8"),
        (["--length", "1000"], "phase.0.sequence_length = 1000: expected at most"),
        (["--set", "numerics.precision=int8"], "numerics.precision = 'int8': expected one of"),
        (["--recipe", "absent.toml"], "cannot read the recipe absent.toml"),
        (["--profile", __file__], "that is a file"),
    ],
)
def test_a_bad_value_is_one_message(words, message, capsys):
    assert dispatch(parse(["bert-horovod", "bench", "compute", *words])) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--model", "huge"], ["--model", "mini", "--recipe", "r"], ["--steps", "few"]])
def test_flags_that_cannot_be_read_are_refused(words, capsys):
    with pytest.raises(SystemExit) as end:
        parse(["bert-horovod", "bench", "compute", *words])
    assert end.value.code == 2
    assert words[-2] in capsys.readouterr().err

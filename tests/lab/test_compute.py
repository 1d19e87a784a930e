"""lab/compute.py: contestants in turn."""

import sys

import pytest

from bert_horovod.errors import RunError
from tests.lab.scripts import DIRECTORY, load_script, run_here, run_script

ANSWERING = "import sys\nprint('a library talks')\nfor line in sys.stdin: print([2.0] * int(line), flush=True)"
TOY = {
    "model.vocab_size": 100,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "phase.0.sequence_length": 16,
    "execution.micro_batch": 4,
}


@pytest.fixture(scope="module")
def compute():
    return load_script("compute")


@pytest.mark.slow
def test_our_configurations_stand_in_one_table():
    settings = [word for key, value in TOY.items() for word in ("--set", f"{key}={value}")]
    words = ("--peer", "none", "--xla", "off", "--precision", "float32")
    done = run_script("compute", *words, "--rounds", "2", "--steps", "2", *settings)
    assert done.returncode == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    for column in ("step s", "rows/s", "tokens/s", "GFLOP/s", "products/step", "first step s"):
        assert column in heading
    assert [line.split("  ")[0] for line in lines] == ["2 x 32, 4 rows x 16, float32, adamw, XLA off"]
    assert "off: round 2/2" in done.stderr


def test_a_contestant_is_asked_over_its_pipe(compute):
    contestant = compute.Contestant("talker", [sys.executable, "-c", ANSWERING])
    assert contestant.ask(2) == [2.0, 2.0]
    assert contestant.ask(1) == [2.0]
    contestant.close()


def test_a_contestant_that_dies_is_named_with_its_last_words(compute):
    contestant = compute.Contestant("mortal", [sys.executable, "-c", "raise SystemExit('no such processor')"])
    with pytest.raises(RunError, match=r"mortal ended with 1: no such processor"):
        contestant.ask(1)
    contestant.close()


def test_a_ratio_is_of_rows_a_second_in_the_same_round(compute):
    ours, theirs = (compute.Contestant(name, [sys.executable, "-c", ""]) for name in "ab")
    ours.rounds, theirs.rounds = [1.0, 10.0, 1.0], [2.0, 20.0, 4.0]
    for contestant in (ours, theirs):
        contestant.close()
    recipes = next(compute.groups(compute.parse(["--xla", "off"])))
    lines = compute.results(recipes, {"off": ours, "model_garden": theirs})
    assert lines[0]["model_garden"] == 2.0
    assert lines[0]["rows_per_s"] * lines[0]["step_s"] == lines[1]["rows_per_s"] * lines[1]["step_s"] == 16
    assert lines[1]["configuration"] == "Model Garden: 12 x 768, 16 rows x 128, bfloat16, adamw"


def test_an_environment_that_is_complete_is_used_as_it_is(compute, tmp_path):
    (tmp_path / "model_garden" / "bin").mkdir(parents=True)
    python = tmp_path / "model_garden" / "bin" / "python"
    python.touch()
    requirements = (DIRECTORY / "peers" / "model_garden.txt").read_bytes()
    (tmp_path / "model_garden.complete").write_text(compute.hashlib.sha256(requirements).hexdigest() + "\n")
    assert compute.environment("model_garden", tmp_path) == python


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peer", "nobody"], "invalid choice: 'nobody'"),
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (["--steps", "-2"], "--steps -2: expected at least 1"),
        (["--set", "model.hidden_size=wide"], "model.hidden_size = 'wide': expected a whole number"),
    ],
)
def test_a_bad_value_is_refused_before_anything_runs(words, message):
    done = run_here("compute", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr

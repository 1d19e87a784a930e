"""What is compiled, and when: all of it in a phase's first step, and one program for all equal layers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from bert_horovod.runtime.quiet import import_tensorflow
import_tensorflow()
from bert_horovod.recipe.reading import recipe_from_table
from bert_horovod.measuring.synthetic import build_step
from tests.toys import toy_recipe_table

xla, layers, dump = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
table = toy_recipe_table(execution={"micro_batch": 4, "xla": xla})
table["model"]["num_hidden_layers"] = layers
recipe = recipe_from_table(table)
made = build_step(recipe, recipe.phase[0], 2)
counts = []
for _ in range(3):
    made.run()
    counts.append([made.step.traces, len(list(dump.glob("*.before_optimizations.txt")))])
print(json.dumps(counts))
"""


def counts(directory: Path, xla: str, layers: int) -> list[list[int]]:
    """Graphs traced and programs compiled until the end of each of three steps."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, xla, str(layers), str(directory)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=PROJECT,
        env=os.environ
        | {"PYTHONPATH": str(PROJECT), "CUDA_VISIBLE_DEVICES": "", "XLA_FLAGS": f"--xla_dump_to={directory}"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[tuple[str, int], list[list[int]]]:
    """By what XLA compiles and the number of layers."""
    asked = [("off", 2), ("elementwise", 2), ("layers", 3), ("layers", 6)]
    return {(xla, layers): counts(tmp_path_factory.mktemp("dump"), xla, layers) for xla, layers in asked}


@pytest.mark.parametrize(("xla", "layers"), [("off", 2), ("elementwise", 2), ("layers", 3)])
def test_nothing_is_traced_or_compiled_after_the_first_step(runs, xla, layers):
    first, *later = runs[xla, layers]
    assert first[0] == 2  # a micro-batch that accumulates, and the step's last
    assert (first[1] > 0) == (xla != "off")
    assert later == [first, first]


def test_one_program_serves_all_equal_layers(runs):
    assert runs["layers", 3] == runs["layers", 6]

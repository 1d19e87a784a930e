"""What is compiled, and when: all of it in a phase's first step, and one program for all equal layers."""

import json

import pytest

from tests.horovod_runs import run_python

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys
from pathlib import Path
from bert_horovod.runtime.quiet import import_tensorflow
import_tensorflow()
from bert_horovod.measuring.synthetic import phase_batch, synthetic_step
from tests.toys import toy_recipe

dump, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
for xla, layers in asked:
    before = len(list(dump.glob("*.before_optimizations.txt")))
    recipe = toy_recipe(model={"num_hidden_layers": layers}, execution={"micro_batch": 4, "xla": xla})
    made = synthetic_step(recipe, phase_batch(recipe, recipe.phase[0]), 2)
    counts = []
    for _ in range(3):
        made.run()
        traces = sum(graph.experimental_get_tracing_count() for graph in made.step._graphs.values())
        counts.append([traces, len(list(dump.glob("*.before_optimizations.txt"))) - before])
    print(json.dumps(counts))
"""


ASKED = [("off", 2), ("elementwise", 2), ("layers", 3), ("layers", 6)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[tuple[str, int], list[list[int]]]:
    """By what XLA compiles and the number of layers: graphs traced and programs compiled until each of three steps."""
    directory = tmp_path_factory.mktemp("dump")
    flags = f"--xla_dump_to={directory}"
    done = run_python("-c", PROGRAM, directory, json.dumps(ASKED), XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    return dict(zip(ASKED, map(json.loads, done.stdout.splitlines()[-len(ASKED) :]), strict=True))


@pytest.mark.parametrize(("xla", "layers"), [("off", 2), ("elementwise", 2), ("layers", 3)])
def test_nothing_is_traced_or_compiled_after_the_first_step(runs, xla, layers):
    first, *later = runs[xla, layers]
    assert first[0] == 2  # a micro-batch that accumulates, and the step's last
    assert (first[1] > 0) == (xla != "off")
    assert later == [first, first]


def test_one_program_serves_all_equal_layers(runs):
    assert runs["layers", 3] == runs["layers", 6]

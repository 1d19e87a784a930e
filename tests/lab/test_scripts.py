"""Every script of lab/ says what it is for without what computes, and refuses a bad value before anything runs."""

import pytest

from tests.horovod_runs import run_python
from tests.lab.scripts import DIRECTORY, run_here
from tests.toys import SMALL_VOCABULARY, write_toy_store

SCRIPTS = sorted(path.stem for path in DIRECTORY.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
# gpu_parts.py and timed_pretrain.py have no flags, the rest import what reads runs.
OTHERS = ("gpu_kernels", "gpu_parts", "reference_curve", "timed_pretrain")
PEERS = ("peers/plain_horovod", "peers/distributed_data_parallel")
HELP = """
import contextlib, os, runpy, sys
for script in sys.argv[1:]:
    sys.argv, sys.path[0] = [script, "--help"], os.path.dirname(script)
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    assert not {"tensorflow", "torch", "onnxruntime"} & set(sys.modules), script
"""


@pytest.mark.full
def test_help_does_without_what_computes():
    names = [*(name for name in SCRIPTS if name not in OTHERS), *PEERS]
    done = run_python("-c", HELP, *(DIRECTORY / f"{name}.py" for name in names))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(names) - 1  # delayed.py prints its page


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    """A store for flags that need one."""
    directory = tmp_path_factory.mktemp("lab")
    store = write_toy_store(directory / "store", held_out=0.1, vocabulary=SMALL_VOCABULARY)
    return {"STORE": str(store.path), "CONTINUED": "continued, int8"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compute --rounds 0", "--rounds 0: expected at least 1"),
        ("compute --set model.hidden_size=wide", "model.hidden_size = 'wide': expected a whole number"),
        ("compute --device cuda", "--device cuda: expected --peer hugging_face"),
        ("compute --peer hugging_face --peer_python /bin/false", "/bin/false has no torch and transformers"),
        ("cluster --link fast -- true", "--link fast: expected"),
        ("cluster --hosts 0 -- true", "--hosts 0: expected"),
        ("gpu --output x.json --budget_s 0", "--budget_s 0.0: expected more than 0"),
        ("gpu --output /nowhere/x.json", "its directory does not exist"),
        ("scaling --link fast", "--link fast: expected a rate"),
        ("scaling --delay nowhere.json", "--delay nowhere.json: no such file"),
        ("scaling --compute real --hosts 4096", "a core for each host"),
        ("scaling --compute real --hosts 1 --delay x", "--compute real: expected no --delay"),
        ("scaling --compute real --hosts 1 --peer ddp", "and no --peer, because peers sleep"),
        ("scaling --speed 0", "--speed 0.0: expected more than 0"),
        (
            "peers/distributed_data_parallel --delay x --set model.vocab_size=1",
            "model.vocab_size = 1: expected at least",
        ),
        ("curves --data_dir s --work w --curve int9", "--curve 'int9': did you mean int8?"),
        ("curves --data_dir s --work w --curve CONTINUED", "--curve 'continued, int8': expected --start"),
        ("curves --data_dir s --work w --start nowhere", "--start nowhere: expected a checkpoint"),
    ],
)
def test_a_bad_value_is_refused_before_anything_runs(paths, words, message):
    script, *flags = [paths.get(word, word) for word in words.split()]
    done = run_here(script, *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr

"""The corpus of the quickstart; the whole of it is run/quickstart.sh, which takes minutes."""

import ast
import importlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bert_horovod.corpus.store import open_store
from bert_horovod.recipe_files.loading import load_recipe, recipe_to_toml
from bert_horovod.runs.reference_curves import DIRECTORY, read_reference, references_of
from tests.horovod_runs import PROJECT, run_python
from tests.reporting.toy_record import write_run
from tests.toy_runs import train_recipe
from tests.toys import toy_recipe

QUICKSTART = PROJECT / "run" / "quickstart.py"
SCRIPT = QUICKSTART.with_suffix(".sh").read_text(encoding="utf-8")
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
LONG = " ".join(["A sentence that says something."] * 10)
MODULE = f'''"""Module. {LONG}"""
raise SystemExit("imported")
def last():
    """Second."""
class Thing:
    def inner(self):
        """Third.

        Indented."""
'''


def run(program: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run a program beside quickstart.py, in a fresh interpreter."""
    return run_python("-c", program, *arguments, cwd=QUICKSTART.parent)


def run_in_bash(commands: str, *arguments: str) -> str:
    """What commands print that come behind the function `run` of quickstart.sh."""
    function = re.search(r"^run\(\) \{.*?^\}$", SCRIPT, re.DOTALL | re.MULTILINE)[0]
    words = ["bash", "-c", f"{function}\n{commands}", "bash", *arguments]
    return subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def library(tmp_path):
    """A small standard library."""
    files = {
        "b.py": MODULE,
        "a.py": f'"""First. {LONG}"""',
        "short.py": '"""Too short."""',
        "no_python.py": "def (",
        "pydoc_data/topics.py": f"# made\ntopics = {{'yield': {LONG!r}, 'assert': {LONG!r}}}\n",
        "package/test/test_a.py": f'"""Skipped. {LONG}"""',
        "site-packages/other.py": f'"""Skipped. {LONG}"""',
    }
    for name, text in files.items():
        (tmp_path / "library" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "library" / name).write_text(text, encoding="utf-8")
    return tmp_path / "library"


@pytest.mark.full
def test_lines_of_horovodrun_and_tensorflow_are_not_shown():
    lines = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795747543.164945   22970 cudart_stub.cc:31] Could not find cuda drivers",
        "I0000 00:00:1795745745.206842    1235 port.cc:153] oneDNN custom operations are on.",
        "next: bert-horovod inspect",
        "[0]<stdout>:step 50/900  loss 7.5",
        "I0000 of our own",
    ]
    shown = run_in_bash('run printf "%s\\n" "$@"', *lines)
    assert shown.splitlines() == ["step 50/900  loss 7.5", "I0000 of our own"]


@pytest.mark.full
def test_it_ends_by_writing_and_naming_its_report_page(tmp_path):
    write_run(tmp_path / "run")
    program = f'bert-horovod() {{ "{sys.executable}" -m bert_horovod "$@"; }}\n'
    shown = run_in_bash(f"output=$1\n{program}{SCRIPT.splitlines()[-1]}", str(tmp_path))
    assert shown.startswith(f"{tmp_path / 'report.html'}: ")
    assert "open it in a browser" in shown
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_its_store_has_the_band_where_python_is_that_of_the_band(tmp_path):
    reference = read_reference(DIRECTORY / "quickstart.json")
    version = re.search(r"Python (\d+\.\d+\.\d+)", reference.runs)[1]
    if platform.python_version() != version:
        pytest.skip(f"the band is of the documentation of Python {version}, this is {platform.python_version()}")
    programs = "".join(
        f'{name}() {{ "{sys.executable}" {words} "$@"; }}\n'
        for name, words in (("python", ""), ("bert-horovod", "-m bert_horovod"))
    )
    steps = SCRIPT[SCRIPT.index("\nsay 2") : SCRIPT.index("\nsay 5")]
    run_in_bash(f'say() {{ :; }}\nroot={PROJECT} output="$1"\n{programs}{steps}', str(tmp_path))
    recipe, store = load_recipe(PROJECT / "run" / "recipes" / "quickstart.toml"), open_store(tmp_path / "store")
    assert reference in references_of(recipe, store.text_key)


@pytest.mark.full
def test_documents_are_the_modules_docstrings_and_the_topics(library):
    program = (
        "import json, pathlib, quickstart, sys\n"
        "print(json.dumps(list(quickstart.documents(pathlib.Path(sys.argv[1])))))"
    )
    documents = json.loads(run(program, library).stdout)
    assert [name for name, _ in documents] == [
        "a.py",
        "b.py",
        "pydoc_data/topics.py#assert",
        "pydoc_data/topics.py#yield",
    ]
    assert documents[1][1] == f"Module. {LONG}\n\nSecond.\n\nThird.\n\nIndented."
    assert documents[2][1] == LONG


@pytest.mark.full
def test_the_real_library_gives_the_same_corpus_twice_and_is_not_imported(tmp_path):
    program = (
        "import pathlib, quickstart, sys\n"
        "before = set(sys.modules)\n"
        "quickstart.write_corpus(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print(sorted(set(sys.modules) - before))"
    )
    paths = [tmp_path / "new" / "1.jsonl", tmp_path / "2.jsonl"]
    for path in paths:
        done = run(program, LIBRARY, path)
        assert done.returncode == 0, done.stderr
        # Codecs and the like; nothing of what was read, which would be hundreds.
        assert len(ast.literal_eval(done.stdout)) < 5, done.stdout
    assert paths[0].read_bytes() == paths[1].read_bytes()
    documents = [json.loads(line) for line in paths[0].read_text(encoding="utf-8").splitlines()]
    assert len(documents) > 100
    assert all(document["text"].strip() for document in documents)
    names = {document["name"] for document in documents}
    assert len(names) == len(documents)
    assert {"argparse.py", "pydoc_data/topics.py#for"} <= names
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    assert list(tmp_path.glob("**/.*")) == []


@pytest.mark.full
def test_a_library_without_documentation_is_one_message(library, tmp_path):
    program = (
        "import pathlib, quickstart, sys\nlibrary, target = map(pathlib.Path, sys.argv[1:])\n"
        "quickstart.sysconfig.get_paths = lambda: {'stdlib': library}\n"
        "sys.argv[1:] = ['corpus', str(target)]\nsys.exit(quickstart.main())"
    )
    done = run(program, library, tmp_path / "corpus.jsonl")
    assert done.returncode == 1
    assert "bytes of documentation, expected at least 1,000,000" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("*.jsonl")) == list(tmp_path.glob(".*")) == []


def test_quickstart_refuses_an_unknown_argument():
    done = subprocess.run([QUICKSTART.with_suffix(".sh"), "--fast"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown argument '--fast'" in done.stderr


@pytest.mark.full
def test_the_summary_says_what_a_run_learned_and_fails_where_it_is_too_little(tmp_path, store, capsys, monkeypatch):
    monkeypatch.syspath_prepend(QUICKSTART.parent)
    quickstart = importlib.import_module("quickstart")
    (tmp_path / "store").symlink_to(store.path)
    recipe = toy_recipe(model={"num_hidden_layers": 1})
    train_recipe(recipe, store, tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert quickstart.summary(tmp_path) == 1
    said, failed = capsys.readouterr()
    assert "held-out tokens      loss " in said
    assert said.count("%") >= len(quickstart.SENTENCES)
    assert "quickstart: FAILED" in failed

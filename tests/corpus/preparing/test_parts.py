"""Parts of a store, made by calls that know nothing of each other: together the bytes of one call."""

import itertools
import os
import re
import shutil
import signal
import subprocess

import pytest

from bert_horovod.corpus.preparing import parts as parts_module
from bert_horovod.corpus.preparing.planning import Part, Settings, find_part, part_plan, plan_shards
from bert_horovod.corpus.preparing.preparation import Preparation
from bert_horovod.corpus.preparing.summary import Result, SharedResult, part_summary, summary
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.store import verify
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.preparing.test_parallel import command, wait_until
from tests.corpus.preparing.test_preparation import tree, write_json_lines

OF = 3


@pytest.fixture
def inputs(tmp_path):
    """Small files and one that is cut in pieces, of several blocks of 20,000 bytes."""
    directory = tmp_path / "inputs"
    directory.mkdir()
    for i in range(7):
        text = "\n\n".join(f"Number {i} is here and {j} is there." for j in range(40 * (i + 1)))
        (directory / f"{i}.txt").write_text(text, encoding="utf-8")
    os.link(directory / "3.txt", directory / "3 again.txt")
    write_json_lines(directory / "z.jsonl", [f"Line {i} has a cat. And a dog." for i in range(3000)])
    (directory / "empty.txt").touch()
    return directory


@pytest.fixture(autouse=True)
def few_shards(monkeypatch):
    monkeypatch.setattr("bert_horovod.corpus.preparing.planning._MOST_SHARDS", 4)


@pytest.fixture
def preparation(inputs, vocabulary, tmp_path):
    """Makes a Preparation of the inputs into tmp_path/OUTPUT."""
    tokens = vocabulary.read_text(encoding="utf-8").split()

    def make(output="shared", files=(inputs,), **settings):
        settings = Settings(**{"shard_bytes": 20_000, "held_out": 0.1} | settings)
        return Preparation([str(file) for file in files], vocabulary, tmp_path / output, tokens, settings, 1)

    return make


def make_parts(preparation, of=OF, numbers=None):
    return [preparation.make_part(Part(number, of), "CALL") for number in numbers or range(1, of + 1)]


@pytest.mark.parametrize("of", [1, 3, 40])
def test_parts_make_the_bytes_of_one_call(preparation, tmp_path, of):
    whole = preparation("whole").make()
    assert any(entry["parts"] > 1 for entry in whole.manifest["shards"])
    *before, last = make_parts(preparation(), of, numbers=[*range(of, 0, -2), *range(of - 1, 0, -2)])
    assert all(isinstance(shared, SharedResult) for shared in before)
    assert isinstance(last, Result)
    assert "next: bert-horovod pretrain" in summary(last)
    assert tree(tmp_path / "shared") == tree(tmp_path / "whole")
    [after] = make_parts(preparation(), of, numbers=[1])  # such as a task that a scheduler starts again
    assert part_summary(after).endswith("and so is the store")


def test_joining_moves_no_arrays_and_hashes_no_source(preparation, tmp_path, monkeypatch):
    make_parts(preparation(), numbers=[1, 3])
    made = {path.stat().st_ino for path in (tmp_path / "shared").rglob("shard-*")}
    monkeypatch.setattr("bert_horovod.corpus.preparing.preparation.claim_joining", lambda *_: False)
    [last] = make_parts(preparation(), numbers=[2])
    made |= {path.stat().st_ino for path in (tmp_path / "shared").rglob("shard-*")}
    assert "joins the parts" not in part_summary(last)
    monkeypatch.setattr("bert_horovod.corpus.preparing.workers.hash_source", None)
    store = verify(preparation().join([], "").path)
    assert {path.stat().st_ino for path in store.path.glob("shard-*")} <= made


def test_parts_may_lie_in_other_directories_which_stay(preparation, tmp_path):
    preparation("whole").make()
    for number in range(1, OF + 1):
        make_parts(preparation(f"machine-{number}"), numbers=[number])
    shutil.move(tmp_path / "machine-3" / f"parts-of-{OF}", tmp_path / "copied")
    told = [tmp_path / "machine-1", tmp_path / "machine-2", tmp_path / "copied"]
    before = [tree(directory) for directory in told]
    with pytest.raises(DamagedData, match=rf"parts cannot be joined: 3/3 is not there; make .*\n +CALL --part 3/{OF}"):
        preparation().join(told[:2], "CALL")
    assert not (tmp_path / "shared").exists()
    preparation().join(told, "CALL")
    assert tree(tmp_path / "shared") == tree(tmp_path / "whole")
    assert [tree(directory) for directory in told] == before


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "record"])
def test_a_damaged_part_is_named_with_the_command_that_makes_it(preparation, tmp_path, damage):
    preparation("whole").make()
    make_parts(preparation(), numbers=[1, 2])
    parts = tmp_path / "shared" / f"parts-of-{OF}"
    shard = max((parts / "part-2").glob("shard-*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "record":
        (parts / "part-2.json").write_text("{", encoding="utf-8")
    elif damage == "remove":
        shard.unlink()
    else:
        shard.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(DamagedData, match=rf"2/{OF} (in \S+ is damaged|is not there); make .*\n +CALL --part 2/{OF}\n"):
        make_parts(preparation(), numbers=[3])
    make_parts(preparation(), numbers=[2])
    assert tree(tmp_path / "shared") == tree(tmp_path / "whole")


def test_what_does_not_fit_together_is_refused(preparation, tmp_path, inputs, capsys):
    make_parts(preparation(), numbers=[1])
    with pytest.raises(UserError, match=rf"holds parts-of-3, made with --part; expected --part K/{OF}, or --join"):
        make_parts(preparation(), of=4, numbers=[1])
    with pytest.raises(UserError, match="holds parts-of-3, made with --part"):
        preparation().make()
    with pytest.raises(UserError, match=r"made otherwise \(held_out: 0.1 -> 0.2\)"):
        make_parts(preparation(held_out=0.2), numbers=[1])
    (inputs / "more.txt").write_text("More.", encoding="utf-8")
    with pytest.raises(UserError, match=r"made otherwise \(input: 10 files .* -> 11 files "):
        make_parts(preparation(), numbers=[1])
    with pytest.raises(UserError, match=r"not fit to part 1/3 \(input: 10 files .*/part-1\.json\); expected"):
        make_parts(preparation(), numbers=[2])
    with pytest.raises(UserError, match=r"/parts-of-3/part-1\.json: part 1/3 was made otherwise \(input: 10 files "):
        preparation().join([], "CALL")
    (inputs / "more.txt").unlink()
    with pytest.raises(UserError, match="expected files, because each call looks at all"):
        make_parts(preparation("other", files=["-"]), numbers=[1])
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match="holds no parts to join; expected calls with --part"):
        preparation("other").join([], "")
    with pytest.raises(UserError, match=r"--join .*inputs holds no finished part; expected an --output_dir"):
        preparation("other").join([inputs], "")
    make_parts(preparation("four"), of=4, numbers=[1])
    with pytest.raises(UserError, match="parts of 3 and of 4 in"):
        preparation("other").join([tmp_path / "shared", tmp_path / "four"], "")


@pytest.mark.parametrize("state", ["begun", "finished", "joining"])
@pytest.mark.parametrize("other", [{"held_out": 0.2}, {"tokenizer": TokenizerSettings(False)}], ids=list)
def test_a_part_that_would_not_fit_is_refused_before_work(preparation, tmp_path, state, other, monkeypatch):
    parts = tmp_path / "shared" / f"parts-of-{OF}"
    make_parts(preparation(), numbers=[1])
    if state == "begun":  # as after a kill
        (parts / "part-1.json").unlink()
    if state == "joining":
        parts.rename(parts.with_suffix(".joining-1"))
    before = tree(tmp_path / "shared")
    looks = iter([None, parts_module.refuse_unlike])  # the second look, of calls that began at once, finds it too
    for look in (parts_module.refuse_unlike, lambda *words: (next(looks) or (lambda *_: None))(*words)):
        monkeypatch.setattr("bert_horovod.corpus.preparing.preparation.refuse_unlike", look)
        if state != "joining" or look is parts_module.refuse_unlike:
            with pytest.raises(
                UserError, match=rf"({next(iter(other))}|lowercase): .*; or, if part 1/{OF} is the wrong one, remove"
            ):
                make_parts(preparation(**other), numbers=[2])
        assert tree(tmp_path / "shared") == before


def test_a_source_of_another_time_is_told(preparation, tmp_path, inputs, capsys):
    make_parts(preparation(), numbers=[1, 2])
    os.utime(inputs / "z.jsonl", ns=(1, 1))
    make_parts(preparation(), numbers=[3])
    assert "warning: z.jsonl had another time of change when part 3/3 read it than" in capsys.readouterr().err


@pytest.mark.full
def test_after_kills_the_same_calls_go_on(preparation, inputs, vocabulary, tmp_path, few_shards):
    write_json_lines(inputs / "z.jsonl", [f"Line {i} has a cat. And a dog." for i in range(15_000)])
    words = command(inputs, vocabulary, tmp_path / "shared", "--workers", "1", "--held_out", "0.1")
    words[1:3] = ["-c", RUN]
    process = subprocess.Popen([*words, "--part", "1/2"], stdout=subprocess.PIPE)
    mine = tmp_path / "shared" / "parts-of-2" / "part-1"
    wait_until(process, lambda: len(list(mine.glob("shard-*.safetensors"))) > 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = subprocess.run([*words, "--part", "1/2"], capture_output=True, text=True, check=True)
    assert int(re.search(r"part-1: finished already: (\d+) blocks", again.stdout)[1]) >= 3
    assert "part 1/2 is finished" in again.stdout
    assert "not finished: part 2 of 2" in again.stdout
    killed = subprocess.run([*words, "--part", "2/2"], env=os.environ | {"KILL": "2"})
    assert killed.returncode == -signal.SIGKILL  # in the middle of joining
    other = subprocess.run([*words, "--part", "1/2"], capture_output=True, text=True, check=True)
    assert "part 2/2 joins the parts to the store; if it was killed, run it again" in other.stdout
    killed = subprocess.run([*words, "--part", "2/2"], env=os.environ | {"KILL": "1"})
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*words, "--join"], check=True)
    preparation("whole").make()
    assert tree(tmp_path / "shared") == tree(tmp_path / "whole")


RUN = """
import os, signal, sys
from bert_horovod.corpus.preparing import parts as parts_module, planning
planning._MOST_SHARDS = 4
from bert_horovod.__main__ import main
left = int(os.environ.get("KILL", "-1"))
rename = os.rename
def count(*names):
    global left
    if "shard-" in str(names[1]) and (left := left - 1) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*names)
os.rename = count
sys.argv = ["bert-horovod", *sys.argv[1:]]
main()
"""


SLURM = {"ID": "7", "MIN": "1", "MAX": "15", "STEP": "2", "COUNT": "8"}


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ("3/16", {}, (3, 16)),
        (True, {f"SLURM_ARRAY_TASK_{name}": value for name, value in SLURM.items()}, (4, 8)),
        ("/16", {"JOB_COMPLETION_INDEX": "0"}, (1, 16)),
        (True, {}, "SLURM_ARRAY_TASK_ID is not set; expected K/N, part K of N"),
        (True, {f"SLURM_ARRAY_TASK_{name}": value for name, value in (SLURM | {"COUNT": "3"}).items()}, "have gaps"),
        (True, {"SLURM_ARRAY_TASK_ID": "3"}, "not as SLURM sets them"),
        ("/16", {}, "JOB_COMPLETION_INDEX is not set"),
        ("/16", {"JOB_COMPLETION_INDEX": "16"}, "part 17 of 16; expected 1 to N"),
        ("0/16", {}, "part 0 of 16"),
        ("1/99999", {}, "at most 10,000"),
        ("3", {}, "--part 3: expected K/N"),
    ],
)
def test_a_scheduler_tells_the_part(given, environment, expected, capsys):
    if isinstance(expected, str):
        with pytest.raises(UserError, match=re.escape(expected)):
            find_part(given, environment)
        return
    assert find_part(given, environment) == Part(*expected)
    assert ("--part {}/{} (".format(*expected) in capsys.readouterr().out) == bool(environment)


def test_shares_are_whole_shards_of_about_equal_work(tmp_path, monkeypatch):
    monkeypatch.undo()
    head = {"settings": {"documents": "file", "shard_bytes": 1000}}
    sizes = [100_000, 1, 0, 40_000, *range(300, 900)]
    sources = [SourceFile(tmp_path / f"{i}.txt", f"{i}.txt", size) for i, size in enumerate(sizes)]
    plan = plan_shards(sources, head)
    parts = part_plan(plan, 7)
    assert sorted(itertools.chain(*(part.tasks for part in parts)), key=plan.tasks.index) == plan.tasks
    loads = [sum(task.text_bytes for task in part.tasks) for part in parts]
    assert max(loads) - min(loads) <= max(sum(t.text_bytes for t in run) for run in plan.runs)
    assert max(loads[1:]) < 1.2 * min(loads[1:])

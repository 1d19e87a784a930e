"""The score command, as it is typed."""

import json

import pytest

from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.kinds.kinds import tasks
from bert_horovod.finetuning.text_data import OWN_METRICS
from bert_horovod.recipe.settings import GLUE_TASKS
from tests.commands.conftest import command
from tests.horovod_runs import run_python


def test_the_tasks_of_the_commands_are_those_of_the_tables():
    assert tuple(TASKS) == GLUE_TASKS
    assert {*GLUE_TASKS, *OWN_METRICS, "ner", "squad"} <= set(tasks())


def test_scores_are_a_json_object(tmp_path, capsys):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na\t1\nb\t0\nc\t1\n")
    (tmp_path / "p.tsv").write_text("index\tprediction\n0\t1\n1\t1\n2\t1\n")
    assert command("score", "--task", "sst2", "--predictions", tmp_path / "p.tsv", "--data_dir", tmp_path) == 0
    assert json.loads(capsys.readouterr().out) == {"accuracy": 2 / 3}


def test_entities_have_a_table_by_type_beside_the_object(tmp_path, capsys):
    (tmp_path / "p.tsv").write_text("a\tB-X\tB-X\nb\tI-X\tO\n\nc\tB-Y\tB-Y\n")
    (tmp_path / "dev.conll").write_text("a B-X\nb O\n\nc B-Y\n")
    predicted = ({"tokens": ["a", "b"], "tags": ["B-X", "O"]}, {"tokens": ["c"], "tags": ["O"]})
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in predicted))
    words = ("score", "--task", "ner", "--predictions")
    assert command(*words, tmp_path / "p.tsv") == 0
    output = capsys.readouterr()
    scores = json.loads(output.out)
    assert (scores["f1"], scores["strict_recall"], scores["scheme"]) == (0.5, 0.5, "IOB2")
    assert scores["by_type"]["Y"]["support"] == 1
    assert output.err.splitlines()[1].split() == ["X", "0.0000", "0.0000", "0.0000", "1"]
    assert command(*words, tmp_path / "p.jsonl", "--data_dir", tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["recall"] == 0.5
    assert command(*words, tmp_path / "p.jsonl") == 2
    assert "p.jsonl has no right tags: expected --dev_file" in capsys.readouterr().err
    (tmp_path / "dev.conll").write_text("a B-X\n\nc B-Y\n")
    assert command(*words, tmp_path / "p.tsv", "--dev_file", tmp_path / "dev.conll") == 2
    assert "p.tsv, line 1: a sentence of 2 words; " in capsys.readouterr().err


@pytest.mark.full
def test_scoring_imports_no_tensorflow(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na\t1\n")
    (tmp_path / "p.tsv").write_text("index\tprediction\n0\t1\n")
    program = (
        "import sys; from bert_horovod.finetuning.kinds.base import Request; "
        "from bert_horovod.finetuning.kinds.kinds import score_file; from pathlib import Path; "
        f"score_file('sst2', Request(Path({str(tmp_path / 'p.tsv')!r}), Path({str(tmp_path)!r}))); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert run_python("-c", program).returncode == 0


def test_ones_own_files_are_scored_with_their_column(tmp_path, capsys):
    (tmp_path / "dev.csv").write_bytes("text;stars\na;schön\nb;gut\n".encode("latin-1"))
    (tmp_path / "p.jsonl").write_text('{"index": 0, "prediction": "schön"}\n{"index": 1, "prediction": "schön"}\n')
    words = ("--task", "classification", "--predictions", tmp_path / "p.jsonl", "--label_column", "stars")
    assert command("score", *words, "--dev_file", tmp_path / "dev.csv", "--encoding", "latin-1") == 0
    assert json.loads(capsys.readouterr().out) == {
        "accuracy": 0.5,
        "macro_f1": pytest.approx(1 / 3),
        "confusion_matrix": {"gut": {"schön": 1}, "schön": {"schön": 1}},
    }

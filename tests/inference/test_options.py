"""Columns of a table stand beside its answers, each under a name of its own."""

from pathlib import Path

from bert_horovod.corpus.reading.table_files import Table
from bert_horovod.inference.options import Options

TABLE = Table(Path("a.csv"), ["prediction", "input_prediction", "text"], [(2, ["p", "q", "a"])])


def test_no_kept_column_takes_the_name_of_another():
    names, fields = Options(keep=None).kept(TABLE, ["index", "prediction"])
    assert names == ["input_input_prediction", "input_prediction", "text"]
    assert fields == [["p", "q", "a"]]
    assert Options(keep=("prediction",)).kept(TABLE, ["prediction"]) == (["input_prediction"], [["p"]])

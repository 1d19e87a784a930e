"""Mistakes in paths and columns are told before TensorFlow is imported, which takes seconds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_horovod.tasks.classification import Classification
from tests.horovod_runs import PATIENCE_S, clean_environment
from tests.toy_glue import write_checkpoint
from tests.toys import write_toy_store

pytestmark = pytest.mark.full

TEXT = "text,label\ngood,1\nbad,0\n"
EXPORT = ["export", "--checkpoint", "model", "--output", "out"]
RERANK = ["finetune", "--task", "reranking", "--checkpoint", "model", "--output_dir", "out", "--train_file", "rank.csv"]
RERANK += ["--dev_file", "rank.csv"]
OWN = ["finetune", "--task", "classification", "--checkpoint", "model", "--output_dir", "out", "--train_file"]
PREPARE = ["prepare", "--output_dir", "out", "--vocab"]
PRETRAIN = ["pretrain", "--recipe", "quickstart", "--output_dir", "out", "--data_dir"]
SIZE = ["--set", "model.vocab_size=1000"]
SQUAD = ["finetune", "--task", "squad", "--checkpoint", "model", "--output_dir", "out", "--data_dir"]
NER = ["finetune", "--task", "ner", "--checkpoint", "model", "--output_dir", "out", "--dev_file", "a.conll"]
GLUE = ["finetune", "--task", "sst2", "--output_dir", "out", "--checkpoint"]
PREDICT = ["predict", "--checkpoint", "model", "--input"]
TAG = ["predict", "--checkpoint", "tags", "--input"]

CASES = [
    ([*PREPARE, "model", "--input", "none.txt"], "--input none.txt: no such file"),
    ([*PREPARE, "none", "--input", "a.txt"], "none: No such file"),
    ([*PREPARE, "vocab.txt", "--input", "gs://lab/a.txt"], "needs gcsfs, which cannot be imported"),
    ([*PREPARE, "vocab.txt", "--input", "az://lab/a.txt"], "install it: pip install adlfs"),
    ([*PREPARE, "vocab.txt", "--input", "s3://id:hidden@lab/a.txt"], "a user or a password before @; expected a URL"),
    ([*PREPARE, "vocab.txt", "--input", "https://host/a.txt?sig=hidden"], "in its parameter sig; expected a URL"),
    ([*PREPARE, "vocab.txt", "--input", "ftp://host/a.txt"], "no such scheme, ftp://; expected a path, or s3://"),
    (["status", "gs://lab/run"], "needs gcsfs, which cannot be imported"),
    (
        ["predict", "--checkpoint", "gs://lab/run", "--input", "a.csv", "--output", "b.csv"],
        "needs gcsfs, which cannot be imported",
    ),
    ([*PREPARE, "s3://lab/vocab.txt", "--input", "a.txt"], "--vocab s3://lab/vocab.txt: expected a path on this"),
    ([*OWN, "s3://lab/a.csv"], "--train_file s3://lab/a.csv: expected a path on this machine"),
    (
        ["predict", "--checkpoint", "model", "--input", "https://host/a.csv"],
        "--input https://host/a.csv: expected a path",
    ),
    ([*PREPARE, "vocab.txt", "--input", "a.jsonl"], 'no field "text", its fields are'),
    ([*PREPARE, "vocab.txt", "--input", "a.parquet"], "no column 'text'; expected a column of text: --text_field"),
    (
        [*PREPARE, "vocab.txt", "--input", "a.txt", "--text_field", "body"],
        "--text_field body: it is read only",
    ),
    (["vocab", "--output", "v", "--input", "a.txt", "--text_field", "body"], "--text_field body: it is read only with"),
    ([*PRETRAIN, "none"], "none is not a token store"),
    (
        ["pretrain", "--recipe", "none.toml", "--data_dir", "store", "--output_dir", "out"],
        "cannot read the recipe none",
    ),
    ([*PRETRAIN, "store", "--init_checkpoint", "none"], "--init_checkpoint: there is none at none"),
    ([*PRETRAIN, "store", "--output_dir", "a.txt"], "--output_dir a.txt is a file"),
    ([*PRETRAIN, "store", "--tuned", "none.toml"], "none.toml"),
    ([*PRETRAIN, "store", "--output_dir", "model"], "--output_dir model holds other things (config.json"),
    ([*PRETRAIN, "store"], "model.vocab_size = 4096, but the token store store was made with a vocabulary of 1000"),
    ([*PRETRAIN, "store", *SIZE, "--init_checkpoint", "xlnet"], "model_type = 'xlnet': expected 'bert'"),
    ([*PREPARE, "other", "--input", "a.txt"], "tokenizer_class = 'BertJapaneseTokenizer' is not supported"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--output_dir", "model"], "--output_dir model holds other things"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--checkpoint", "other"], "tokenizer_class = 'BertJapaneseTokenizer'"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--checkpoint", "weightless"], "weightless has no model.safetensors"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--text_columns", "label"], "name a column twice"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--text_columns", "text,text"], "name a column twice"),
    ([*OWN, "none.csv", "--dev_file", "a.csv"], "cannot read none.csv"),
    ([*EXPORT, "--format", "savedmodel", "--int8"], "--int8"),
    ([*EXPORT, "--format", "onnx", "--int8", "--task", "sst2"], "--task and --dev_file belong together"),
    ([*EXPORT, "--format", "onnx", "--limit", "1"], "--limit"),
    ([*RERANK, "--text_columns", "text"], "--text_columns text: --task reranking expects two names"),
    (RERANK, "rank.csv: a label is 5; --task reranking expects relevance from 0 to 1"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--text_columns", "body"], "no column 'body', its columns are"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--label_column", "stars"], "no column 'stars', its columns are"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--checkpoint", "none"], "--checkpoint: there is none at none"),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--checkpoint", "a.csv"], "--checkpoint: there is none at a.csv"),
    ([*GLUE, "model", "--data_dir", "none"], "--data_dir none has no train.tsv"),
    ([*SQUAD, "none"], "--data_dir none has no train-v1.1.json"),
    ([*SQUAD, ".", "--train_file", "none.json"], "--train_file none.json: there is no such file"),
    ([*SQUAD, ".", "--train_file", "list.json"], "list.json: the file is [], expected an object with 'data'"),
    ([*SQUAD, ".", "--train_file", "table.json"], "table.json: data[0] has no 'paragraphs'"),
    ([*SQUAD, ".", "--train_file", "a.csv"], "a.csv is damaged: expected JSON"),
    ([*NER, "--train_file", "none.conll"], "cannot read none.conll"),
    ([*NER, "--train_file", "a.parquet"], "a.parquet: no table is read from .parquet; save it as CoNLL, or as .jsonl"),
    ([*SQUAD, ".", "--train_file", "a.parquet"], "no table is read from .parquet; save it as .json in SQuAD's format"),
    ([*TAG, "a.parquet", "--output", "o.csv"], "no table is read from .parquet; save it as CoNLL, or as .jsonl"),
    ([*NER, "--train_file", "bad.conll"], "bad.conll, line 2: the tag 'NN'; expected O, or B-, I-, E- or S-"),
    ([*NER, "--train_file", "a.conll", "--text_columns", "4"], "--text_columns 4: a.conll has 2 columns"),
    ([*NER, "--train_file", "a.jsonl"], "a.jsonl, line 1: no 'tokens', its keys are ['body']"),
    ([*NER, "--data_dir", "none"], "--data_dir none has no file called train"),
    ([*GLUE, "model", "--tag_names", "O"], "--tag_names O: it is read only with --task ner"),
    (["probe", "pretrained", "--task", "ner", "--data_dir", "none"], "--data_dir none has no file called train"),
    (["score", "--task", "ner", "--predictions", "a.conll"], "a.conll has 2 columns: expected --dev_file, or the"),
    (["score", "--task", "ner", "--predictions", "a.conll", "--dev_file", "b.conll"], "has 1 sentences, b.conll has 2"),
    (
        ["probe", "pretrained", "--task", "ner", "--data_dir", "tagged", "--text_columns", "3"],
        "--text_columns 3: tagged/train.conll has 2 columns",
    ),
    ([*OWN, "a.csv", "--dev_file", "a.csv", "--data_dir", "."], "--data_dir is not for --task classification"),
    ([*TAG, "none.conll", "--output", "o.conll"], "cannot read none.conll"),
    ([*TAG, "a.conll", "--output", "o.conll", "--encoding", "latin-1"], "--encoding latin-1: a checkpoint ["),
    ([*TAG, "a.csv", "--output", "o.csv", "--keep", "label"], "BertForTokenClassification'] does not read it"),
    ([*TAG, "a.txt", "--output", "o.xlsx"], "no table is written as .xlsx"),
    ([*TAG, "a.csv", "--output", "o.csv", "--text_columns", "body"], "no column 'body', its columns are"),
    ([*TAG, "ragged.conll", "--output", "o.conll"], "ragged.conll, line 2: 1 columns, expected 2"),
    (["probe", "none", "--task", "sst2", "--data_dir", "."], "none/checkpoints has no checkpoint"),
    (["probe", "pretrained", "--task", "sst2", "--data_dir", "none"], "--data_dir none has no train.tsv"),
    ([*PREDICT, "none.csv", "--output", "o.csv"], "cannot read none.csv"),
    ([*PREDICT, "empty.csv", "--output", "o.csv"], "empty.csv is empty; expected an example in each row"),
    ([*PREDICT, "a.parquet", "--output", "o.csv"], "a.parquet: no table is read from .parquet; save it as .csv"),
    ([*PREDICT, "a.XLSX", "--output", "o.csv"], "a.XLSX: no table is read from .XLSX"),
    ([*PREDICT, "a.csv", "--output", "o.csv"], "no column 'sentence', its columns are"),
    ([*PREDICT, "a.csv", "--output", "o.csv", "--text_columns", "body"], "no column 'body', its columns are"),
    ([*PREDICT, "a.csv", "--output", "o.csv", "--keep", "text,text"], "--keep names 'text' twice"),
    ([*PREDICT, "a.csv", "--output", "o.csv", "--doc_stride", "8"], "--doc_stride 8: a checkpoint ['BertForSeq"),
    ([*PREDICT, "-", "--null_score_threshold", "nan"], "--null_score_threshold nan: expected a number"),
    ([*SQUAD, ".", "--null_score_threshold", "nan"], "--null_score_threshold nan: expected a number"),
    (
        ["score", "--task", "squad", "--predictions", "a", "--null_odds", "b", "--threshold", "nan"],
        "--threshold nan: expected a number",
    ),
    ([*PREDICT, "-", "--null_score_threshold", "1"], "--null_score_threshold 1.0: a checkpoint ['BertForSeq"),
    ([*PREDICT, "a.csv", "--output", "o.xlsx"], "no table is written as .xlsx"),
    ([*PREDICT, "a.csv", "--output", "none/o.csv"], "--output none/o.csv: there is no directory none"),
    ([*PREDICT, "a.csv", "--output", "a.csv"], "--output a.csv is the input a.csv, which would be lost"),
    (["predict", "--checkpoint", "none", "--input", "-"], "--checkpoint: there is none at none"),
    (["predict", "--checkpoint", "other", "--input", "-"], "tokenizer_class = 'BertJapaneseTokenizer'"),
    (
        ["predict", "--checkpoint", "answers", "--input", "table.json", "--output", "o.json"],
        "table.json: data[0] has no 'paragraphs'",
    ),
    (["fill-mask", "--checkpoint", "other", "[MASK]"], "tokenizer_class = 'BertJapaneseTokenizer'"),
    (["fill-mask", "--checkpoint", "none", "[MASK]"], "--checkpoint: there is none at none"),
    (["fill-mask", "--checkpoint", "run", "[MASK]"], "--checkpoint: run is a run without a checkpoint yet"),
    (["evaluate", "--checkpoint", "model", "--data_dir", "none"], "none is not a token store"),
    (["evaluate", "--checkpoint", "none", "--data_dir", "store"], "--checkpoint: there is none at none"),
    (["export", "--checkpoint", "none", "--output", "o", "--format", "onnx"], "--checkpoint: there is none at none"),
    (["import", "none", "o"], "there is none at none"),
    (["import", "model", "store"], "store exists; expected a new or empty directory"),
    (["import", "other", "o"], "tokenizer_class = 'BertJapaneseTokenizer'"),
    (
        ["export", "--checkpoint", "model", "--output", "store", "--format", "onnx"],
        "store exists; expected a new or empty directory",
    ),
    (["tune", "--recipe", "none.toml", "--data_dir", "store"], "cannot read the recipe none.toml"),
    (["tune", "--recipe", "quickstart", "--data_dir", "none"], "none is not a token store"),
    (["score", "--task", "sst2", "--predictions", "none.tsv", "--dev_file", "none.tsv"], "none.tsv"),
    (["inspect", "--data_dir", "none"], "none is not a token store"),
    (["verify", "--data_dir", "none"], "none is not a token store"),
    (["vocab", "--input", "none.txt", "--output", "v.txt"], "--input none.txt: no such file"),
    (["vocab", "--input", "a.txt", "--output", "a.txt"], "--output a.txt is the input a.txt, which would be lost"),
    (["vocab", "--input", "a.txt", "--output", "run"], "--output run is a directory"),
    (["tune", "--recipe", "quickstart", "--data_dir", "store", "--output", "none/o"], "there is no directory none"),
    (["plan", "--recipe", "quickstart", "--plot", "none/o.svg"], "--plot none/o.svg: there is no directory none"),
    (["report", "run", "--output", "none/o.html"], "--output none/o.html: there is no directory none"),
    (["bench", "step", "--recipe", "quickstart", "--data_dir", "none"], "none is not a token store"),
    (["bench", "memory", "--recipe", "none.toml", "--limit", "1GiB"], "cannot read the recipe none.toml"),
    (["bench", "step", "--recipe", "none.toml"], "cannot read the recipe none.toml"),
    (["resume", "none"], "none does not tell how it was started"),
    (["status", "none"], "none"),
    (["report", "none", "--output", "r.html"], "none"),
]
PROGRAM = """
import contextlib, io, json, sys, time
from bert_horovod.__main__ import dispatch, parse
for words, message in json.load(sys.stdin):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = dispatch(parse(["bert-horovod", *words]))
    late = "tensorflow" in sys.modules
    print(json.dumps([words, code, message in errors.getvalue(), late, errors.getvalue()]))
    if late:
        break
"""


@pytest.fixture
def files(tmp_path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    write_toy_store(tmp_path / "store")
    (tmp_path / "a.txt").write_text("A cat.")
    (tmp_path / "a.csv").write_text(TEXT)
    (tmp_path / "rank.csv").write_text("query,passage,label\na,A cat.,5\na,A.,0\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "a.XLSX").write_bytes(b"PK\x03\x04\x00")
    (tmp_path / "a.jsonl").write_text('{"body": "A cat."}\n')
    parquet.write_table(pyarrow.table({"body": ["A cat."]}), tmp_path / "a.parquet")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ncat\n.\n")
    (tmp_path / "model").mkdir()
    write_checkpoint(tmp_path / "model", Classification(("bad", "good"), ("sentence",)))
    for name, file, content in (
        ("xlnet", "config.json", {"model_type": "xlnet"}),
        ("other", "tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}),
        ("tags", "config.json", {"architectures": ["BertForTokenClassification"], "model_type": "bert"}),
        ("answers", "config.json", {"architectures": ["BertForQuestionAnswering"], "model_type": "bert"}),
    ):
        shutil.copytree(tmp_path / "model", tmp_path / name)
        before = json.loads((tmp_path / name / file).read_text())
        (tmp_path / name / file).write_text(json.dumps(before | content))
    shutil.copytree(tmp_path / "model", tmp_path / "weightless")
    (tmp_path / "weightless" / "model.safetensors").unlink()
    for name, text in (
        ("a", "cat O\nsat B-X\n"),
        ("b", "cat O\n\nsat B-X\n"),
        ("bad", "cat O\nsat NN\n"),
        ("ragged", "a O\nb\n"),
    ):
        (tmp_path / f"{name}.conll").write_text(text)
    (tmp_path / "tagged").mkdir()
    for name in ("train", "dev"):
        shutil.copy(tmp_path / "a.conll", tmp_path / "tagged" / f"{name}.conll")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "table.json").write_text('{"data": [{"text": "A cat."}]}')
    (tmp_path / "run").mkdir()
    (tmp_path / "pretrained" / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path


def test_mistakes_in_paths_and_columns_are_told_without_tensorflow(files):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        cwd=files,
        env=clean_environment(),
        timeout=PATIENCE_S,
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    wrong = [result for result in results if not (result[1] in (1, 2) and result[2]) or result[3]]
    assert not wrong, "\n".join(map(str, wrong))
    assert len(results) == len(CASES), done.stderr
    assert not (files / "out").exists() or not any((files / "out").iterdir())

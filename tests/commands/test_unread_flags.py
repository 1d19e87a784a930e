"""A flag that its command would not read is refused before anything is looked for, in words that name what it needs."""

import pytest

from bert_horovod.__main__ import dispatch
from bert_horovod.commands.shared.parser import parse

TUNE = ["finetune", "--task", "sst2", "--data_dir", "none", "--checkpoint", "none", "--output_dir", "none"]
PREDICT = ["predict", "--checkpoint", "none", "--input", "-"]
OWN = ["finetune", "--task", "classification", "--checkpoint", "none", "--output_dir", "none", "--train_file"]
SCORE = ["score", "--predictions", "none.tsv", "--task"]
PLAN = ["plan", "--recipe", "bert-base"]
CASES = [
    (["inspect", "--data_dir", "none", "--rows", "3"], "--rows 3: it is read only with --row; leave it out"),
    (["inspect", "--data_dir", "none", "--split", "held_out"], "--split held_out: it is read only with --row"),
    (["inspect", "--data_dir", "none", "--set", "data.seed=3"], "--set data.seed=3: it is read only with --row"),
    (
        ["prepare", "--input", "a", "--vocab", "v", "--output_dir", "o", "--set", "data.packing=false"],
        "--set data.packing=false: it is read only with --recipe",
    ),
    (["recipes", "bert-base", "--device", "V100"], "--device V100: it is read only for the list, or with --json"),
    ([*PLAN, "--device", "A100", "--latency_ms", "1"], "--latency_ms 1.0: it is read only with --link RATE"),
    ([*PLAN, "--device", "A100", "--link", "link.json", "--link_share", "0.5"], "--link_share 0.5: it is read only"),
    ([*TUNE, "--seeds", "3", "--set", "data.seed=7"], "--seeds 3: it is read only without --set data.seed"),
    ([*TUNE, "--epochs", "3", "--set", "phase.0.steps=7"], "--epochs 3.0: it is read only without --set phase.0.steps"),
    (
        [*TUNE, "--learning_rates", "1,2", "--set", "phase.0.learning_rate=1"],
        "without --set phase.0.learning_rate",
    ),
    ([*TUNE, "--text_columns", "a"], "--text_columns a: it is read only with --task classification or regression"),
    ([*TUNE, "--label_column", "a"], "--label_column a: it is read only with --task"),
    ([*TUNE, "--train_file", "a", "--dev_file", "a", "--test_file", "a"], "--data_dir none: it is read only for the"),
    ([*PREDICT, "--keep", "none"], "--keep none: it is read only with a file as --input"),
    ([*PREDICT, "--encoding", "latin-1"], "--encoding latin-1: it is read only with a file as --input"),
    ([*PREDICT[:-1], "a.json.gz", "--encoding", "latin-1"], "latin-1: it is read only with a table as --input"),
    ([*PREDICT, "--quoted_tsv"], "--quoted_tsv: it is read only with a file as --input"),
    ([*PREDICT, "--text_columns", "a"], "--text_columns a: it is read only with a file as --input"),
    ([*OWN, "a.csv", "--dev_file", "b.jsonl", "--quoted_tsv"], "--quoted_tsv: it is read only with a file that is not"),
    ([*SCORE, "sst2", "--dev_file", "a.tsv", "--data_dir", "d"], "--data_dir d: it is read only without --dev_file"),
    ([*SCORE, "regression", "--data_dir", "d"], "--data_dir d: it is read only without --dev_file, for a task"),
    ([*TUNE, "--train_file", "a.csv", "--quoted_tsv"], "or JSON Lines (.jsonl) and with --task classification or"),
    (["report", "none", "--port", "8080"], "--port 8080: it is read only with --watch"),
    ([*PLAN, "--compute", "a.json", "--product_share", "0.5"], "it is read only without --compute"),
]


@pytest.mark.parametrize(("words", "told"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_a_flag_that_nothing_reads_is_refused(capsys, words, told):
    assert dispatch(parse(["bert-horovod", *words])) == 2
    assert told in capsys.readouterr().err


def test_the_default_may_be_given(capsys):
    assert dispatch(parse(["bert-horovod", "recipes", "bert-base", "--device", "A100"])) == 0
    assert "[model]" in capsys.readouterr().out

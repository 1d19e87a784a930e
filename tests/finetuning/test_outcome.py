"""What a fine-tuning says at its end: the dev scores, and whether the model does no better than one answer for all."""

from pathlib import Path

import numpy as np

from bert_horovod.batches.examples.labelled import LabelledTexts
from bert_horovod.finetuning.examples import Format, Split
from bert_horovod.finetuning.kinds.texts import Texts, write_predictions
from bert_horovod.finetuning.scores import score
from bert_horovod.finetuning.text_data import TextData

LABELS = [1] * 444 + [0] * 428  # SST-2's dev set


def verdict(scores: dict[str, float], labels: list, metrics: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    """What is said at the end of a run with these last dev scores."""
    split = Split(Path("dev.tsv"), LabelledTexts(([""] * len(labels),), labels), 0)
    form = Format(("text",), "label", {name: name for name in names})
    return Texts(TextData("sst2", form, metrics, split, {"": split}, {})).verdict(None, split, np.zeros(0), scores)


def of_labels(correct: int) -> list[str]:
    return verdict({"accuracy": correct / 872}, LABELS, ("accuracy",), ("negative", "positive"))


def test_the_dev_score_is_said_and_a_collapse():
    assert of_labels(765) == ["dev.tsv: accuracy 0.8773, of 872 examples"]
    for correct, label in ((444, "positive"), (428, "negative")):
        first, second = of_labels(correct)
        assert first == f"dev.tsv: accuracy {correct / 872:.4f}, of 872 examples"
        assert second.startswith(f"collapsed: these are exactly the scores of predicting {label!r} for every example;")
    assert len(of_labels(445)) == 1


def test_all_scores_must_be_a_constant_predictions():
    names, labels = ("f1", "accuracy"), np.array([1] * 279 + [0] * 129)
    always = score(np.ones(408), labels, names)
    assert "'yes'" in verdict(always, labels.tolist(), names, ("no", "yes"))[1]
    assert len(verdict(always | {"f1": 0.8}, labels.tolist(), names, ("no", "yes"))) == 1


def test_an_undefined_correlation_is_said_to_be_given_as_0():
    _, messages = verdict({"pearson": 0.0, "spearman": 0.0}, [0.5, 1, 2], ("pearson", "spearman"), ())
    assert "predicting one number for every example; a correlation that is undefined is given as 0" in messages
    _, messages = verdict({"matthews_correlation": 0.0}, [0, 1, 1], ("matthews_correlation",), ("no", "yes"))
    assert "a correlation that is undefined is given as 0" in messages


def test_predictions_are_written_as_glue_takes_them(tmp_path):
    path = tmp_path / "predictions" / "RTE.tsv"
    write_predictions(path, np.array([1, 0]), ["entailment", "not_entailment"])
    assert path.read_bytes() == b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    write_predictions(path, np.array([4.25, 0.1]), [])
    assert path.read_bytes() == b"index\tprediction\n0\t4.25\n1\t0.1\n"

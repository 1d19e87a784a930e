"""The tasks of GLUE, and how to read the files of each.

Labels are numbered in their order here, which is Google's (run_classifier.py): contradiction, entailment, neutral.
Hugging Face's datasets have another order; a checkpoint's id2label has its own, and labels are matched by name.
"""

from dataclasses import dataclass
from typing import NamedTuple


class TestSet(NamedTuple):
    """Examples without labels."""

    name: str  # of the file to submit
    files: tuple[str, ...]  # paths from the task's directory, without .tsv; the first that exists is read


@dataclass(frozen=True)
class GlueTask:
    """One task."""

    title: str  # GLUE's name of the task, of its directory, and of the file to submit
    columns: tuple[str, ...]  # of the text, or of the pair's two texts
    label_column: str
    # The value in the files -> the label's name; their order gives the numbers. Empty: a real number is predicted.
    labels: dict[str, str]
    metrics: tuple[str, ...]  # names in finetuning/scores.py; the best run is the best by the first
    headless: tuple[str, ...] = ()  # columns of train and dev files, if they have no header
    skip_broken: bool = False  # whether train has rows with too few fields
    dev: tuple[str, ...] = ("dev",)  # files, without .tsv
    test: tuple[TestSet, ...] = ()  # empty: test.tsv, submitted under the title

    @property
    def test_sets(self) -> tuple[TestSet, ...]:
        """The test sets to predict, if their files exist."""
        return self.test or (TestSet(self.title, ("test",)),)


_ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}
_PAIR = ("sentence1", "sentence2")

TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        "label",
        {"0": "unacceptable", "1": "acceptable"},
        ("matthews_correlation",),
        headless=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask("SST-2", ("sentence",), "label", {"0": "negative", "1": "positive"}, ("accuracy",)),
    "mrpc": GlueTask(
        "MRPC", ("#1 String", "#2 String"), "Quality", {"0": "not_equivalent", "1": "equivalent"}, ("f1", "accuracy")
    ),
    "stsb": GlueTask("STS-B", _PAIR, "score", {}, ("pearson", "spearman")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        {"0": "not_duplicate", "1": "duplicate"},
        ("f1", "accuracy"),
        skip_broken=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        _PAIR,
        "gold_label",
        {name: name for name in ("contradiction", "entailment", "neutral")},
        ("accuracy",),
        dev=("dev_matched", "dev_mismatched"),
        test=(
            TestSet("MNLI-m", ("test_matched",)),
            TestSet("MNLI-mm", ("test_mismatched",)),
            TestSet("AX", ("diagnostic", "../AX/AX", "../AX/diagnostic", "../diagnostic/diagnostic")),
        ),
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), "label", _ENTAILMENT, ("accuracy",)),
    "rte": GlueTask("RTE", _PAIR, "label", _ENTAILMENT, ("accuracy",)),
    "wnli": GlueTask("WNLI", _PAIR, "label", {"0": "not_entailment", "1": "entailment"}, ("accuracy",)),
}

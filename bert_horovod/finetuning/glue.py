"""GLUE: one table of its tasks, and how each one's files are to be read.

The numbers of labels follow their order here, which is Google's (run_classifier.py): contradiction, entailment,
neutral. Hugging Face's datasets have another; checkpoints say theirs in id2label, and labels are matched by name.
"""

from dataclasses import dataclass
from typing import NamedTuple


class TestSet(NamedTuple):
    """Examples without labels."""

    name: str  # of what is submitted
    files: tuple[str, ...]  # where it may be, from the task's directory, without .tsv; the first that is there


@dataclass(frozen=True)
class GlueTask:
    """One task."""

    title: str  # GLUE's name of it, of its directory, and of what is submitted
    columns: tuple[str, ...]  # of the text, or of the pair's two texts
    label_column: str
    # What files say, and the label's name; their order gives the numbers. Empty: a real number is predicted.
    labels: dict[str, str]
    metrics: tuple[str, ...]  # names in finetuning/scores.py; the first decides which run is best
    headless: tuple[str, ...] = ()  # columns of train and dev, where they have no header
    skip_broken: bool = False  # whether train has rows with too few fields
    dev: tuple[str, ...] = ("dev",)  # files, without .tsv
    test: tuple[TestSet, ...] = ()  # none named: test, submitted under the title

    @property
    def test_sets(self) -> tuple[TestSet, ...]:
        """What is predicted where it is there."""
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
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        {"0": "not_equivalent", "1": "equivalent"},
        ("f1", "accuracy"),
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

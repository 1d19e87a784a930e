"""The kinds whose promises test_kinds.py tests: a new kind is a line of CASES."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.base import Kind
from bert_horovod.finetuning.kinds.embeddings import Embeddings
from bert_horovod.finetuning.kinds.rerankers import Rerankers
from bert_horovod.finetuning.kinds.spans import Spans, squad_data
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.kinds.texts import Texts
from bert_horovod.finetuning.tag_data import ner_data
from bert_horovod.finetuning.text_data import OwnOptions, glue_data, own_data
from tests.finetuning.kinds.toy_kind import Counts
from tests.toy_glue import WORDS, numbered, write_glue, write_labels, write_mnli
from tests.toy_ner import write_ner
from tests.toy_squad import STRIDE, write_squad
from tests.toys import more_rows

TRAIN, DEV = 60, 21
CLASSIFIER = "AutoModelForSequenceClassification"


class Case(NamedTuple):
    """A kind, with toy data."""

    read: Callable[[Path], Kind]  # writes the data into a directory that is not there, and reads them
    theirs: str | None  # transformers' class; None: it has none with this head
    settings: tuple[str, ...] = ()  # of the recipe
    their_loss: bool = True  # whether that class computes this loss


def written(directory: Path, write: Callable[[Path], object]) -> Path:
    """The directory; what is there already was written by another rank."""
    if not directory.exists():
        write(directory)
    return directory


def glue(task: str, write: Callable[..., Path]) -> Callable[[Path], Kind]:
    return lambda directory: Texts(glue_data(task, Files(written(directory, write))))


def numbers(directory: Path) -> Kind:
    train, dev = numbered(directory, TRAIN), numbered(directory, DEV)
    return Texts(own_data("regression", Files(None, train, (dev,), (dev,)), ("text",), "score"))


def labels(threshold: float | None = 0.5) -> Callable[[Path], Kind]:
    def read(directory: Path) -> Kind:
        written(directory, lambda path: write_labels(path, 80, DEV))
        files = Files(None, directory / "train.csv", (directory / "dev.csv",))
        return Texts(own_data("multilabel", files, ("text",), "labels", OwnOptions(threshold=threshold)))

    return read


def tags(directory: Path) -> Kind:
    return Tags(ner_data(Files(written(directory, lambda path: write_ner(path, TRAIN, DEV, 9)))))


def spans(version: str) -> Callable[[Path], Kind]:
    def read(directory: Path) -> Kind:
        written(directory, lambda path: write_squad(path, version, 40, 15))
        return Spans(squad_data(Files(directory), doc_stride=STRIDE))

    return read


def counts(directory: Path) -> Kind:
    def write(directory: Path) -> None:
        random = np.random.default_rng(8)
        directory.mkdir()
        for name, count in (("train", TRAIN), ("dev", DEV)):
            texts = [random.choice(WORDS[5:13], random.integers(1, 12)).tolist() for _ in range(count)]
            lines = [f"{words.count('good') + words.count('fine')} {' '.join(words)}" for words in texts]
            (directory / f"{name}.txt").write_text("\n".join(lines) + "\n")

    written(directory, write)
    return Counts.read("counts", Files(None, directory / "train.txt", (directory / "dev.txt",)), {})


def rerankers(directory: Path) -> Kind:
    def write(directory: Path) -> None:
        random = np.random.default_rng(3)
        directory.mkdir()
        for name, count in (("train", TRAIN), ("dev", DEV)):
            lines = ["query,passage,label"]
            for number in range(count):
                query, *passage = random.choice(WORDS[5:13], 5).tolist()
                relevance = 0.5 * (query in passage) + 0.5 * (number % 2)
                lines.append(f"{query} {number % 4},{' '.join(passage)},{relevance}")
            (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")

    written(directory, write)
    files = Files(None, directory / "train.csv", (directory / "dev.csv",), (directory / "dev.csv",))
    return Rerankers.read("reranking", files, {})


def embeddings(columns: str, **flags: Any) -> Callable[[Path], Kind]:
    def write(directory: Path) -> None:
        random = np.random.default_rng(5)
        directory.mkdir()
        for name, count in (("train", TRAIN), ("dev", DEV)):
            lines = ["query,passage,wrong,score"]
            for _ in range(count):
                query, wrong = (random.choice(WORDS[5:13], random.integers(1, 6)).tolist() for _ in range(2))
                passage = [*random.permutation(query).tolist(), *random.choice(WORDS[5:13], 2).tolist()]
                texts = " ".join(query), " ".join(passage), " ".join(wrong)
                lines.append(f"{','.join(texts)},{len({*query} & {*passage}) / len({*passage})}")
            (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")

    def read(directory: Path) -> Kind:
        written(directory, write)
        files = Files(None, directory / "train.csv", (directory / "dev.csv",), (directory / "dev.csv",))
        return Embeddings.read("embedding", files, {"text_columns": columns} | flags)

    return read


CASES = {
    "sst2": Case(glue("sst2", lambda path: write_glue(path, TRAIN, DEV)), CLASSIFIER),
    "mnli": Case(glue("mnli", write_mnli), CLASSIFIER),
    **{
        name: Case(glue("sst2", lambda path: write_glue(path, TRAIN, DEV)), CLASSIFIER, settings, False)
        for name, settings in dict(more_rows("rows.HEADS")).items()
    },
    "regression": Case(numbers, CLASSIFIER),
    "multilabel": Case(labels(None), CLASSIFIER),
    "reranking": Case(rerankers, CLASSIFIER, (), False),
    "documents": Case(
        labels(), None, ("finetuning.head=label_attention", "finetuning.windows=2", "phase.0.sequence_length=8")
    ),
    "tags": Case(tags, "AutoModelForTokenClassification"),
    "squad1": Case(spans("1.1"), "AutoModelForQuestionAnswering", ("data.packing=true",)),
    "squad2": Case(spans("2.0"), "AutoModelForQuestionAnswering", ("data.packing=true",)),
    "scored": Case(embeddings("query,passage", label_column="score"), None),
    "embedding": Case(embeddings("query,passage,wrong", prompts=["the ", "a ", "a "], matryoshka="8"), None),
    "toy": Case(counts, CLASSIFIER, (), False),
}

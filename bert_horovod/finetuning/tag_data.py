"""Find, read and check the files of an entity recognition; the errors here tell a user's mistakes."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bert_horovod.corpus.reading.sources import JSON_SUFFIXES, suffixes
from bert_horovod.corpus.reading.tag_schemes import (
    OUTSIDE,
    complete_labels,
    is_tag,
    odd_places,
    recognise,
    split_tag,
    strict_entities,
    without_bilou,
)
from bert_horovod.corpus.reading.tagged_files import USUAL, TagColumns, TaggedSentences, read_tagged
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.storage.reading import shown
from bert_horovod.wording import counted, listed

NER = "ner"
_NAMES = {  # of files in a data directory, without suffixes; the first that exists is taken
    "train": ("train", "eng.train"),
    "dev": ("dev", "devel", "valid", "validation", "eng.testa"),
    "test": ("test", "eng.testb"),
}
_SUFFIXES = ("", ".tsv", ".txt", ".conll", ".iob", ".iob2", ".bio", ".iobes", *JSON_SUFFIXES)


@dataclass(frozen=True)
class TagData:
    """An entity recognition's train, dev and test sentences."""

    train: TaggedSentences
    dev: dict[str, TaggedSentences]  # the one that there is is called ""
    test: dict[str, TaggedSentences]  # without tags; one called "test", or none
    labels: tuple[str, ...]
    scheme: str  # of the train file's tags
    name = NER

    def numbers(self, sentences: TaggedSentences) -> list[list[int]]:
        """The number of each word's label; that of O for a tag that the train file lacks, which only dev may have."""
        number = {label: place for place, label in enumerate(self.labels)}
        return [[number.get(tag, number[OUTSIDE]) for tag in tags] for tags in sentences.tags]

    def notices(self) -> list[str]:
        """Lines about the data, printed at a run's start."""
        kinds = sorted({split_tag(label)[1] for label in self.labels if label != OUTSIDE})
        lines = [f"tags: {self.scheme}, {counted(len(kinds), 'type')}: {listed(kinds, 300)}"]
        for split in (self.train, *self.dev.values(), *self.test.values()):
            lines += split.notices()
        for split in (self.train, *self.dev.values()):
            lines += odd_notices(split, self.scheme)
        known = set(self.labels)
        dev = self.dev[""]
        if not any(tag != OUTSIDE for tags in dev.tags for tag in tags):
            lines.append(f"warning: {dev.path}: every tag is {OUTSIDE}: its scores are 0, whatever is predicted")
        unseen = Counter(tag for tags in dev.tags for tag in tags if tag not in known)
        if unseen:
            lines.append(
                f"warning: {dev.path} has tags that the train file lacks, and no prediction will be: "
                f"{listed(sorted(unseen))}"
            )
        return lines


def odd_notices(sentences: TaggedSentences, scheme: str) -> list[str]:
    """A warning with file, line and tag if tags do not fit the tags before them; else none."""
    odd = [(number, place) for number, tags in enumerate(sentences.tags) for place in odd_places(tags, scheme)]
    if not odd:
        return []
    number, place = odd[0]
    before = sentences.tags[number][place - 1] if place else "the sentence's beginning"
    return [
        f"warning: {sentences.path}: {counted(len(odd), 'tag')} that {scheme} does not allow, the first in line "
        f"{sentences.line(number, place)}: {sentences.tags[number][place]} of {shown(sentences.words[number][place])} "
        f"after {before}; scores count them as seqeval does"
    ]


def ner_data(files: Files, columns: TagColumns = USUAL) -> TagData:
    """The files of an entity recognition.

    Raises ReportedError if a file is missing, or not as corpus/reading/tagged_files.py reads it.
    """
    if len(files.dev) > 1 or len(files.test) > 1:
        raise UserError("--task ner takes one --dev_file and at most one --test_file")
    if bad := [name for name in columns.names if not is_tag(name)]:
        raise UserError(f"--tag_names {shown(bad[0])}: expected O, or B-, I-, E- or S- before a type, as B-PER")
    columns = columns._replace(names=tuple(map(without_bilou, columns.names)))
    if repeated := [name for name, count in Counter(columns.names).items() if count > 1]:
        raise UserError(f"--tag_names names {repeated[0]} twice; expected each tag once")
    if columns.names and OUTSIDE not in columns.names:
        raise UserError(
            f"--tag_names {','.join(columns.names)[:200]} lacks {OUTSIDE}, the tag of words outside entities; expected "
            "it in the place of its number, as in O,B-X,I-X"
        )
    train_path = files.train or find_tagged(files.data_dir, "train")
    dev_path = files.dev[0] if files.dev else find_tagged(files.data_dir, "dev")
    test_path = files.test[0] if files.test else _optional(files.data_dir, "test")
    files.refuse_unread_directory(test_path is not None)
    train, dev = (read_tagged(path, columns) for path in (train_path, dev_path))
    test = {"test": read_tagged(test_path, columns, tagged=False)} if test_path else {}
    scheme = recognise(train.tags)
    if not any(strict_entities(tags, scheme) for tags in train.tags):
        raise UserError(f"{train_path}: every tag is {OUTSIDE}; expected at least one entity to learn from")
    labels = columns.names or complete_labels((tag for tags in train.tags for tag in tags), scheme)
    if columns.names and (unknown := {tag for tags in train.tags for tag in tags} - set(labels)):
        raise UserError(f"{train_path} has the tag {min(unknown)}, which --tag_names does not name")
    return TagData(train, {"": dev}, test, labels, scheme)


def find_tagged(directory: Path | None, split: str) -> Path:
    """The path of a split in a data directory; raises UserError if there is none."""
    if directory is None:
        raise UserError("--task ner: expected --data_dir, or --train_file and --dev_file")
    if path := _optional(directory, split):
        return path
    raise UserError(
        f"--data_dir {directory} has no file called {' or '.join(_NAMES[split])}, as in {_NAMES[split][0]}.tsv; "
        f"expected one of CoNLL or JSON Lines, or --train_file and --dev_file"
    )


def _optional(directory: Path | None, split: str) -> Path | None:
    if directory is None or not directory.is_dir():
        return None
    for name in _NAMES[split]:
        for path in sorted(directory.iterdir()):
            suffix, compression = suffixes(path)
            stem = path.name.removesuffix(compression)
            if path.is_file() and (stem == name or (suffix in _SUFFIXES and stem == f"{name}{suffix}")):
                return path
    return None

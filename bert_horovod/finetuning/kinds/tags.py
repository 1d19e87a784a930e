"""Tagged words, as in entity recognition."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.batches.examples.tag_rows import TaggedTokens, TagRows, tokenised_words
from bert_horovod.corpus.reading.table_files import kind_of
from bert_horovod.corpus.reading.tag_schemes import OUTSIDE, recognise
from bert_horovod.corpus.reading.tagged_files import TagColumns, TaggedSentences, conll_text, read_tagged
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.base import DEV_PREDICTIONS, Kind, Request, write_prediction
from bert_horovod.finetuning.scores import entity_scores, scores_by_type, type_cells
from bert_horovod.finetuning.tag_data import NER, TagData, find_tagged, ner_data
from bert_horovod.inference.tag_predictor import TagPredictor, predicted_tags
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe.settings import ENTITIES
from bert_horovod.reporting.tables import lines
from bert_horovod.storage.reading import shown
from bert_horovod.tasks.token_classification import ARCHITECTURE, TokenClassification


class Tags(Kind):
    """See Kind. A split is tagged_files.TaggedSentences, its answers are the tags of each sentence."""

    tasks = (NER,)
    help = f"{NER}, which finds entities in files of your own"
    head = ARCHITECTURE
    kind_of_rows = TagRows
    predictor = TagPredictor
    noun, outputs = "sentences", "these tags"
    trained = ENTITIES
    decides = "f1"
    reads = ("data_dir", "text_columns", "label_column", "tag_names")
    score_reads = ("data_dir",)
    data: TagData

    @classmethod
    def read(cls, task: str, files: Files, flags: Mapping[str, Any]) -> "Tags":
        names = tuple(flags["tag_names"].split(",")) if flags.get("tag_names") else ()
        columns = TagColumns(flags.get("text_columns") or "text", flags.get("label_column") or "label", names)
        return cls(ner_data(files, columns))

    @classmethod
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        group.add_argument(
            "--tag_names",
            metavar="O,B-X,...",
            help="names of tags that are numbers in JSON Lines, in the order of their numbers, from 0",
        )

    def content(self, split: TaggedSentences) -> Any:
        return [split.words, split.tags]

    def tokens(self, split: TaggedSentences, tokenizer: Tokenizer) -> TaggedTokens:
        tokens = tokenised_words(split.words, self.data.numbers(split), tokenizer)
        if not len(tokens.ids):
            raise UserError(f"{split.path}: the tokenizer makes no token of its words; expected text")
        return tokens

    def described(self) -> tuple:
        return (self.data.labels,)

    def task(self, recipe: Recipe) -> TokenClassification:
        return TokenClassification(self.data.labels)

    def answers(self, task: Any, rows: TagRows, outputs: dict[str, np.ndarray], split: TaggedSentences) -> Any:
        return predicted_tags(rows, outputs["logits"], self.data.labels).tags

    def scores(self, task: Any, answers: list[list[str]], split: TaggedSentences) -> dict[str, float]:
        return entity_scores(split.tags, answers, self.data.scheme)

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        """The scores of entity_scores, the scheme of the right tags, and `by_type`: the scores of each type.

        The file of predictions is CoNLL, with the predicted tag in the last column, or JSON Lines. The right tags are
        those of the dev file; without one, those of the column before the last. What was not read as it stands in the
        files is told on standard error.
        """
        predicted = read_tagged(request.predictions)
        if request.dev_file is None and request.data_dir is None:
            if kind_of(request.predictions) == "json":
                raise UserError(f"{request.predictions} has no right tags: expected --dev_file, or --data_dir with it")
            if (columns := len(predicted.fields[0][0])) < 3:
                raise UserError(
                    f"{request.predictions} has {columns} columns: expected --dev_file, or the right "
                    "tag in a column before the predicted one"
                )
            gold = read_tagged(request.predictions, TagColumns(tag="-2"))
        else:
            gold = read_tagged(request.dev_file or find_tagged(request.data_dir, "dev"))
            _require_same_words(gold, predicted)
        for notice in dict.fromkeys([*gold.notices(), *predicted.notices()]):
            print(notice, file=sys.stderr)
        scheme = recognise(gold.tags)
        return {
            **entity_scores(gold.tags, predicted.tags, scheme),
            "scheme": scheme,
            "by_type": scores_by_type(gold.tags, predicted.tags),
        }

    @classmethod
    def score_table(cls, scores: dict[str, Any]) -> str:
        return lines(type_cells(scores["by_type"]))

    def notices(self, recipe: Recipe) -> list[str]:
        return self.data.notices()

    def size(self, split: TaggedSentences, rows: TagRows) -> str:
        words = sum(map(len, split.words))
        return f"{len(split.words):,} sentences of {words:,} words, {len(rows.lengths):,} windows"

    def verdict(
        self, task: Any, split: TaggedSentences, answers: list[list[str]], scores: dict[str, float]
    ) -> list[str]:
        said = super().verdict(task, split, answers, scores)
        said.append(lines(type_cells(scores_by_type(split.tags, answers))))
        if all(tag == OUTSIDE for tags in answers for tag in tags):
            said.append(
                "collapsed: no entity is predicted; train longer, or with a higher learning rate: "
                "--epochs, --set phase.0.learning_rate=1e-4"
            )
        return said

    def write(
        self, output_dir: Path, name: str, split: TaggedSentences, answers: list[list[str]], task: Any
    ) -> list[str]:
        """Write words, right tags where they are known, and predicted tags as the columns of a CoNLL file."""
        columns = [
            [list(fields) for fields in zip(words, *([tags] if tags else []), new, strict=True)]
            for words, tags, new in zip(split.words, split.tags, answers, strict=True)
        ]
        return [write_prediction(output_dir / DEV_PREDICTIONS.with_stem(name), conll_text(columns))]


def _require_same_words(gold: TaggedSentences, predicted: TaggedSentences) -> None:
    if len(gold.words) != len(predicted.words):
        raise UserError(
            f"{predicted.path} has {len(predicted.words):,} sentences, {gold.path} has {len(gold.words):,}; expected "
            "the same sentences in both"
        )
    for number, (words, others) in enumerate(zip(gold.words, predicted.words, strict=True)):
        if len(words) != len(others):
            raise UserError(
                f"{predicted.path}, line {predicted.lines[number]}: a sentence of {len(others)} words; {gold.path}, "
                f"line {gold.lines[number]}: of {len(words)}; expected the same sentences in both"
            )
        for place, (word, other) in enumerate(zip(words, others, strict=True)):
            if word.split() != other.split():  # blanks and tabs differ, because a CoNLL file cannot hold all
                raise UserError(
                    f"{predicted.path}, line {predicted.line(number, place)}: the word {shown(other)}; {gold.path}, "
                    f"line {gold.line(number, place)}: {shown(word)}; expected the same words in both"
                )

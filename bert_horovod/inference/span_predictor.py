"""Answer questions: of SQuAD's files, of tables of questions and contexts, and of lines of standard input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.batches.examples.span_rows import STRIDE, SpanRows, cut_spans
from bert_horovod.batches.examples.span_tokens import SpanTexts, tokenised_spans
from bert_horovod.batches.layout import require_pairs
from bert_horovod.corpus.reading.sources import suffixes
from bert_horovod.corpus.reading.squad_files import Questions, read_squad
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.table_writing import table_parts
from bert_horovod.errors import UserError
from bert_horovod.inference.answers import AnswerRules, Answers, find_answers, write_answers
from bert_horovod.inference.input_table import InputTable
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.predicting import Predictor, line_length
from bert_horovod.interchange.suitability import require_segments
from bert_horovod.storage.writing import write_output
from bert_horovod.tasks.span import Span

_QUESTIONS_AT_ONCE = 1024
_COLUMNS = ("question", "context")


class AnsweredQuestion(NamedTuple):
    """A question's answers."""

    id: str  # in SQuAD's file, or the number of a table's row
    answers: Answers
    kept: list[str]  # the fields of a table's row that stand beside the answer


class SpanPredictor(Predictor):
    """See Predictor; of BertForQuestionAnswering."""

    reads = (*Predictor.reads, "doc_stride", "null_score_threshold")
    usual_length, least_length = 384, 16
    fills_directories = True

    def make_task(self) -> Span:
        return Span()

    def prepare(self) -> None:
        options, directory = self.options, self.checkpoint
        require_segments(directory, self.model, self.tokenizer_settings, "question", "context")
        stride = self.config.get("doc_stride", STRIDE) if options.doc_stride is None else options.doc_stride
        if type(stride) is not int or stride < 1:
            raise UserError(f"--doc_stride {stride}: expected at least 1 token")
        if len(self.columns) != 2:
            raise UserError(f"--text_columns {','.join(self.columns)}: expected two, of question and context")
        self._stride, self._threshold = stride, options.null_score_threshold
        # None: the checkpoint does not say; then the version of SQuAD's file decides.
        self._may_abstain = True if self._threshold is not None else self.config.get("version_2_with_negative")
        require_pairs(self.tokenizer_settings, f"--checkpoint {directory}")
        self._tokenizer = LocatingTokenizer(self.vocabulary, self.tokenizer_settings)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.options.text_columns or _COLUMNS

    def predict_file(self, source: Path, output: Path, progress: Progress) -> str:
        """Answer the questions of a file.

        A .json file is in SQuAD's format (plain or compressed); other files are tables with a question and a context in
        each row. An `output` that ends in .json gets texts by id, to be scored; a directory gets the files of
        write_answers; any other `output` is a table: id (for a table's row its number), answer, probability, begin and
        end in the context, null odds if "" is allowed as an answer, and the columns to keep of a table. Raises
        UserError if `source` is not such a file, or `output` cannot be written.
        """
        questions = read_squad(source) if suffixes(source)[0] == ".json" else None
        rules = self._rules(questions.version_2 if questions else False)
        columns = ["id", "answer", "probability", "begin", "end", *(["null_odds"] if rules.may_abstain else [])]
        if questions:
            count, kept_names = len(questions.ids), []
            blocks = self._of_squad(questions, rules, progress)
        else:
            table = InputTable(source, self.columns, columns, self.options)
            count, kept_names = table.count, table.kept_names
            blocks = self._of_table(table, rules, progress)
        if output.suffix == ".json":
            texts = {each.id: each.answers.best.text for block in blocks for each in block}
            write_output(output, json.dumps(texts, indent=4, ensure_ascii=False) + "\n")
        elif output.is_dir():
            answered = [each for block in blocks for each in block]
            write_answers(output, [each.id for each in answered], [each.answers for each in answered])
        else:
            rows = ([_row(each, rules) for each in block] for block in blocks)
            write_output(output, table_parts(output, [*columns, *kept_names], rows))
        return f"{count:,} answers: {output}"

    def predict_line(self, line: str) -> str:
        """The answer, its probability and its place in the context; a line is a question, a tab and a context."""
        sides = line.split("\t")
        if len(sides) != 2:
            raise UserError(
                f"the line {line[:50]!r} has {len(sides)} texts; expected question and context, a tab between"
            )
        texts = SpanTexts([sides[1]], [sides[0]], [0], [None])
        tokens = tokenised_spans(texts, self._tokenizer)
        needed = int(cut_spans(tokens, self.length, self._stride, self.special.pair.separators).lengths.max())
        (answers,) = self._answers(texts, self._rules(False), line_length(needed, self.length), packing=False)
        best = answers.best
        return f"{best.text}\tprobability={best.probability:.4f}\tcharacters={best.begin}-{best.end}"

    def _rules(self, of_file: bool) -> AnswerRules:
        may_abstain = of_file if self._may_abstain is None else bool(self._may_abstain)
        return AnswerRules(may_abstain, self._threshold or 0.0)

    def _of_squad(
        self, questions: Questions, rules: AnswerRules, progress: Progress
    ) -> Iterator[list[AnsweredQuestion]]:
        count = len(questions.ids)
        for first in range(0, count, _QUESTIONS_AT_ONCE):
            last = min(first + _QUESTIONS_AT_ONCE, count)
            context_of = questions.context_of[first:last]
            texts = SpanTexts(
                questions.contexts[context_of[0] : context_of[-1] + 1],
                questions.questions[first:last],
                [number - context_of[0] for number in context_of],
                [None] * (last - first),
            )
            answers = self._answers(texts, rules, self.length, packing=True)
            progress(last, count)
            yield [AnsweredQuestion(*pair, []) for pair in zip(questions.ids[first:last], answers, strict=True)]

    def _of_table(self, table: InputTable, rules: AnswerRules, progress: Progress) -> Iterator[list[AnsweredQuestion]]:
        for first, (asked, contexts), kept in table:
            count = len(asked)
            texts = SpanTexts(contexts, asked, list(range(count)), [None] * count)
            answers = self._answers(texts, rules, self.length, packing=True)
            progress(first + count, table.count)
            ids = map(str, range(first, first + count))
            yield [AnsweredQuestion(*each) for each in zip(ids, answers, kept, strict=True)]

    def _answers(self, texts: SpanTexts, rules: AnswerRules, length: int, packing: bool) -> list[Answers]:
        tokens = tokenised_spans(texts, self._tokenizer)
        rows = SpanRows(tokens, self.special, length, packing=packing, stride=self._stride)
        return find_answers(rows, self.outputs(rows, packing), texts.contexts, rules)

    @classmethod
    def look(cls, source: Path, config: dict[str, Any], options: Options) -> None:
        if suffixes(source)[0] != ".json":
            super().look(source, config | {"text_columns": [*_COLUMNS]}, options)
            return
        if options.keep:
            raise UserError(
                f"--keep {','.join(options.keep)}: {source} is in SQuAD's format and has no columns; leave it out"
            )
        read_squad(source)


def _row(answered: AnsweredQuestion, rules: AnswerRules) -> list[Any]:
    best, odds = answered.answers.best, [answered.answers.null_odds] if rules.may_abstain else []
    probability = np.round(best.probability, 6).item()
    return [answered.id, best.text, probability, best.begin, best.end, *odds, *answered.kept]

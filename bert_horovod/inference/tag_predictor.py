"""Find entities: tags for the words of CoNLL files and JSON Lines, spans of characters for texts."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.batches.examples.tag_rows import SPECIAL_TOKENS, TaggedTokens, TagRows, tokenised_words
from bert_horovod.batches.words import WordBoundaries
from bert_horovod.corpus.reading.sources import ITEMS_BYTES
from bert_horovod.corpus.reading.table_files import kind_of
from bert_horovod.corpus.reading.tag_schemes import OUTSIDE, entities, is_tag
from bert_horovod.corpus.reading.tagged_files import (
    USUAL,
    TagColumns,
    conll_text,
    kind_of_input,
    tagged_blocks,
    text_blocks,
)
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer, Tokenizer
from bert_horovod.corpus.table_writing import table_parts
from bert_horovod.errors import UserError
from bert_horovod.inference.answers import trimmed
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.predicting import Predictor
from bert_horovod.inference.text_predictor import probabilities
from bert_horovod.interchange.suitability import classifier_labels, words_after_blanks
from bert_horovod.storage.reading import shown
from bert_horovod.storage.writing import write_output
from bert_horovod.tasks.token_classification import TokenClassification


class WordTags(NamedTuple):
    """Each sentence's tags, with the probability of each."""

    tags: list[list[str]]
    shares: list[list[float]]  # 1 for a word without pieces


def predicted_tags(rows: TagRows, logits: np.ndarray, labels: tuple[str, ...]) -> WordTags:
    """The likeliest tag of each word, at a tie the first; a word without pieces is O.

    `logits`: float32 [rows.count, length, labels]; `labels`: names in the order of their numbers.
    """
    places, tokens = rows.word_places(), rows.tokens
    at_words = logits[places.row, places.position]  # (words with a piece, labels)
    tags, shares = np.full(len(tokens.labels), OUTSIDE, object), np.ones(len(tokens.labels))
    tags[places.word] = np.array(labels, object)[at_words.argmax(axis=-1)]
    shares[places.word] = probabilities(at_words).max(axis=-1)
    return _by_sentence(tokens, tags, shares)


def _by_sentence(tokens: TaggedTokens, *of_words: np.ndarray) -> WordTags:
    bounds = tokens.sentence_starts[1:-1]
    return WordTags(*([part.tolist() for part in np.split(array, bounds)] for array in of_words))


_LABELS = 16  # with more, a block has fewer texts, because each token has a number for each label
_SPAN_COLUMNS = ("begin", "end", "type", "probability", "entity")


class EntitySpan(NamedTuple):
    """An entity in a text."""

    begin: int  # its first character (Unicode code point)
    end: int  # one past its last character
    type: str
    probability: float  # the mean over its words
    entity: str  # the characters


class TagPredictor(Predictor):
    """See Predictor; of BertForTokenClassification."""

    reads = ()

    def make_task(self) -> TokenClassification:
        task = TokenClassification(classifier_labels(self.checkpoint, self.config))
        if bad := [label for label in task.labels if not is_tag(label)]:
            raise UserError(
                f"--checkpoint {self.checkpoint} has the label {shown(bad[0])}; expected O and tags as B-PER and "
                "I-PER, of entities"
            )
        return task

    def prepare(self) -> None:
        columns = self.options.text_columns
        if len(columns) > 1:
            raise UserError(f"--text_columns {','.join(columns)}: expected one, of words or of texts")
        self._column, self._blanks = _column(self.options), words_after_blanks(self.config)
        self._locating = LocatingTokenizer(self.vocabulary, self.tokenizer_settings)
        self._boundaries = WordBoundaries(self.vocabulary, self.tokenizer_settings)
        self._block = ITEMS_BYTES * _LABELS // max(_LABELS, len(self.task.labels))

    def predict_file(self, source: Path, output: Path, progress: Progress) -> str:
        """Write tags for words, or spans for texts; see `kind_of_input` for which.

        Words: a CoNLL file with the source's columns and the predicted tag behind them; for JSON Lines, or if `output`
        ends in .jsonl, objects with tokens, tags and the probability of each. Texts: a table of spans with the text's
        place, which is `index`, a table's row from 0, or `line`, a plain text's line from 1. Characters are counted
        from 0 in the table's field, or in the whole plain text, its line ends included. Raises UserError if `source` is
        not such a file, or `output` cannot be written.
        """
        kind = kind_of_input(source, self._column)
        if kind == "words":
            return self._tag_words(source, output, progress)
        name, noun, first = ("index", "texts", 0) if kind == "table" else ("line", "lines", 1)
        read = partial(text_blocks, source, kind, self._column, self._block)
        total, entity_count = sum(map(len, read())), 0  # reads all, so that mistakes are told before the first answer

        def blocks() -> Iterator[list[list[Any]]]:
            nonlocal entity_count
            done = start = 0
            for texts in read():
                rows: list[list[Any]] = []
                for place, (text, spans) in enumerate(zip(texts, self.spans(texts), strict=True), first + done):
                    rows += [[place, span.begin + start, span.end + start, *span[2:]] for span in spans]
                    start += len(text) + 1 if kind == "text" else 0
                done, entity_count = done + len(texts), entity_count + len(rows)
                progress(done, total)
                yield rows

        write_output(output, table_parts(output, [name, *_SPAN_COLUMNS], blocks()))
        return f"{entity_count:,} entities in {total:,} {noun}: {output}"

    def predict_line(self, line: str) -> str:
        """The spans of a line of text, with tabs between: begin-end, type, probability and characters of each."""
        (spans,) = self.spans([line], packing=False)
        return "\t".join(f"{begin}-{end} {kind} {share:.4f} {entity}" for begin, end, kind, share, entity in spans)

    def spans(self, texts: list[str], packing: bool = True) -> list[list[EntitySpan]]:
        """The entities of each text; words are the tokenizer's: BERT's are split at white space and punctuation."""
        located = self._locating(texts)
        starts_word = ~self._boundaries.continues(located.ids)
        text_starts = np.append(0, np.cumsum(located.counts))
        starts_word[text_starts[:-1][located.counts > 0]] = True
        word_starts = np.append(np.flatnonzero(starts_word), len(located.ids))
        words_before = np.append(0, np.cumsum(starts_word))[text_starts]  # of each text
        tokens = TaggedTokens(located.ids, word_starts, words_before, np.zeros(len(word_starts) - 1, np.int32))
        begins, ends = located.begins[word_starts[:-1]].tolist(), located.ends[word_starts[1:] - 1].tolist()
        tagged, spans = self._tags(tokens, packing), []
        for text, tags, shares, first in zip(texts, *tagged, words_before[:-1].tolist(), strict=True):
            # Pieces of other tokenizers hold blanks around a word. Blanks alone are no word.
            own = slice(first, first + len(tags))
            words = [trimmed(text, *span) for span in zip(begins[own], ends[own], strict=True)]
            kept = [place for place, (begin, end) in enumerate(words) if begin < end]
            found = []
            for kind, begin, end in entities([tags[place] for place in kept]):
                start, to = words[kept[begin]][0], words[kept[end - 1]][1]
                share = round(float(np.mean([shares[place] for place in kept[begin:end]])), 6)
                found.append(EntitySpan(start, to, kind, share, text[start:to]))
            spans.append(found)
        return spans

    def _tag_words(self, source: Path, output: Path, progress: Progress) -> str:
        columns = TagColumns(word=self._column or USUAL.word)
        read = partial(tagged_blocks, source, columns, tagged=False, most=self._block)
        total, entity_count = sum(len(sentences.words) for sentences in read()), 0
        tokenizer = Tokenizer(self.vocabulary, self.tokenizer_settings)
        notices: list[str] = []

        def parts() -> Iterator[str]:
            nonlocal entity_count, notices
            done = 0
            for sentences in read():
                words = sentences.words
                tagged = self._tags(tokenised_words(words, [[]] * len(words), tokenizer, self._blanks))
                entity_count += sum(len(entities(tags)) for tags in tagged.tags)
                if kind_of(output) == "json" or not sentences.fields:
                    yield "".join(_objects(words, tagged))
                else:
                    tagged_columns = (
                        [[*columns, tag] for columns, tag in zip(sentence, tags, strict=True)]
                        for sentence, tags in zip(sentences.fields, tagged.tags, strict=True)
                    )
                    yield "\n" * (done > 0) + conll_text(tagged_columns)
                done, notices = done + len(words), sentences.notices()
                progress(done, total)

        write_output(output, parts())
        return "\n".join([*notices, f"{entity_count:,} entities in {total:,} sentences: {output}"])

    def _tags(self, tokens: TaggedTokens, packing: bool = True) -> WordTags:
        if not len(tokens.ids):  # no word has a piece: there are no rows
            return _by_sentence(tokens, np.full(len(tokens.labels), OUTSIDE, object), np.ones(len(tokens.labels)))
        longest = int(np.diff(tokens.word_starts[tokens.sentence_starts]).max())
        length = self.row_length(longest + SPECIAL_TOKENS, packing)
        rows = TagRows(tokens, self.special, length, packing=packing)
        return predicted_tags(rows, self.outputs(rows, packing)["logits"], self.task.labels)

    @classmethod
    def writes_table(cls, source: Path, options: Options) -> bool:
        # Words are written as CoNLL whatever the output's name.
        return kind_of_input(source, _column(options)) != "words"

    @classmethod
    def look(cls, source: Path, config: dict[str, Any], options: Options) -> None:
        """As Predictor.look; the rest of a long file is left to `predict_file`."""
        column = _column(options)
        if (kind := kind_of_input(source, column)) == "words":
            next(tagged_blocks(source, TagColumns(word=column or USUAL.word), tagged=False))
        else:
            next(text_blocks(source, kind, column), None)


def _column(options: Options) -> str | None:
    return options.text_columns[0] if options.text_columns else None


def _objects(sentences: list[list[str]], tagged: WordTags) -> Iterator[str]:
    for words, tags, shares in zip(sentences, *tagged, strict=True):
        record = {"tokens": words, "tags": tags, "probabilities": [round(share, 6) for share in shares]}
        yield json.dumps(record, ensure_ascii=False) + "\n"

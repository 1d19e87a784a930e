"""Rows of questions: whole windows side by side, each once an epoch, in the same order on every rank."""

import numpy as np
import pytest

from bert_horovod.batches.examples.span_rows import SpanRows
from bert_horovod.batches.examples.span_tokens import SpanTexts, SpanTokens, tokenised_spans
from bert_horovod.batches.examples.span_windows import SpanWindows
from bert_horovod.batches.special_tokens import special_ids
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
from tests.toy_glue import WORDS

LENGTH = 32
SPECIAL = special_ids(WORDS)


@pytest.fixture(scope="module")
def tokens() -> SpanTokens:
    random = np.random.default_rng(1)
    contexts = [" ".join(random.choice(WORDS[9:17], random.integers(0, 60))) + " good" for _ in range(30)]
    questions = [" ".join(["film", "plot"][number % 2 :] * (number % 4)) for number in range(60)]
    answers = [("good", len(contexts[number // 2]) - 4) if number % 3 else None for number in range(60)]
    texts = SpanTexts(contexts, questions, [number // 2 for number in range(60)], answers)
    return tokenised_spans(texts, LocatingTokenizer(WORDS, UNCASED))


def rows_of(tokens: SpanTokens, packing: bool, seed: int = 7) -> SpanRows:
    return SpanRows(tokens, SPECIAL, LENGTH, seed, packing, stride=9)


def window(tokens: SpanTokens, windows: SpanWindows, number: int) -> tuple[list[int], list[int], list[int]]:
    """Ids, types and the answer's ids of a window, the plain way."""
    question, question_length, start, count, first, last, _ = (int(column[number]) for column in windows)
    begin = tokens.question_starts[question]
    question_ids = tokens.question_ids[begin : begin + question_length].tolist()
    begin = tokens.context_starts[tokens.context_of[question]] + start
    context = tokens.context_ids[begin : begin + count].tolist()
    ids = [SPECIAL.cls, *question_ids, SPECIAL.sep, *context, SPECIAL.sep]
    return ids, [0] * (question_length + 2) + [1] * (count + 1), ids[first : last + 1]


@pytest.mark.parametrize("packing", [True, False])
def test_an_epoch_shows_each_window_once_and_rows_hold_what_windows_are(tokens, packing):
    rows = rows_of(tokens, packing)
    seen = []
    for epoch in (0, 1):
        positions = epoch * rows.count + np.arange(rows.count)
        members, batch = rows.members(positions), rows.assemble(positions)
        seen.append(members[members >= 0].tolist())
        for row, own in enumerate(members):
            place = 0
            for slot, number in enumerate(own[own >= 0].tolist()):
                ids, types, answer = window(tokens, rows.windows, number)
                at = slice(place, place + len(ids))
                assert batch["input_ids"][row, at].tolist() == ids
                assert batch["token_type_ids"][row, at].tolist() == types
                assert batch["position_ids"][row, at].tolist() == list(range(len(ids)))
                assert set(batch["sequence_ids"][row, at].tolist()) == {slot + 1}
                first, last = (batch[f"{side}_positions"][row, slot] for side in ("start", "end"))
                assert batch["input_ids"][row, first : last + 1].tolist() == answer
                assert batch["weights"][row, slot] == 1
                place += len(ids)
            assert not batch["sequence_ids"][row, place:].any()
            assert not batch["weights"][row, np.count_nonzero(own >= 0) :].any()
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(len(rows.windows.question)))
    assert seen[0] != seen[1]
    assert (rows.count < len(seen[0])) == packing

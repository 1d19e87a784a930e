"""The tokenizer of an export gives the ids of this program's, and places in the text as it was given."""

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.batches.examples.labelled import truncated_longest_first
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings
from bert_horovod.interchange.saved_model import best_answers, unread_words
from bert_horovod.interchange.text_graph import TextRows, TextTokens
from tests.interchange.conftest import VOCABULARY
from tests.toy_tokenizers import rows as rows_of_ids

WORDS = [
    *VOCABULARY,
    *("cafe", "istanbul", "2", "½", "ß", "ss", "σ", "##σ", "[unused1]", "[", "]", "mask", "don", "'", "t"),
]
TEXTS = [
    "The cat  sat.\tOn a\nmat!",
    "Café CAFE\u0301 İstanbul ΣΣ ½ ß",
    "北京cat a\u00ada\x00\u200e\ufffd",
    "[MASK] [unused1] don't xyz",
    "",
    "  ",
]


@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_the_programs_own_tokenizer(lowercase, strip_accents):
    settings = TokenizerSettings(lowercase, strip_accents)
    expected = rows_of_ids(Tokenizer(WORDS, settings)(TEXTS))
    assert TextRows(WORDS, settings, 64).tokenize(tf.constant(TEXTS)).ids.to_list() == expected


def test_places_are_bytes_of_the_text_as_it_was_given():
    text = "“Café” de\u0301ja\u0300 İstanbul 北京\u00ad!"
    rows = TextRows([*WORDS, "“", "”", "de", "##ja"], UNCASED, 64)
    tokens = rows.tokenize(tf.constant([text]))
    parts = [text.encode()[a:b].decode() for a, b in zip(*(x.to_list()[0] for x in tokens[1:]), strict=True)]
    assert parts == ["“", "Café", "”", "de\u0301", "ja\u0300", "İstanbul", "北", "京\u00ad", "!"]


def test_rows_are_those_of_bert_and_long_pairs_lose_tokens_as_with_transformers():
    rows = TextRows(WORDS, UNCASED, 10)
    cls, sep, the, cat = (WORDS.index(token) for token in ("[CLS]", "[SEP]", "the", "cat"))
    single = rows.single(rows.tokenize(tf.constant(["the " * 20, "cat"])))
    assert single["input_ids"].numpy().tolist() == [[cls, *[the] * 8, sep], [cls, cat, sep, *[0] * 7]]
    assert single["attention_mask"].numpy().tolist() == [[1] * 10, [1] * 3 + [0] * 7]
    counts = np.array([[20, 20], [2, 20], [20, 3], [1, 1], [4, 4]])
    first, second = (rows.tokenize(tf.constant(["the " * n for n in side])) for side in counts.T)
    cut = rows.trimmed(first, second)
    lengths = np.stack([part.ids.row_lengths() for part in cut], 1)
    np.testing.assert_array_equal(lengths, truncated_longest_first(counts, 7))
    pair = rows.pairs(*(part.cut(tf.constant([2, 1, 0, 1, 1])) for part in cut))
    assert pair["input_ids"].numpy()[0].tolist() == [cls, the, the, sep, the, the, sep]
    assert pair["token_type_ids"].numpy()[:3].tolist() == [
        [0, 0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(("kept", "unread"), [(0, [4, 0, 2]), (2, [3, 0, 0]), (4, [1, 0, 0]), (9, [0, 0, 0])])
def test_words_that_were_not_read_are_counted_and_a_cut_one_is_among_them(kept, unread):
    texts = tf.constant(["the  cats sat\non ", " \x00 ", "Café the"])
    uncut = TextRows(WORDS, UNCASED, 64).tokenize(texts)
    assert uncut.ids.row_lengths().numpy().tolist() == [5, 0, 2]
    assert unread_words(uncut, uncut.cut(tf.fill([3], kept)), texts).numpy().tolist() == unread


def test_the_best_answer_is_that_of_trying_all():
    random, length, counts = np.random.default_rng(0), 60, [50, 3, 0, 40]
    begins = np.array([4, 50, 5, 10])
    starts, ends = random.standard_normal((2, 4, length)).astype(np.float32)
    starts[0, 10] = ends[0, 45] = 9  # 36 tokens: too long
    starts[3, 3] = ends[3, 55] = 9  # outside of the context
    contexts = [" ".join(f"w{i:02d}" for i in range(count)) for count in counts]
    places = tf.RaggedTensor.from_row_lengths([4 * i for count in counts for i in range(count)], counts)
    outputs = best_answers(
        *map(tf.constant, (starts, ends, begins.astype(np.int32))),
        TextTokens(places, places, places + 3),
        tf.constant(contexts),
    )
    for row, (begin, count) in enumerate(zip(begins, counts, strict=True)):
        spans = [(s, e) for s in range(count) for e in range(s, min(s + 30, count))]
        null = starts[row, 0] + ends[row, 0]
        sums = {(s, e): starts[row, begin + s] + ends[row, begin + e] for s, e in spans}
        s, e = max(sums, key=sums.get, default=(0, -1))
        assert outputs["answer"].numpy()[row].decode() == contexts[row][4 * s : 4 * e + 3 if count else 0]
        assert outputs["score"].numpy()[row] == sums.get((s, e), null)
        assert outputs["null_score"].numpy()[row] == null

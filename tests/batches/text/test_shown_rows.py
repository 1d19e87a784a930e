"""Rows as text: words glued, masks, segments and pairs marked."""

import numpy as np
import pytest

from bert_horovod.batches.layout import special_ids
from bert_horovod.batches.text.shown_rows import RowText
from bert_horovod.recipe.settings import Objective

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sit", "##ting", "##s", "##"]
PAD, UNK, CLS, SEP, MASK, THE, CAT, SIT, TING, S, HASHES = range(len(WORDS))


def text_lines(sequences, masks=(), labels=(), weights=(), pair="next_sentence", padding=0, **objective) -> list[str]:
    """The lines of a row of sequences, each one or two lists of ids; masks are (place, id that was there)."""
    ids, types, numbers = [], [], []
    for number, segments in enumerate(sequences):
        for kind, segment in enumerate(segments):
            part = [*([CLS] if kind == 0 else []), *segment, SEP]
            ids += part
            types += [kind] * len(part)
            numbers += [number + 1] * len(part)
    zeros = [0] * padding
    row = {
        "input_ids": ids + [PAD] * padding,
        "token_type_ids": types + zeros,
        "sequence_ids": numbers + zeros,
        "masked_positions": [place for place, _ in masks] + [0],
        "masked_ids": [original for _, original in masks] + [0],
        "masked_weights": [1.0] * len(masks) + [0.0],
        "next_sentence_labels": list(labels) or [0] * len(sequences),
        "sequence_weights": list(weights) or [1.0] * len(sequences),
    }
    text = RowText(WORDS, special_ids(WORDS), Objective(pair=pair, **objective))
    return text.lines({name: np.array(value) for name, value in row.items()})


def test_pieces_are_glued_to_their_word_but_at_a_segments_beginning_and_a_lone_double_hash_stays():
    lines = text_lines([[[THE, CAT, S, SIT, TING, S]]], pair="none")
    assert lines[1:] == ["  sequence 1, 8 positions", "    A: the cats sittings"]
    assert text_lines([[[S, CAT, HASHES], [TING, THE]]])[2:] == ["    A: ##s cat ##", "    B: ##ting the"]


def test_the_three_kinds_of_masks_are_told_apart():
    # [CLS] [MASK] cat [MASK] the ##ting sit [SEP]
    masks = [(1, THE), (3, S), (4, CAT), (5, TING), (6, SIT)]
    lines = text_lines([[[MASK, CAT, MASK, THE, TING, SIT]]], masks, pair="none")
    assert lines[-1] == "    A: [MASK:the] cat[MASK:##s] [cat→the][##ting=] [sit=]"
    assert lines[0].endswith("1 sequence, 5 tokens masked")


def test_spans_of_words_are_counted():
    # [CLS] the cats sittings [SEP] cat the cat [SEP], of which "cats sittings", "cat" and the last "cat" are masked
    masks = [(2, CAT), (3, S), (4, SIT), (5, TING), (6, S), (8, CAT), (10, CAT)]
    segments = [[THE, MASK, MASK, MASK, TING, MASK], [MASK, THE, MASK]]
    lines = text_lines([segments], masks, pair="sentence_order", labels=[1], whole_word_masking=True, ngram=3)
    assert lines == [
        "12 of 12 positions used (100.0%), 1 sequence, 7 tokens masked: 2 words alone, 1 run of 2 words",
        "  sequence 1, 12 positions: B and A are swapped",
        "    A: the [MASK:cat][MASK:##s] [MASK:sit][##ting=][MASK:##s]",
        "    B: [MASK:cat] the [MASK:cat]",
    ]


def test_the_row_says_how_full_it_is():
    lines = text_lines([[[THE], [CAT]], [[SIT]]], weights=(1, 0), padding=2)
    assert lines == [
        "8 of 10 positions used (80.0%), 2 sequences, 0 tokens masked",
        "  sequence 1, 5 positions: B continues A",
        "    A: the",
        "    B: cat",
        "  sequence 2, 3 positions",
        "    A: sit",
    ]


@pytest.mark.parametrize(
    ("pair", "label", "words"),
    [
        ("next_sentence", 0, ": B continues A"),
        ("next_sentence", 1, ": B is from another document"),
        ("sentence_order", 0, ": B continues A"),
        ("sentence_order", 1, ": B and A are swapped"),
        ("none", 0, ""),
    ],
)
def test_pair_labels_are_words(pair, label, words):
    second = [] if pair == "none" else [[CAT]]
    lines = text_lines([[[THE], *second]], labels=[label], pair=pair)
    assert lines[1] == f"  sequence 1, {3 + 2 * len(second)} positions{words}"

import pytest

from bert_horovod.batches.layout import ordinary_ids, special_ids
from bert_horovod.errors import UserError

WORDS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "##", "#"]


def test_special_tokens_are_found_by_name_and_the_rest_is_ordinary():
    special = special_ids(WORDS)
    assert (special.pad, special.unknown, special.cls, special.sep, special.mask) == (0, 2, 3, 4, 5)
    assert ordinary_ids(WORDS, special).tolist() == [6, 7, 8, 9]


def test_a_vocabulary_without_special_or_ordinary_tokens_is_refused():
    with pytest.raises(UserError, match=r"no \[CLS\], \[MASK\]"):
        special_ids(["[PAD]", "[UNK]", "[SEP]", "a"])
    with pytest.raises(UserError, match="no ordinary tokens"):
        ordinary_ids(WORDS[:6], special_ids(WORDS[:6]))

"""Tokenizers of sequences: what they have tokens for, and that their fast rule gives the library's ids."""

import random

import pytest

from bert_horovod.corpus.reading.sequence_tokenizer import learn_sequence_tokenizer, sequence_tokenizer
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer, Tokenizer
from bert_horovod.errors import UserError
from tests.corpus.reading.documents import source_of
from tests.toy_tokenizers import rows

SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]


def learned(path, split, data, size=30522):
    return learn_sequence_tokenizer([source_of(path, data)], split, size).facts.vocabulary


def test_all_letters_have_tokens_and_kmers_that_come_twice_by_their_frequency(tmp_path):
    data = b">a\nACGACGACGNNNacgTTTT*\n>b\nTTTTTG"
    assert learned(tmp_path / "a.fa", "letters", data) == [*SPECIAL, *"*ACGNT"]
    assert learned(tmp_path / "a.fa", "3", data) == [*SPECIAL, *"*ACGNT", "ACG", "TTT"]
    assert learned(tmp_path / "a.fa", "3", data, 12) == [*SPECIAL, *"*ACGNT", "ACG"]
    with pytest.raises(UserError, match="--size 10: expected at least 11, for 6 letters and 5 special tokens"):
        learned(tmp_path / "a.fa", "3", data, 10)
    with pytest.raises(UserError, match="the input holds no sequences"):
        learned(tmp_path / "a.fa", "3", b">a\n")


@pytest.mark.parametrize("letters", [1, 3, 6])
def test_the_fast_rule_gives_the_ids_of_the_library(letters):
    draw = random.Random(letters)
    kmers = ["".join(draw.choices("ACGT", k=letters)) for _ in range(50)] if letters > 1 else []
    settings = sequence_tokenizer(letters, list("ACGNT"), sorted(set(kmers)))
    tokenizer = Tokenizer(settings.facts.vocabulary, settings)
    assert tokenizer._rule is not None
    kinds = ("ACGT", "ACGTNacgtn", "ACGTRYé*-[]", "ACG \t\n")
    texts = ["".join(draw.choices(kinds[number % 4], k=draw.randrange(40))) for number in range(400)]
    texts += ["[MASK]ACG", "".join(draw.choices(kmers or "AC", k=9)), "".join(draw.choices("ACGT", k=70_000)), ""]
    located = LocatingTokenizer(tokenizer.vocabulary, settings)(texts)
    assert rows(tokenizer(texts)) == rows((located.ids, located.counts))

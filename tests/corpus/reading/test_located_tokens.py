"""Tokens with their places: the ids are the tokenizer's, and the places cut the words out of the text."""

import pytest

from bert_horovod.corpus.reading.located_tokens import LocatingTokenizer
from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *"ABCDEFß中国é.,-'[]"]
WORDS += [f"##{word}" for word in WORDS[5:]] + ["cafe", "strasse", "mask", "ά", "a\u0301"]
TEXTS = [
    "Café au lait, a\tstraße\r\nb",
    "cafe\u0301 decomposed e\u0301\u0327 x",
    "中国a中 b",
    "zero\u200bwidth \u200e mark \ufeff bom",
    "no\u202fbreak\u2009thin\u3000wide\xa0blank",
    "[MASK] ἀ ά İstanbul ǆ ﬁn",
    "a" * 100 + " " + "b" * 101,
    "",
    " \n ",
    "한국 हिन्दी ไทย",
]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def lowercase(request) -> bool:
    return request.param


def located(texts: list[str], lowercase: bool) -> list[list[str]]:
    """The characters that each token covers, for each text."""
    tokens = LocatingTokenizer(WORDS, TokenizerSettings(lowercase))(texts)
    places = iter(zip(tokens.begins.tolist(), tokens.ends.tolist(), strict=True))
    return [
        [text[slice(*next(places))] for _ in range(count)] for text, count in zip(texts, tokens.counts, strict=True)
    ]


def test_ids_are_those_of_the_corpus_tokenizer(lowercase):
    ids, counts = Tokenizer(WORDS, TokenizerSettings(lowercase))(TEXTS)
    tokens = LocatingTokenizer(WORDS, TokenizerSettings(lowercase))(TEXTS)
    assert tokens.counts.tolist() == counts.tolist()
    assert tokens.ids.tolist() == ids.tolist()


def test_ids_are_those_of_the_corpus_tokenizer_on_real_text(shared_data):
    vocabulary = (shared_data / "vocab" / "bert-base-uncased-vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    texts = read_squad(shared_data / "finetune" / "squad" / "dev-v1.1.json.gz").contexts[::8]
    ids, counts = Tokenizer(vocabulary, UNCASED)(texts)
    tokens = LocatingTokenizer(vocabulary, UNCASED)(texts)
    assert tokens.counts.tolist() == counts.tolist()
    assert tokens.ids.tolist() == ids.tolist()


def test_places_are_those_of_the_text_as_it_was_written(lowercase):
    covered = located(TEXTS, lowercase)
    assert covered[2] == ["中", "国", "a", "中", "b"]
    assert "".join(covered[4]) == "nobreakthinwideblank"
    assert [len(word) for word in covered[6][-1:]] == [101]
    assert covered[7] == covered[8] == []
    for text, words in zip(TEXTS, covered, strict=True):
        assert all(words)
        place = 0
        for word in words:  # in order, one behind the other
            place = text.index(word, place) + len(word)


def test_an_accent_stays_with_its_letter():
    assert located(["Café"], True) == [["Café"]]
    assert located(["cafe\u0301 b"], True) == [["cafe\u0301", "b"]]
    assert located(["e\u0301\u0327 x"], True) == [["e\u0301\u0327", "x"]]

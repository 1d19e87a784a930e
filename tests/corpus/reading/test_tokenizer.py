"""Ids are those of Hugging Face's BertTokenizer, whatever the text, and places cut the words out of it."""

import random

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers

from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer, Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, JsonTokenizer, TokenizerSettings, library_tokenizer
from tests.toy_tokenizers import KINDS, TEXT

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [
    *"abcdefghijklmnopqrstuvwxyzABCDEÉéßσςΣİıńcafeé0123456789.,!?'\"-_@/:;()[]{}",
    *"…“”’—。，！？的中文字ああがはЖжщاﻻกขญ한국ᄒ한ᆫ",
    *"\u0301\u0307𝔘𝒜ﬁſK👍€£½ǅ⸻੶",
]
SMALL = list(
    dict.fromkeys(
        [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "##ing", "cat", "fi", "ss", "mask"]
    )
)

ODD = [
    *("", " ", "plain words.", "The CAT's naïve café — déjà vu!"),
    *("e\u0301 vs é; a\u0316\u0301 a\u0301\u0316", "ﬁre oﬃce ﬀ", "中文字的。mixed中English", "한국어 조선말"),
    *("ああがは ガパ", "العربية لا ﻻ", "ภาษาไทย กขญ", "Straße STRASSE ß ẞ", "Σίσυφος ΣΑΣ ὈΔΥΣΣΕΎΣ σς"),
    *("İstanbul Iı i̇", "🙂👍🏽👨‍👩‍👧‍👦🇩🇪", "a\u200bb c\u200dd e\ufefff g\u00adh"),
    *("a\x00b\x01c\x7fd\x85e\x1ff", "tab\there\r\nline\vend\fx"),
    *("nb\u00a0sp\u2003em\u3000ideo\u2028ls\u2029ps\u1680og", "\ufffd x\ufffdy", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒜 ℌ ½ ² Ⅷ"),
    *("snake_case __init__ don't rock'n'roll", "https://example.org/a?b=c&d=%20#x user@example.com"),
    *("[MASK] [CLS] [SEP] [UNK] [PAD] ##ing", "x" * 100, "x" * 101, "é" * 100, "é" * 101, "ก" * 60),
    *("a" * 60 + "\u0301" * 60, "-" * 300, "ﬁ" * 51, "𝒜" * 100, "𝒜" * 101, "€100 £5 1,000.50 3–4"),
    *("ǅ ſ K Å", "\ue000\ue001 \U000f0000a", "a੶b 𑩀 𫠠x ᙮y ⹃", "\u0378 \u2fe0 \U0003fffe z"),
    *("a\u0301\u0327 q\u0307\u0323", "\u302e\u302f가\u302e", "…“quoted”…", "¡Hola! ¿Qué?"),
    *("°±×÷^`~|<>=+$",),
]


def expected(vocabulary, settings, sentences):
    transformers = pytest.importorskip("transformers")
    peer = transformers.BertTokenizer(
        vocab={token: i for i, token in enumerate(vocabulary)},
        do_lower_case=settings.lowercase,
        strip_accents=settings.strip_accents,
        tokenize_chinese_chars=settings.chinese_apart,
    )
    return peer(sentences, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def rows(tokenizer, sentences):
    ids, lengths = tokenizer(sentences)
    assert ids.dtype == np.int32
    assert len(lengths) == len(sentences)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def assert_same(vocabulary, settings, sentences):
    computed = rows(Tokenizer(vocabulary, settings), sentences)
    for sentence, ids, expected_ids in zip(sentences, computed, expected(vocabulary, settings, sentences), strict=True):
        assert ids == expected_ids, ascii(sentence)


@pytest.fixture(scope="module")
def google(shared_data):
    path = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def random_texts(count, seed):
    generator = random.Random(seed)
    ranges = [(0x20, 0x7E)] * 6 + [
        *((0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF)),
        *((0x1100, 0x11FF), (0x1E00, 0x206F), (0x2E00, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xFFFF)),
        *((0x10000, 0x1FFFF), (0x20000, 0x2FFFF), (0x30000, 0x10FFFF)),
    ]

    def character():
        if generator.random() < 0.3:
            return generator.choice(LETTERS)
        return chr(generator.randint(*generator.choice(ranges)))

    return [
        "".join(character() if generator.random() < 0.8 else " " for _ in range(generator.randint(1, 60)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("chinese_apart", [True, False])
@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, None), (False, None), (True, False), (False, True)])
def test_odd_strings_and_random_unicode_get_the_peers_ids(lowercase, strip_accents, chinese_apart):
    settings = TokenizerSettings(lowercase, strip_accents, chinese_apart)
    texts = random_texts(5_000 if strip_accents is None and chinese_apart else 1_000, seed=1)
    assert_same(SMALL, settings, [*ODD, *texts])


@pytest.mark.parametrize("lowercase", [True, False])
def test_odd_strings_get_the_peers_ids_with_googles_vocabulary(google, lowercase):
    assert_same(google, TokenizerSettings(lowercase), ODD)


@pytest.mark.full
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_unicode_character_alone_and_between_letters_gets_the_peers_ids(lowercase):
    # Surrogates are no characters; planes 4 to 13 have none, and planes 15 and 16 are private as U+E000 is.
    codes = [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)]
    blocks = [codes[i : i + 16] for i in range(0, len(codes), 16)]
    texts = [" ".join(f"{chr(code)} a{chr(code)}b" for code in block) for block in blocks]
    assert_same([*SPECIAL, "a", "##a", "##b", "b"], TokenizerSettings(lowercase), texts)


def test_a_character_that_only_the_kernel_splits_can_be_in_the_vocabulary():
    assert_same([*SPECIAL, "x੶", "x", "y", "##y", "##੶"], UNCASED, ["x੶y x੶ y੶ \ue001 \ue002"])


def test_real_books_get_the_peers_ids(google, shared_data):
    import gzip

    with gzip.open(shared_data / "books" / "emma.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read(300_000).split("\n")
    assert_same(google, UNCASED, lines)


def test_a_sentence_does_not_depend_on_its_neighbours():
    tokenizer = Tokenizer(SMALL, UNCASED)
    assert rows(tokenizer, ODD) == [rows(tokenizer, [sentence])[0] for sentence in ODD]


def test_no_sentences_give_no_ids():
    ids, lengths = Tokenizer(SMALL, UNCASED)([])
    assert ids.shape == lengths.shape == (0,)


@pytest.mark.parametrize("length", [99, 100, 101, 149, 150, 200])
def test_a_word_over_the_limit_is_unknown_wherever_it_stands(length):
    tokenizer = Tokenizer(SMALL, UNCASED)
    for before in range(0, 120, 7):
        ids, _ = tokenizer([f"{'a ' * (before // 2)}{'.' * (before % 2)}{'c' * length}", "the cat"])
        assert (ids == tokenizer.unknown_id).sum() == (length > 100)


def roberta_with_prefix():
    tokenizer = KINDS["robertas"]()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def modernbert_with_nfc():
    tokenizer = KINDS["modernberts"]()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * 3), AddedToken("[unused1]"), AddedToken("vel", single_word=True)])
    return tokenizer


def metaspace_alone():
    tokenizer = KINDS["xlm_robertas"]()
    steps = [normalizers.Strip(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Replace("``", '"')]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_tokens([AddedToken("<X>", rstrip=True)])
    return tokenizer


def word_piece_with_digits():
    tokenizer = KINDS["word_piece"]()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.BertPreTokenizer()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


COVERED = KINDS | {
    each.__name__: each for each in (roberta_with_prefix, modernbert_with_nfc, metaspace_alone, word_piece_with_digits)
}
PLAIN = [*TEXT[:3], " They'll say it's 3 o'clock: 'tis (12:30).", "“Ä” x-1 — y…"]


def tokenizer_and_library(make):
    settings = JsonTokenizer(text=make().to_str())
    vocabulary = settings.facts.vocabulary
    return Tokenizer(vocabulary, settings), library_tokenizer(vocabulary, settings)


def assert_library_ids(tokenizer, library, texts):
    encodings = library.encode_batch_fast(texts, add_special_tokens=False)
    for text, ids, encoding in zip(texts, rows(tokenizer, texts), encodings, strict=True):
        assert ids == encoding.ids, ascii(text)


def odd_texts(count, seed):
    """Texts of what the rules look at: spaces, apostrophes, classes of characters, marks, added tokens."""
    generator = random.Random(seed)
    parts = [
        *"  '''.,-stmdrevl 1²Ⅷaé",
        *("'ll", "'Re", "ab", "e\u0301", "\u0301", " \u0301", "\u00a0", "\u3000", "\u00b4"),
        *("\n", "\t", "\0", "\u200b", "▁", "ﬁ", "½", "≠", "中文", "🙂", "|||IP|||", "<X>", " <X> ", "[unused1]", "``"),
        "   ",
    ]
    return ["".join(generator.choices(parts, k=generator.randint(0, 12))) for _ in range(count)]


@pytest.mark.parametrize("kind", COVERED)
def test_other_tokenizers_give_the_librarys_ids(kind):
    tokenizer, library = tokenizer_and_library(COVERED[kind])
    assert_library_ids(tokenizer, library, [*TEXT, *ODD, *random_texts(2_000, seed=3), *odd_texts(2_000, seed=4)])


@pytest.mark.parametrize("kind", COVERED)
def test_plain_sentences_do_not_go_to_the_library(kind, monkeypatch):
    tokenizer, library = tokenizer_and_library(COVERED[kind])
    monkeypatch.setattr(tokenizer, "_by_library", None)
    assert_library_ids(tokenizer, library, PLAIN)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["modernbert_with_nfc", "metaspace_alone", "word_piece"])
def test_every_unicode_character_gets_the_librarys_ids(kind):
    codes = [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]
    texts = [f"{chr(code)} a{chr(code)}1 .{chr(code)}{chr(code)}'s" for code in codes]
    assert_library_ids(*tokenizer_and_library(COVERED[kind]), texts)


def test_a_tokenizer_that_no_rule_covers_gives_the_librarys_ids():
    def without_boundaries():
        tokenizer = KINDS["xlm_robertas"]()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
        return tokenizer

    assert_library_ids(*tokenizer_and_library(without_boundaries), [*TEXT, *ODD, *odd_texts(200, seed=5)])


def test_few_pieces_are_kept_and_ids_stay_the_same(monkeypatch):
    monkeypatch.setattr("bert_horovod.corpus.reading.tokenizer._KEPT_PIECES", 100)
    monkeypatch.setattr("bert_horovod.corpus.reading.tokenizer._CHARACTERS_AT_ONCE", 300)
    tokenizer, library = tokenizer_and_library(KINDS["robertas"])
    assert_library_ids(tokenizer, library, random_texts(1_000, seed=6))
    assert len(tokenizer._kept._places) < 500


def test_pieces_of_one_slot_are_told_apart(monkeypatch):
    monkeypatch.setattr("bert_horovod.corpus.reading.tokenizer._SLOT_BITS", 1)
    monkeypatch.setattr("bert_horovod.corpus.reading.tokenizer._SLOT_SHIFT", np.uint64(63))
    tokenizer, library = tokenizer_and_library(KINDS["robertas"])
    for _ in range(2):
        assert_library_ids(tokenizer, library, [*TEXT, "a aa aaaaaaa aaaaaaaa aaaaaaaaa " + "a" * 15 + " " + "a" * 16])


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

"""A checkpoint's tokenizer is read as transformers reads it, or refused by the name of the setting."""

import json
import shutil

import pytest

from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer, Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.errors import ReportedError, UserError
from bert_horovod.interchange.tokenizer_files import read_tokenizer, tokenizer_config
from tests.toy_tokenizers import rows

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *("a", "b", "##b", "##c", "e", "é", "É", "e", "##e", "##é", "日", "本", "##本", "ab", "ö", "o", "!", "a", "x"),
    "##y",
]
VOCABULARY = [*SPECIAL, *WORDS]
TEXTS = ["Éa ab abc! 日本 日本日", "e\u0301 É é Ö ö o\u0308", "xy aby ABC", "a\u2028b \u00a0e", "", "本 ab!本", "xyxy"]
ROWS = 40


def write(directory, vocabulary=VOCABULARY, settings=None, tokenizer=None, **files):
    """Write a checkpoint's directory without weights."""
    directory.mkdir(exist_ok=True)
    contents = {"config": {"model_type": "bert", "vocab_size": ROWS}, "tokenizer_config": settings} | files
    if vocabulary is not None:
        content = vocabulary if isinstance(vocabulary, bytes) else "".join(f"{t}\n" for t in vocabulary).encode()
        (directory / "vocab.txt").write_bytes(content)
    for name, content in (contents | {"tokenizer": tokenizer}).items():
        if content is not None:
            (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def tokenizer_json(vocabulary=VOCABULARY, normalizer=None, post_processor=None, added=(), **model):
    """The content of a tokenizer.json as the tokenizers library writes it."""
    flags = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    ids = {token: number for number, token in enumerate(vocabulary)}
    parts = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(number, content, **more) for number, content, more in added],
        "normalizer": {"type": "BertNormalizer", **flags, **(normalizer or {})},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", **parts, "vocab": ids, **model},
    }


def added_token(number, content, special=False, **more):
    fields = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": number, "content": content, **fields, **more}


def decoder(*tokens):
    """added_tokens_decoder of a tokenizer_config.json."""
    return {
        str(number): {key: value for key, value in added_token(number, content, **more).items() if key != "id"}
        for number, content, more in tokens
    }


CLS, SEP = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
A, B = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [CLS, A, SEP],
    "pair": [CLS, A, SEP, B, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
    "special_tokens": {t: {"id": t, "ids": [VOCABULARY.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
}
ONCE = sorted(set(VOCABULARY), key=VOCABULARY.index)
MASK = {"__type": "AddedToken", "content": "[MASK]", "lstrip": True}
READ = {
    "plain": {},
    "cased": {"settings": {"do_lower_case": False}},
    "accents kept": {"settings": {"strip_accents": False}},
    "cased, accents stripped": {"settings": {"do_lower_case": False, "strip_accents": True}},
    "Chinese not apart": {"settings": {"tokenize_chinese_chars": False}},
    "all three": {"settings": {"do_lower_case": False, "tokenize_chinese_chars": False, "strip_accents": True}},
    "fast class": {"settings": {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}},
    "named special tokens": {"settings": {"unk_token": "[UNK]", "mask_token": MASK}},
    "CRLF": {"vocabulary": "\r\n".join(VOCABULARY).encode()},
    "no last line end": {"vocabulary": "\n".join(VOCABULARY).encode()},
    "empty lines": {"vocabulary": "\n".join([*SPECIAL, "", " ", *WORDS, "", ""]).encode()},
    "Unicode blanks": {"vocabulary": [*SPECIAL, "\u2028", "##\u2028", "\u3000", *WORDS, "\u00a0"]},
    "added": {"added_tokens": {"xy": len(ONCE)}, "vocabulary": ONCE},
    "an added entry": {"settings": {"added_tokens_decoder": decoder((VOCABULARY.index("ab"), "ab", {}))}},
    "special": {"settings": {"additional_special_tokens": ["ABC"]}, "vocabulary": ONCE},
    "json alone": {"vocabulary": None, "tokenizer": tokenizer_json()},
    "json before vocab.txt": {"vocabulary": [*SPECIAL, "other"], "tokenizer": tokenizer_json()},
    "json and settings": {
        "vocabulary": None,
        "tokenizer": tokenizer_json(normalizer={"lowercase": False}),
        "settings": {"do_lower_case": True, "strip_accents": False, "tokenizer_class": "BertTokenizer"},
    },
    "json of transformers' general class": {
        "vocabulary": None,
        "tokenizer": tokenizer_json(normalizer={"lowercase": False}, post_processor=TEMPLATE),
        "settings": {"tokenizer_class": "PreTrainedTokenizerFast"},
    },
    "json with an added token": {
        "vocabulary": None,
        "tokenizer": tokenizer_json(ONCE, added=[(0, "[PAD]", {"special": True}), (len(ONCE), "xyx", {})]),
    },
    "json with holes": {"vocabulary": None, "tokenizer": tokenizer_json([*SPECIAL, "hole", *WORDS])},
}
READ["json with holes"]["tokenizer"]["model"]["vocab"].pop("hole")


@pytest.mark.full
@pytest.mark.parametrize("name", READ)
def test_a_tokenizer_is_read_as_transformers_reads_it(tmp_path, transformers, name):
    directory = write(tmp_path / "uncased", **READ[name])
    peer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = [peer(text, add_special_tokens=False).input_ids for text in TEXTS]
    found = read_tokenizer(directory, ROWS)
    assert [peer.convert_tokens_to_ids(token) for token in SPECIAL] == [found.vocabulary.index(t) for t in SPECIAL]
    assert rows(Tokenizer(found.vocabulary, found.settings)(TEXTS)) == expected
    tokens = LocatingTokenizer(found.vocabulary, found.settings)(TEXTS)
    assert rows((tokens.ids, tokens.counts)) == expected

    written = write(tmp_path / "cased", found.vocabulary, tokenizer_config(found.settings, found.vocabulary, 512))
    assert read_tokenizer(written, ROWS)._replace(reason=None) == found._replace(reason=None)
    peer = transformers.AutoTokenizer.from_pretrained(written)
    assert [peer(text, add_special_tokens=False).input_ids for text in TEXTS] == expected


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path):
    plain = read_tokenizer(write(tmp_path / "plain"), ROWS)
    marked = write(tmp_path / "marked", vocabulary=("\ufeff" + "\n".join(VOCABULARY)).encode())
    assert read_tokenizer(marked, ROWS) == plain


def class_of(name):
    return {"tokenizer_class": f"{name}Tokenizer"}


REFUSED = {
    "tokenizer_class = 'BertJapaneseTokenizer'": {"settings": class_of("BertJapanese")},
    "config.json: tokenizer_class = 'BertJapanese": {"config": {"vocab_size": ROWS} | class_of("BertJapanese")},
    "'AlbertTokenizer' is not supported without tokenizer.json": {"settings": class_of("Albert"), "vocabulary": None},
    "unk_token = '<unk>' is not supported: expected '[UNK]'": {"settings": {"unk_token": "<unk>"}},
    "pad_token = None": {"settings": {"pad_token": None}},
    "special_tokens_map.json: cls_token = '<s>'": {"special_tokens_map": {"cls_token": {"content": "<s>"}}},
    "do_basic_tokenize = False": {"settings": {"do_basic_tokenize": False}},
    "word_tokenizer_type = 'mecab'": {"settings": {"word_tokenizer_type": "mecab"}},
    "never_split = ['ab']": {"settings": {"never_split": ["ab"]}},
    "auto_map = ": {"settings": {"auto_map": {"AutoTokenizer": ["x.Y", None]}}},
    "do_lower_case is 'false': expected true or false": {"settings": {"do_lower_case": "false"}},
    "tokenize_chinese_chars is 0": {"settings": {"tokenize_chinese_chars": 0}},
    "its model is 'BPE': expected 'WordPiece'": {"tokenizer": tokenizer_json(type="BPE")},
    "model.unk_token = '<unk>'": {"tokenizer": tokenizer_json(unk_token="<unk>")},
    "model.continuing_subword_prefix = '@@'": {"tokenizer": tokenizer_json(continuing_subword_prefix="@@")},
    "normalizer.type = 'Sequence'": {"tokenizer": tokenizer_json(normalizer={"type": "Sequence"})},
    "pre_tokenizer.type = 'Whitespace'": {"tokenizer": tokenizer_json() | {"pre_tokenizer": {"type": "Whitespace"}}},
    "its normalizer has do_lower_case = false, but": {"tokenizer": tokenizer_json(normalizer={"lowercase": False})},
    "tokenize_chinese_chars = false": {"tokenizer": tokenizer_json(normalizer={"handle_chinese_chars": False})},
    "post_processor = ": {"tokenizer": tokenizer_json(post_processor=TEMPLATE | {"single": [A, SEP]})},
    "without a post_processor": {"tokenizer": tokenizer_json(), "settings": {"tokenizer_class": "TokenizersBackend"}},
    "the added token 'new' has the id 30": {"added_tokens": {"new": 30}, "vocabulary": [*SPECIAL, "a"]},
    "single_word = true": {"settings": {"added_tokens_decoder": decoder((18, "ab", {"single_word": True}))}},
    "has 25 places for 23 different tokens": {"added_tokens": {"new": 25}},
    "has 41 tokens, but config.json has vocab_size = 40": {"vocabulary": [*SPECIAL, *map(str, range(36))]},
    "normalizer.type = None": {"tokenizer": tokenizer_json() | {"normalizer": None}},
    "additional_special_tokens is 5: expected tokens": {"settings": {"additional_special_tokens": 5}},
    "tokenizer.json, id 5: 'a\\n' has blanks around it or": {"tokenizer": tokenizer_json([*SPECIAL, "a\n"])},
    "has no [MASK]": {"vocabulary": VOCABULARY[:4]},
    "vocab.txt has special tokens alone": {"vocabulary": [*SPECIAL, "[unused1]"]},
    "tokenizer.json has special tokens alone": {"tokenizer": tokenizer_json(SPECIAL)},
    "tokenizer.json has an empty vocabulary": {"tokenizer": tokenizer_json(vocab={})},
    "tokenizer.json is damaged: its model is None": {"tokenizer": tokenizer_json() | {"model": None}},
    "line 6: 'a ' has blanks around it": {"vocabulary": [*SPECIAL, "a "]},
    "line 6: 'a\\xa0' has blanks around it": {"vocabulary": [*SPECIAL, "a\u00a0"]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_berts_is_refused_by_name(tmp_path, message):
    with pytest.raises(ReportedError) as caught:
        read_tokenizer(write(tmp_path / "checkpoint", **REFUSED[message]), ROWS)
    assert message in str(caught.value)


def test_the_name_of_the_directory_does_not_decide(tmp_path):
    for name in ("cased", "uncased", "chinese"):
        found = read_tokenizer(write(tmp_path / name), ROWS)
        assert (found.settings, found.reason) == (TokenizerSettings(), "transformers' default")


@pytest.mark.full
def test_googles_chinese_vocabulary_with_line_separators_as_tokens(tmp_path, shared_data, transformers):
    import gzip

    with gzip.open(shared_data / "cases" / "07-chinese-vocab.txt.gz") as file:
        (tmp_path / "vocab.txt").write_bytes(file.read())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 21128}))
    found = read_tokenizer(tmp_path, 21128)
    assert (len(found.vocabulary), found.vocabulary[343], found.vocabulary[13502]) == (21128, "\u2028", "##\u2028")
    texts = (shared_data / "cases" / "07-zh.txt").read_text(encoding="utf-8").splitlines()
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = [peer(text, add_special_tokens=False).input_ids for text in texts]
    assert rows(Tokenizer(found.vocabulary, found.settings)(texts)) == expected


def test_no_files_are_no_vocabulary(tmp_path):
    directory = write(tmp_path / "checkpoint", vocabulary=None)
    assert read_tokenizer(directory, ROWS).vocabulary is None
    shutil.rmtree(directory)


def test_an_added_token_that_one_file_lacks_is_refused(tmp_path):
    settings = {"added_tokens_decoder": decoder((5, "a", {}))}
    directory = write(tmp_path / "checkpoint", [*SPECIAL, "a"], settings, added_tokens={"new": 6})
    with pytest.raises(UserError, match="the added token 'new' is not in added_tokens_decoder"):
        read_tokenizer(directory, ROWS)


def test_a_model_with_far_more_rows_than_tokens_is_told(tmp_path, capfd):
    read_tokenizer(write(tmp_path / "checkpoint"), 2 * len(VOCABULARY))
    assert "tokens, but config.json" not in capfd.readouterr().err
    read_tokenizer(write(tmp_path / "checkpoint"), 2 * len(VOCABULARY) + 1)
    assert "the tokenizer has 25 tokens, but config.json has vocab_size = 51: is it" in capfd.readouterr().err

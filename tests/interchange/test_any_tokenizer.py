"""Tokenizers of other kinds than BERT's: ids are those of transformers, special tokens are found by their roles."""

import base64
import json
import struct

import pytest
from tokenizers import AddedToken, processors

from bert_horovod.batches.layout import ordinary_ids, special_ids
from bert_horovod.corpus.reading.tokenizer import LocatingTokenizer, Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, SpecialTokens, recorded_settings
from bert_horovod.errors import ReportedError, UserError
from bert_horovod.interchange.any_tokenizer import general_config
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from tests.interchange.test_tokenizer_files import TEMPLATE, tokenizer_json, write
from tests.toy_tokenizers import KINDS, NAMES, TEXT, config_of, robertas, rows, tokenizer_directory, write_kind

ROLES = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
TEXTS = [*TEXT, "", " ", "a <mask> [MASK] </s>", "x\ty  z", "ﬁ Ａ \u200b 🙂"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_found_by_their_roles(tmp_path, kind):
    found = read_tokenizer(write_kind(tmp_path / "directory", kind), None)
    expected = SpecialTokens() if kind == "modernberts" else ROLES
    assert found.settings.special_tokens == expected
    special = special_ids(found.vocabulary, found.settings)
    assert [found.vocabulary[number] for number in list(vars(special).values())[:5]] == list(expected)
    ordinary = [found.vocabulary[number] for number in ordinary_ids(found.vocabulary, special)]
    assert not set(ordinary) & {*expected, "<|endoftext|>"}
    assert len(ordinary) == len(found.vocabulary) - 5 - (kind == "modernberts")
    separators = 1 if kind in ("modernberts", "word_piece") else 2
    assert found.settings.pair.separators == separators
    assert found.settings.joint == (" " if kind in ("robertas", "modernberts") else "")


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers_for_what_is_read_and_what_is_written(tmp_path, transformers, kind):
    directory = write_kind(tmp_path / "read", kind)
    found = read_tokenizer(directory, 500)
    written = tmp_path / "written"
    written.mkdir()
    (written / "tokenizer.json").write_text(found.settings.text, encoding="utf-8")
    (written / "tokenizer_config.json").write_text(json.dumps(general_config(found.settings, 512)), encoding="utf-8")
    assert read_tokenizer(written, 500) == found
    mine = rows(Tokenizer(found.vocabulary, found.settings)(TEXTS))
    for place in (directory, written):
        peer = transformers.AutoTokenizer.from_pretrained(place)
        for text, ids in zip(TEXTS, mine, strict=True):
            if not any(token in text for token in (*NAMES.values(), "[MASK]")):  # here they are plain text
                assert peer(text, add_special_tokens=False).input_ids == ids
    assert peer.mask_token == found.settings.special_tokens.mask
    assert peer("a").input_ids == found.settings.library().encode("a").ids


def test_special_tokens_in_a_text_are_plain_text(tmp_path):
    found = read_tokenizer(write_kind(tmp_path / "directory", "robertas"), None)
    [ids] = rows(Tokenizer(found.vocabulary, found.settings)(["a <mask> </s>"]))
    special = set(found.settings.facts.special.values())
    assert len(ids) > 6
    assert not special & set(ids)


def test_a_manifest_keeps_it(tmp_path):
    settings = read_tokenizer(write_kind(tmp_path / "directory", "robertas"), None).settings
    recorded = json.loads(json.dumps(settings.recorded()))
    assert recorded_settings(recorded, settings.text) == settings
    assert str(settings).startswith("tokenizer.json (byte-level BPE) ")
    assert settings != JsonTokenizer(text=settings.text)
    with pytest.raises(UserError, match="leave --cased"):
        settings.cased_as(True)


def test_berts_own_goes_by_the_fast_way(tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    directory = write(tmp_path / "bert", None, settings, tokenizer_json(post_processor=TEMPLATE), config=None)
    found = read_tokenizer(directory, None)
    assert not isinstance(found.settings, JsonTokenizer)
    (directory / "tokenizer_config.json").unlink()
    assert read_tokenizer(directory, None) == found


def test_a_tokenizer_that_has_a_token_for_every_byte_needs_no_unknown_one(tmp_path):
    tokenizer = robertas()
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<unk>"]
    tokenizer = tokenizer.from_str(json.dumps(content))
    found = read_tokenizer(tokenizer_directory(tmp_path / "directory", tokenizer, **config_of("robertas")), None)
    assert found.settings.special_tokens.unknown == ""
    assert special_ids(found.vocabulary, found.settings).unknown == -1
    assert Tokenizer(found.vocabulary, found.settings).unknown_id == -1


def without_rows():
    tokenizer = robertas()
    tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def with_two_before():
    tokenizer = robertas()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> <pad> $A </s>", special_tokens=[(name, tokenizer.token_to_id(name)) for name in NAMES.values()]
    )
    return tokenizer


REFUSED = {
    "expected one token before A and one behind it": (with_two_before, {}),
    "without a post_processor, transformers adds no [CLS] and [SEP]": (without_rows, {}),
    "but cls_token is '<pad>'": (robertas, {"cls_token": "<pad>"}),
    "mask_token is 5: expected a token": (robertas, {"mask_token": 5}),
    "has ids up to 399, but the model has vocab_size = 300": (robertas, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path, message):
    make, config = REFUSED[message]
    directory = tokenizer_directory(tmp_path / "directory", make(), tokenizer_class="PreTrainedTokenizerFast", **config)
    with pytest.raises(ReportedError) as caught:
        read_tokenizer(directory, 300 if "vocab_size" in message else 400)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_says_what_version_4_of_transformers_obeys(tmp_path, kind):
    written = general_config(read_tokenizer(write_kind(tmp_path / "directory", kind), None).settings, 512)
    assert written.get("add_prefix_space") is (False if kind in ("robertas", "modernberts") else None)


def without_mask(content):
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[MASK]"]
    content["model"]["vocab"].pop("[MASK]", None)


def far_token(content):
    content["model"]["vocab"]["far"] = (1 << 32) - 1


def change_of(part, value):
    def change(content):
        content[part] = content[part] | value if part in ("model", "post_processor") else value

    return change


def special_tokens_alone(content):
    content["added_tokens"] = [token for token in content["added_tokens"] if token["special"]]
    content["model"] |= {"vocab": {token["content"]: token["id"] for token in content["added_tokens"]}, "merges": []}


def repeated(character, count, times):
    step = {"type": "Replace", "pattern": {"String": character}, "content": character * count}
    return {"type": "Sequence", "normalizers": [step] * times}


SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
UNREAD = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
MEASURELESS = base64.b64encode(struct.pack("<I", 4) + bytes(4) + bytes([97]) * 1000).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_of("model", {"dropout": 0.1}), "model.dropout = 0.1 cuts words at random"),
        (change_of("model", {"merges": []}), "its BPE has no merges, so that no text is ever cut into"),
        (change_of("model", {"vocab": {}}), "has an empty vocabulary"),
        (change_of("model", {"vocab": [5]}), "is damaged: the tokenizers library cannot read it"),
        (special_tokens_alone, "makes no token of any text but special ones (it has 6 tokens, 0 of them ordinary)"),
        (change_of("normalizer", {"type": "Prepend", "prepend": "a" * 300}), "puts 300 characters before it"),
        (change_of("normalizer", repeated("a", 100, 8)), "makes a text up to 10,000,000,000,000,000 times as long"),
        (change_of("decoder", repeated("a", 100, 1)), "its decoder makes a text up to 100 times as long"),
        (change_of("normalizer", UNREAD | {"precompiled_charsmap": MEASURELESS}), "puts 1,000 characters"),
        (change_of("normalizer", {"type": "Replace"}), "is damaged: its normalizer or decoder: KeyError"),
        (change_of("pre_tokenizer", SPLIT), "is damaged: the tokenizers library cannot use it"),
        # The library panics here, and in the next.
        (change_of("post_processor", {"special_tokens": {}}), "is damaged: the tokenizers library cannot read it"),
        (change_of("normalizer", UNREAD), "is damaged: the tokenizers library cannot read it"),
        (without_mask, "no token of it is mask_token; expected each in tokenizer_config.json"),
        (far_token, "has ids up to 4,294,967,295; expected ids below 16,777,216"),
    ],
)
def test_what_the_library_cannot_use_is_told_with_the_file(tmp_path, capfd, change, message):
    directory = write_kind(tmp_path / "directory", "modernberts")
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    change(content)
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}', encoding="utf-8")
    with pytest.raises(ReportedError) as caught:
        read_tokenizer(directory, None)
    assert "tokenizer.json" in str(caught.value)
    assert message in str(caught.value)
    assert "panicked" not in capfd.readouterr().err


def test_added_tokens_are_found_in_text(tmp_path):
    tokenizer = robertas()
    tokenizer.add_tokens([AddedToken("[a-1]", single_word=True)])
    found = read_tokenizer(tokenizer_directory(tmp_path / "directory", tokenizer, **config_of("robertas")), None)
    [ids] = rows(Tokenizer(found.vocabulary, found.settings)(["[a-1]"]))
    assert [found.vocabulary[number] for number in ids] == ["[a-1]"]


def test_a_text_that_the_library_cannot_cut_is_told(tmp_path):
    directory = write_kind(tmp_path / "directory", "robertas")
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [SPLIT | {"pattern": {"Regex": "(x+)+$"}}]}
    settings = JsonTokenizer(text=json.dumps(content), special_tokens=ROLES)
    for tokenizer in (Tokenizer, LocatingTokenizer):
        with pytest.raises(ReportedError, match=r"the tokenizer tokenizer\.json \(BPE\) .* cannot cut a text"):
            tokenizer(settings.facts.vocabulary, settings)(["x" * 50 + "!"])

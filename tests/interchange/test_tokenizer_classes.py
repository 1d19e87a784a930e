"""A tokenizer.json is taken as it is written, but for the settings that transformers writes into it."""

import json

import pytest
from tokenizers import Tokenizer as Library

from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import UserError
from bert_horovod.interchange.tokenizer_files import read_tokenizer
from tests.interchange.test_tokenizer_files import TEMPLATE, tokenizer_json
from tests.toy_tokenizers import NAMES, TEXT, robertas, rows, xlm_robertas

TEXTS = [*TEXT, " leading", "two  blanks  ", "a\tb\n c", "lake <e1>Anna</e1> y", "ÉA éa", "日本", "", "<bos>"]
SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
ROBERTA = json.loads(robertas().to_str())
SIZE = len(ROBERTA["model"]["vocab"])
LISTED = {str(token["id"]): {key: token[key] for key in ("content", *SPECIAL)} for token in ROBERTA["added_tokens"]}
LAKE, E1 = ({**SPECIAL, "content": "lake", "special": False, "normalized": True}, {**SPECIAL, "content": "<e1>"})


def roberta(prefix=False, tokens=(), model=None, **parts):
    """RoBERTa's tokenizer.json with other parts."""
    added = [*ROBERTA["added_tokens"], *({**token, "id": SIZE + i} for i, token in enumerate(tokens))]
    cut = ROBERTA["pre_tokenizer"] | {"add_prefix_space": prefix}
    return ROBERTA | {"pre_tokenizer": cut, "added_tokens": added, "model": ROBERTA["model"] | (model or {}), **parts}


def xlm(normalizer=None, **parts):
    return json.loads(xlm_robertas().to_str()) | {"normalizer": normalizer, **parts}


def bert(lowercase=True, **parts):
    return tokenizer_json(normalizer={"lowercase": lowercase}, post_processor=TEMPLATE) | parts


def write(directory, content, name, files=None, model_type=None, **settings):
    directory.mkdir()
    config = ({"tokenizer_class": name} if name else {}) | settings
    contents = {"tokenizer": content, "tokenizer_config": config, "config": {"model_type": model_type}} | (files or {})
    for file, text in contents.items():
        if text != {"model_type": None}:
            (directory / f"{file}.json").write_text(json.dumps(text), encoding="utf-8")
    return directory


def rows_of(found, texts=TEXTS):
    return rows(Tokenizer(found.vocabulary, found.settings)(texts))


BERT = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
PREFIX = NAMES | {"add_prefix_space": True}
FURTHER = {str(SIZE): LAKE, str(SIZE + 1): E1}
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}
FILES = {
    "added_tokens": {"lake": SIZE, "<e1>": SIZE + 1},
    "special_tokens_map": {"additional_special_tokens": ["<e1>"]},
}
OTHERWISE = {"cased": {"do_lower_case": False}, "accents": {"strip_accents": False}, "no key": {}}
R, X, GENERAL = "RobertaTokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizerFast"
READ = {
    "prefix by settings": (roberta(), R, PREFIX),
    "no prefix by settings": (roberta(True), "BartTokenizerFast", NAMES | {"add_prefix_space": False}),
    "no prefix without the key": (roberta(True), R, NAMES),
    "by model_type": (roberta(True), None, NAMES | {"model_type": "roberta"}),
    "general, prefix in both": (roberta(True), GENERAL, PREFIX),
    "version 5's general class": (roberta(True), "TokenizersBackend", NAMES),
    "tokens of tokenizer_config.json": (roberta(), R, NAMES | {"added_tokens_decoder": LISTED | FURTHER}),
    "tokens of added_tokens.json": (roberta(), R, NAMES | {"files": FILES}),
    "named special tokens": (roberta(), GENERAL, NAMES | {"additional_special_tokens": ["<e1>", "</e1>"]}),
    "a special token of the file": (roberta(tokens=[E1, LAKE]), R, NAMES),
    "another beginning": (roberta(), R, NAMES | {"bos_token": "<bos>"}),
    "XLM-R": (xlm(), X, NAMES),
    "Unigram, general": (xlm({"type": "NFKC"}), GENERAL, NAMES),
    **{
        f"{name}, {key}": (bert(), name, BERT | settings)
        for name in ("DistilBertTokenizer", "ElectraTokenizerFast", "MobileBertTokenizer", "LxmertTokenizer")
        for key, settings in OTHERWISE.items()
    },
    "lower-cased without the key": (bert(lowercase=False), "LayoutLMTokenizer", BERT),
    "DPR": (bert(lowercase=False), "DPRReaderTokenizer", BERT),
    **{
        f"prefix, {name}": (roberta(), f"{name}Tokenizer", PREFIX)
        for name in ("Bart", "Deberta", "LED", "Longformer", "Mvp")
    },
}
AS_WRITTEN = {
    "general, prefix in the file alone": (roberta(True), GENERAL, NAMES),
    "general, prefix in the settings alone": (roberta(), GENERAL, PREFIX),
    "a normalizer that version 5 drops": (roberta(normalizer={"type": "Lowercase"}), R, NAMES),
    "words cut otherwise": (roberta(pre_tokenizer=DIGITS), R, NAMES),
    "XLM-R, normalized": (xlm({"type": "NFKC"}), X, NAMES),
    "a lacking token": (roberta(tokens=[LAKE]), R, NAMES | {"added_tokens_decoder": LISTED}),
    "BERT's rows for an MPNet": (bert(), "MPNetTokenizer", BERT),
    "ConvBERT": (bert(), "ConvBertTokenizer", BERT | {"do_lower_case": False}),
    "DPR's fast class": (bert(lowercase=False), "DPRReaderTokenizerFast", BERT),
    "another model": (xlm(), R, NAMES),
    "a class that transformers does not have": (roberta(True), "MyTokenizer", NAMES),
    "no class, of another model": (xlm(), None, NAMES | {"model_type": "mine"}),
}
REFUSED = {
    "split_special_tokens = True is not": {"split_special_tokens": True},
    "truncation_side = 'left' is not supported": {"truncation_side": "left"},
}


@pytest.mark.full
@pytest.mark.parametrize("case", READ)
def test_what_is_read_is_what_transformers_makes(tmp_path, transformers, case):
    content, name, settings = READ[case]
    directory = write(tmp_path / "read", content, name, **settings)
    found, peer = read_tokenizer(directory, None), transformers.AutoTokenizer.from_pretrained(directory)
    assert rows_of(found) == [peer(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert found.settings.library().encode("a").ids == peer("a").input_ids
    assert found.settings.special_tokens.mask == peer.mask_token


@pytest.mark.parametrize("case", AS_WRITTEN)
def test_what_versions_of_transformers_read_otherwise_is_as_the_file_has_it(tmp_path, case):
    content, name, settings = AS_WRITTEN[case]
    found = read_tokenizer(write(tmp_path / "read", content, name, **settings), None)
    library, texts = Library.from_str(json.dumps(content)), TEXTS[:-1]
    assert rows_of(found, texts) == [library.encode(text, add_special_tokens=False).ids for text in texts]
    assert found.settings.library().encode("a", "b").ids == library.encode("a", "b").ids


@pytest.mark.full
def test_what_transformers_saves_of_it_has_the_ids_of_that_version(tmp_path, transformers):
    content, name, settings = AS_WRITTEN["a normalizer that version 5 drops"]
    peer = transformers.AutoTokenizer.from_pretrained(write(tmp_path / "read", content, name, **settings))
    peer.save_pretrained(tmp_path / "new")
    expected = [peer(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert rows_of(read_tokenizer(tmp_path / "new", None)) == expected


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_change_every_class_are_refused(tmp_path, message):
    with pytest.raises(UserError) as caught:
        read_tokenizer(write(tmp_path / "read", roberta(), R, **NAMES, **REFUSED[message]), None)
    assert message in str(caught.value)


@pytest.mark.parametrize("make", [roberta, xlm])
def test_a_special_token_is_found_and_the_text_of_one_with_a_role_is_not(tmp_path, make):
    content = make()
    size = max(token["id"] for token in content["added_tokens"]) + 1
    size = max(size, len(content["model"]["vocab"]))
    content["added_tokens"].append({**E1, "id": size})
    found = read_tokenizer(write(tmp_path / "read", content, GENERAL, **NAMES), None)
    ids, _ = Tokenizer(found.vocabulary, found.settings)(["a <e1> <s> b</s><mask> <unk><pad>"])
    special = set(found.settings.facts.special.values())
    unknown = found.vocabulary.index("<unk>")  # the characters of these names, in the Unigram
    assert special & set(ids.tolist()) - {unknown} == {size}


def test_shared_cases_have_the_ids_of_both_versions(shared_data):
    for directory in sorted((shared_data / "cases" / "new").glob("tok-*")):
        expected = json.loads((directory / "expected.json").read_text(encoding="utf-8"))
        found = read_tokenizer(directory, 705)
        assert rows_of(found, expected["texts"]) == [ids[1:-1] for ids in expected["ids"]]

"""A tokenizer is what versions 4 and 5 of transformers make of its files, or it is refused."""

import json

import pytest

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
}
NOT_READ = {
    "general, prefix in the file alone": (roberta(True), GENERAL, NAMES, "in the pre_tokenizer"),
    "general, prefix in the settings alone": (roberta(), GENERAL, PREFIX, "in the pre_tokenizer"),
    "ModernBERT": (roberta(), R, PREFIX | {"model_type": "modernbert"}, "in the pre_tokenizer"),
    "a normalizer that version 5 drops": (roberta(normalizer={"type": "Lowercase"}), R, NAMES, "in the normalizer"),
    "words cut otherwise": (roberta(pre_tokenizer=DIGITS), R, NAMES, "in the pre_tokenizer"),
    "XLM-R, normalized": (xlm({"type": "NFKC"}), X, NAMES, "in the normalizer"),
    "a lacking token": (roberta(tokens=[LAKE]), R, NAMES | {"added_tokens_decoder": LISTED}, "in the added tokens"),
    "a token of version 5": (roberta(), R, NAMES | {"image_token": "<e1>"}, "in the added tokens"),
    "BERT's rows for an MPNet": (bert(), "MPNetTokenizer", BERT, "in the post_processor"),
    "ConvBERT": (bert(), "ConvBertTokenizer", BERT | {"do_lower_case": False}, "in the normalizer"),
    "DPR": (bert(), "DPRReaderTokenizer", BERT | {"do_lower_case": False}, "in the normalizer"),
    "DPR's fast class": (bert(lowercase=False), "DPRReaderTokenizerFast", BERT, "in the normalizer"),
    "another model": (xlm(), R, NAMES, "its model is Unigram, but the class RobertaTokenizer of transformers 5 makes"),
    "a class without rules here": (roberta(), "LlamaTokenizer", NAMES, "'LlamaTokenizer', which is not supported"),
    "cut special tokens": (roberta(), R, NAMES | {"split_special_tokens": True}, "split_special_tokens = True is not"),
    "cut on the left": (roberta(), R, NAMES | {"truncation_side": "left"}, "truncation_side = 'left' is not supported"),
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


@pytest.mark.parametrize("case", NOT_READ)
def test_what_versions_of_transformers_read_otherwise_is_refused(tmp_path, case):
    content, name, settings, message = NOT_READ[case]
    with pytest.raises(UserError) as caught:
        read_tokenizer(write(tmp_path / "read", content, name, **settings), None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_the_way_out_makes_a_tokenizer_that_is_read(tmp_path, transformers):
    content, name, settings, _ = NOT_READ["a normalizer that version 5 drops"]
    t = transformers.AutoTokenizer.from_pretrained(write(tmp_path / "read", content, name, **settings))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t.backend_tokenizer,
        **t.special_tokens_map,
        add_prefix_space=getattr(t, "add_prefix_space", False),
    ).save_pretrained(tmp_path / "new")
    expected = [t(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert rows_of(read_tokenizer(tmp_path / "new", None)) == expected


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

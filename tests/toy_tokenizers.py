"""Small tokenizers of several kinds, as directories with the files that transformers writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
TEXT = (
    "The cat sat on the mat, and the dog's friend didn't run. In 1871 café owners sold 25 naïve paintings!",
    "Unbelievable stories were (mostly) retold: running, walking, jumping; an unbelievable 1871 tale.",
    "Die größten Übungen waren müßig. Ein Hund lief über die Straße.",
    "日本語の文章です。これは猫です。",
)
MASK = AddedToken("<mask>", lstrip=True, special=True)


def tokenizer_directory(directory: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """Write tokenizer.json and tokenizer_config.json."""
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def robertas(size: int = 400) -> Tokenizer:
    """A byte-level BPE with RoBERTa's special tokens, whose rows of two texts have two </s> between them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", MASK]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ids, add_prefix_space=False)
    return tokenizer


def modernberts() -> Tokenizer:
    """A byte-level BPE with BERT's special tokens and rows, and further ones that are special or not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True, special=True), "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("|||IP|||")])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    return tokenizer


def xlm_robertas(size: int = 200) -> Tokenizer:
    """A Unigram with XLM-R's parts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<s>", "<pad>", "</s>", "<unk>", MASK], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
    )
    return tokenizer


def other_word_piece() -> Tokenizer:
    """A WordPiece that is not BERT's: other special tokens, another way to cut words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["<pad>", "<unk>", "<s>", "</s>", MASK], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = processors.BertProcessing(*ids)
    return tokenizer


KINDS = {"robertas": robertas, "modernberts": modernberts, "xlm_robertas": xlm_robertas, "word_piece": other_word_piece}


def config_of(kind: str) -> dict[str, Any]:
    """What tokenizer_config.json says about special tokens; nothing in RoBERTa's, as in its published one."""
    if kind == "robertas":
        return {"model_max_length": 512, "tokenizer_class": "RobertaTokenizer"}
    names = NAMES
    if kind == "modernberts":
        names = {key: f"[{key[:-6].upper()}]" for key in NAMES}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names}


def write_kind(directory: Path, kind: str) -> Path:
    """Write a tokenizer of a kind of KINDS."""
    return tokenizer_directory(directory, KINDS[kind](), **config_of(kind))


def rows(ids_and_counts: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    """The ids of each text, of what a Tokenizer gives for all."""
    ids, counts = ids_and_counts
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]

"""Tokenizers of sequences: letters, or k-mers from the beginning on; what the last k-mer leaves is cut into letters.

Lower case gives the ids of upper case, and white space none: a sequence has the ids of its store however it is written.
"""

import string
from collections import Counter

import numpy as np

from bert_horovod.corpus.reading.formats import read_sections
from bert_horovod.corpus.reading.pieces import Piece, piece_reader
from bert_horovod.corpus.reading.sequences import token_letters
from bert_horovod.corpus.reading.sources import SourceFile
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer
from bert_horovod.errors import UserError
from bert_horovod.wording import counted

_SPECIAL_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")  # RoBERTa counts positions from the id of padding, 1
_FEWEST = 2  # k-mers in the text: those that come once are mostly beside gaps and errors
_MOST_KMERS = 1 << 24  # different ones held in memory


def learn_sequence_tokenizer(
    sources: list[SourceFile], split: str, size: int, text_field: str = "text", bad_lines: str | None = None
) -> JsonTokenizer:
    """The tokenizer of all letters that the sequences have and of their k-mers, the most frequent ones up to `size`.

    `split` as parse_split gives it. The same sources give the same tokenizer. Raises UserError for input that cannot be
    read or has no letters, and for a size that is less than that of the letters.
    """
    letters, kmers = _count(sources, split, text_field, bad_lines)
    least = len(_SPECIAL_TOKENS) + len(letters)
    if size < least:
        raise UserError(
            f"--size {size}: expected at least {least:,}, for {counted(len(letters), 'letter')} and "
            f"{len(_SPECIAL_TOKENS)} special tokens"
        )
    often = sorted((kmer for kmer, count in kmers.items() if count >= _FEWEST), key=lambda each: (-kmers[each], each))
    return sequence_tokenizer(token_letters(split), sorted(letters), sorted(often[: size - least]))


def sequence_tokenizer(token_size: int, letters: list[str], kmers: list[str]) -> JsonTokenizer:
    """The tokenizer of these letters and k-mers of `token_size` letters, which have ids in this order."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate((*_SPECIAL_TOKENS, *letters, *kmers))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    raised = [letter for letter in letters if letter in string.ascii_uppercase]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s"), ""), *(normalizers.Replace(letter.lower(), letter) for letter in raised)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f".{{{token_size}}}|."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.Fuse()
    return JsonTokenizer(text=tokenizer.to_str(pretty=True))


def _count(
    sources: list[SourceFile], split: str, text_field: str, bad_lines: str | None
) -> tuple[set[str], Counter[str]]:
    """The letters of the sequences, and how often each k-mer is a token, if these are longer than letters."""
    size, letters, kmers = token_letters(split), set[str](), Counter[str]()
    for source in sources:
        with piece_reader(Piece(source, 0, source.bytes), text_field, bad_lines) as reader:
            for section in read_sections(reader, split):
                letters.update(section.text)
                whole = np.frombuffer(section.text.encode(), f"S{size}", len(section.text) // size)
                found, counts = np.unique(whole, return_counts=True) if size > 1 else ((), ())
                for kmer, count in zip(found, counts, strict=True):
                    kmers[kmer.decode()] += int(count)
                if len(kmers) > _MOST_KMERS:
                    raise UserError(
                        f"--split {split}: the sequences have more than {_MOST_KMERS:,} different k-mers; expected a "
                        "smaller K"
                    )
    if not letters:
        raise UserError("the input holds no sequences; expected FASTA: look at --input")
    return letters, kmers

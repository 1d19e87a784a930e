"""The tokenizer as part of an exported graph: from strings to the model's rows, with operations of TensorFlow Text.

Ids are those of Hugging Face's BertTokenizer, except for some characters of rare scripts, which TensorFlow Text classes
by another version of Unicode, and for words of more than 100 characters.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_horovod.batches.layout import special_ids
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings, token_ids
from bert_horovod.runtime import lazy_tensorflow as tf

_LONGEST_WORD_BYTES = 400
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Cf}\p{Co}\x{fffd}]"  # BertTokenizer drops them


class TextTokens(NamedTuple):
    """Tokens of some texts, and their positions in the texts: ragged int32 [texts, (tokens)] each."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor  # byte positions in the original text
    ends: tf.RaggedTensor

    def cut(self, limits: tf.Tensor) -> TextTokens:
        """The first tokens of each text, as many as `limits` says, int32 [texts]."""
        return TextTokens(*(_cut(part, limits) for part in self))


class TextRows(tf.Module):
    """Makes the model's rows, of at most `length` tokens, from texts; for a tokenizer without unusual settings."""

    def __init__(self, vocabulary: list[str], settings: TokenizerSettings, length: int) -> None:
        import tensorflow_text

        super().__init__()
        self._special, self._settings, self.length = special_ids(vocabulary), settings, length
        # Do not use its own lower-casing: it decomposes compatibility characters, which BertTokenizer does not.
        self._tokenizer = tensorflow_text.FastBertTokenizer(
            _kernel_vocabulary(vocabulary), max_bytes_per_word=_LONGEST_WORD_BYTES, token_out_type=tf.int32
        )

    def tokenize(self, texts: tf.Tensor) -> TextTokens:
        """Tokens of texts, string [texts]."""
        characters = tf.strings.unicode_split(texts, "UTF-8").to_tensor("")  # (texts, characters)
        normal = self._normalised(characters)
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(tf.strings.reduce_join(normal, -1))
        given, made = (_ends_before(strings) for strings in (characters, normal))

        def given_bytes(made_bytes: tf.RaggedTensor) -> tf.RaggedTensor:
            """From bytes of the normalised text to bytes of the given text."""
            places = tf.cast(made_bytes.to_tensor(0), tf.int32)
            # Take the last character that begins there: a character that was removed, such as an accent, belongs to the
            # one before.
            given_places = tf.gather(given, tf.searchsorted(made, places, "right") - 1, batch_dims=1)
            return tf.RaggedTensor.from_tensor(given_places, ids.row_lengths())

        return TextTokens(ids, given_bytes(starts), given_bytes(ends))

    def single(self, tokens: TextTokens) -> dict[str, tf.Tensor]:
        """Rows [CLS] text [SEP], int32 [texts, length] each, by Hugging Face's names; a long text is cut at its end."""
        cut = tokens.cut(tf.fill([tokens.ids.nrows()], self.length - 2))
        return _rows(
            [self._column(cut, self._special.cls), cut.ids, self._column(cut, self._special.sep)], [], self._special.pad
        )

    def pairs(self, first: TextTokens, second: TextTokens) -> dict[str, tf.Tensor]:
        """Rows [CLS] first [SEP] second [SEP]; the pairs must fit into a row: see `trimmed`."""
        sep = self._column(first, self._special.sep)
        return _rows([self._column(first, self._special.cls), first.ids, sep], [second.ids, sep], self._special.pad)

    def trimmed(self, first: TextTokens, second: TextTokens) -> tuple[TextTokens, TextTokens]:
        """Cut pairs to a row's length as labelled.truncated_longest_first."""
        room = self.length - 3
        first_lengths, second_lengths = (tf.cast(tokens.ids.row_lengths(), tf.int32) for tokens in (first, second))
        share = tf.where(first_lengths > second_lengths, room // 2, room - room // 2)  # the second text's, at least
        return (
            first.cut(tf.minimum(first_lengths, tf.maximum(room - second_lengths, room - share))),
            second.cut(tf.minimum(second_lengths, tf.maximum(room - first_lengths, share))),
        )

    def _normalised(self, characters: tf.Tensor) -> tf.Tensor:
        import tensorflow_text

        characters = tf.strings.regex_replace(characters, _CONTROL, "")
        if self._settings.strips_accents:
            apart = tensorflow_text.normalize_utf8(characters, "NFD")
            characters = tf.strings.regex_replace(apart, r"\p{Mn}", "")
        return tf.strings.lower(characters, "utf-8") if self._settings.lowercase else characters

    def _column(self, tokens: TextTokens, number: int) -> tf.RaggedTensor:
        count = tokens.ids.nrows()
        return tf.RaggedTensor.from_tensor(tf.fill([count, 1], tf.constant(number, tf.int32)))


def _ends_before(strings: tf.Tensor) -> tf.Tensor:
    """Number of bytes before each string of a row, and in the whole row: int32 [rows, strings + 1]."""
    ends = tf.cumsum(tf.strings.length(strings), axis=1)
    return tf.pad(ends, [[0, 0], [1, 0]])


def _cut(ragged: tf.RaggedTensor, limits: tf.Tensor) -> tf.RaggedTensor:
    lengths = tf.minimum(tf.cast(ragged.row_lengths(), tf.int32), limits)
    return tf.RaggedTensor.from_tensor(ragged.to_tensor(0), lengths)


def _rows(first: list[tf.RaggedTensor], second: list[tf.RaggedTensor], padding: int) -> dict[str, tf.Tensor]:
    ids = tf.concat([*first, *second], 1)
    types = tf.concat([*map(tf.zeros_like, first), *map(tf.ones_like, second)], 1)
    return {
        "input_ids": ids.to_tensor(padding),
        "attention_mask": tf.ones_like(ids).to_tensor(0),
        "token_type_ids": types.to_tensor(0),
    }


def _kernel_vocabulary(vocabulary: list[str]) -> list[str]:
    """The vocabulary for the kernel, which wants each token once.

    A place that no text reaches, because it has no token or because a later place has the same, gets a name that is in
    no text.
    """
    ids = token_ids(vocabulary)
    return [
        token if ids.get(token) == number and token.removeprefix("##").strip() else f"\ue000{number}"
        for number, token in enumerate(vocabulary)
    ]

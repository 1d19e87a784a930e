"""Read a trained checkpoint, and let it guess masked tokens."""

from typing import NamedTuple

import numpy as np

from bert_horovod.batches.layout import special_ids
from bert_horovod.batches.words import WordBoundaries
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import JsonTokenizer, cutting
from bert_horovod.errors import UserError
from bert_horovod.inference.outputs import require_finite_outputs
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.suitability import require_vocabulary
from bert_horovod.model.encoder import encode_at
from bert_horovod.model.forward import ComputePolicy, Forward
from bert_horovod.model.heads import masked_token_logits
from bert_horovod.model.parameters import SENTENCE_VECTORS
from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.model.weights import cast_weights
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.runtime import lazy_tensorflow as tf

MASK = "[MASK]"


class Guess(NamedTuple):
    """A token for a masked place, and its probability there."""

    token: str
    probability: float


def read_masked_model(checkpoint: OpenCheckpoint) -> Pretrained:
    """Read a checkpoint that predicts masked tokens; raises ReportedError without that head, or if it is damaged."""
    pretrained = checkpoint.reader.read()
    missing_parameters = pretraining_shapes(pretrained.model, pairs=False).keys() - pretrained.parameters.keys()
    if missing_parameters:
        vectors = SENTENCE_VECTORS in checkpoint.reader.configuration
        raise UserError(
            f"--checkpoint {checkpoint} has no masked-token head ({', '.join(sorted(missing_parameters))}); expected "
            f"BertForPreTraining or BertForMaskedLM{', not a sentence encoder' if vectors else ''}"
        )
    return pretrained


class MaskedTokenPredictor:
    """Guesses the tokens at [MASK] with a masked-token head's checkpoint; raises ReportedError as read_masked_model.

    For example, MaskedTokenPredictor(checkpoint).guess(["Paris is the [MASK] of France."], 1) returns
    [[[Guess(token='capital', probability=0.997)]]].
    """

    def __init__(self, checkpoint: OpenCheckpoint) -> None:
        pretrained = read_masked_model(checkpoint)
        self.vocabulary = require_vocabulary(checkpoint, pretrained.vocabulary)
        self._special = special_ids(pretrained.vocabulary, pretrained.tokenizer_settings)
        parameters = {name: tf.constant(array) for name, array in pretrained.parameters.items()}
        policy = ComputePolicy()
        self._forward = Forward(pretrained.model, cast_weights(parameters, policy.dtype), policy)
        self._tokenizer = Tokenizer(pretrained.vocabulary, pretrained.tokenizer_settings)
        self._names = self.vocabulary
        if isinstance(pretrained.tokenizer_settings, JsonTokenizer):
            self._names = WordBoundaries(self.vocabulary, pretrained.tokenizer_settings).texts

    def guess(self, texts: list[str], count: int) -> list[list[list[Guess]]]:
        """The likeliest tokens: per text, per [MASK] in it, `count` guesses, the best first.

        Raises UserError if a text has no [MASK], or more tokens than the model has positions.
        """
        rows = [self._token_ids(text) for text in texts]
        return [self._guess(ids, count) for ids in rows]

    def _token_ids(self, text: str) -> np.ndarray:
        """int32 [length]: [CLS], the text with its masks, [SEP]."""
        settings = self._tokenizer.settings
        pieces = text.replace(settings.special_tokens.mask, MASK).split(MASK)
        if len(pieces) == 1:
            raise UserError(f"no {MASK} in the text {text!r}; write {MASK} (in capitals) where a word is to be guessed")
        if isinstance(settings, JsonTokenizer):  # it knows which spaces belong to a mask
            with cutting(settings):
                ids = np.array(settings.library().encode(settings.special_tokens.mask.join(pieces)).ids)
        else:
            ids, lengths = self._tokenizer(
                [piece.replace("\n", " ") for piece in pieces]
            )  # "[MASK]" is plain text to it
            ends = np.cumsum(lengths)[:-1]
            ids = np.concatenate([[self._special.cls], np.insert(ids, ends, self._special.mask), [self._special.sep]])
        limit = self._forward.model.max_position_embeddings
        if len(ids) > limit:
            raise UserError(
                f"a text has {len(ids)} tokens, [CLS] and [SEP] included, the model at most {limit}; "
                f"give a shorter one: {text[:50]!r}..."
            )
        return ids.astype(np.int32)

    def _guess(self, ids: np.ndarray, count: int) -> list[list[Guess]]:
        masked = np.flatnonzero(ids == self._special.mask)
        batch = {
            "input_ids": ids,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.arange(len(ids), dtype=np.int32),
            "sequence_ids": np.ones_like(ids),
        }
        batch = {name: tf.constant(array[None], tf.int32) for name, array in batch.items()}
        positions = tf.constant(masked[None], tf.int32)
        hidden = encode_at(self._forward, batch, positions)[0]
        logits = masked_token_logits(self._forward, hidden)  # (masks, vocabulary)
        require_finite_outputs({"logits": logits.numpy()})
        shares = tf.nn.softmax(logits)[:, : len(self.vocabulary)]  # rows of padding belong to no token
        probabilities, tokens = tf.math.top_k(shares, min(count, len(self.vocabulary)))
        return [
            [Guess(self._names[token], float(probability)) for probability, token in zip(*place, strict=True)]
            for place in zip(probabilities.numpy(), tokens.numpy(), strict=True)
        ]

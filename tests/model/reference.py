"""BERT in plain NumPy, float64, written from the papers alone: loops over sequences, heads and tokens, no masks.

Devlin et al. 2019 (arXiv 1810.04805), Vaswani et al. 2017 (arXiv 1706.03762, Post-LN), Hendrycks and Gimpel
(arXiv 1606.08415); of ALBERT, Lan et al. 2020 (arXiv 1909.11942).
"""

import dataclasses
import math

import numpy as np

from bert_horovod.model.shapes import pretraining_shapes
from bert_horovod.recipe.sections import Model

MODEL = Model(
    vocab_size=30,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ALBERT = dataclasses.replace(MODEL, num_hidden_layers=4, embedding_size=8, shared_layers=2, hidden_act="gelu_new")
LENGTH = 16
# Rows of sequences of so many tokens, packed from the left; the rest of a row is padding.
PACKED = ((16,), (9,), (7, 6), (5, 4, 7), (1,))


def random_parameters(model: Model, pairs: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters of which none is 0 or 1, float32."""
    random = np.random.default_rng(seed)
    return {
        name: (0.3 * random.standard_normal(shape) + name.endswith("LayerNorm.weight")).astype(np.float32)
        for name, shape in pretraining_shapes(model, pairs).items()
    }


def random_batch(packed: tuple[tuple[int, ...], ...] = PACKED, seed: int = 1) -> dict[str, np.ndarray]:
    """Random tokens in rows that hold sequences of the given lengths."""
    random = np.random.default_rng(seed)
    batch = {
        name: np.zeros((len(packed), LENGTH), np.int32)
        for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    }
    for row, lengths in enumerate(packed):
        start = 0
        for number, length in enumerate(lengths, 1):
            place = (row, slice(start, start + length))
            batch["input_ids"][place] = random.integers(5, MODEL.vocab_size, length)
            batch["token_type_ids"][place] = np.arange(length) >= length // 2
            batch["position_ids"][place] = np.arange(length)
            batch["sequence_ids"][place] = number
            start += length
    return batch


def add_targets(batch: dict[str, np.ndarray], slots: int = 4, seed: int = 2) -> dict[str, np.ndarray]:
    """The batch with masked positions and sentence-pair labels; about a quarter of the slots is empty, at weight 0."""
    random = np.random.default_rng(seed)
    rows = len(batch["input_ids"])
    tokens = (batch["sequence_ids"] > 0).sum(1, keepdims=True)
    starts = [[int(np.argmax(ids == number)) for number in range(1, 4)] for ids in batch["sequence_ids"]]
    real = [[number in ids for number in range(1, 4)] for ids in batch["sequence_ids"]]
    return batch | {
        "masked_positions": (random.integers(0, LENGTH, (rows, slots)) % tokens).astype(np.int32),
        "masked_ids": random.integers(0, MODEL.vocab_size, (rows, slots)).astype(np.int32),
        "masked_weights": (random.random((rows, slots)) < 0.75).astype(np.float32),
        "sequence_starts": np.array(starts, np.int32),
        "sequence_weights": np.array(real, np.float32),
        "next_sentence_labels": random.integers(0, 2, (rows, 3)).astype(np.int32),
    }


def gelu(model: Model, x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function, exactly, or as Google approximates it."""
    if model.hidden_act == "gelu_new":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


class Reference:
    """The model with its parameters in float64."""

    def __init__(self, model: Model, parameters: dict[str, np.ndarray]) -> None:
        self.model = model
        self.parameters = {name: value.astype(np.float64) for name, value in parameters.items()}

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return np.einsum("ti,oi->to", x, self.parameters[f"{name}.weight"]) + self.parameters[f"{name}.bias"]

    def layer_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + self.model.layer_norm_eps)
        return scaled * self.parameters[f"{name}.LayerNorm.weight"] + self.parameters[f"{name}.LayerNorm.bias"]

    def embed(self, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Tokens of one sequence, alone, at positions from 0."""
        words, positions, segments = (
            self.parameters[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        x = self.layer_norm("bert.embeddings", words[ids] + positions[: len(ids)] + segments[types])
        mapped = self.model.embedding_size or self.model.shared_layers
        return self.dense("bert.encoder.embedding_hidden_mapping_in", x) if mapped else x

    def attend(self, name: str, x: np.ndarray) -> np.ndarray:
        query, key, value = (self.dense(f"{name}.self.{part}", x) for part in ("query", "key", "value"))
        size = self.model.hidden_size // self.model.num_attention_heads
        contexts = []
        for head in range(self.model.num_attention_heads):
            columns = slice(head * size, (head + 1) * size)
            scores = query[:, columns] @ key[:, columns].T / math.sqrt(size)
            weights = np.exp(scores)
            contexts.append(weights / weights.sum(-1, keepdims=True) @ value[:, columns])
        return self.layer_norm(f"{name}.output", x + self.dense(f"{name}.output.dense", np.concatenate(contexts, -1)))

    def encode(self, ids: np.ndarray, types: np.ndarray) -> list[np.ndarray]:
        """Hidden states of one sequence: the embeddings' and each layer's [tokens, hidden]."""
        states = [self.embed(ids, types)]
        for i in range(self.model.num_hidden_layers):
            groups = self.model.shared_layers or self.model.num_hidden_layers
            name = f"bert.encoder.layer.{int(i / self.model.num_hidden_layers * groups)}"
            x = self.attend(f"{name}.attention", states[-1])
            inner = gelu(self.model, self.dense(f"{name}.intermediate.dense", x))
            states.append(self.layer_norm(f"{name}.output", x + self.dense(f"{name}.output.dense", inner)))
        return states

    def encode_batch(self, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Hidden states of each sequence of a batch, at its place; zeros at padding."""
        shape = (*batch["input_ids"].shape, self.model.hidden_size)
        states = [np.zeros(shape) for _ in range(self.model.num_hidden_layers + 1)]
        for row, numbers in enumerate(batch["sequence_ids"]):
            for number in set(numbers.tolist()) - {0}:
                place = (row, numbers == number)
                for state, encoded in zip(
                    states, self.encode(batch["input_ids"][place], batch["token_type_ids"][place]), strict=True
                ):
                    state[place] = encoded
        return states

    def token_logits(self, x: np.ndarray) -> np.ndarray:
        """Scores of the vocabulary for hidden states [tokens, hidden]."""
        x = gelu(self.model, self.dense("cls.predictions.transform.dense", x))
        x = self.layer_norm("cls.predictions.transform", x)
        return x @ self.parameters["bert.embeddings.word_embeddings.weight"].T + self.parameters["cls.predictions.bias"]

    def pair_logits(self, x: np.ndarray) -> np.ndarray:
        """Scores of "continues" and "from elsewhere" for hidden states of [CLS] [sequences, hidden]."""
        return self.dense("cls.seq_relationship", np.tanh(self.dense("bert.pooler.dense", x)))

    def loss_sums(self, batch: dict[str, np.ndarray], hidden: np.ndarray) -> list[float]:
        """Masked-token loss and hits, sentence-pair loss and hits, summed where the weight is 1."""
        sums = [0.0] * 4
        for row, state in enumerate(hidden):
            tokens = self.token_logits(state[batch["masked_positions"][row]])
            pairs = self.pair_logits(state[batch["sequence_starts"][row]])
            for i, scores, labels, weights in (
                (0, tokens, batch["masked_ids"], batch["masked_weights"]),
                (2, pairs, batch["next_sentence_labels"], batch["sequence_weights"]),
            ):
                for score, label, weight in zip(scores, labels[row], weights[row], strict=True):
                    if weight:
                        sums[i] += math.log(np.exp(score).sum()) - score[label]
                        sums[i + 1] += float(score.argmax() == label)
        return sums

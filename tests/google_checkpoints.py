"""TF1 checkpoints of tiny BERTs, as google-research/bert's training writes them, for tests."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.interchange.conftest import VOCABULARY

HIDDEN, INNER, LAYERS, POSITIONS = 12, 20, 2, 24
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 3,
    "num_hidden_layers": LAYERS,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": len(VOCABULARY),
}
ENCODER = {
    "bert/embeddings/word_embeddings": [len(VOCABULARY), HIDDEN],
    "bert/embeddings/position_embeddings": [POSITIONS, HIDDEN],
    "bert/embeddings/token_type_embeddings": [2, HIDDEN],
    "bert/embeddings/LayerNorm/beta": [HIDDEN],
    "bert/embeddings/LayerNorm/gamma": [HIDDEN],
    **{
        f"bert/encoder/layer_{layer}/{name}": shape
        for layer in range(LAYERS)
        for name, shape in {
            "attention/self/query/kernel": [HIDDEN, HIDDEN],
            "attention/self/query/bias": [HIDDEN],
            "attention/self/key/kernel": [HIDDEN, HIDDEN],
            "attention/self/key/bias": [HIDDEN],
            "attention/self/value/kernel": [HIDDEN, HIDDEN],
            "attention/self/value/bias": [HIDDEN],
            "attention/output/dense/kernel": [HIDDEN, HIDDEN],
            "attention/output/dense/bias": [HIDDEN],
            "attention/output/LayerNorm/beta": [HIDDEN],
            "attention/output/LayerNorm/gamma": [HIDDEN],
            "intermediate/dense/kernel": [HIDDEN, INNER],
            "intermediate/dense/bias": [INNER],
            "output/dense/kernel": [INNER, HIDDEN],
            "output/dense/bias": [HIDDEN],
            "output/LayerNorm/beta": [HIDDEN],
            "output/LayerNorm/gamma": [HIDDEN],
        }.items()
    },
}
POOLER = {"bert/pooler/dense/kernel": [HIDDEN, HIDDEN], "bert/pooler/dense/bias": [HIDDEN]}
MASKED = {
    "cls/predictions/transform/dense/kernel": [HIDDEN, HIDDEN],
    "cls/predictions/transform/dense/bias": [HIDDEN],
    "cls/predictions/transform/LayerNorm/beta": [HIDDEN],
    "cls/predictions/transform/LayerNorm/gamma": [HIDDEN],
    "cls/predictions/output_bias": [len(VOCABULARY)],
}
PAIRS = {"cls/seq_relationship/output_weights": [2, HIDDEN], "cls/seq_relationship/output_bias": [2]}
SQUAD = {"cls/squad/output_weights": [2, HIDDEN], "cls/squad/output_bias": [2]}
CLASSIFIER = {"output_weights": [3, HIDDEN], "output_bias": [3]}
PRETRAINING = ENCODER | POOLER | MASKED | PAIRS


def write_checkpoint(
    directory: Path, shapes: dict[str, list[int]] = PRETRAINING, adam: bool = False, name: str = "bert_model.ckpt"
) -> dict[str, np.ndarray]:
    """A checkpoint of random values, written by TF1's own Saver; returns its values."""
    directory.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    values = {variable: 0.3 * random.standard_normal(shape).astype(np.float32) for variable, shape in shapes.items()}
    moments = {f"{variable}/adam_{kind}": value for variable, value in values.items() for kind in "mv" if adam}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for variable, value in (values | moments | ({"global_step": np.int64(7)} if adam else {})).items():
            tf.compat.v1.get_variable(variable, initializer=tf.constant(value))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(directory / name), write_meta_graph=False, write_state=False)
    (directory / "bert_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    return values

"""TF1 checkpoints of tiny BERTs and ALBERTs, as the training of google-research writes them, for tests."""

import json
from pathlib import Path
from typing import Any

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

WIDTH, GROUPS = 8, 2
ALBERT_CONFIG = {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "embedding_size": WIDTH,
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 3,
    "num_hidden_layers": 4,
    "num_hidden_groups": GROUPS,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": len(VOCABULARY),
}
ALBERT_PRETRAINING = {
    "bert/embeddings/word_embeddings": [len(VOCABULARY), WIDTH],
    "bert/embeddings/position_embeddings": [POSITIONS, WIDTH],
    "bert/embeddings/token_type_embeddings": [2, WIDTH],
    "bert/embeddings/LayerNorm/beta": [WIDTH],
    "bert/embeddings/LayerNorm/gamma": [WIDTH],
    "bert/encoder/embedding_hidden_mapping_in/kernel": [WIDTH, HIDDEN],
    "bert/encoder/embedding_hidden_mapping_in/bias": [HIDDEN],
    **{
        f"bert/encoder/transformer/group_{group}/inner_group_0/{name}": shape
        for group in range(GROUPS)
        for name, shape in {
            "attention_1/self/query/kernel": [HIDDEN, HIDDEN],
            "attention_1/self/query/bias": [HIDDEN],
            "attention_1/self/key/kernel": [HIDDEN, HIDDEN],
            "attention_1/self/key/bias": [HIDDEN],
            "attention_1/self/value/kernel": [HIDDEN, HIDDEN],
            "attention_1/self/value/bias": [HIDDEN],
            "attention_1/output/dense/kernel": [HIDDEN, HIDDEN],
            "attention_1/output/dense/bias": [HIDDEN],
            "LayerNorm/beta": [HIDDEN],
            "LayerNorm/gamma": [HIDDEN],
            "ffn_1/intermediate/dense/kernel": [HIDDEN, INNER],
            "ffn_1/intermediate/dense/bias": [INNER],
            "ffn_1/intermediate/output/dense/kernel": [INNER, HIDDEN],
            "ffn_1/intermediate/output/dense/bias": [HIDDEN],
            "LayerNorm_1/beta": [HIDDEN],
            "LayerNorm_1/gamma": [HIDDEN],
        }.items()
    },
    **POOLER,
    "cls/predictions/transform/dense/kernel": [HIDDEN, WIDTH],
    "cls/predictions/transform/dense/bias": [WIDTH],
    "cls/predictions/transform/LayerNorm/beta": [WIDTH],
    "cls/predictions/transform/LayerNorm/gamma": [WIDTH],
    "cls/predictions/output_bias": [len(VOCABULARY)],
    **PAIRS,
}


def write_checkpoint(
    directory: Path,
    shapes: dict[str, list[int]] = PRETRAINING,
    adam: bool = False,
    name: str = "bert_model.ckpt",
    config: dict[str, Any] = CONFIG,
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
    file = "albert_config.json" if "embedding_size" in config else "bert_config.json"
    (directory / file).write_text(json.dumps(config), encoding="utf-8")
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    return values

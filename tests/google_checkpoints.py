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


def dense(name: str, inputs: int = HIDDEN, outputs: int = HIDDEN) -> dict[str, list[int]]:
    """The shapes of a layer's kernel and bias."""
    return {f"{name}/kernel": [inputs, outputs], f"{name}/bias": [outputs]}


def norm(name: str, width: int = HIDDEN) -> dict[str, list[int]]:
    """The shapes of a LayerNorm's variables."""
    return {f"{name}/{part}": [width] for part in ("beta", "gamma")}


def embeddings(width: int) -> dict[str, list[int]]:
    """Of words, positions and segments, with their LayerNorm."""
    rows = {"word": len(VOCABULARY), "position": POSITIONS, "token_type": 2}
    tables = {f"bert/embeddings/{name}_embeddings": [count, width] for name, count in rows.items()}
    return tables | norm("bert/embeddings/LayerNorm", width)


ENCODER = embeddings(HIDDEN)
for layer in (f"bert/encoder/layer_{number}" for number in range(LAYERS)):
    for name in ("query", "key", "value"):
        ENCODER |= dense(f"{layer}/attention/self/{name}")
    ENCODER |= dense(f"{layer}/attention/output/dense") | norm(f"{layer}/attention/output/LayerNorm")
    ENCODER |= dense(f"{layer}/intermediate/dense", HIDDEN, INNER) | dense(f"{layer}/output/dense", INNER, HIDDEN)
    ENCODER |= norm(f"{layer}/output/LayerNorm")
POOLER = dense("bert/pooler/dense")
TRANSFORM = "cls/predictions/transform"
OUTPUT_BIAS = {"cls/predictions/output_bias": [len(VOCABULARY)]}
MASKED = dense(f"{TRANSFORM}/dense") | norm(f"{TRANSFORM}/LayerNorm") | OUTPUT_BIAS
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
ALBERT_PRETRAINING = embeddings(WIDTH) | dense("bert/encoder/embedding_hidden_mapping_in", WIDTH)
for block in (f"bert/encoder/transformer/group_{group}/inner_group_0" for group in range(GROUPS)):
    for name in ("self/query", "self/key", "self/value", "output/dense"):
        ALBERT_PRETRAINING |= dense(f"{block}/attention_1/{name}")
    ALBERT_PRETRAINING |= norm(f"{block}/LayerNorm") | dense(f"{block}/ffn_1/intermediate/dense", HIDDEN, INNER)
    ALBERT_PRETRAINING |= dense(f"{block}/ffn_1/intermediate/output/dense", INNER) | norm(f"{block}/LayerNorm_1")
ALBERT_PRETRAINING |= POOLER | dense(f"{TRANSFORM}/dense", HIDDEN, WIDTH) | norm(f"{TRANSFORM}/LayerNorm", WIDTH)
ALBERT_PRETRAINING |= OUTPUT_BIAS | PAIRS


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

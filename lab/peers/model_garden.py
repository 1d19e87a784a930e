"""TensorFlow Model Garden's pre-training step, timed on request; lab/compute.py says how."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import json
import sys

import numpy as np
import tensorflow as tf
import tf_keras
from answering import answer
from official.modeling import optimization
from official.nlp.configs import bert, encoders
from official.nlp.data import pretrain_dataloader
from official.nlp.tasks import masked_lm


def main() -> None:
    shape = json.loads(sys.argv[1])
    tf.config.threading.set_intra_op_parallelism_threads(shape["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if shape["precision"] != "float32":
        tf_keras.mixed_precision.set_global_policy("mixed_" + shape["precision"])
    model = shape["model"]
    task = masked_lm.MaskedLMTask(
        masked_lm.MaskedLMConfig(
            train_data=pretrain_dataloader.BertPretrainDataConfig(use_next_sentence_label=True),
            model=bert.PretrainerConfig(
                encoder=encoders.EncoderConfig(
                    bert=encoders.BertEncoderConfig(
                        vocab_size=model["vocab_size"],
                        hidden_size=model["hidden_size"],
                        num_layers=model["num_hidden_layers"],
                        num_attention_heads=model["num_attention_heads"],
                        intermediate_size=model["intermediate_size"],
                        dropout_rate=model["hidden_dropout_prob"],
                        attention_dropout_rate=model["attention_probs_dropout_prob"],
                        max_position_embeddings=model["max_position_embeddings"],
                    )
                ),
                cls_heads=[
                    bert.ClsHeadConfig(
                        inner_dim=model["hidden_size"], num_classes=2, dropout_rate=0.1, name="next_sentence"
                    )
                ],
            ),
        )
    )
    network = task.build_model()
    optimizers = {
        "adamw": {"weight_decay_rate": 0.01, "gradient_clip_norm": 1.0},
        "lamb": {"weight_decay_rate": 0.01, "global_clipnorm": 1.0},
    }
    name = shape.get("optimizer", "adamw")
    optimizer = task.create_optimizer(
        optimization.OptimizationConfig(
            {
                "optimizer": {"type": name, name: optimizers[name]},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-4}},
            }
        )
    )
    batch = {name: tf.constant(values) for name, values in _batch(shape).items()}
    metrics = task.build_metrics()
    compiled = tf.function(lambda: task.train_step(batch, network, optimizer, metrics))

    def step() -> None:
        compiled()[task.loss].numpy()

    answer(step)


def _batch(shape: dict) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows, length, slots, vocabulary = (shape[name] for name in ("rows", "length", "slots", "vocabulary"))
    positions = np.sort(random.permuted(np.tile(np.arange(length), (rows, 1)), axis=1)[:, :slots], 1)
    return {
        "input_word_ids": random.integers(0, vocabulary, (rows, length), np.int32),
        "input_mask": np.ones((rows, length), np.int32),
        "input_type_ids": np.tile(np.arange(length) > length // 2, (rows, 1)).astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": random.integers(0, vocabulary, (rows, slots), np.int32),
        "masked_lm_weights": np.ones((rows, slots), np.float32),
        "next_sentence_labels": random.integers(0, 2, (rows, 1), np.int32),
    }


if __name__ == "__main__":
    main()

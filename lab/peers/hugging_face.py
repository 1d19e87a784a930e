"""Hugging Face's model of pre-training in compiled PyTorch, timed on request; lab/compute.py says how."""

import json
import sys

import numpy as np
import torch
from answering import answer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining


def main() -> None:
    shape = json.loads(sys.argv[1])
    torch.set_num_threads(shape["threads"])
    torch.manual_seed(0)
    device = shape.get("device", "cpu")
    kind = AutoModelForPreTraining if shape["pairs"] else AutoModelForMaskedLM
    network = kind.from_config(AutoConfig.for_model(**shape["config"]), attn_implementation="sdpa").train().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batch = {name: torch.from_numpy(values).to(device) for name, values in _batch(shape).items()}
    if device == "cuda":
        # No position is padding. Without a mask PyTorch takes its flash attention, with one a slower kernel.
        del batch["attention_mask"]
        torch.set_float32_matmul_precision("high")  # TF32, as TensorFlow's default is
    compiled = torch.compile(network)
    narrow = shape["precision"] != "float32"

    def step() -> None:
        with torch.autocast(device, dtype=getattr(torch, shape["precision"]), enabled=narrow):
            loss = compiled(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    answer(step)


def _batch(shape: dict) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows, length, slots, vocabulary = (shape[name] for name in ("rows", "length", "slots", "vocabulary"))
    labels = np.full((rows, length), -100)
    for row in labels:
        row[random.permutation(length)[:slots]] = random.integers(0, vocabulary, slots)
    batch = {
        "input_ids": random.integers(0, vocabulary, (rows, length)),
        "attention_mask": np.ones((rows, length), np.int64),
        "labels": labels,
    }
    if shape["pairs"]:
        batch["token_type_ids"] = np.tile(np.arange(length) > length // 2, (rows, 1)).astype(np.int64)
        batch["next_sentence_label"] = random.integers(0, 2, rows)
    return batch


if __name__ == "__main__":
    main()

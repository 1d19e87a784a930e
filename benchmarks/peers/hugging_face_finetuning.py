"""transformers' fine-tuning of a classifier, timed on request; benchmarks/finetuning.py says how.

Batches are those of its Trainer with group_by_length: LengthGroupedSampler, padded to the longest example.
"""

import json
import sys
import time

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification
from transformers.trainer_pt_utils import LengthGroupedSampler


def main() -> None:
    shape = json.loads(sys.argv[1])
    torch.set_num_threads(shape["threads"])
    torch.manual_seed(0)
    network = AutoModelForSequenceClassification.from_pretrained(
        shape["checkpoint"], num_labels=shape["labels"], attn_implementation="sdpa", ignore_mismatched_sizes=True
    ).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    narrow = shape["precision"] != "float32"
    compiled = torch.compile(network, dynamic=True) if shape["compiled"] else network
    batches = _batches(dict(np.load(shape["tokens"])), shape["examples"])

    def step() -> int:
        batch = {name: torch.from_numpy(values) for name, values in next(batches).items()}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
            loss = compiled(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return len(batch["labels"])

    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            examples = step()
            seconds.append((time.perf_counter() - started) / examples)
        print(json.dumps(seconds), flush=True)


def _batches(data: dict, examples: int):
    counts = data["counts"].tolist()
    while True:
        order = list(LengthGroupedSampler(examples, lengths=counts))
        for start in range(0, len(order) - examples + 1, examples):
            chosen = order[start : start + examples]
            longest = max(counts[number] for number in chosen)
            labels = data["labels"][chosen]
            yield {
                "input_ids": data["ids"][chosen, :longest].astype(np.int64),
                "token_type_ids": data["types"][chosen, :longest].astype(np.int64),
                "attention_mask": (np.arange(longest) < data["counts"][chosen][:, None]).astype(np.int64),
                "labels": labels if labels.dtype.kind == "f" else labels.astype(np.int64),
            }


if __name__ == "__main__":
    main()

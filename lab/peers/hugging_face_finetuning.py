"""transformers' fine-tuning of a classifier of texts or words; lab/finetuning_*.py time it and train with it.

A batch is padded to its longest example. The settings are AdamW with weight decay 0.01, but not of LayerNorm and
biases, epsilon 1e-6, and gradients clipped to 1.0.

The argument is a JSON object. With "steps", a JSON file, it trains a step for each of the file's "rates", on the
examples that "batches" has for it, answers the steps' losses, and writes the logits of "splits" into "logits".
Without, it answers seconds an example of as many steps as a line of standard input asks for, in batches of similar
length, as its Trainer makes them with group_by_length: LengthGroupedSampler.
"""

import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from answering import answer
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.trainer_pt_utils import LengthGroupedSampler

SAID = 100  # steps between two lines of progress


class Finetuning:
    """A model, its optimizer, and the token ids of the splits."""

    def __init__(self, shape: dict) -> None:
        torch.set_num_threads(shape["threads"])
        torch.manual_seed(shape.get("seed", 0))
        self._data = dict(np.load(shape["tokens"]))
        labels = self._data["train_labels"]
        self.of_words = labels.ndim == 2 and labels.dtype.kind == "i"  # else of texts; several labels a text are floats
        kind = AutoModelForTokenClassification if self.of_words else AutoModelForSequenceClassification
        self.network = kind.from_pretrained(
            shape["checkpoint"], num_labels=shape["labels"], attn_implementation="sdpa", ignore_mismatched_sizes=True
        ).train()
        decayed, others = [], []
        for name, parameter in self.network.named_parameters():
            (others if name.endswith(".bias") or "LayerNorm" in name else decayed).append(parameter)
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=2e-5, eps=1e-6, fused=True)
        self._narrow = shape["precision"] != "float32"
        self._run = torch.compile(self.network, dynamic=True) if shape["compiled"] else self.network
        self._examples = shape["examples"]

    def step(self, chosen: list[int]) -> float:
        """Train on these examples; the loss."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._narrow):
            loss = self._run(**self._batch("train", chosen)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def counted(self, chosen: list[int]) -> int:
        """How many examples these are; of words, how many words."""
        return int(np.count_nonzero(self._data["train_labels"][chosen] >= 0)) if self.of_words else len(chosen)

    def batches(self) -> Iterator[list[int]]:
        """The numbers of the examples of each step, epoch after epoch."""
        while True:
            order = list(LengthGroupedSampler(self._examples, lengths=self._data["train_counts"].tolist()))
            for start in range(0, len(order), self._examples):
                yield order[start : start + self._examples]

    def logits(self, split: str) -> np.ndarray:
        """Of all examples of a split, in their order: [examples, labels], of words [examples, length, labels]."""
        order = np.argsort(self._data[f"{split}_counts"], kind="stable")
        self.network.eval()
        with torch.no_grad():
            parts = [
                self.network(**self._batch(split, order[start : start + self._examples])).logits.numpy()
                for start in range(0, len(order), self._examples)
            ]
        if self.of_words:
            length = self._data[f"{split}_ids"].shape[1]
            parts = [np.pad(part, ((0, 0), (0, length - part.shape[1]), (0, 0))) for part in parts]
        return np.concatenate(parts)[np.argsort(order)]

    def _batch(self, split: str, chosen: list[int] | np.ndarray) -> dict[str, torch.Tensor]:
        ids, types, counts, labels = (
            self._data[f"{split}_{name}"][chosen] for name in ("ids", "types", "counts", "labels")
        )
        longest = counts.max()
        labels = labels[:, :longest] if self.of_words else labels
        batch = {
            "input_ids": ids[:, :longest].astype(np.int64),
            "token_type_ids": types[:, :longest].astype(np.int64),
            "attention_mask": (np.arange(longest) < counts[:, None]).astype(np.int64),
            "labels": labels.astype(np.int64 if labels.dtype == np.int32 else np.float32),
        }
        return {name: torch.from_numpy(values) for name, values in batch.items()}


def train(finetuning: Finetuning, rates: list[float], batches: list[list[int]]) -> list[float]:
    """Train a step on each batch, at its rate; the losses."""
    losses, began = [], time.perf_counter()
    for number, (rate, chosen) in enumerate(zip(rates, batches, strict=True), 1):
        for group in finetuning.optimizer.param_groups:
            group["lr"] = rate
        losses.append(finetuning.step(chosen))
        if number % SAID == 0:
            left_s = (time.perf_counter() - began) * (len(rates) - number) / number
            words = f"step {number:,} of {len(rates):,}, loss {losses[-1]:.4f}, {left_s / 60:.0f} min left"
            print(words, file=sys.stderr, flush=True)
    return losses


def main() -> None:
    shape = json.loads(sys.argv[1])
    finetuning = Finetuning(shape)
    if "steps" in shape:
        with open(shape["steps"], encoding="utf-8") as file:
            steps = json.load(file)
        losses = train(finetuning, **steps)
        if shape["splits"]:
            np.savez(shape["logits"], **{split: finetuning.logits(split) for split in shape["splits"]})
        print(json.dumps(losses), flush=True)
        return
    batches = finetuning.batches()

    def step() -> int:
        chosen = next(batches)
        finetuning.step(chosen)
        return finetuning.counted(chosen)

    answer(step)


if __name__ == "__main__":
    main()

"""Masked-language modelling with transformers in the way of its example run_mlm.py, a contestant of same_minutes.py.

The argument is a JSON object. With "text", a file whose lines are paragraphs, it writes a tokenizer's directory
"tokenizer" and the rows "rows": lines are tokenized with [CLS] and [SEP], a thousand at a time are joined, cut into
rows of "length", and the rest is dropped (group_texts). Without, it trains: masks by DataCollatorForLanguageModeling,
AdamW without decay of biases and LayerNorm, gradients clipped to 1.0, a linear decay.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from minutes import Minutes
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    DataCollatorForLanguageModeling,
    get_scheduler,
    set_seed,
)

JOINED = 1000  # lines, as `datasets` gives them to group_texts
SAID = 100  # steps between two lines of progress


def group(work: dict[str, Any]) -> None:
    """Write the tokenizer and the rows, int32 [rows, length], of a text."""
    directory = Path(work["tokenizer"])
    directory.mkdir(exist_ok=True)
    (directory / "vocab.txt").write_bytes(Path(work["vocab"]).read_bytes())
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer, rows = AutoTokenizer.from_pretrained(directory), []
    with open(work["text"], encoding="utf-8") as file:
        lines = (line.strip() for line in file if line.strip())
        while taken := list(islice(lines, JOINED)):
            ids = np.concatenate([np.int32(each) for each in tokenizer(taken)["input_ids"]])
            whole = len(ids) // work["length"] * work["length"]
            rows.append(ids[:whole].reshape(-1, work["length"]))
    np.save(work["rows"], np.concatenate(rows))


def batches(
    rows: torch.Tensor, work: dict[str, Any], collate: DataCollatorForLanguageModeling
) -> Iterator[dict[str, torch.Tensor]]:
    """Masked batches of the rows, int64 [rows, length], epoch after epoch."""
    added = [collate.tokenizer.cls_token_id, collate.tokenizer.sep_token_id]  # by the tokenizer; [UNK] may be masked
    special = torch.isin(rows, torch.tensor(added)).long()
    examples = [{"input_ids": row, "special_tokens_mask": mask} for row, mask in zip(rows, special, strict=True)]
    kept_whole = {"drop_last": work["compiled"]}  # a shorter batch would be compiled once more
    loader = torch.utils.data.DataLoader(examples, work["batch"], shuffle=True, collate_fn=collate, **kept_whole)
    while True:
        yield from loader


def train(work: dict[str, Any]) -> None:
    """Train "steps" steps, and save at the marks."""
    torch.set_num_threads(work["threads"])
    set_seed(work["seed"])
    minutes, device = Minutes(work), work["device"]
    tokenizer = AutoTokenizer.from_pretrained(work["tokenizer"])
    dropout = {"hidden_dropout_prob": work["dropout"], "attention_probs_dropout_prob": work["dropout"]}
    network = AutoModelForMaskedLM.from_config(BertConfig(**work["config"], **dropout), attn_implementation="sdpa")
    network = network.train().to(device)
    decayed, others = [], []
    for name, parameter in network.named_parameters():
        (others if name.endswith(".bias") or "LayerNorm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": work["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=work["rate"], fused=True)
    schedule = get_scheduler("linear", optimizer, round(work["warmup"] * work["steps"]), work["steps"])
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, as TensorFlow's default is
    run = torch.compile(network) if work["compiled"] else network
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    rows = torch.from_numpy(np.load(work["rows"]).astype(np.int64))
    narrow = work["precision"] != "float32"
    for step, masked in zip(range(1, work["steps"] + 1), batches(rows, work, collate), strict=False):
        if work["compiled"]:
            masked.pop("attention_mask", None)  # nothing is padding, and attention without a mask is faster
        batch = {name: values.to(device) for name, values in masked.items()}
        with torch.autocast(device, dtype=torch.bfloat16, enabled=narrow):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if device == "cuda" and (step % SAID == 0 or minutes.due(step)):
            torch.cuda.synchronize()
        due = minutes.due(step)
        minutes.ended(step, due)
        if due:
            started = time.time()
            directory = Path(work["output"], "checkpoints", f"step-{step:08d}")
            network.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
            minutes.beside_s += time.time() - started
        if step % SAID == 0:
            words = f"step {step:,} of {work['steps']:,}, loss {loss.item():.4f}, {minutes.seconds():.0f} s"
            print(words, file=sys.stderr, flush=True)
    minutes.write()


def main() -> None:
    """Do what the argument says."""
    work = json.loads(sys.argv[1])
    group(work) if "text" in work else train(work)


if __name__ == "__main__":
    main()

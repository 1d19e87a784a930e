"""An entity recognition without dropout has the losses of transformers' BertForTokenClassification, step by step."""

import numpy as np
import pytest

from bert_horovod.batches.positions import step_positions
from bert_horovod.collectives.world import World
from bert_horovod.finetuning.files import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.tags import Tags
from bert_horovod.finetuning.tag_data import ner_data
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.optimizers.schedule import learning_rate
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from bert_horovod.training.start import first_state
from tests.toy_glue import write_checkpoint
from tests.toy_ner import FAST, write_ner
from tests.toy_runs import metrics

pytestmark = pytest.mark.full

STEPS = 20
NO_DROPOUT = ("model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0")


def theirs(job: Job, finetuning: Finetuning, checkpoint, torch, transformers) -> list[float]:
    """The losses of transformers on the same windows, padded, from the same first parameters."""
    recipe, source = job.recipe, job.dataset.open(0, "train")
    state, _ = first_state(job, World())
    parameters = {name: variable.numpy() for name, variable in state.parameters.items()}
    write_directory(
        checkpoint, recipe.model, job.task, parameters, finetuning.vocabulary, finetuning.tokenizer_settings
    )
    network = transformers.AutoModelForTokenClassification.from_pretrained(checkpoint).train()
    decayed, others = [], []
    for name, parameter in network.named_parameters():
        (others if name.endswith(".bias") or "LayerNorm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(groups, lr=1.0, eps=1e-6), []
    for step in range(STEPS):
        taken = step_positions(step, recipe.phase[0].global_batch, 0, 1, recipe.execution.micro_batch)
        batch = source.assemble(np.concatenate([positions for positions, _ in taken]))
        ids, labels = [], []
        for row, sequences in enumerate(batch["sequence_ids"]):
            for number in range(1, sequences.max() + 1):
                inside = sequences == number
                ids.append(batch["input_ids"][row][inside])
                labels.append(np.where(batch["weights"][row] > 0, batch["labels"][row], -100)[inside])
        longest = max(map(len, ids))
        padded = {
            "input_ids": [np.pad(row, (0, longest - len(row))) for row in ids],
            "attention_mask": [np.arange(longest) < len(row) for row in ids],
            "labels": [np.pad(row, (0, longest - len(row)), constant_values=-100) for row in labels],
        }
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe.phase[0], step + 1)
        loss = network(**{name: torch.tensor(np.stack(rows).astype(np.int64)) for name, rows in padded.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_the_losses_of_the_first_20_steps_are_those_of_transformers(tmp_path, torch, transformers):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    finetuning = Finetuning(Tags(ner_data(Files(write_ner(tmp_path / "ner")))), checkpoint)
    (tmp_path / "run").mkdir()
    job = finetuning.job(tmp_path / "run", 3, (*FAST, *NO_DROPOUT), max_steps=STEPS)
    expected = theirs(job, finetuning, tmp_path / "theirs", torch, transformers)
    train(job, World())
    ours = [line["loss"] for line in metrics(tmp_path / "run")]
    assert len(ours) == STEPS
    assert np.ptp(ours) > 0.3  # the steps do change what is learned
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)

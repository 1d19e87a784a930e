"""Toy files of SQuAD 1.1 and 2.0: the answer is the one word of a context that praises or blames, and what follows."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.collectives.world import World
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds.spans import Spans, squad_data
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training import loop
from bert_horovod.training.job import Job
from tests.toy_glue import FAST, WORDS

TRAIN, DEV = 240, 21  # questions
ANSWERS = WORDS[5:9]
FILLERS = WORDS[9:17]


def write_squad(directory: Path, version: str = "1.1", train: int = TRAIN, dev: int = DEV) -> Path:
    """Write train-v1.1.json and dev-v1.1.json, or v2.0's, where a third of the questions has no answer."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(5)
    for split, count in (("train", train), ("dev", dev)):
        paragraphs = [_paragraph(random, f"{split}{number}", version == "2.0") for number in range(count)]
        write_json(directory / f"{split}-v{version}.json", paragraphs, version)
    return directory


def write_json(path: Path, paragraphs: list[dict[str, Any]], version: str = "1.1") -> Path:
    """Write a file in SQuAD's format."""
    articles = [{"title": "toys", "paragraphs": paragraphs}]
    path.write_text(json.dumps({"version": version, "data": articles}, ensure_ascii=False), encoding="utf-8")
    return path


def paragraph(context: str, *questions: tuple[str, str, str | None], marked: bool = False) -> dict[str, Any]:
    """A context with questions (id, question, answer in the context or None); `marked`: with is_impossible."""
    asked = []
    for number, question, answer in questions:
        answers = [] if answer is None else [{"text": answer, "answer_start": context.find(answer)}]
        asked.append({"id": number, "question": question, "answers": answers})
        if marked:
            asked[-1]["is_impossible"] = answer is None
    return {"context": context, "qas": asked}


def _paragraph(random: np.random.Generator, number: str, marked: bool) -> dict[str, Any]:
    words = random.choice(FILLERS, random.integers(6, 40)).tolist()
    answer = None
    if not marked or random.integers(3):
        answer = str(random.choice(ANSWERS))
        words[int(random.integers(len(words)))] = answer
    return paragraph(" ".join(words), (number, "the plot", answer), marked=marked)


STRIDE = 8


def squad(checkpoint: Path, data_dir: Path | None, *files: Path | None, **options) -> Finetuning:
    """A checkpoint and such files: those of a directory, but for train and dev if they are named."""
    train, dev = (*files, None, None)[:2]
    return Finetuning(
        Spans(squad_data(Files(data_dir, train, (dev,) if dev else ()), **options)), find_checkpoint(checkpoint)
    )


def job_of(
    data_dir: Path,
    checkpoint: Path,
    output_dir: Path,
    *overrides: str,
    epochs: float = 3,
    threshold: float = 0.0,
    **more,
) -> Job:
    """A fine-tuning on such files."""
    options = {"doc_stride": STRIDE, "null_score_threshold": threshold, "index_dir": output_dir.parent / "index"}
    return squad(checkpoint, data_dir, **options).job(output_dir, epochs, FAST + overrides, **more)


def train_rank(world: World, data_dir: Path, checkpoint: Path, output_dir: Path, *overrides: str, **more) -> None:
    """Train a rank: a job for two_ranks."""
    output_dir.mkdir(parents=True, exist_ok=True)
    loop.train(job_of(data_dir, checkpoint, output_dir, *overrides, world_size=world.size, **more), world)

"""A toy task of GLUE and a toy checkpoint to start from."""

from pathlib import Path

import numpy as np

from bert_horovod.corpus.reading.tokenizer_settings import UNCASED, TokenizerSettings
from bert_horovod.finetuning.examples import Files
from bert_horovod.interchange.architectures import Architecture
from bert_horovod.interchange.huggingface import write_directory
from bert_horovod.model.parameters import initial_values
from bert_horovod.recipe.sections import Model
from bert_horovod.tasks.base import Task
from bert_horovod.tasks.pretraining import Pretraining

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("good", "fine", "bad", "poor", "the", "a", "film", "plot", "is", "was", "##s", "and", '"', ".", "hero"),
]
MODEL = Model(
    vocab_size=len(WORDS),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
TRAIN, DEV = 320, 21  # examples
# Settings of a run that learns in seconds.
FAST = (
    "phase.0.learning_rate=8e-3",
    "execution.xla='off'",
    "execution.log_steps=1",
    "execution.keep_checkpoints=9",
    "execution.trackers=[]",
)
PRETRAINING = Pretraining(True)


def write_glue(directory: Path, train: int = TRAIN, dev: int = DEV) -> Path:
    """Write train.tsv and dev.tsv as SST-2 has them; a text is positive if it says good or fine."""
    random = np.random.default_rng(3)
    directory.mkdir()
    for split, count in (("train", train), ("dev", dev)):
        lines = ["sentence\tlabel"]
        for i in range(count):
            label = i % 2
            words = random.choice(WORDS[9:], random.integers(2, 9)).tolist()
            words.insert(int(random.integers(0, 3)), WORDS[7 - 2 * label + int(random.integers(0, 2))])
            lines.append(f"{' '.join(words)} \t{label}")
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def write_labels(directory: Path, train: int = TRAIN, dev: int = DEV) -> Files:
    """Files of texts with any number of labels: praise (good, fine), blame (bad, poor), film, plot, or none."""
    random = np.random.default_rng(4)
    labels = {"good": "praise", "fine": "praise", "bad": "blame", "poor": "blame", "film": "film", "plot": "plot"}
    directory.mkdir()
    for split, count in (("train", train), ("dev", dev)):
        lines = ["text,labels"]
        for _ in range(count):
            words = random.choice(WORDS[5:17], random.integers(1, 7)).tolist()
            lines.append(f'{" ".join(words)},"{",".join(dict.fromkeys(labels[w] for w in words if w in labels))}"')
        (directory / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Files(None, directory / "train.csv", (directory / "dev.csv",))


def write_mnli(directory: Path) -> Path:
    """Toy files of MNLI: train, two dev and three test files, the latter without labels."""
    random = np.random.default_rng(6)
    directory.mkdir()
    splits = {
        "train": 40,
        "dev_matched": 9,
        "dev_mismatched": 7,
        "test_matched": 5,
        "test_mismatched": 3,
        "diagnostic": 4,
    }
    for split, count in splits.items():
        labelled = split.startswith(("train", "dev"))
        lines = ["index\tsentence1\tsentence2" + "\tgold_label" * labelled]
        for number in range(count):
            texts = [" ".join(random.choice(WORDS[5:], random.integers(1, 6))) for _ in range(2)]
            label = [("entailment", "neutral", "contradiction")[number % 3]] * labelled
            lines.append("\t".join([str(number), *texts, *label]))
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def numbered(directory: Path, examples: int) -> Path:
    """A table of texts with a number each, which tells how often they say good; made if it is not there."""
    path = directory / f"{examples}.csv"
    if path.exists():  # ranks must not write what others read
        return path
    random = np.random.default_rng(5)
    lines = ["text,score"]
    for _ in range(examples):
        words = random.choice(["good", "bad", "the", "film", "is"], random.integers(2, 9)).tolist()
        lines.append(f"{' '.join(words)},{words.count('good') / 2}")
    directory.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_checkpoint(
    directory: Path,
    task: Task | Architecture = PRETRAINING,
    model: Model = MODEL,
    words: list[str] = WORDS,
    tokenizer: TokenizerSettings = UNCASED,
    scale: float = 0.2,
) -> Path:
    """A checkpoint of random parameters, as the program writes it."""
    parameters = initial_values(task.parameters(model), scale, 1)
    write_directory(directory, model, task, parameters, words, tokenizer)
    return directory

#!/usr/bin/env python3
"""What do mined negatives gain for search? Vectors of SQuAD's questions and paragraphs, trained without them and with.

python lab/search_gain.py --checkpoint C --squad SQUAD --data GLUE --work DIR         measure what is missing
python lab/search_gain.py ... --row mined --seed 1                                    one run

Every run trains the same checkpoint by `bert-horovod finetune --task embedding`, as many steps of as many pairs. They
are judged by all dev questions, each of which is to find its paragraph among all of the dev set, and by the cosines of
STS-B's dev pairs, which no run was trained on. `mine` takes the vectors of the first seed of `in-batch`.

A run is a line of lab/search_gain.jsonl, under the hash of what decides it. Stopped, the same command goes on.
"""

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.corpus.reading.squad_files import read_squad
from bert_horovod.finetuning.embedding_scores import cosines_of, ranks_of, retrieval_scores
from bert_horovod.finetuning.examples import find_split, glue_format, read_labelled
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.scores import score
from bert_horovod.inference.embedding_predictor import unit
from bert_horovod.reporting.tables import lines
from bert_horovod.storage.reading import hash_file
from bert_horovod.storage.writing import write_atomically
from lab.kept import add_line, by_key, read_lines
from lab.rounds import PROJECT, logged, reported, say

KEPT = PROJECT / "lab" / "search_gain.jsonl"
ROWS = ("before", "in-batch", "mined")
TITLES = {"mrr_10": "MRR@10", "recall_1": "recall@1", "recall_10": "recall@10", "spearman": "STS-B, Spearman"}
SEEDS, STEPS, PAIRS = 3, 500, 24  # of a row; of a run; of a step
LENGTHS = {"in-batch": 96, "mined": 176}  # of a question about 16 tokens, of a paragraph 80
HOW = (
    "phase.0.learning_rate=3e-4",
    "data.packing=false",
    "numerics.precision=bfloat16",
    "execution.threads=1",
    "execution.tensorboard=false",
    "execution.keep_checkpoints=1",
)
PAUSED = ("execution.stall_s=604800", "execution.checkpoint_steps=100")  # a run may be stopped, or paused for days


class Judged(NamedTuple):
    """What is known of the texts of the file "texts": questions and their paragraphs, both sides of STS-B's pairs."""

    paragraph: np.ndarray  # of each question, int64 [questions]
    scores: np.ndarray  # of STS-B's pairs, float64 [pairs]

    def of(self, vectors: np.ndarray) -> dict[str, float]:
        """The scores of the texts' vectors of length 1."""
        questions, pairs = len(self.paragraph), len(self.scores)
        ends = questions, questions + self.paragraph.max() + 1
        anchors, passages, sides = np.split(vectors, ends)
        numbers = np.stack([np.arange(questions), questions + self.paragraph], 1)
        ranks = ranks_of(np.stack([anchors, passages[self.paragraph]], 1), numbers)
        cosines = cosines_of(sides.reshape(2, pairs, -1).swapaxes(0, 1))
        return retrieval_scores(ranks) | score(cosines, self.scores, ("spearman",))


def write_files(squad: Path, stsb: Path, work: Path) -> Judged:
    """Write "pairs" to train on, a "few" for finetune's own scores, and "texts" to judge by into --work."""
    train, dev = (read_squad(squad / f"{split}-v1.1.json.gz") for split in ("train", "dev"))
    chosen = np.random.default_rng(0).permutation(len(train.ids))[: STEPS * PAIRS].tolist()
    few = np.linspace(0, len(dev.ids) - 1, 64).astype(int).tolist()
    for name, read, numbers in (("pairs", train, chosen), ("few", dev, few)):
        _write(work / f"{name}.jsonl", [(read.questions[i], read.contexts[read.context_of[i]]) for i in numbers])
    examples = read_labelled(find_split(stsb, stsb.name, "dev"), glue_format(TASKS["stsb"])).examples
    texts = [*dev.questions, *dev.contexts, *examples.texts[0], *examples.texts[1]]
    _write(work / "texts.jsonl", [(text,) for text in texts])
    return Judged(np.array(dev.context_of), examples.label_array())


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    names = ("query", "passage")
    write_atomically(path, "".join(json.dumps(dict(zip(names, row, strict=False))) + "\n" for row in rows))


class Search:
    """The runs of one checkpoint, in the directory --work."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.work, self.checkpoint = arguments.work, arguments.checkpoint
        self.judged = write_files(arguments.squad, arguments.data / "STS-B", self.work)
        contents = [self.checkpoint / "model.safetensors", *map(self._file, ("pairs", "texts"))]
        self._identity = [STEPS, PAIRS, HOW, [hash_file(path) for path in contents]]

    def key(self, row: str, seed: int) -> str:
        """What a run is kept under."""
        identity = [row, seed, LENGTHS.get(row), *self._identity]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]

    def program(self, log: str, *words: object) -> None:
        """Run a command of the program; raises RunError if it fails."""
        logged(["-m", "bert_horovod", *words], self.work / f"{log}.log")

    def trained(self, row: str, seed: int) -> Path:
        """The checkpoint of a run, trained if it is not there."""
        if row == "before":
            return self.checkpoint
        output, columns, train = self.work / self.key(row, seed), "query,passage", self._file("pairs")
        if row == "mined":
            columns, train = f"{columns},negative", self.mined()
        words = ["--train_file", train, "--dev_file", self._file("few"), "--text_columns", columns]
        sizes = {"sequence_length": LENGTHS[row], "steps": STEPS, "global_batch": PAIRS}
        settings = [*HOW, *PAUSED, f"data.seed={seed}", *(f"phase.0.{name}={value}" for name, value in sizes.items())]
        words += [word for setting in settings for word in ("--set", setting)]
        words += ["--checkpoint", self.checkpoint, "--output_dir", output]
        self.program(output.name, "finetune", "--task", "embedding", *words)
        return output

    def mined(self) -> Path:
        """The train pairs with a negative each."""
        vectors = self.trained("in-batch", 0)
        path = self._file(f"mined-{vectors.name}")
        if not path.exists():
            self.program("mine", "mine", "--checkpoint", vectors, "--input", self._file("pairs"), "--output", path)
        return path

    def scores(self, row: str, seed: int) -> dict[str, float]:
        """Train, and judge."""
        checkpoint, name = self.trained(row, seed), self.key(row, seed)
        output, length = self.work / f"{name}.npy", LENGTHS["in-batch"]
        words = ["--input", self._file("texts"), "--vectors", output, "--sequence_length", length]
        self.program(name, "predict", "--checkpoint", checkpoint, *words)
        return self.judged.of(unit(np.load(output)))

    def _file(self, name: str) -> Path:
        return self.work / f"{name}.jsonl"


def report(search: Search, kept: dict[str, Any]) -> str:
    """The table: mean and standard deviation over seeds, in percent."""
    cells = [["", *TITLES.values(), "minutes", "seeds"]]
    for row in ROWS:
        runs = [kept[key] for seed in range(SEEDS) if (key := search.key(row, seed)) in kept]
        if runs:
            values = ([100 * run["scores"][name] for run in runs] for name in TITLES)
            minutes = statistics.mean(run["minutes"] for run in runs)
            cells.append([row, *map(_spread, values), f"{minutes:.1f}", str(len(runs))])
    return lines(cells)


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


@reported
def main() -> int:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "squad", "data", "work"):
        parser.add_argument(f"--{name}", required=True, type=Path, metavar="DIR")
    parser.add_argument("--row", action="append", choices=ROWS, help="repeatable (default: all)")
    parser.add_argument("--seed", action="append", type=int, help=f"repeatable (default: 0 to {SEEDS - 1})")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    search, kept = Search(arguments), by_key(KEPT)
    for seed in arguments.seed or range(SEEDS):
        for row in arguments.row or ROWS:
            key = search.key(row, seed)
            if key not in kept and not (seed and row == "before"):
                say(f"{row}, seed {seed}: {key}")
                scores = search.scores(row, seed)
                steps_s = [
                    line["step_s"] for line in read_lines(search.work / key / "metrics.jsonl") if "step_s" in line
                ]
                minutes = STEPS * statistics.median(steps_s or [0.0]) / 60
                kept[key] = {"key": key, "row": row, "seed": seed, "scores": scores, "minutes": round(minutes, 1)}
                kept[key] |= {"steps": STEPS, "pairs": PAIRS}
                add_line(KEPT, kept[key])
    print(report(search, kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())

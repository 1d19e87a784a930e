"""The third file of a toy kind: how often a text praises. A line of a file is a count, a blank and the text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from bert_horovod.errors import UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.kinds.base import DEV_PREDICTIONS, Kind, Request, write_prediction
from bert_horovod.inference.predicting import Predictor, line_length
from bert_horovod.tasks.text_head import ARCHITECTURE
from tests.finetuning.kinds.toy_rows import CountedTokens, CountRows
from tests.finetuning.kinds.toy_task import KEY, Counting


class Counted(NamedTuple):
    """A file's texts."""

    path: Path
    counts: list[int]
    texts: list[str]


def read_counts(path: Path) -> Counted:
    lines = [line.partition(" ") for line in path.read_text().splitlines()]
    if bad := [number for number, (count, _, _) in enumerate(lines, 1) if not count.isdigit()]:
        raise UserError(f"{path}, line {bad[0]}: expected a count, a blank and a text")
    return Counted(path, [int(count) for count, _, _ in lines], [text for _, _, text in lines])


def tokens_of(texts: list[str], counts: list[int], tokenizer: Any) -> CountedTokens:
    ids, lengths = tokenizer(texts)
    return CountedTokens(ids, lengths, np.array(counts, np.int32))


def exact(predicted: list[int], counts: list[int]) -> dict[str, float]:
    return {"exact": float(np.mean(np.array(predicted) == counts))}


class CountPredictor(Predictor):
    """See Predictor."""

    heading = ("prediction", "mean")

    def make_task(self) -> Counting:
        return Counting()

    def prepare(self) -> None:
        self._tokenizer = Counts.tokenizer(None, self.vocabulary, self.tokenizer_settings)

    def answers(self, texts: Any, packing: bool, progress: Any = None, as_json: bool = False) -> list[list[Any]]:
        tokens = tokens_of(texts[0], [0] * len(texts[0]), self._tokenizer)
        length = self.length if packing else line_length(int(tokens.lengths[0]) + 2, self.length)
        rows = CountRows(tokens, self.special, length, 0, packing)
        means = np.exp(rows.by_item(self.outputs(rows, packing, progress)["logits"])[:, 0])
        return [[round(float(mean)), round(float(mean), 4)] for mean in means]


class Counts(Kind):
    """See Kind. A split is Counted, its answers are counts."""

    tasks, help = ("counts",), "counts, of praise"
    head = ARCHITECTURE
    kind_of_rows, predictor = CountRows, CountPredictor
    noun, outputs, trained, decides = "examples", "counts", "a count", "exact"

    @classmethod
    def read(cls, task: str, files: Files, flags: Any) -> "Counts":
        train, dev, *test = (read_counts(path) for path in (files.train, *files.dev, *files.test))
        return cls(SimpleNamespace(name=task, train=train, dev={"": dev}, test=dict(zip(["test"], test, strict=False))))

    @classmethod
    def claims(cls, config: dict[str, Any]) -> bool:
        return KEY in config

    def content(self, split: Counted) -> Any:
        return split[1:]

    def tokens(self, split: Counted, tokenizer: Any) -> CountedTokens:
        return tokens_of(split.texts, split.counts, tokenizer)

    def task(self, recipe: Any) -> Counting:
        return Counting()

    def answers(self, task: Any, rows: CountRows, outputs: dict[str, np.ndarray], split: Counted) -> list[int]:
        return np.exp(rows.by_item(outputs["logits"])[:, 0]).round().astype(int).tolist()

    def scores(self, task: Any, answers: list[int], split: Counted) -> dict[str, float]:
        return exact(answers, split.counts)

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        lines = request.predictions.read_text().splitlines()[1:]
        return exact([int(line.split("\t")[1]) for line in lines], read_counts(request.dev_file).counts)

    def write(self, output_dir: Path, name: str, split: Counted, answers: list[int], task: Any) -> list[str]:
        lines = ["index\tprediction", *(f"{number}\t{count}" for number, count in enumerate(answers))]
        return [write_prediction(output_dir / DEV_PREDICTIONS.with_stem(name), "\n".join(lines) + "\n")]

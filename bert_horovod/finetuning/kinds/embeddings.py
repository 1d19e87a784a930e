"""Texts that get a vector each: pairs of a query and a passage, with wrong ones or a score, and single texts."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bert_horovod.batches.examples.embedding_rows import EmbeddingRows, EmbeddingTokens, tokenised_texts
from bert_horovod.corpus.reading.table_files import read_table
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.corpus.table_writing import table_text
from bert_horovod.errors import UserError
from bert_horovod.finetuning.embedding_files import (
    formats_of,
    judging_format,
    read_items,
    read_unscored_items,
    refuse_equal,
)
from bert_horovod.finetuning.embedding_scores import cosines_of, ranks_of, retrieval_scores, uniformity
from bert_horovod.finetuning.examples import (
    Files,
    LabelFormat,
    Split,
    real,
    refuse_one_label,
)
from bert_horovod.finetuning.kinds.base import DEV_PREDICTIONS, Kind, Request, write_prediction
from bert_horovod.finetuning.kinds.texts import rate_notice
from bert_horovod.finetuning.scores import score
from bert_horovod.finetuning.scoring import PREDICTED, predictions_of
from bert_horovod.finetuning.text_data import constant_notice, two_parts
from bert_horovod.inference.embedding_predictor import EmbeddingPredictor, require_room, unit
from bert_horovod.interchange.sentence_transformers import vectors_of
from bert_horovod.model.parameters import SENTENCE_VECTORS
from bert_horovod.recipe.sections import Model, Recipe
from bert_horovod.recipe.settings import EMBEDDING
from bert_horovod.runs.opening import OpenCheckpoint
from bert_horovod.tasks.embedding import ARCHITECTURE, POOLINGS, Embedding
from bert_horovod.wording import counted


@dataclass(frozen=True)
class EmbeddingData:
    """The files, read, and the user's options."""

    train: Split
    dev: dict[str, Split]  # the one that there is is called ""
    test: dict[str, Split]
    format: LabelFormat  # of the train file
    scored: bool  # whether train pairs have scores
    dev_scored: bool
    prompts: tuple[str, ...] = ()
    pooling: str = ""  # "": the checkpoint's
    lowercase: bool = False  # before the tokenizer does its own
    lengths: tuple[int, ...] = ()  # Matryoshka's
    symmetric: bool = False
    name = "embedding"


class VectorAnswers(NamedTuple):
    """What is known of the items' vectors, [items] each; None: it is not asked for."""

    cosines: np.ndarray | None  # float64, of the first two texts
    ranks: np.ndarray | None  # int64: the place at which the anchor finds its passage
    uniformity: float | None  # of all texts


class Embeddings(Kind):
    """See Kind. A split is examples.Split, whose labels are scores, or 0 without scores."""

    tasks = ("embedding",)
    help = "sentence vectors, on pairs of texts, triples, pairs with a score (STS-B too), or texts: embedding"
    head = ARCHITECTURE
    kind_of_rows = EmbeddingRows
    predictor = EmbeddingPredictor
    noun, outputs = "pairs", "sentence vectors"
    trained = EMBEDDING
    phase: ClassVar = {"sequence_length": 256, "learning_rate": 5e-5, "warmup": 0.1}
    epochs = 1.0
    items = 128
    reads = ("data_dir", "text_columns", "label_column", "dev_fraction", "encoding", "quoted_tsv")
    score_reads = ("label_column", "encoding", "quoted_tsv")
    data: EmbeddingData

    def __init__(self, data: EmbeddingData) -> None:
        super().__init__(data)
        self._asked, self._columns = (data.pooling, data.prompts), data.format.columns
        self._said: list[str] = []  # of what the checkpoint says
        self._prompts: dict[str, Tokenizer] = {}
        self.decides = "spearman" if data.dev_scored else None if self._alone(data.dev[""]) else "mrr_10"

    @classmethod
    def read(cls, task: str, files: Files, flags: Mapping[str, Any]) -> "Embeddings":
        form, dev_form, files = formats_of(files, flags)
        options = _options(flags, form)
        train = read_items(files.train, form)
        fraction = flags.get("dev_fraction")
        train, dev = (
            (train, read_items(files.dev[0], judging_format(files.dev[0], dev_form)))
            if fraction is None
            else two_parts(train, fraction, by_query=len(form.columns) > 2)
        )
        if form.label_column:
            refuse_one_label(train, form)
        else:
            refuse_equal(train, form, 1 if len(form.columns) > 2 else 0)  # queries may be equal beside wrong passages
        if not dev_form.label_column and len(dev_form.columns) > 1:
            refuse_equal(dev, dev_form, 0)
        test = (
            {"test": read_unscored_items(files.test[0], judging_format(files.test[0], dev_form))} if files.test else {}
        )
        scored, dev_scored = bool(form.label_column), bool(dev_form.label_column)
        return cls(EmbeddingData(train, {"": dev}, test, form, scored, dev_scored, **options))

    @classmethod
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        group.add_argument(
            "--dev_columns",
            metavar="A,B",
            help="with one text column: those of the dev file's pairs, and with --label_column of their scores",
        )
        group.add_argument(
            "--prompts",
            nargs="+",
            metavar="TEXT",
            help='what stands before each column\'s texts, as in --prompts "query: " "passage: "; kept in checkpoints',
        )
        group.add_argument(
            "--pooling",
            choices=POOLINGS,
            help="a vector is the mean of a text's states, or the first state (default: the checkpoint's, else mean)",
        )
        group.add_argument(
            "--matryoshka",
            metavar="N,N",
            help="shorter lengths at which the vectors' first numbers are to be vectors too, as in 128,64",
        )
        group.add_argument(
            "--symmetric", action="store_true", help="each passage is also to find its query among all of the step"
        )

    @classmethod
    def claims(cls, config: dict[str, Any]) -> bool:
        return isinstance(config.get(SENTENCE_VECTORS), dict)

    def check(self, checkpoint: OpenCheckpoint, model: Model, settings: TokenizerSettings) -> None:
        theirs, (pooling, prompts), columns = vectors_of(checkpoint.reader.configuration), self._asked, self._columns
        if theirs is None:
            self.data, self._said = replace(self.data, pooling=pooling or "mean"), []
            return
        own = tuple(map(theirs.prompt_of, columns, range(3)))
        kept, said = [], []
        if pooling in ("", theirs.pooling):
            kept.append(f"pooling {theirs.pooling}")
        else:
            said.append(f"warning: --pooling {pooling}: the checkpoint's vectors have the pooling {theirs.pooling}")
        if not prompts:
            kept += [f"{text!r} before each {name}" for name, text in zip(columns, own, strict=False) if text]
        elif prompts != own and any(own):
            said.append(f"warning: --prompts: the checkpoint has {', '.join(map(repr, own))}")
        if theirs.max_seq_length:
            most = min(theirs.max_seq_length, model.max_position_embeddings)
            kept.append(f"at most {most} tokens a text")
            self.phase = type(self).phase | {"sequence_length": most}
        if theirs.lowercase:
            kept.append("texts in lower case")
        if theirs.dimensions or not theirs.normalised or theirs.similarity != "cosine":
            said.append("vectors get all dimensions and the length 1, and are compared by cosines, unlike before")
        self._said = [f"as the checkpoint says: {', '.join(kept)}", *said] if kept else said
        self.data = replace(
            self.data,
            pooling=pooling or theirs.pooling,
            prompts=prompts or (own if any(own) else ()),
            lowercase=theirs.lowercase,
        )

    def content(self, split: Split) -> Any:
        return split.examples

    def tokens(self, split: Split, tokenizer: Tokenizer) -> EmbeddingTokens:
        texts, data = split.examples.texts, self.data
        if data.lowercase:
            texts = tuple([text.lower() for text in side] for side in texts)
        scored = data.scored if split is data.train else data.dev_scored and split is data.dev[""]
        if len(texts) == 1 and split is data.train:
            texts = texts * 2  # with two dropouts
        prompts = (data.prompts + data.prompts[-1:] * len(texts))[: len(texts)]
        if data.lowercase:
            prompts = tuple(map(str.lower, prompts))
        self._prompts = {prompt: tokenizer for prompt in prompts if prompt}
        return tokenised_texts(texts, prompts, split.examples.label_array() if scored else None, tokenizer)

    def described(self) -> tuple:
        data = self.data
        return data.pooling, data.lengths, data.symmetric

    def task(self, recipe: Recipe) -> Embedding:
        exchange, execution, data, width = recipe.exchange, recipe.execution, self.data, recipe.model.hidden_size
        if exchange.trains_copies or exchange.agreement > 1:
            raise UserError(
                f"exchange.method = {exchange.method!r}: the ranks' parameters differ between steps, but --task "
                "embedding compares vectors of all ranks; expected an exchange whose ranks stay equal, as 'gradients'"
            )
        if execution.replay_steps:
            raise UserError(
                f"execution.replay_steps = {execution.replay_steps}: a micro-batch of --task embedding cannot be "
                "computed again alone, because its loss reads the vectors of all; expected 0"
            )
        for prompt, tokenizer in self._prompts.items():
            require_room(prompt, tokenizer, recipe.phase[0].sequence_length)
        if data.lengths and max(data.lengths) > width:
            raise UserError(f"--matryoshka {max(data.lengths)}: the checkpoint's vectors have {width} numbers")
        lengths = tuple(sorted({width, *data.lengths}, reverse=True)) if data.lengths else ()
        return Embedding(
            data.format.columns,
            data.pooling,
            data.prompts,
            lengths,
            recipe.phase[0].sequence_length,
            data.symmetric,
            data.scored,
            data.lowercase,
        )

    def answers(self, task: Any, rows: EmbeddingRows, outputs: dict[str, np.ndarray], split: Split) -> VectorAnswers:
        vectors = unit(rows.by_item(outputs["vectors"]))
        if self._alone(split):
            return VectorAnswers(None, None, uniformity(vectors[:, 0]))
        ranks = None if self.data.dev_scored else ranks_of(vectors, rows.tokens.numbers)
        return VectorAnswers(cosines_of(vectors), ranks, None)

    def scores(self, task: Any, answers: VectorAnswers, split: Split) -> dict[str, float]:
        if answers.uniformity is not None:
            return {"uniformity": answers.uniformity}
        if answers.ranks is not None:
            return retrieval_scores(answers.ranks)
        return score(answers.cosines, split.examples.label_array(), ("spearman", "pearson"))

    @classmethod
    def score(cls, task: str, request: Request) -> dict[str, Any]:
        table = read_table(request.predictions, (*PREDICTED, "rank"))
        if "rank" in table.columns:
            (place,) = table.places(("rank",))
            ranks = [real(table.path, line, fields[place], "the rank") for line, fields in table.rows]
            if odd := [(line, rank) for (line, _), rank in zip(table.rows, ranks, strict=True) if rank < 1 or rank % 1]:
                line, rank = odd[0]
                raise UserError(f"{table.path}, line {line}: the rank is {rank:g}; expected a whole number from 1")
            return retrieval_scores(np.array(ranks))
        if request.dev_file is None:
            raise UserError(f"--task {task}: expected --dev_file, the file with the scores")
        form = LabelFormat((), request.label_column, {}, own=True, dialect=request.dialect)
        gold = form.table(request.dev_file)
        labels = np.array(
            [real(gold.path, line, text) for (line, _), (text,) in zip(gold.rows, form.labels_of(gold), strict=True)]
        )
        return score(predictions_of(table, gold.path, len(labels), {}), labels, ("spearman", "pearson"))

    def notices(self, recipe: Recipe) -> list[str]:
        data = self.data
        splits = data.train, *data.dev.values(), *data.test.values()
        empty = {
            f"{split.path}{split.part}": sum(not text.strip() for side in split.examples.texts[:2] for text in side)
            for split in splits
        }
        dev = data.dev[""]
        constant = constant_notice(dev, dev.examples.label_array()) if data.dev_scored else []
        return [
            *self._said,
            *rate_notice(recipe),
            *constant,
            *(
                f"warning: {name}: {counted(count, 'text')} empty; each stands as [CLS] [SEP]"
                for name, count in empty.items()
                if count
            ),
        ]

    def size(self, split: Split, rows: EmbeddingRows) -> str:
        cut = f", of which {rows.cut:,} are cut to {rows.length} tokens" if rows.cut else ""
        return super().size(split, rows) + cut

    def verdict(self, task: Any, split: Split, answers: VectorAnswers, scores: dict[str, float]) -> list[str]:
        (line,) = super().verdict(task, split, answers, scores)
        if answers.cosines is not None and np.ptp(answers.cosines) < 1e-4:
            return [line, "collapsed: all texts have nearly the same vector; try a lower learning rate or more epochs"]
        return [line]

    def write(self, output_dir: Path, name: str, split: Split, answers: VectorAnswers, task: Any) -> list[str]:
        if answers.cosines is None:
            return []
        path, columns = output_dir / DEV_PREDICTIONS.with_stem(name), ["index", "prediction"]
        fields = [range(len(answers.cosines)), answers.cosines.tolist()]
        if answers.ranks is not None:
            columns, fields = [*columns, "rank"], [*fields, answers.ranks.tolist()]
        return [write_prediction(path, table_text(path, columns, [list(row) for row in zip(*fields, strict=True)]))]

    def _alone(self, split: Split) -> bool:
        return len(split.examples.texts) == 1


def _options(flags: Mapping[str, Any], form: LabelFormat) -> dict[str, Any]:
    prompts, lengths = tuple(flags.get("prompts") or ()), flags.get("matryoshka")
    if prompts and len(prompts) != min(3, len(form.columns)):
        raise UserError(
            f"--prompts: {len(prompts)} given, but there are {len(form.columns)} text columns; expected one each, in "
            'their order, as in --prompts "query: " "passage: ", and one for all wrong passages'
        )
    numbers = lengths.split(",") if lengths else []
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise UserError(f"--matryoshka {lengths}: expected lengths with commas between, as in 128,64")
    options = {"pooling": flags.get("pooling") or "", "symmetric": bool(flags.get("symmetric"))}
    return options | {"prompts": prompts, "lengths": tuple(map(int, numbers))}

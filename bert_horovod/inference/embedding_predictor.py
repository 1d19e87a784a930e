"""Vectors of texts, as the rows of a .npy file in memory that does not grow with it; and the cosines of pairs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bert_horovod.collectives.world import World, from_all_ranks
from bert_horovod.corpus.reading.sources import ITEMS_BYTES, suffixes
from bert_horovod.corpus.reading.table_files import require_columns
from bert_horovod.corpus.reading.tagged_files import text_blocks
from bert_horovod.corpus.reading.tokenizer import Tokenizer
from bert_horovod.errors import RunError, UserError
from bert_horovod.inference.input_table import InputTable
from bert_horovod.inference.options import Options, Progress
from bert_horovod.inference.outputs import NotFiniteError, block_rows, require_finite_outputs
from bert_horovod.inference.predicting import Predictor
from bert_horovod.interchange.sentence_transformers import SentenceVectors, vectors_of
from bert_horovod.model.architectures.families import family_of
from bert_horovod.model.plain import means, single_sequences
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.storage.reading import shown
from bert_horovod.storage.writing import write_output
from bert_horovod.tasks.embedding import Embedding

_BLOCK = 4 * ITEMS_BYTES  # of texts that are grouped by length and computed together
_SPECIAL = 2  # [CLS] text [SEP]
_CLOSE = 7 / 8  # texts of a batch are at least so long beside its longest one
_LEAST_POSITIONS = 512  # of a batch: below, shorter texts are taken too


class EmbeddingPredictor(Predictor):
    """See Predictor; of any encoder. What its files do not say of vectors is as in sentence-transformers: the mean.

    A vector of fewer dimensions than the states is divided by its length again, if the whole one is.
    """

    task: Embedding

    def make_task(self) -> Embedding:
        self.settings = vectors_of(self.config) or SentenceVectors(normalised=False)
        self.usual_length = self.settings.max_seq_length
        return Embedding(("text",), self.settings.pooling)

    def prepare(self) -> None:
        self._tokenizer = Tokenizer(self.vocabulary, self.tokenizer_settings)
        self._pooled = self._encoder(tf.as_dtype(self.options.precision))
        self.width = _width(self.settings, self.options, self.model.hidden_size)
        self.cut = 0  # texts that were longer than a row

    def _encoder(self, dtype: tf.DType) -> Callable:
        """The pooled states of rows of one text each, float32 [rows, hidden], from ids and mask, int32 [rows, length].

        One graph for all shapes, which TensorFlow fuses on a CPU: the model as in a textbook, computed in `dtype`.
        """
        textbook, first = family_of(self.model).textbook, self.settings.pooling == "first"
        parameters = {name: tf.cast(tensor, dtype) for name, tensor in self._parameters.items()}

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
        def pooled(ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
            batch = single_sequences(ids, tf.zeros_like(ids), mask)
            hidden = tf.cast(textbook.encode(self.model, parameters, batch)[-1], tf.float32)
            return hidden[:, 0] if first else means(hidden, mask)

        return pooled

    @property
    def columns(self) -> tuple[str, ...]:
        return self.options.text_columns or tuple(self.config.get("text_columns", ()))[:2]

    def answers(
        self, texts: tuple[list[str], ...], packing: bool, progress: Progress | None = None, as_json: bool = False
    ) -> list[list[Any]]:
        """The cosine of each pair's vectors."""
        if len(texts) != 2:
            raise UserError(
                f"--checkpoint {self.checkpoint} compares two texts, or writes a vector of each; expected two "
                "--text_columns, or --vectors"
            )
        columns, own = (*self.columns, "", ""), self.config.get("text_columns")
        if own:  # other names of columns are of a query and its passage too
            columns = tuple(
                name if name in self.settings.prompts else own[min(place, len(own) - 1)]
                for place, name in enumerate(columns[:2])
            )
        prompts = (_prompt(self.settings, self.options, column) for column in columns)
        one, other = (unit(self.vectors(side, prompt)) for side, prompt in zip(texts, prompts, strict=False))
        return [[cosine] for cosine in (one * other).sum(1, dtype=np.float64).round(6).tolist()]

    def vectors(self, texts: list[str], prompt: str = "", progress: Progress | None = None) -> np.ndarray:
        """The texts' vectors, float32 [texts, width]; `prompt` stands before each; `progress` is told of items."""
        if self.settings.lowercase:
            prompt, texts = prompt.lower(), [text.lower() for text in texts]
        if prompt:
            require_room(prompt, self._tokenizer, self.length)
        ids, counts = self._tokenizer([prompt + text for text in texts] if prompt else texts)
        starts, owners = np.cumsum(counts) - counts, np.arange(len(texts))
        room = self.length - _SPECIAL
        long = np.flatnonzero(counts > room)
        self.cut += len(long)
        if len(long) and self.options.windows:
            ids, starts, counts, owners = self._windows(ids, starts, counts, long, prompt)
        states = self._states(ids, starts, np.minimum(counts, room), progress)
        if len(owners) > len(texts):
            weights = np.maximum(counts, 1)[:, None]
            starts = np.searchsorted(owners, np.arange(len(texts)))
            states = np.add.reduceat(states * weights, starts) / np.add.reduceat(weights, starts)
        vectors = states[:, : self.width]
        return (unit(vectors) if self.settings.normalised else vectors).astype(np.float32)

    def _windows(
        self, ids: np.ndarray, starts: np.ndarray, counts: np.ndarray, long: np.ndarray, prompt: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Ids, starts and counts with windows in place of the texts `long`, and the number of each one's text.

        A text's windows are about equally long, and each begins with the prompt.
        """
        of_prompt, _ = self._tokenizer([prompt.rstrip()])
        items = {int(text): [(int(starts[text]), int(counts[text]))] for text in range(len(starts))}
        further, end = [ids], len(ids)
        for text in long.tolist():
            own = ids[starts[text] : starts[text] + counts[text]]
            same = own[: len(of_prompt)] == of_prompt
            begin = len(of_prompt) if same.all() and len(of_prompt) < self.length - _SPECIAL else 0
            number = -(-(len(own) - begin) // (self.length - _SPECIAL - begin))
            items[text] = []
            for part in np.array_split(own[begin:], number):
                further += [own[:begin], part]
                items[text].append((end, begin + len(part)))
                end += begin + len(part)
        owners = np.repeat(np.arange(len(starts)), [len(items[text]) for text in range(len(starts))])
        places = np.array([place for text in range(len(starts)) for place in items[text]], np.int64).reshape(-1, 2)
        return np.concatenate(further), *places.T, owners

    def _states(self, ids: np.ndarray, starts: np.ndarray, counts: np.ndarray, progress: Progress | None) -> np.ndarray:
        """The pooled states of items, float32 [items, n]: one a row, those of about equal length together."""
        pooled = self.computes.vectors if self.computes else self._pooled
        order, parts, first = np.argsort(-counts, kind="stable"), [], 0
        lengths = counts[order] + _SPECIAL
        while first < len(order):
            length = int(lengths[first])
            close = np.count_nonzero(lengths > length * _CLOSE)
            last = max(close, first + max(1, _LEAST_POSITIONS // length))
            last = min(last, first + block_rows(length), len(order))
            chosen = order[first:last]
            place, count = np.arange(length), counts[chosen, None]
            rows = np.full((len(chosen), length), self.special.pad, np.int32)
            is_text = (place > 0) & (place <= count)
            rows[is_text] = ids[(starts[chosen, None] + place - 1)[is_text]]
            rows[:, 0] = self.special.cls
            np.put_along_axis(rows, count + 1, self.special.sep, 1)
            parts.append(np.asarray(pooled(rows, (place < count + _SPECIAL).astype(np.int32))))
            first = last
            if progress:
                progress(last, len(order))
        states = np.empty((len(counts), parts[0].shape[1]), np.float32)
        states[order] = np.concatenate(parts)
        require_finite_outputs({"vectors": states})
        return states

    def write_vectors(
        self, source: Path, output: Path, dtype: str, progress: Progress, world: World | None = None
    ) -> str:
        """Write the vectors of a file's texts to a .npy file, a row each, in their order; returns a line to print.

        Args:
            source: a table, or a plain text (.txt) of a text a line.
            output: appears when it is complete.
            dtype: "float32" or "float16".
            progress: told of texts that are done.
            world: all ranks call this together; each computes a share of the texts, and rank 0 writes.

        Raises:
            ReportedError: `source` cannot be read, or `output` cannot be written.
        """
        world = world or World()
        column = _column(source, self.config, self.options)
        prompt = _prompt(self.settings, self.options, column)
        count, blocks = self._texts(source, column)
        if len(set(from_all_ranks([f"{self.checkpoint.directory.name} {count}"], world, "vectors/same"))) > 1:
            raise RunError("ranks have other checkpoints or texts than rank 0: a run has saved one; start again")

        def parts() -> Iterator[bytes]:
            head = io.BytesIO()
            described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (count, self.width)}
            np.lib.format.write_array_header_1_0(head, described)
            yield head.getvalue()
            done = 0
            while group := list(islice(blocks, world.size)):

                def tell(items: int, of: int, done: int = done, texts: int = len(group[0])) -> None:
                    progress(done + texts * items // of, count)

                mine = np.zeros((0, self.width), np.float32)
                if world.rank < len(group):
                    try:
                        mine = self.vectors(group[world.rank], prompt, tell)
                    except NotFiniteError:  # raised below, by all ranks
                        mine = np.full((1, self.width), np.nan, np.float32)
                vectors = world.all_gather(tf.constant(mine), "vectors").numpy()
                require_finite_outputs({"vectors": vectors})
                done += len(vectors)
                progress(done, count)
                yield vectors.astype(dtype).tobytes()
            if done != count:
                raise RunError(f"{source} has {done:,} texts, and had {count:,} before: it was changed; start again")

        if world.rank == 0:
            write_output(output, parts())
        else:
            for _ in parts():
                pass
        cut = sum(from_all_ranks([self.cut], world, "vectors/cut"))
        how = "the mean of the tokens' states" if self.settings.pooling == "mean" else "the state of the first token"
        long = "averaged over windows" if self.options.windows else "cut"
        return "\n".join(
            [
                f"{count:,} vectors of {self.width} numbers, {dtype}: {output}",
                f"each is {how}{', of length 1' if self.settings.normalised else ''}"
                f"{f', of the text behind {prompt!r}' if prompt else ''}",
                f"{cut:,} texts of more than {self.length} tokens were {long}",
            ]
        )

    def _texts(self, source: Path, column: str | None) -> tuple[int, Iterator[list[str]]]:
        """The number of texts, and the texts in blocks; raises ReportedError."""
        if column is None:
            count = sum(map(len, text_blocks(source, "text")))
            if not count:
                raise UserError(f"{source} is empty; expected a text in each line")
            blocks = text_blocks(source, "text", most=_BLOCK)
            return count, ([line.removesuffix("\r") for line in block] for block in blocks)
        table = InputTable(source, (column,), [], self.options, _BLOCK)
        return table.count, (rows.texts[0] for rows in table)

    @classmethod
    def look_at_texts(cls, source: Path, config: dict[str, Any], options: Options) -> None:
        """As `look`, for `write_vectors`."""
        settings, column = vectors_of(config) or SentenceVectors(), _column(source, config, options)
        _prompt(settings, options, column)
        if type(hidden := config.get("hidden_size")) is int:
            _width(settings, options, hidden)
        if column is None:
            next(text_blocks(source, "text"), None)
        else:
            require_columns(source, (column,), "--text_columns", options.dialect)


def require_room(prompt: str, tokenizer: Tokenizer, length: int) -> None:
    """Raise UserError if a prompt leaves no room for a text in a row of `length` tokens: all vectors would be equal."""
    (count,) = tokenizer([prompt.rstrip()])[1].tolist()
    if count >= length - _SPECIAL:
        raise UserError(
            f"the prompt {shown(prompt)} has {count} tokens, and a row of {length} holds {length - _SPECIAL} beside "
            "[CLS] and [SEP]: no room is left for a text; expected a shorter prompt, or more tokens a row"
        )


def _column(source: Path, config: dict[str, Any], options: Options) -> str | None:
    """The column of texts; None: they are lines. Raises ReportedError if there are several."""
    if suffixes(source)[0] == ".txt" and not options.text_columns:
        return None
    if not (columns := options.text_columns):
        there = require_columns(source, (), "", options.dialect)
        columns = there if len(there) == 1 else [name for name in config.get("text_columns") or () if name in there]
        columns = columns or there
    if len(columns) != 1:
        raise UserError(
            f"--vectors takes the texts of one column; expected one of {', '.join(columns)} as --text_columns"
        )
    return columns[0]


def _prompt(settings: SentenceVectors, options: Options, column: str | None) -> str:
    """What stands before each text: the prompt asked for, else that of the column's name, else the files' default.

    Raises UserError if there is none of the name that is asked for.
    """
    prompts, asked = settings.prompts, options.prompt
    if asked is None:
        return prompts.get(column or "", prompts.get(settings.default_prompt or "", ""))
    if asked not in (*prompts, "none"):
        raise UserError(f"--prompt {asked}: the checkpoint has {', '.join(prompts) or 'none'}; expected that or none")
    return prompts.get(asked, "")


def _width(settings: SentenceVectors, options: Options, hidden: int) -> int:
    """Numbers of a vector; raises UserError if they are not between 1 and those of a state."""
    width = min(hidden, settings.dimensions or hidden) if options.dimensions is None else options.dimensions
    if not 0 < width <= hidden:
        raise UserError(f"--dimensions {width}: expected 1 to {hidden}, the numbers of a whole vector")
    return width


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors divided by their length, on the last axis; 0 stays 0."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)

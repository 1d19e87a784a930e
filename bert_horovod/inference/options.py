"""What every predictor is given: the user's options, and a function that is told how far it is."""

from collections.abc import Callable
from dataclasses import dataclass

from bert_horovod.corpus.reading.table_files import PLAIN, Dialect, Table

Progress = Callable[[int, int], None]  # rows that are done, of how many


@dataclass(frozen=True)
class Options:
    """A user's options for a predictor; each kind of predictor reads those that it needs."""

    text_columns: tuple[str, ...] = ()  # of tables; (): as the checkpoint says
    sequence_length: int | None = None  # tokens of an example, at most; None: as the checkpoint was trained
    doc_stride: int | None = None  # of question answering: tokens from one window of a context to the next
    null_score_threshold: float | None = None  # of question answering: no answer if the null odds are above it
    threshold: float | None = None  # of any number of labels: the least probability; None: as the checkpoint says
    keep: tuple[str, ...] | None = ()  # a table's columns that stand beside the answers; None: all of them
    dialect: Dialect = PLAIN  # of a table
    prompt: str | None = None  # of vectors: the name of what stands before each text; None: as the column says
    dimensions: int | None = None  # of vectors: how many numbers, the first ones; None: as the checkpoint says
    windows: bool = False  # of vectors: whether long texts are read whole; else they are cut
    precision: str = "float32"  # of vectors: in which they are computed, as in numerics.precision

    def kept(self, table: Table, ours: list[str]) -> tuple[list[str], list[list[str]]]:
        """The names of the kept columns, and their fields in each row.

        A column that is named like one of `ours` gets the prefix input_, as often as it takes to have a name alone.
        Raises UserError if the table lacks a column.
        """
        names = table.columns if self.keep is None else list(self.keep)
        places = table.places(tuple(names), "--keep")
        shown_names = []
        for name in names:
            prefix = ""
            while prefix + name in ours or (prefix and prefix + name in names):
                prefix += "input_"
            shown_names.append(prefix + name)
        return shown_names, [[fields[place] for place in places] for _, fields in table.rows]

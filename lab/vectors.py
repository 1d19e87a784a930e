#!/usr/bin/env python3
"""How fast texts get vectors: `predict --vectors` beside sentence-transformers' `encode`, on the CPU.

python lab/vectors.py --checkpoint C --texts texts.csv --text_columns passage --threads 2
python lab/vectors.py --vocab VOCAB.txt --texts texts.txt        a model of MiniLM's size with random parameters

Both read the same directory and the same texts. Each contestant has a process of its own; they run in turn, in rounds,
and a line has the median of the rounds' texts a second. sentence-transformers sorts all texts by their length, and pads
each batch to its longest one.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.reporting.tables import lines
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runtime.quiet import import_tensorflow
from lab.peers.answering import answer
from lab.rounds import in_turn, ratio_of, say, started

OURS, PEER = "predict --vectors", "sentence-transformers"
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
PRECISIONS = ("float32", "bfloat16")


def texts_of(path: Path, column: str | None) -> list[str]:
    """The texts of a table's column, or the lines of a plain text."""
    from bert_horovod.corpus.reading.table_files import only_column, read_table

    if path.suffix == ".txt":
        return path.read_text(encoding="utf-8").splitlines()
    table = read_table(path)
    (place,) = table.places((column,) if column else only_column(path))
    return [fields[place] for _, fields in table.rows]


def write_model(directory: Path, vocabulary: Path) -> None:
    """A directory of sentence-transformers, of MiniLM's size, with random parameters."""
    import_tensorflow()
    from bert_horovod.corpus.reading.tokenizer_settings import UNCASED
    from bert_horovod.interchange.architectures import ENCODER, Architecture
    from bert_horovod.interchange.huggingface import write_directory
    from bert_horovod.model.parameters import SENTENCE_VECTORS, initial_values
    from bert_horovod.recipe.sections import Model

    words = vocabulary.read_text(encoding="utf-8").splitlines()
    model = Model(vocab_size=len(words), **MINILM)
    architecture = Architecture(ENCODER, False, vectors={SENTENCE_VECTORS: {"max_seq_length": 256}})
    parameters = initial_values(architecture.parameters(model), 0.02, 0)
    write_directory(directory, model, architecture, parameters, words, UNCASED)


def contestant(shape: dict[str, Any]) -> None:
    """Be one: for each number on standard input make vectors of the texts so many times; answer with the seconds."""
    directory, texts, dtype = shape["directory"], json.loads(Path(shape["texts"]).read_text()), shape["precision"]
    if shape["name"] == OURS:
        import_tensorflow()
        from bert_horovod.inference.embedding_predictor import EmbeddingPredictor
        from bert_horovod.inference.options import Options
        from bert_horovod.runtime.devices import use_devices
        from bert_horovod.runtime.host import keep_freed_memory

        keep_freed_memory()  # as `bert-horovod` does
        use_devices(0, 1, shape["threads"])
        predictor = EmbeddingPredictor(find_checkpoint(Path(directory)), Options(precision=dtype))
        source, output = Path(shape["texts"]).with_suffix(".jsonl"), Path(shape["output"])

        def make() -> None:
            predictor.write_vectors(source, output, "float32", lambda *_: None)
    else:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(shape["threads"])
        model = SentenceTransformer(directory, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})

        def make() -> None:
            vectors = model.encode(texts, convert_to_tensor=True, batch_size=32)
            np.save(shape["output"], vectors.float().numpy())

    answer(make, time.process_time if shape["threads"] == 1 else time.perf_counter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, metavar="FILE", help="a table, or lines (.txt)")
    parser.add_argument("--text_columns", metavar="A", help="the table's column of texts")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="of sentence-transformers")
    parser.add_argument("--vocab", type=Path, metavar="FILE", help="in place of it: BERT's vocab.txt")
    parser.add_argument("--count", type=int, default=4000, metavar="N", help="of the texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="1: processor time (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        return contestant(json.loads(arguments.contestant))
    with tempfile.TemporaryDirectory(prefix="vectors-") as place:
        directory = arguments.checkpoint or Path(place, "model")
        if arguments.checkpoint is None:
            write_model(directory, arguments.vocab)
        texts = texts_of(arguments.texts, arguments.text_columns)[: arguments.count]
        Path(place, "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        objects = (json.dumps({"text": text}) + "\n" for text in texts)
        Path(place, "texts.jsonl").write_text("".join(objects), encoding="utf-8")
        shape = {"directory": str(directory), "texts": str(Path(place, "texts.json")), "threads": arguments.threads}
        names, commands = {}, []
        for precision, name in product(PRECISIONS, (OURS, PEER)):
            title, output = f"{name}, {precision}", str(Path(place, f"{len(names)}.npy"))
            own = {"name": name, "precision": precision, "output": output}
            names[title] = output
            words = [sys.executable, str(Path(__file__).resolve()), "--contestant", json.dumps(shape | own)]
            commands.append((title, words, None))
        with started(commands, lambda _: 1) as running:
            seconds = in_turn(running, arguments.rounds, lambda name, _: running[name].ask(1)[0])
        first, *others = (np.load(output) for output in names.values())
        for title, vectors in zip(list(names)[1:], others, strict=True):
            say(f"{title}: at most {np.abs(vectors - first).max():.1e} from {next(iter(names))}")
    table = [["contestant", "texts/s", f"{OURS} is so many times as fast"]]
    for title, its in seconds.items():
        ours = seconds[f"{OURS}, {title.rpartition(', ')[2]}"]
        table.append([title, f"{len(texts) / statistics.median(its):,.0f}", f"{ratio_of(its, ours):.2f} x"])
    print(lines(table))


if __name__ == "__main__":
    main()

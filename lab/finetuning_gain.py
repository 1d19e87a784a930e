#!/usr/bin/env python3
"""Is pre-training worth it? Fine-tuning from a checkpoint, and of the same net from fresh parameters; transformers too.

python lab/finetuning_gain.py --checkpoint C --data GLUE --squad SQUAD --ner NER --work DIR    measure what is missing
python lab/finetuning_gain.py --checkpoint C --data GLUE --work DIR --task rte --start fresh
python lab/finetuning_gain.py --checkpoint C --data GLUE --work DIR --losses            the first losses alone

Ours is `bert-horovod finetune` itself. transformers fine-tunes the same checkpoint with the same settings and, seed by
seed, the same first parameters of pooler and head and the same examples a step, about 32, padded to the longest.
Both are float32, on one thread pinned to a core; as many run side by side as there are cores. Scores are the project's.

A result is a line of lab/gain.jsonl, under the hash of what decides it: task, settings, program, parameters and files.
Stopped, the same command goes on: ours within a run, transformers with the first seed that is not finished.

--losses trains both for 20 steps without dropout on the same examples a step, and says how far their losses differ.
"""

import argparse
import hashlib
import json
import os
import queue
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import require_least
from bert_horovod.errors import ReportedError, RunError, UserError
from bert_horovod.finetuning.examples import Files
from bert_horovod.finetuning.glue import TASKS
from bert_horovod.finetuning.tag_data import find_tagged
from bert_horovod.reporting.tables import lines
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.runtime.quiet import import_tensorflow
from bert_horovod.storage.reading import hash_file
from bert_horovod.storage.writing import write_atomically
from lab.finetuning_pace import EXAMPLES, peer_python
from lab.kept import add_line, by_key
from lab.rounds import PROJECT, logged, reported, say

KEPT = PROJECT / "lab" / "gain.jsonl"
SQUAD, NER = "squad", "ner"
EPOCHS = {"mrpc": 3, "rte": 3, "sst2": 1, NER: 5, "qnli": 3, "mnli": 3, SQUAD: 1}
SEEDS = {task: 1 if task == SQUAD else 3 for task in EPOCHS}
RATE = 3e-4
WHAT = (  # the checkpoint may have been pre-trained without dropout
    "model.hidden_dropout_prob=0.1",
    "model.attention_probs_dropout_prob=0.1",
    "numerics.precision=float32",
)
HOW = (
    "execution.threads=1",
    "execution.trackers=[]",
    "execution.keep_checkpoints=1",
    "execution.stall_s=604800",  # whoever needs the machine may pause a measurement (SIGSTOP) for days
)
OURS, THEIRS = ("pretrained", "fresh"), "transformers"
STARTS = (*OURS, THEIRS)


class Question(NamedTuple):
    """A cell of the table."""

    task: str
    start: str


# In the order in which they are answered: what takes longest last.
QUESTIONS = [Question(*pair) for pair in product(EPOCHS, STARTS) if pair != (SQUAD, THEIRS)]


def files_of(task: str, data: Path, squad: Path | None, ner: Path | None = None) -> Files:
    """A task's files; a split that is not there whole may be a sample.

    Raises:
        UserError: one is missing.
    """
    if task == SQUAD:
        if squad is None:
            raise UserError("--task squad: expected --squad, the directory with train-v1.1.json and dev-v1.1.json")
        return Files(train=_find(squad, "train-v1.1", ".json"), dev=(_find(squad, "dev-v1.1", ".json"),))
    if task == NER:
        if ner is None:
            raise UserError("--task ner: expected --ner, the directory with its train and dev files")
        return Files(train=find_tagged(ner, "train"), dev=(find_tagged(ner, "dev"),))
    directory = data / TASKS[task].title
    dev = tuple(_find(directory, split, ".tsv") for split in TASKS[task].dev)
    return Files(train=_find(directory, "train", ".tsv"), dev=dev)


def _find(directory: Path, stem: str, suffix: str) -> Path:
    names = [f"{stem}{sample}{suffix}{gz}" for sample in ("", "-sample") for gz in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise UserError(f"{directory} has none of {', '.join(names)}")


def key_of(question: Question, checkpoint: Path, files: Files, max_steps: int | None) -> str:
    """What a result is kept under."""
    program = f"{THEIRS}, our steps" if question.start == THEIRS else "ours"
    contents = [_hash(path) for path in (checkpoint / "model.safetensors", files.train, *files.dev)]
    task = question.task
    identity = [task, program, EPOCHS[task], SEEDS[task], RATE, WHAT, contents, max_steps]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]


def _hash(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"there is no {path}; expected a Hugging Face BERT directory")
    return hash_file(path)


def fresh_directory(checkpoint: Path, work: Path) -> Path:
    """A checkpoint of the same sizes and vocabulary with fresh parameters, made if it is not there.

    Raises:
        ReportedError: `checkpoint` is none.
    """
    names = hashlib.sha256(b"".join((checkpoint / name).read_bytes() for name in ("config.json", "vocab.txt")))
    directory = work / f"fresh-{names.hexdigest()[:12]}"
    if not directory.is_dir():
        from bert_horovod.interchange.huggingface import write_directory
        from bert_horovod.model.parameters import initial_values
        from bert_horovod.tasks.pretraining import Pretraining

        pretrained = find_checkpoint(checkpoint).whole(lambda whole: whole.reader.read())
        task = Pretraining(pretrained.pairs)
        parameters = initial_values(task.parameters(pretrained.model), pretrained.model.initializer_range, 0)
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            written = Path(scratch) / "fresh"
            tokens = pretrained.vocabulary, pretrained.tokenizer_settings
            write_directory(written, pretrained.model, task, parameters, *tokens)
            written.rename(directory)
    return directory


def answer_all(keys: dict[Question, str], answers: dict[str, Any], arguments: argparse.Namespace) -> bool:
    """Answer what is not answered yet, side by side, one on each core; whether all are."""
    cores, writing = queue.SimpleQueue(), threading.Lock()
    usable = sorted(os.sched_getaffinity(0))
    for core in usable:
        cores.put(core)

    def answer(question: Question) -> bool:
        key, core = keys[question], cores.get()
        try:
            if key not in answers:
                log = arguments.work / f"{key}.log"
                say(f"{question.task}, {question.start}: on core {core}, see {log}")
                logged(command(question, key, arguments), log, core)
                found = {"key": key} | answer_of(question, key, arguments)
                with writing:
                    add_line(arguments.results, found)
                answers[key] = found
                say(f"{question.task}, {question.start}: done")
        except ReportedError as error:
            say(f"{question.task}, {question.start}: {error}")
        finally:
            cores.put(core)
        return key in answers

    with ThreadPoolExecutor(len(usable)) as pool:
        return all(list(pool.map(answer, keys)))


def start_of(question: Question, arguments: argparse.Namespace) -> Path:
    """The checkpoint that is fine-tuned."""
    fresh = question.start == "fresh"
    return fresh_directory(arguments.checkpoint, arguments.work) if fresh else arguments.checkpoint


def asked_key(question: Question, arguments: argparse.Namespace) -> str:
    """What a question's answer is kept under."""
    files = files_of(question.task, arguments.data, arguments.squad, arguments.ner)
    return key_of(question, start_of(question, arguments), files, arguments.max_steps)


def command(question: Question, key: str, arguments: argparse.Namespace) -> list[str]:
    """What answers a question, behind the name of the Python; it leaves scores.json in the directory KEY of --work."""
    task, files = question.task, files_of(question.task, arguments.data, arguments.squad, arguments.ner)
    output_dir, checkpoint = str(arguments.work / key), str(start_of(question, arguments))
    if question.start == THEIRS:
        python, paths = peer_python(), map(str, (files.train, *files.dev))
        asked = json.dumps([python, task, arguments.max_steps, output_dir, checkpoint, *paths])
        return [str(Path(__file__).resolve()), "--contestant", asked]
    words = ["-m", "bert_horovod", "finetune", "--task", task, "--train_file", str(files.train)]
    words += [word for path in files.dev for word in ("--dev_file", str(path))]
    words += ["--output_dir", output_dir, "--checkpoint", checkpoint, "--epochs", str(EPOCHS[task])]
    words += ["--max_steps", str(arguments.max_steps)] if arguments.max_steps else []
    words += ["--seeds", str(SEEDS[task]), "--learning_rates", str(RATE)]
    words += ["--index_dir", str(arguments.work / "index")] if task == SQUAD else []
    return words + [word for setting in (*WHAT, *HOW) for word in ("--set", setting)]


def run_theirs(python: str, task: str, max_steps: int | None, output_dir: str, checkpoint: str, *paths: str) -> None:
    """Be the contestant that fine-tunes with transformers; `paths`: of the train file and of the dev files."""
    from lab.finetuning_peer import fine_tune

    train, *dev = map(Path, paths)
    finetuning = text_finetuning(task, Files(train=train, dev=tuple(dev)), Path(checkpoint))
    settings = (*WHAT, *HOW, f"phase.0.learning_rate={RATE}")
    scores = fine_tune(finetuning, Path(output_dir), python, SEEDS[task], EPOCHS[task], settings, max_steps)
    write_atomically(Path(output_dir) / "scores.json", json.dumps(scores, indent=1) + "\n")


def text_finetuning(task: str, files: Files, checkpoint: Path) -> Any:
    """The fine-tuning of a task of GLUE, or of ner; takes this process's device."""
    from bert_horovod.finetuning.initialisation import Finetuning
    from bert_horovod.finetuning.kinds.kinds import kind_of_task

    finetuning = Finetuning(kind_of_task(task).read(task, files, {}), find_checkpoint(checkpoint))
    finetuning.use_devices(0, 1, HOW)
    return finetuning


def answer_of(question: Question, key: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What is kept: scores of all seeds, and what they were trained with."""
    task = question.task
    answer = json.loads((arguments.work / key / "scores.json").read_text(encoding="utf-8"))
    files = files_of(task, arguments.data, arguments.squad, arguments.ner)
    settings = {"epochs": EPOCHS[task], "phase.0.learning_rate": RATE, "examples a step": EXAMPLES, "set": WHAT}
    kept = {name: [run[name] for run in answer["runs"]] for name in ("seed", "scores")}
    names = [path.name for path in (files.train, *files.dev)]
    return {"task": task, "start": question.start, "files": names, "settings": settings, **kept}


def report(answers_of: dict[Question, dict[str, Any]]) -> str:
    """The table: a line for each score of each task; what is not there is "-"."""
    cells = [["task", "score", *STARTS, "gain"]]
    for task in EPOCHS:
        answers = {start: answers_of[task, start] for start in STARTS if (task, start) in answers_of}
        if not answers:
            continue
        count = f"{EPOCHS[task]} epoch{'s' if EPOCHS[task] > 1 else ''}"
        for number, name in enumerate(next(iter(answers.values()))["scores"][0]):
            scale = 1 if task == SQUAD else 100
            values = {start: [scale * each[name] for each in kept["scores"]] for start, kept in answers.items()}
            means = {start: statistics.fmean(of_seeds) for start, of_seeds in values.items()}
            gain = f"{means['pretrained'] - means['fresh']:+.2f}" if means.keys() >= set(OURS) else "-"
            told = [_spread(values[start]) if start in values else "-" for start in STARTS]
            cells.append(["" if number else f"{task}, {count}", name.replace("_", " "), *told, gain])
    return lines(cells)


def _spread(values: list[float]) -> str:
    spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def compare_losses(tasks: Sequence[str], arguments: argparse.Namespace) -> str:
    """A line for each task: how far the first losses are apart."""
    from lab.finetuning_peer import FIRST, first_losses

    told = []
    for task in tasks:
        finetuning = text_finetuning(task, files_of(task, arguments.data, None, arguments.ner), arguments.checkpoint)
        settings = (*WHAT, *HOW, f"phase.0.learning_rate={RATE}")
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            pairs = first_losses(finetuning, Path(work), peer_python(), settings)
        apart = max(abs(our - their) for our, their in pairs)
        (first, _), (last, theirs) = pairs[0], pairs[-1]
        told.append(
            f"{task}: losses of the first {FIRST} steps differ by at most {apart:.1e}; from {first:.5f} to {last:.5f}, "
            f"transformers to {theirs:.5f}"
        )
    return "\n".join(told)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--checkpoint", required=True, type=Path, help="Hugging Face BERT directory")
    add("--data", required=True, type=Path, help="the directory of GLUE's tasks: MRPC, RTE, ...")
    add("--squad", type=Path, metavar="DIR", help="directory with train-v1.1.json and dev-v1.1.json, or .gz")
    add("--ner", type=Path, metavar="DIR", help="directory with files called train and dev (devel)")
    add("--work", required=True, type=Path, metavar="DIR", help="directory of runs, with their logs")
    add("--task", action="append", choices=tuple(EPOCHS), help="repeatable (default: all; squad and ner if given)")
    add("--start", action="append", choices=STARTS, help="repeatable (default: all)")
    add("--losses", action="store_true", help="compare the first losses; of sst2 and mrpc, or --task")
    add("--max_steps", type=int, metavar="N", help="a trial: each run ends after step N")
    add("--results", type=Path, default=KEPT, metavar="FILE", help="(default: %(default)s)")
    arguments = parser.parse_args(argv)
    require_least("--max_steps", arguments.max_steps)
    if arguments.losses and SQUAD in (arguments.task or ()):
        parser.error("--losses: expected a --task of GLUE")
    return arguments


@reported
def main() -> int:
    """Measure what is missing, and print the table."""
    contestant = sys.argv[1:2] == ["--contestant"]
    arguments = None if contestant else parse()
    import_tensorflow()
    if contestant:
        run_theirs(*json.loads(sys.argv[2]))
        return 0
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.losses:
        print(compare_losses(arguments.task or ("sst2", "mrpc"), arguments))
        return 0
    tasks = arguments.task or [task for task in EPOCHS if vars(arguments).get(task, True)]
    asked = [one for one in QUESTIONS if one.task in tasks and one.start in (arguments.start or STARTS)]
    keys = {question: asked_key(question, arguments) for question in asked}
    answers = by_key(arguments.results)
    all_answered = answer_all(keys, answers, arguments)
    print(report({one: answers[key] for one, key in keys.items() if key in answers}))
    return 0 if all_answered else RunError.exit_code


if __name__ == "__main__":
    sys.exit(main())

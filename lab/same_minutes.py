#!/usr/bin/env python3
"""Same words, same minutes: this program and the loop of transformers' run_mlm.py, judged on one held-out store.

python lab/same_minutes.py --books DIR --vocab VOCAB.txt --work DIR     all, about seven hours of two cores
python lab/same_minutes.py --work DIR --only a c --minutes 20           two contestants, 20 minutes each
python lab/same_minutes.py --work DIR --layers 12 --hidden 384 --epochs 10 --device cuda
python lab/same_minutes.py                                              the table of what is kept

    a   this program with --recipe         c   run_mlm.py's loop at its best: compiled, the best of pilots
    b   this program with bert-mini        d   run_mlm.py's loop with its defaults

Nothing else should run beside it: one contestant at a time has all cores. A pilot of each times start, compilation and
step, so that the learning rate's decay ends with the minutes. Start and compilation count, and no compiler finds what
an earlier run has compiled; saving, evaluating and turning text into ids do not count. The faster precision of this
machine is taken, for this program also the faster number of ranks. (c) is the best of pilots of four minutes: of three
rates, then of three batches, then of dropout or none. At the marks each contestant saves a Hugging Face directory, and
`bert-horovod evaluate` judges them on the same held-out rows; with --pairs the last one on minimal pairs too.

The first of --minutes has three seeds of (a) and (c) and one of (b) and (d), others (a) and (c) alone; seed by seed, so
that what is done so far compares. Each run and each pilot is a line of --results as soon as it ends; the same command
goes on with what is not done.
"""

import argparse
import contextlib
import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.commands.shared.flags import add_overrides, require_least
from bert_horovod.corpus.store import open_store
from bert_horovod.errors import RunError, UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.recipe_files.loading import load_recipe
from bert_horovod.runtime.host import BFLOAT16, instructions, processor_name
from lab.compute import torch_environment
from lab.curve_recipes import KEPT, key_of
from lab.curves import own_cores
from lab.finetuning_pace import peer_python
from lab.minutes_results import Enough, Line, Results, marks_of, pace_of, report, split_books, steps_of
from lab.rounds import PROJECT, commit, path, program, reported, say, variables

RESULTS = KEPT / "same-minutes.jsonl"
SEEDS = {"a": 3, "b": 1, "c": 3, "d": 1}
PILOT_MINUTES, PILOT = 4.0, 0.1  # of (c)'s pilots; in place of them, of --epochs
LENGTH, ROWS = 64, 4096  # tokens of a row; held-out rows that are judged
# Shares of the stores' text, the first of which holds anything out: pretrain needs such a part, and the most is half.
HELD_OUT = {"train": (0.001, 0.02, 0.5), "held_out": (0.5,)}
DEFAULTS = {"rate": 5e-5, "batch": 8, "dropout": 0.1, "compiled": False, "warmup": 0.0, "weight_decay": 0.0}
BEST = {"rate": 1e-3, "batch": 64, "dropout": 0.0, "compiled": True, "warmup": 0.05, "weight_decay": 0.01}
TRIED = {"rate": (5e-4, 1e-3, 2e-3), "batch": (32, 64, 128), "dropout": (0.0, 0.1)}
ON_GPU = 4  # so many times as large are the batches that are tried there
PRECISIONS = ("float32", "bfloat16")
UNTIMED = {"rate", "warmup", "weight_decay"}  # settings that change no step's seconds


class TooSlow(Exception):
    """A pilot did not end within its limit."""


class Contest:
    """Contestants on one corpus and one machine."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.work = arguments, arguments.work.absolute()
        self.cores, self.gpu = len(os.sched_getaffinity(0)), arguments.device == "cuda"
        self.hidden, self.layers = arguments.hidden, arguments.layers
        self.results = Results(arguments.results, arguments.most)
        prepared = (self.work / "prepared").is_file()
        if not prepared or set("cd") & set(arguments.only):
            python = arguments.peer_python or peer_python()
            self.torch = torch_environment(python, arguments.device)
            self.peer = [python, str(PROJECT / "lab" / "peers" / "run_mlm.py")]
        if not prepared:
            self.prepare()
        self.vocabulary = len(open_store(self.work / "train").vocabulary)
        chosen_by = ", ".join(sorted(instructions() & (BFLOAT16 | {"avx512f"})))  # what libraries choose code by
        self.where = {
            "machine": f"{processor_name()}, {self.cores} cores, {chosen_by}, {arguments.device}",
            "data": [open_store(self.work / name).hash for name in ("train", "held_out")],
            "net": [self.layers, self.hidden],
        }

    def prepare(self) -> None:
        """Make the stores and the peer's rows in the work directory."""
        arguments = self.arguments
        if not (arguments.books and arguments.vocab):
            raise UserError(f"--work {self.work} holds no texts yet: expected --books and --vocab too")
        texts = split_books(sorted(arguments.books.glob("*.txt*")), arguments.words)
        self.work.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            file = self.work / f"{name}.txt"
            file.write_text(text, encoding="utf-8")
            say(f"{file}: {len(text.split()):,} words")
            words = ["--input", file, "--vocab", arguments.vocab, "--documents", "paragraph_lines"]
            for share in HELD_OUT[name]:
                shutil.rmtree(self.work / name, ignore_errors=True)
                program("prepare", *words, "--output_dir", self.work / name, "--held_out", share, gpu=self.gpu)
                if open_store(self.work / name).manifest["totals"]["held_out_sections"]:
                    break
        files = {"text": "train.txt", "tokenizer": "tokenizer", "rows": "rows.npy"}
        job: Line = {name: str(self.work / file) for name, file in files.items()}
        job |= {"vocab": str(arguments.vocab.absolute()), "length": LENGTH}
        run_alone([*self.peer, json.dumps(job)], self.torch, self.work / "rows.log")
        (self.work / "prepared").touch()

    def hold(self) -> None:
        """Do all that is asked for."""
        arguments = self.arguments
        lengths = [("epochs", arguments.epochs)] if arguments.epochs else [("minutes", m) for m in arguments.minutes]
        failed = []
        for number, (unit, amount) in enumerate(lengths):
            for seed, name in product(range(1, arguments.seeds + 1), arguments.only):
                if seed > (SEEDS[name] if number == 0 else int(name in "ac")):
                    continue
                try:
                    settings = self.best_of_ours(name) if name in "ab" else self.best_of_theirs(name)
                    line = self.run({"contestant": name, unit: amount, "seed": seed}, settings)
                    if not line["losses"]:
                        raise UserError(f"({name}): {amount:g} minutes are over before its first step: more --minutes")
                    self.judge_pairs(line, whole=number > 0)
                except RunError as error:  # hours of the others must not wait for somebody who reads it
                    failed.append(f"({name}), seed {seed}, {amount:g} {unit}: {error}")
                    say(f"left out: {failed[-1]}")
        if failed:
            raise RunError("; ".join(failed) + "; the same command tries again")

    def run(self, what: Line, settings: Line) -> Line:
        """Train, and judge at the marks; only the last checkpoint stays, and none of a pilot."""
        name, told = what["contestant"], ", ".join(f"{key} {value}" for key, value in what.items())
        unit = "epochs" if "epochs" in what else "minutes"

        def find(key: str) -> Line:
            if unit == "epochs":
                steps = max(1, round(what[unit] * self.rows(settings) / self.batch(settings)))
            else:
                steps = steps_of(what[unit], self.pace(settings))
            if not steps:
                return {"losses": [], "passed_over": "start and compilation take longer"}
            self.results.require_more()  # the pace may have been the last one
            say(f"{told}: {steps:,} steps of {settings}")
            found = self.train(settings, key, steps, marks_of(unit, what[unit], steps), what["seed"])
            for reached in found["reached"]:
                checkpoint = self.work / key / "run" / "checkpoints" / f"step-{reached['step']:08d}"
                reached["loss"] = self.judge(checkpoint)
                said = f"{reached['loss']:.4f} nats at {reached['mark']:g} {unit}, {reached['seconds']:.0f} s"
                say(f"({name}): {said}")
            if "pilot" not in what:
                shutil.copytree(checkpoint, self.work / f"{key}.last", dirs_exist_ok=True)
            return {"steps": steps, "losses": found["reached"], "commit": commit()}

        return self.once(what | {"settings": settings}, find)

    def judge(self, checkpoint: Path) -> float:
        """The held-out loss, nats; infinite where the peer, which never stops for it, has diverged."""
        words = [checkpoint, "--data_dir", self.work / "held_out", "--rows", ROWS, "--sequence_length", LENGTH]
        try:
            return json.loads(program("evaluate", *words, "--json", gpu=self.gpu))["held_out_mlm_loss"]
        except RunError as error:
            if "not finite" not in str(error):
                raise
            return math.inf

    def pace(self, settings: Line) -> Line:
        """Seconds of start and compilation, seconds of a step; of this program also rows of an epoch.

        The step of a pilot that takes four times the minutes of the others is infinite.
        """

        def find(key: str) -> Line:
            steps = max(60, self.arguments.pilot_rows // self.batch(settings))
            say(f"pace: {steps} steps of {settings}")
            try:
                found = self.train(settings, key, steps, [], 1, 240 * PILOT_MINUTES)
            except TooSlow as slow:
                say(f"pace: passed over: {slow}")
                return {"fixed_s": 0.0, "step_s": math.inf, "passed_over": str(slow)}
            return pace_of(found["ends"]) | {"rows": found.get("rows")}

        timed = {key: value for key, value in settings.items() if key not in UNTIMED}
        return self.once({"pace": True, "settings": timed}, find)

    def once(self, what: Line, find: Any) -> Line:
        """As Results.once, on this machine and corpus; the directory in which it was found goes.

        The settings that a pilot on one machine found best are taken on every other one.
        """
        where = self.where | ({"machine": "any"} if "pilot" in what else {})
        line = self.results.once(where | what, find)
        shutil.rmtree(self.work / line["key"], ignore_errors=True)
        return line

    def judge_pairs(self, line: Line, whole: bool) -> None:
        """Add the accuracy on minimal pairs to a line that has none."""
        checkpoint, pairs, every = self.work / f"{line['key']}.last", self.arguments.pairs, 1 if whole else 10
        if not pairs or "pairs" in line or not checkpoint.is_dir():
            return
        try:
            judged = program("evaluate", checkpoint, "--pairs", pairs, "--every", every, "--json", gpu=self.gpu)
        except RunError as error:
            if "--pairs" not in str(error):
                raise
            say(f"no score on pairs: {error}")
            return
        self.results.keep(line | {"pairs": json.loads(judged)["accuracy"], "every": every})

    def best_of_ours(self, name: str) -> Line:
        """This program's recipe, in the precision and with the ranks that are fastest with (a)'s."""
        recipe, given = self.arguments.recipe, self.arguments.overrides
        horovod = not self.gpu and self.cores > 1 and shutil.which("horovodrun", path=path())
        key = "numerics.precision="
        precisions = [each for each in given if each.startswith(key)] or [key + each for each in self.precisions]
        ways = list(product(precisions, (1, self.cores) if horovod else (1,)))
        precision, ranks = self.fastest([(way, self.ours(recipe, [way[0], *given], way[1])) for way in ways])
        return (
            self.ours(recipe, [precision, *given], ranks) if name == "a" else self.ours("bert-mini", [precision], ranks)
        )

    def best_of_theirs(self, name: str) -> Line:
        """The defaults; or the faster precision, and what pilots found best, one setting after the other."""
        if name == "d":
            return DEFAULTS | {"precision": PRECISIONS[0]}
        tried = TRIED | {"batch": tuple(ON_GPU * each for each in TRIED["batch"])} if self.gpu else TRIED
        first = BEST | {"batch": tried["batch"][1]}
        best: Line = self.fastest([(each, each) for each in (first | {"precision": one} for one in self.precisions)])
        epochs = self.arguments.epochs
        length = {"epochs": PILOT * epochs} if epochs else {"minutes": PILOT_MINUTES}
        what = {"contestant": "c", "pilot": True, **length, "seed": 1}
        for key, values in tried.items():
            runs = {value: self.run(what, best | {key: value})["losses"] for value in values}
            best |= {key: min(values, key=lambda value: runs[value][-1]["loss"] if runs[value] else math.inf)}
        return best

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those that are tried."""
        if self.gpu:
            return PRECISIONS[1:]
        return PRECISIONS if BFLOAT16 & instructions() else PRECISIONS[:1]

    def fastest(self, ways: list[tuple[Any, Line]]) -> Any:
        """The way whose settings have the fastest step."""
        return min(ways, key=lambda way: self.pace(way[1])["step_s"])[0] if len(ways) > 1 else ways[0][0]

    def ours(self, recipe: str, settings: list[str], ranks: int) -> Line:
        """Settings of this program; `decided` is a hash of what the recipe says."""
        found: Line = {"recipe": recipe, "set": settings, "ranks": ranks}
        return found | {"decided": key_of(self.recipe(found), "", None, ranks)}

    def recipe(self, settings: Line) -> Recipe:
        """The recipe with this contest's net and rows."""
        return load_recipe(settings["recipe"], self.overrides(settings))

    def overrides(self, settings: Line) -> list[str]:
        """What is set in a recipe, as --set takes it."""
        given = settings["set"]
        model = load_recipe(settings["recipe"], given).model
        net = {
            **self.net,
            "vocab_size": self.vocabulary,
            "intermediate_size": model.intermediate_size * self.hidden // model.hidden_size,
        }
        return [*given, *(f"model.{key}={value}" for key, value in net.items()), f"phase.0.sequence_length={LENGTH}"]

    @property
    def net(self) -> dict[str, int]:
        """The sizes of all contestants' nets."""
        heads = max(1, self.hidden // 64)
        return {"hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": heads}

    def batch(self, settings: Line) -> int:
        """Rows of a step."""
        return self.recipe(settings).phase[0].global_batch if "recipe" in settings else settings["batch"]

    def rows(self, settings: Line) -> int:
        """Rows of an epoch, as the contestant cuts the text."""
        return self.pace(settings)["rows"] if "recipe" in settings else len(np.load(self.work / "rows.npy", "r"))

    def train(
        self, settings: Line, key: str, steps: int, marks: list[Line], seed: int, limit_s: float | None = None
    ) -> Line:
        """Train in a process, if that is not done; what it found. Raises TooSlow behind the limit."""
        output = self.work / key
        found = output / "found.json"
        if not found.is_file():
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
            of_ours = "recipe" in settings
            command, job = (self.pretrain if of_ours else self.run_mlm)(settings, output, steps, seed)
            own = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"), str(output / "compiled"))
            job |= {"marks": marks, "found": str(found), "began": time.time()}
            command[command.index("JOB")] = json.dumps(job)
            environment = (variables(self.gpu) if of_ours else self.torch) | own
            run_alone(command, environment, self.work / f"{key}.log", limit_s)
        return json.loads(found.read_text(encoding="utf-8"))

    def pretrain(self, settings: Line, output: Path, steps: int, seed: int) -> tuple[list[str], Line]:
        """The command of this program, in which JOB stands for the marks, and what it is told with them: nothing."""
        given = self.overrides(settings)
        given += [f"phase.0.steps={steps}", f"execution.checkpoint_steps={steps}", f"data.seed={seed}"]
        given += ["execution.keep_checkpoints=99", "execution.evaluate_steps=0"]
        given += [f"execution.micro_batch={self.batch(settings)}"] if self.gpu else []
        words = ["horovodrun", "-np", str(settings["ranks"]), *own_cores()] if settings["ranks"] > 1 else []
        words += [sys.executable, str(PROJECT / "lab" / "timed_pretrain.py"), "JOB", "--recipe", settings["recipe"]]
        words += ["--data_dir", str(self.work / "train"), "--output_dir", str(output / "run")]
        return [*words, *(word for each in given for word in ("--set", each))], {}

    def run_mlm(self, settings: Line, output: Path, steps: int, seed: int) -> tuple[list[str], Line]:
        """The command of the peer, and what it is told with the marks."""
        config = {**self.net, "vocab_size": self.vocabulary, "intermediate_size": 4 * self.hidden}
        job = settings | {"config": config, "steps": steps, "seed": seed, "device": self.arguments.device}
        job |= {"tokenizer": str(self.work / "tokenizer"), "rows": str(self.work / "rows.npy")}
        return [*self.peer, "JOB"], job | {"threads": self.cores, "output": str(output / "run")}


def run_alone(command: list[str], environment: dict[str, str], log: Path, limit_s: float | None = None) -> None:
    """Run a process that ends when this one does; raises RunError with its last words, TooSlow behind the limit."""
    ends = signal.SIGTERM if command[0] == "horovodrun" else signal.SIGKILL

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, ends)  # PR_SET_PDEATHSIG

    with log.open("w") as file:
        run = subprocess.Popen(command, env=environment, stdout=file, stderr=file, preexec_fn=end_with_parent)
        try:
            run.wait(limit_s)
        except subprocess.TimeoutExpired:
            run.send_signal(ends)
            run.wait()
            raise TooSlow(f"not done in {limit_s:.0f} s") from None
    if run.returncode:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
        raise RunError(f"{Path(command[1]).name} ended with {run.returncode}; see {log}: {last}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--work", type=Path, metavar="DIR", help="texts, runs and last checkpoints (default: table only)")
    add("--books", type=Path, metavar="DIR", help="files .txt or .txt.gz, one a book; a line is a paragraph")
    add("--vocab", type=Path, metavar="FILE", help="a WordPiece vocab.txt, uncased")
    add("--words", type=int, default=10_000_000, help="words to train on (default: %(default)s)")
    add("--recipe", default="bert-mini-fast", help="of (a) (default: %(default)s)")
    add("--only", nargs="*", default=list("abcd"), choices="abcd", help="contestants; none: texts alone")
    add("--minutes", type=float, nargs="+", default=[20.0, 60.0], help="(default: 20 60)")
    add("--epochs", type=float, help="epochs in place of minutes")
    add("--most", type=int, metavar="N", help="end after N new runs and pilots, where time is short")
    add("--seeds", type=int, default=3, help="at most (default: %(default)s)")
    add("--layers", type=int, default=4, help="(default: %(default)s)")
    add("--hidden", type=int, default=256, help="width (default: %(default)s)")
    add("--pilot_rows", type=int, default=12_800, help="of pilots of pace (default: %(default)s)")
    add("--pairs", type=Path, metavar="DIR", help="minimal pairs, as for bert-horovod evaluate")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="(default: %(default)s)")
    add("--results", type=Path, default=RESULTS, metavar="FILE", help="(default: %(default)s)")
    add("--json", action="store_true", help="print the kept lines instead of tables")
    add("--peer_python", metavar="FILE", help="a Python with torch and transformers")
    add_overrides(parser, "numerics.precision=float32")
    arguments = parser.parse_args(argv)
    for flag, least in {"words": 1, "seeds": 1, "layers": 1, "hidden": 2, "pilot_rows": 1}.items():
        require_least(f"--{flag}", getattr(arguments, flag), least)
    for minutes in (*arguments.minutes, 1.0 if arguments.epochs is None else arguments.epochs):
        if not minutes > 0:
            parser.error(f"--minutes, --epochs: expected more than 0, found {minutes}")
    return arguments


@reported
def main() -> int:
    """Train what is missing, and print the table."""
    arguments = parse()
    if arguments.work:
        with contextlib.suppress(Enough):
            Contest(arguments).hold()
    lines = Results(arguments.results).lines.values()
    print(json.dumps(list(lines)) if arguments.json else report(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""How well each exchange, and each way to grow a model, learns: BERT-mini on a store of books, one curve a recipe.

python lab/curves.py --data_dir STORE --work DIR                 train what is missing, then print the table
python lab/curves.py --data_dir STORE --work DIR --curve float16 --curve "1-bit Adam"
python lab/curves.py --data_dir STORE --work DIR --start C       continued curves too
python lab/curves.py --data_dir STORE --work DIR --group bytes   those that lab/curves/bytes.jsonl keeps
python lab/curves.py --data_dir general=BOOKS --data_dir own=STORE --work DIR --start C --group domain    two stores
python lab/curves.py --data_dir STORE --work DIR --gpu           on this host's GPU
python lab/curves.py --step_times FILE                           the table alone, with hours on a link
python docs/pictures/make.py                                     draws kept curves, see docs/growing.md
python lab/curves.py --ladder --data_dir STORE --work DIR        the ladder of lab/ladder.toml, on quickstart's store
python lab/curves.py --ladder --data_dir STORE                   its table alone

Loss depends on steps and speed on the link, so both are measured apart: here two ranks train over loopback, and FILE
has what `lab/scaling.py --model mini --rows 32 --length 64 --compute real --json` measured on a shaped link; of another
model or rule with its settings behind --set.
Hours to a loss are steps to it times seconds a step; a dense stage's steps take as long as those of float16. Where
there are several phases, FILE has seconds by "stacking, 8 layers, phase 0" and so on, which scaling.py measures with
`--set model.num_hidden_layers=6 --set phase.0.trained_layers=2`.

Where a group is trained with several seeds, a line is their mean. Its loss is what `evaluate` says, with 15 % masked,
where that is kept, else the run's own held-out loss. A curve is behind float32; at 256 rows behind AdamW; if its recipe
is another, behind the curve that trains the whole model of that size.

When a curve from fresh parameters leaves its first plateau is a matter of rounding, worth 0.1 nats in the end. So what
is recommended is also compared without a plateau: "continued" curves begin with the parameters of --start, a checkpoint
of bert-mini.toml after 1,000 steps. Those of 400 steps compute in float32, as any CPU can.

On a GPU the two ranks share it, over Gloo, each as if it were alone on its host. Curves whose two ranks would compute
what one does (float32 sums of gradients) are trained on one rank there; what two would send is computed.

lab/curves.toml has the curves, lab/curves/ those that were trained, a file for each group. A curve is trained once
for what decides it, its key: the recipe's settings that are not defaults, the store, the number of ranks and the
first parameters. A run that was stopped goes on where it was: its directory in DIR bears the key.
"""

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a checkout that is not installed

from bert_horovod.batches.text.mixture import dataset_of
from bert_horovod.corpus.store import open_store
from bert_horovod.corpus.stores import named_paths, open_stores
from bert_horovod.costs.derived import derive
from bert_horovod.errors import RunError, UserError
from bert_horovod.recipe.sections import Recipe
from bert_horovod.reporting.tables import table
from bert_horovod.storage.reading import hash_file
from bert_horovod.wording import did_you_mean
from lab import ladder
from lab.contestants import PINNED
from lab.curve_recipes import CURVES, RANKS, SEED, Curve, keep, kept, key_of, recipe_path
from lab.kept import read_lines
from lab.rounds import PROJECT, commit, path, program, ratio_of, reported, say, variables

ONE_GPU = "localhost:1,127.0.0.1:1"  # each rank is the first of its host, and takes the first GPU
DIVERGED = "would diverge again"  # what `pretrain` says then
MIXED = ("general", "own")  # the stores of curves that mix two, whose losses are told apart
COLUMNS = {
    **{name: (f"held-out loss, {name}", "{:.4f}".format) for name in MIXED},
    "loss": ("held-out loss", "{:.4f}".format),
    "spread": ("spread of seeds", "{:.4f}".format),
    "accuracy": ("accuracy", "{:.1%}".format),
    "behind": ("behind, nats", "{:+.4f}".format),
    "steps": ("steps to its loss", "{:,.0f}".format),
    "tera_flops": ("TFLOP to its loss", "{:,.0f}".format),
    "wire_gb": ("GB sent to its loss, else in all", "{:.3g}".format),
    "step_s": ("step s", "{:.3f}".format),
    "hours": ("hours to its loss", "{:.2f}".format),
    "hours_whole": ("hours of all steps", "{:.2f}".format),
}


def train(curve: Curve, key: str, start: Path | None, arguments: argparse.Namespace) -> None:
    """Train a curve to its end, from where it was, and keep it; `start` is what it begins with if not fresh.

    Raises RunError if the run failed, SystemExit if it was stopped by SIGTERM.
    """
    name, recipe, work = curve.name, curve.recipe, arguments.work
    directory = work / key
    alone = arguments.gpu and one_rank_is_enough(recipe)  # in place of its ranks
    ranks = 1 if alone else curve.ranks
    if ranks > 1 and not shutil.which("horovodrun", path=path()):
        raise UserError("horovodrun is not installed")
    words = ["horovodrun", "-np", str(ranks), *(["-H", ONE_GPU] if arguments.gpu else own_cores())] if ranks > 1 else []
    words += [sys.executable, str(PROJECT / "run" / "run_pretraining.py"), "--recipe", str(curve.recipe_file)]
    words += [*arguments.stores, "--output_dir", str(directory)]
    words += ["--init_checkpoint", str(start.absolute())] if start else []
    words += [word for setting in curve.settings for word in ("--set", setting)]
    if arguments.gpu:  # one micro-batch a step
        words += ["--set", f"execution.micro_batch={recipe.phase[0].global_batch // ranks}"]
    say(f"{name}: training in {directory}")
    with (work / f"{key}.log").open("a") as log:
        run = subprocess.Popen(words, env=variables(arguments.gpu), stdout=log, stderr=log)
        stops = []

        def stop(*_: Any) -> None:
            stops.append((directory / "stop").touch() if directory.is_dir() else run.terminate())

        signal.signal(signal.SIGTERM, stop)
        code = run.wait()
    lines = read_lines(directory / "metrics.jsonl")
    held_out = [(line["step"], line["held_out_mlm_loss"]) for line in lines if "held_out_mlm_loss" in line]
    if code or not held_out or held_out[-1][0] != recipe.total_steps:
        said = f"{name}: ended with {code} before step {recipe.total_steps}; see {work / f'{key}.log'}; again to resume"
        raise SystemExit(said) if stops else RunError(said)
    trained = [line for line in lines if "loss" in line]
    judged = json.loads(program("evaluate", directory, *arguments.stores, "--json"))
    judged = {
        of: {key: found[f"held_out_mlm_{key}"] for key in ("loss", "accuracy")}
        for of, found in judged.get("stores", {"": judged}).items()
    }
    trained_curve = {
        "name": name,
        "key": key,
        "settings": list(curve.settings),
        "held_out": held_out,
        "judged": judged.get("", judged),
        "loss": [(line["step"], line["loss"]) for line in trained],
        "phases": [
            {
                "steps": phase.steps,
                "flops": phase.global_batch * derive(recipe, phase, curve.ranks).flops_per_row,
                # Alone: float32 sums, sent 2 (n - 1) / n times by each of n = 2 ranks.
                "wire_bytes": 4.0 * derive(recipe, phase, curve.ranks).trained
                if alone
                else statistics.fmean(line["wire_bytes"] for line in trained if line["phase"] == i),
            }
            for i, phase in enumerate(recipe.phase)
        ],
        "skipped_steps": trained[-1]["skipped_steps"],
    }
    keep(trained_curve)
    if not arguments.keep:
        shutil.rmtree(directory)


def climb(arguments: argparse.Namespace) -> list[ladder.Verdict]:
    """The ladder's verdicts; with --work, what they lack is trained and kept."""
    table_of_rows, store_hash = ladder.read_ladder(), open_store(arguments.data_dir[0]).hash
    fresh_hash = open_store(arguments.fresh_dir).hash if arguments.fresh_dir else None
    while True:
        *verdicts, last = ladder.walk(table_of_rows, ladder.kept(), store_hash, fresh_hash)
        if isinstance(last, ladder.Verdict):
            return [*verdicts, last]
        if not arguments.work:
            return verdicts
        for lacking in last:
            time_step(lacking, arguments) if isinstance(lacking, ladder.Pilot) else climb_with(lacking, arguments)


def time_step(pilot: ladder.Pilot, arguments: argparse.Namespace) -> None:
    """Time a row's step and the best's in turns, and keep the ratio of their seconds."""
    table_of_rows = ladder.read_ladder()

    def step_s(settings: ladder.Settings, _: int) -> float:
        words = ["bench", "step", "--recipe", recipe_path(table_of_rows.recipe), *arguments.stores]
        words += [word for each in ladder.overrides(table_of_rows, settings) for word in ("--set", each)]
        return json.loads(program(*words, "--steps", "40", "--json"))["step_s"]

    say(f"{pilot.row}: its step is timed")
    times = [(step_s(pilot.settings, i), step_s(pilot.best, i)) for i in range(3)]
    line = {"key": pilot.key, "row": pilot.row, "ratio": ratio_of(*zip(*times, strict=True)), "step_s": times}
    ladder.keep(line | {"commit": commit()})


def climb_with(run: ladder.Run, arguments: argparse.Namespace) -> None:
    """Train a seed of a row to its end, from where it was; judge it by `evaluate`, and keep it.

    A run that diverged is kept with an infinite loss.
    """
    table_of_rows = ladder.read_ladder()
    directory = arguments.work / run.key.split()[0]
    stores = ["--data_dir", arguments.fresh_dir] if run.fresh else arguments.stores
    say(f"{run.row}, seed {run.seed}: training in {directory}")
    words = ["pretrain", "--recipe", recipe_path(table_of_rows.recipe), *stores, "--output_dir", directory]
    words += [word for each in ladder.overrides(table_of_rows, run.settings) for word in ("--set", each)]
    line = {"key": run.key, "row": run.row, "seed": run.seed, "settings": run.settings, "commit": commit()}
    before = sum(os.times()[2:4])  # of processor, of children
    try:
        program(*words)
    except RunError as error:
        if DIVERGED not in str(error):
            raise
        ladder.keep(line | {"loss": math.inf, "accuracy": 0.0, "processor_s": math.nan})
        say(f"{run.row}, seed {run.seed}: {error}")
        shutil.rmtree(directory)
        return
    processor_s, checkpoint = sum(os.times()[2:4]) - before, directory
    if run.mean:
        checkpoint = arguments.work / "mean"
        shutil.rmtree(checkpoint, ignore_errors=True)
        program("average", directory, "--last", run.mean, "--output", checkpoint)
    length = ["--sequence_length", run.recipe.phase[-1].sequence_length]  # which a mean does not record
    judged = json.loads(program("evaluate", checkpoint, *stores, *length, "--json"))
    line |= {"loss": judged["held_out_mlm_loss"], "accuracy": judged["held_out_mlm_accuracy"]}
    line["processor_s"] = processor_s
    ladder.keep(line)
    say(f"{run.row}, seed {run.seed}: {line['loss']:.4f} nats, {line['accuracy']:.1%}")
    shutil.rmtree(directory)


def one_rank_is_enough(recipe: Recipe) -> bool:
    """Whether two ranks compute what one does, to rounding: whole gradients are summed, in float32, then clipped."""
    exchanged = recipe.exchange.method == "gradients" and recipe.numerics.wire == "float32"
    return exchanged and recipe.optimizer.clipping == "global"


def own_cores() -> list[str]:
    """What sends each rank to a core of its own: training is a tenth faster so; nothing where cores are too few."""
    cores = sorted(os.sched_getaffinity(0))
    return ["sh", "-c", PINNED, ",".join(map(str, cores))] if len(cores) == RANKS else []


def steps_to(loss: float, curve: list[list[float]]) -> float | None:
    """The first step, between two evaluations by a straight line, at which a curve is at a loss; None: never."""
    before = curve[0]
    for step, curve_loss in curve:
        if curve_loss <= loss:
            share = (before[1] - loss) / (before[1] - curve_loss) if step > before[0] else 0
            return before[0] + (step - before[0]) * share
        before = (step, curve_loss)
    return None


def total(steps: float, curve: dict[str, Any], what: str) -> float:
    """What so many steps of a curve take of "flops" or "wire_bytes"."""
    cost = 0.0
    for phase in curve["phases"]:
        taken = min(steps, phase["steps"])
        cost, steps = cost + taken * phase[what], steps - taken
    return cost


def seconds_of(steps: float, curve: dict[str, Any], step_s: dict[str, float], unit: float = 1) -> float | None:
    """How long so many steps of a curve take; None where its step's seconds are not known."""
    timed, phases = CURVES[curve["name"]].timed, curve["phases"]
    if len(phases) > 1:
        seconds = [step_s.get(f"{timed}, phase {i}") for i in range(len(phases))]
        if None in seconds:
            return None
        phases = [phase | {"seconds": each} for phase, each in zip(phases, seconds, strict=True)]
        return unit * total(steps, curve | {"phases": phases}, "seconds")
    taken = step_s.get(timed)
    if taken is None:
        return None
    settings = dict(setting.split("=", 1) for setting in curve["settings"])
    dense = min(steps, float(settings.get("exchange.dense", 0)) * curve["held_out"][-1][0])
    if not dense:
        return unit * steps * taken
    dense_s = step_s.get(CURVES[SEED.sub("", CURVES[curve["name"]].baseline)].timed.replace("float32", "float16"))
    return None if dense_s is None else unit * (dense * dense_s + (steps - dense) * taken)


def lines(curves: list[dict[str, Any]], step_s: dict[str, float]) -> list[dict[str, Any]]:
    """A line for each curve, of one seed."""
    by_name, rows = {curve["name"]: curve for curve in curves}, []
    for curve in curves:
        baseline, judged = by_name.get(CURVES[curve["name"]].baseline), curve.get("judged", {})
        goal, last = (each and each["held_out"][-1][1] for each in (baseline, curve))
        behind = last - goal if baseline else None
        if baseline and "loss" in judged and "judged" in baseline:
            behind = judged["loss"] - baseline["judged"]["loss"]
        steps = steps_to(goal, curve["held_out"]) if goal is not None else None
        taken = steps or curve["held_out"][-1][0]
        flops, wire_bytes = total(taken, curve, "flops"), total(taken, curve, "wire_bytes")
        seconds = seconds_of(taken, curve, step_s)
        of_stores = {name: judged[name]["loss"] for name in MIXED if name in judged}
        rows.append(
            {
                "configuration": curve["name"],
                **of_stores,
                "loss": None if of_stores else judged.get("loss", last),
                "accuracy": judged.get("accuracy"),
                "behind": None if of_stores else behind,
                "steps": steps,
                "tera_flops": flops / 1e12 if steps else None,
                "wire_gb": wire_bytes / 1e9,
                "step_s": step_s.get(CURVES[curve["name"]].timed),
                "hours": seconds / 3600 if seconds and steps else None,
                "hours_whole": seconds_of(curve["held_out"][-1][0], curve, step_s, 1 / 3600),
            }
        )
    return rows


def over_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines, of curves whose seeds are all there their means; what one seed lacks, the mean lacks too."""
    seeds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        seeds.setdefault(SEED.sub("", row["configuration"]), []).append(row)
    means = []
    for name, each in seeds.items():
        if not 1 < len(each) == CURVES[name].seeds:
            means += each
            continue
        spread = statistics.stdev(row["loss"] for row in each)
        values = {key: [row[key] for row in each] for key in each[0] if key != "configuration"}
        found = {key: None if None in of_seeds else statistics.fmean(of_seeds) for key, of_seeds in values.items()}
        means.append({"configuration": name, **found, "spread": spread})
    return means


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data_dir", action="append", metavar="[NAME=]STORE", help="of the books; repeatable for mixtures")
    add("--work", type=Path, metavar="DIR", help="directory of the runs")
    add("--ladder", action="store_true", help="the ladder in place of the curves")
    add("--fresh_dir", type=Path, metavar="STORE", help="with --ladder: a store that holds out other text")
    add("--curve", action="append", metavar="NAME", help="a curve of lab/curves.toml; repeatable")
    files = sorted({curve.results.stem for curve in CURVES.values()})
    add("--group", action="append", choices=files, help="a file of lab/curves/: its curves alone; repeatable")
    add("--start", type=Path, metavar="CHECKPOINT", help="that continued curves begin with")
    add("--gpu", action="store_true", help="train on this host's GPU")
    add("--keep", action="store_true", help="leave finished runs in DIR, to fine-tune what they trained")
    add("--step_times", type=Path, metavar="FILE", help="JSON: seconds of a step by a curve's name")
    arguments = parser.parse_args(argv)
    if arguments.ladder and len(arguments.data_dir or ()) != 1:
        parser.error("--ladder: expected one --data_dir, quickstart's store")
    if not arguments.ladder and (arguments.data_dir is None) != (arguments.work is None):
        parser.error("--data_dir and --work: expected both, to train, or neither")
    for name in arguments.curve or ():
        if name not in CURVES:
            parser.error(f"--curve {name!r}: {did_you_mean(name, CURVES)}expected a curve of lab/curves.toml")
    continued = [name for name in arguments.curve or () if CURVES[name].begin]
    if continued and not arguments.start:
        parser.error(f"--curve {continued[0]!r}: expected --start, the checkpoint with which it begins")
    if arguments.start and not (arguments.start / "model.safetensors").exists():
        parser.error(f"--start {arguments.start}: expected a checkpoint, as RUN/checkpoints/step-1000")
    named = named_paths(arguments.data_dir or ()).items()
    arguments.stores = [word for name, at in named for word in ("--data_dir", f"{name}={at.absolute()}".lstrip("="))]
    return arguments


@reported
def main() -> int:
    """Train what is missing, and print the table."""
    arguments = parse()
    if arguments.work:
        arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.ladder:
        verdicts = climb(arguments)
        rows = [{"configuration": verdict.row, **ladder.shown(verdict)} for verdict in verdicts]
        print(table(rows, ladder.COLUMNS))
        return 0
    grouped = [name for name, each in CURVES.items() if not arguments.group or each.results.stem in arguments.group]
    failed = False
    if arguments.data_dir:
        stores = open_stores(arguments.data_dir)
        start_hash = hash_file(arguments.start / "model.safetensors") if arguments.start else None
        for curve in map(CURVES.__getitem__, arguments.curve or grouped):
            if curve.begin and not arguments.start:
                say(f"{curve.name}: left out, because there is no --start")
                continue
            if set(dict(curve.recipe.data.mixture) if curve.recipe.data.mixture != "size" else [""]) != set(stores):
                say(f"{curve.name}: left out, because its mixture is not of the stores that --data_dir names")
                continue
            key = key_of(
                curve.recipe, dataset_of(stores, curve.recipe).hash, start_hash if curve.begin else None, curve.ranks
            )
            try:
                if key not in kept():
                    train(curve, key, arguments.start if curve.begin else None, arguments)
            except RunError as error:  # one that diverges must not keep the others from being trained
                say(f"error: {error}")
                failed = True
    step_s = json.loads(arguments.step_times.read_text(encoding="utf-8")) if arguments.step_times else {}
    curves = sorted(kept().values(), key=lambda curve: list(CURVES).index(curve["name"]))
    rows = over_seeds([row for row in lines(curves, step_s) if row["configuration"] in grouped])
    print(table(rows, COLUMNS))
    return RunError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())

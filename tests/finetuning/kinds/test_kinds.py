"""What every kind of labelled data promises: of its rows, its head, its training, its files. A kind is a line of CASES.

The toy kind of toy_rows.py, toy_task.py and toy_kind.py shows that three files are enough.
"""

import contextlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_horovod.batches.examples.base import LabelledDataset, PackedRows
from bert_horovod.collectives.world import World
from bert_horovod.corpus.reading.tokenizer_settings import CASED, UNCASED
from bert_horovod.errors import UserError
from bert_horovod.finetuning.initialisation import Finetuning
from bert_horovod.finetuning.kinds import kinds
from bert_horovod.finetuning.kinds.base import Kind, Request
from bert_horovod.inference.options import Options
from bert_horovod.interchange.huggingface import HuggingFace, read_directory
from bert_horovod.recipe.settings import EMBEDDING
from bert_horovod.recipe_files.loading import recipe_from_table
from bert_horovod.runs.opening import find_checkpoint
from bert_horovod.training.job import Job
from bert_horovod.training.loop import train
from tests.finetuning.kinds.cases import CASES
from tests.finetuning.kinds.toy_kind import Counts
from tests.model.forwards import forward_of, tensors
from tests.toy_glue import FAST, MODEL, WORDS, write_checkpoint
from tests.toy_runs import logged, losses, metrics, newest
from tests.toys import toy_recipe_table

EPOCHS = 3
EARLIER = json.loads(Path(__file__).with_name("earlier.json").read_text())
IS_PACKED = [name for name in CASES if name != "documents"]
HAS_THEIRS = [name for name in CASES if CASES[name].theirs]
# Whole runs again and again take a minute a case: one of each class is in the full tier.
RUNS = [
    pytest.param(name, marks=pytest.mark.full if name in ("heads", "tags", "squad2", "toy") else pytest.mark.slow)
    for name in CASES
]
# sst2 and squad1 are heads and squad2 with less: their runs are slow.
KINDS = [
    pytest.param(name, marks=pytest.mark.slow if name in ("sst2", "squad1") else pytest.mark.full) for name in CASES
]


@pytest.fixture(autouse=True)
def toy(monkeypatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, Counts))


@pytest.fixture(scope="module", params=CASES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, str], Any]:
    """What cases share, by fixture and case: a fixture of the module does not see that a test has cases of its own."""
    return {}


@pytest.fixture
def kind(name, made, tmp_path_factory) -> Kind:
    if ("kind", name) not in made:
        made["kind", name] = CASES[name].read(tmp_path_factory.mktemp(name) / "data")
    return made["kind", name]


# Rows


def dataset_of(name: str, kind: Kind, packing: bool = True, seed: int = 0) -> LabelledDataset:
    table = toy_recipe_table(model={"vocab_size": len(WORDS)}, phase={"sequence_length": 32}, data={"seed": seed})
    recipe = recipe_from_table(table, [*CASES[name].settings, f"data.packing={str(packing).lower()}"])
    tokenizer = kind.tokenizer(WORDS, UNCASED)
    splits = {"train": kind.tokens(kind.data.train, tokenizer), "held_out": kind.tokens(kind.data.dev[""], tokenizer)}
    return kind.dataset(WORDS, UNCASED, recipe, splits)


def test_a_row_is_a_function_of_its_position_and_minus_one_is_a_row_of_weight_zero(name, kind):
    source = dataset_of(name, kind).open(0, "train")
    positions = (3, source.count + 2, -1)
    together = source.assemble(np.array(positions))
    for number, position in enumerate(positions):
        for key, array in source.assemble(np.array([position])).items():
            np.testing.assert_array_equal(np.split(together[key], len(positions))[number], array)
    for key, array in together.items():
        assert array.dtype == (np.float32 if key in ("weights", "targets") else np.int32), key
        assert not np.split(array, len(positions))[2].any(), key
    assert together["weights"].any()


def test_each_epoch_has_each_item_once_in_an_order_of_its_own(name, kind):
    whole = dataset_of(name, kind)
    source = whole.open(0, "train")
    epochs = source.members(np.arange(2 * source.count)).reshape(2, -1)
    for epoch in epochs:
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(len(source.lengths)))
    same = replace(whole, splits=dict.fromkeys(whole.splits, whole.splits["train"]))
    others = [same.open(0, "held_out"), dataset_of(name, kind, seed=1).open(0, "train")]
    orders = [*epochs.tolist(), *(other.members(np.arange(other.count)).ravel().tolist() for other in others)]
    assert len({tuple(order) for order in orders}) == len(orders)


@pytest.mark.parametrize("name", IS_PACKED, scope="module")
def test_an_item_in_a_packed_row_is_what_it_is_alone(name, kind):
    packed, alone = (dataset_of(name, kind, packing).open(0, "train") for packing in (True, False))
    assert packed.count < alone.count == len(alone.lengths)
    batches = [rows.assemble(np.arange(rows.count)) for rows in (packed, alone)]
    slots = [rows.members(np.arange(rows.count)) for rows in (packed, alone)]
    places = [rows.places() for rows in (packed, alone)]
    for item, length in enumerate(packed.lengths.tolist()):
        parts = []
        for batch, members, (row, place) in zip(batches, slots, places, strict=True):
            here, own = row[item], slice(place[item], place[item] + length)
            slot = members[here].tolist().index(item)
            part = {}
            for key, array in batch.items():
                of_slots = array.shape[1] == members.shape[1] != batch["input_ids"].shape[1]
                part[key] = array[here, slot] if of_slots else array[here, own]
                if key.endswith("_positions") and of_slots:
                    part[key] = part[key] - place[item]
            sequences = set(part.pop("sequence_ids").tolist())
            assert sequences == set(range(slot * len(sequences) + 1, (slot + 1) * len(sequences) + 1))
            parts.append(part)
        for key, array in parts[0].items():
            np.testing.assert_array_equal(array, parts[1][key], err_msg=key)


def test_what_rows_depend_on_is_in_the_hash_and_a_vocabulary_without_special_tokens_is_refused(name, kind):
    whole = dataset_of(name, kind)
    others = [
        replace(whole, vocabulary=[*WORDS[:-2], WORDS[-1], WORDS[-2]]),
        replace(whole, tokenizer_settings=CASED),
        replace(whole, splits=whole.splits | {"held_out": whole.splits["train"]}),
        replace(whole, splits=whole.splits | {"train": whole.splits["held_out"]}),
    ]
    assert dataset_of(name, kind).hash == whole.hash
    assert len({whole.hash, *(other.hash for other in others)}) == 5
    with pytest.raises(UserError, match=r"has no \[SEP\]"):
        replace(whole, vocabulary=[word for word in WORDS if word != "[SEP]"])


# The head


def of_items(rows: PackedRows, outputs: np.ndarray) -> list[np.ndarray]:
    """Outputs of all rows, by item: those of its place among the row's items, or of its positions."""
    if outputs.shape[1] != rows.length:
        return list(rows.by_item(outputs))
    places = zip(*rows.places(), rows.lengths, strict=True)
    return [outputs[row, place : place + length] for row, place, length in places]


def labels_for(torch, batch: dict[str, np.ndarray]) -> dict:
    """The labels of a row of one item, as transformers takes them."""
    if "start_positions" in batch:
        return {key: torch.tensor(batch[key][:, 0]).long() for key in ("start_positions", "end_positions")}
    if "targets" in batch:
        return {"labels": torch.tensor(batch["targets"][0])}
    if batch["labels"].shape != batch["input_ids"].shape:
        return {"labels": torch.tensor(batch["labels"][0]).long()}
    return {"labels": torch.tensor(np.where(batch["weights"] > 0, batch["labels"], -100)).long()}


@pytest.mark.full
@pytest.mark.parametrize("name", HAS_THEIRS, scope="module")
def test_packed_or_alone_outputs_and_loss_are_those_of_transformers(name, kind, tmp_path, torch, transformers):
    case, packed, alone = CASES[name], *(dataset_of(name, kind, packing) for packing in (True, False))
    task = kind.task(packed.recipe)
    directory = write_checkpoint(tmp_path / "model", task)
    theirs, loading = getattr(transformers, case.theirs).from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert task.configuration(MODEL)["architectures"] == [type(theirs).__name__]
    parameters = read_directory(directory, task).parameters
    forward = forward_of(MODEL, parameters)
    extra = {"alive_heads": tf.ones([3])} if name == "heads" else {}
    results, losses = [], []
    for dataset in (packed, alone):
        rows = dataset.open(0, "held_out")
        batch = rows.assemble(np.append(np.arange(rows.count), -1))  # a row of weight zero changes nothing
        outputs = {key: array.numpy()[:-1] for key, array in task.outputs(forward, tensors(batch)).items()}
        results.append({key: of_items(rows, array) for key, array in outputs.items()})
        counts = task.batch_counts(batch)
        losses.append(float(task.loss(task.sums(forward, tensors(batch) | extra), counts)))
    row, lengths, total, weight = rows.places()[0], rows.lengths, 0.0, 0
    for item, length in enumerate(lengths.tolist()):
        batch = {key: array[row[item]][None] for key, array in rows.assemble(np.arange(rows.count)).items()}
        batch = {key: array[:, :length] if array.shape[1] == 32 else array for key, array in batch.items()}
        inputs = {key: torch.tensor(batch[key]).long() for key in ("input_ids", "token_type_ids")}
        with torch.no_grad():
            expected = theirs.eval()(**inputs, **(labels_for(torch, batch) if case.their_loss else {}))
        for key in results[0]:
            for result in results:
                np.testing.assert_allclose(result[key][item], expected[key].numpy()[0], rtol=1e-4, atol=1e-5)
        if case.their_loss and (count := sum(task.batch_counts(batch).values())):
            total, weight = total + count * float(expected.loss), weight + count
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    if case.their_loss:
        np.testing.assert_allclose(losses[0], total / weight, rtol=1e-4)
    assert max(np.ptp(np.concatenate(arrays)) for arrays in results[0].values()) > 0.05  # items differ


# A run


def job_of(name: str, kind: Kind, checkpoint: Path, output_dir: Path, *more: str, **options) -> Job:
    output_dir.mkdir(parents=True, exist_ok=True)
    return Finetuning(kind, find_checkpoint(checkpoint)).job(
        output_dir, EPOCHS, (*FAST, *CASES[name].settings, *more), **options
    )


@pytest.fixture
def whole(name, kind, checkpoint, made, tmp_path_factory) -> tuple[Path, str]:
    """A whole run, and what it said."""
    if ("whole", name) not in made:
        output_dir, said = tmp_path_factory.mktemp("whole") / "run", io.StringIO()
        with contextlib.redirect_stdout(said):
            train(job_of(name, kind, checkpoint, output_dir), World())
        made["whole", name] = output_dir, said.getvalue()
    return made["whole", name]


def own_values(output_dir: Path) -> list[tuple]:
    return [(line["step"], line["loss"], line["learning_rate"], line["gradient_norm"]) for line in metrics(output_dir)]


def held_out(output_dir: Path, suffix: str = "") -> dict[str, float]:
    """The scores of the last evaluation of a dev set."""
    last = [line for line in logged(output_dir) if any(key.startswith("held_out") for key in line)][-1]
    names = {key.removeprefix("held_out_").removesuffix(suffix): value for key, value in last.items() if suffix in key}
    return {key: value for key, value in names.items() if key != "step"}


def files_of(kind: Kind, output_dir: Path) -> dict[str, bytes]:
    """The files of answers."""
    paths = [
        *output_dir.glob("predictions/*"),
        *output_dir.glob("*predictions.json"),
        *output_dir.glob("null_odds.json"),
    ]
    assert output_dir / kind.last_file in paths
    return {path.name: path.read_bytes() for path in paths}


def scored(kind: Kind, predictions: Path, suffix: str = "") -> dict[str, float]:
    split = kind.data.dev[suffix]
    column = getattr(getattr(kind.data, "format", None), "label_column", "label")
    return kinds.score_file(kind.data.name, Request(predictions, dev_file=split.path, label_column=column))


def assert_same_scores(scores: dict[str, float], expected: dict[str, float], within: float = 1e-12) -> None:
    """Of the scores that both have; probabilities in files have 6 digits, which moves means of ranks."""
    both = scores.keys() & expected.keys()
    assert both
    for key in both:
        assert scores[key] == pytest.approx(
            expected[key], abs=1e-3 if "precision" in key or "roc" in key else within
        ), key


@pytest.mark.parametrize("name", KINDS, scope="module")
def test_a_run_learns_and_its_files_have_its_scores(name, kind, whole):
    output_dir, said = whole
    numbers = losses(output_dir)
    assert np.mean(numbers[-2:]) < numbers[0] or name == "mnli"  # whose toy labels are drawn
    for suffix in kind.data.dev:
        assert_same_scores(
            scored(kind, output_dir / kind.last_file.with_stem(f"{kind.last_file.stem}{suffix}"), suffix),
            held_out(output_dir, suffix),
        )
    assert all(part in said for part in ("train: ", "dev: "))
    afresh = "the head starts afresh: the checkpoint is a BertForPreTraining without one for"
    assert (afresh in said) == ("afresh" in said) == (kind.trained != EMBEDDING)  # which has no head
    assert (f"best checkpoint: {output_dir}" in said) == (output_dir / "best.json").is_file() == bool(kind.decides)
    config = HuggingFace(newest(output_dir)).configuration
    assert kinds.kind_of_checkpoint(config) is type(kind)


# An embedding's evaluation has ranks alone.
@pytest.mark.parametrize("name", [each for each in KINDS if each.values != ("embedding",)], scope="module")
def test_predict_gives_the_scores_of_the_evaluation(name, kind, whole, tmp_path):
    output_dir, _ = whole
    output = tmp_path / f"out{ {'squad': '.json', 'ner': '.conll'}.get(kind.data.name, '.tsv') }"
    source = kind.data.dev[""].path
    if name == "toy":
        source = tmp_path / "in.csv"
        source.write_text("text\n" + "".join(f"{text}\n" for text in kind.data.dev[""].texts))
    predictor = kinds.open_predictor(find_checkpoint(output_dir), Options())
    predictor.predict_file(source, output, lambda done, of: None)
    # Vectors are predicted in rows of other shapes than in the evaluation: their cosines are equal to rounding.
    assert_same_scores(scored(kind, output), held_out(output_dir), 1e-5 if name == "scored" else 1e-12)


@pytest.mark.full
@pytest.mark.parametrize("name", EARLIER, scope="module")
def test_what_earlier_versions_left_is_read(name, kind, tmp_path):
    """A checkpoint's configuration, its data's hash, and a file of predictions, made before kinds were classes."""
    earlier, dataset = EARLIER[name], dataset_of(name, kind)
    splits = {f"held_out{suffix}": split for suffix, split in kind.data.dev.items()}
    tokens = {key: kind.tokens(split, kind.tokenizer(WORDS, UNCASED)) for key, split in splits.items()}
    assert replace(dataset, splits=dataset.splits | tokens).hash == earlier["data"]  # else the run would not go on
    task = kind.task(dataset.recipe)
    directory = write_checkpoint(tmp_path / "model", task)
    config = json.loads((directory / "config.json").read_text())
    changed = {key for key, value in earlier["config"].items() if config[key] != value}
    assert changed <= {"label_threshold"}  # which follows from training
    (directory / "config.json").write_text(json.dumps(config | earlier["config"]))
    predictor = kinds.open_predictor(find_checkpoint(directory), Options())
    assert type(predictor) is kind.predictor
    (tmp_path / kind.last_file.name).write_text(earlier["predictions"])
    assert_same_scores(scored(kind, tmp_path / kind.last_file.name), earlier["scores"])


@pytest.mark.parametrize("name", RUNS, scope="module")
def test_a_finished_run_writes_lost_files_again(name, kind, whole, checkpoint, tmp_path, capsys):
    output_dir = Path(shutil.copytree(whole[0], tmp_path / "run"))
    files = files_of(kind, output_dir)
    for key in files:
        next(output_dir.rglob(key)).unlink()
    train(job_of(name, kind, checkpoint, output_dir), World())
    assert files_of(kind, output_dir) == files
    begins = (f"{kind.data.dev[''].path.name}: ", "dev set")
    verdict = [line for line in capsys.readouterr().out.splitlines() if line.startswith(begins)]
    assert len(verdict) == 1
    assert verdict[0] in whole[1]


@pytest.mark.parametrize("name", RUNS, scope="module")
def test_a_resumed_run_equals_one_that_was_not_stopped_and_micro_batches_change_nothing(
    name, kind, whole, checkpoint, tmp_path, capsys
):
    for steps in (2, 4):
        capsys.readouterr()
        train(job_of(name, kind, checkpoint, tmp_path / "run", max_steps=steps), World())
    said = capsys.readouterr().out
    assert ("resuming from" in said, "starts afresh" in said) == (True, False)
    assert own_values(tmp_path / "run") == own_values(whole[0])[:4]
    train(job_of(name, kind, checkpoint, tmp_path / "small", "execution.micro_batch=3", max_steps=3), World())
    for one, other in zip(own_values(tmp_path / "small"), own_values(whole[0])[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def train_rank(world: World, name: str, data: Path, checkpoint: Path, output_dir: Path, **options) -> None:
    """A job for two_ranks."""
    kinds.KINDS = (*[each for each in kinds.KINDS if each is not Counts], Counts)
    train(job_of(name, CASES[name].read(data), checkpoint, output_dir, world_size=world.size, **options), world)


@pytest.mark.parametrize("name", RUNS, scope="module")
def test_two_ranks_train_as_one_and_answer_to_the_last_byte(name, kind, whole, two_ranks, checkpoint, tmp_path):
    data = kind.data.train.path.parent
    two_ranks.run(train_rank, name, data, checkpoint, tmp_path / "two", max_steps=3)
    for one, other in zip(own_values(tmp_path / "two"), own_values(whole[0])[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    again = Path(shutil.copytree(whole[0], tmp_path / "again"))
    files = files_of(kind, again)
    for key in files:
        next(again.rglob(key)).unlink()
    two_ranks.run(train_rank, name, data, checkpoint, again)
    assert files_of(kind, again) == files

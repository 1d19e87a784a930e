"""lab/padding.py: packed and padded rows in turn."""

import numpy as np
import pytest

from tests.lab.scripts import cells, load_script, run_here
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

LENGTH = 32
TINY = {
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "execution.xla": "off",
    "execution.threads": 1,
}


@pytest.fixture(scope="module")
def padding():
    return load_script("padding")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Sections of a few short sentences, so that one a row leaves much of it empty."""
    path = tmp_path_factory.mktemp("data") / "store"
    return write_toy_store(path, documents=60, sentences=4, longest=8, vocabulary=SMALL_VOCABULARY)


def number(cell: str) -> float:
    return float(cell.replace(",", "").rstrip("% x"))


def numbers(cell: str) -> list[float]:
    return [number(part) for part in cell.split(" / ")]


@pytest.mark.slow
def test_packed_and_padded_stand_in_a_line_for_each_store(store, tmp_path):
    other = write_toy_store(tmp_path / "other", documents=20, sentences=8, longest=20)
    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    words = ("--model", "mini", "--length", LENGTH, "--rows", 2, "--steps", 3, *settings)
    done = run_here("padding", "--data_dir", store.path, "--data_dir", other.path, *words)
    assert done.returncode == 0, done.stderr
    title, heading, *lines = done.stdout.splitlines()
    assert title == "2 x 32, 2 rows x 32, float32, adamw, XLA off; packed / padded"
    assert [cells(line)[0] for line in lines] == [str(store.path), str(other.path)]
    assert "step 3/3" in done.stderr
    row = dict(zip(cells(heading), cells(lines[0]), strict=True))
    packed, padded = numbers(row["fill"])
    assert packed > padded
    assert number(row["fill ratio"]) == pytest.approx(packed / padded, rel=0.01)
    tokens = number(row["tokens ratio"]) * number(row["step ratio"])
    assert tokens == pytest.approx(number(row["fill ratio"]), rel=0.02)
    tokens_per_s, steps_s = numbers(row["real tokens/s"]), numbers(row["step s"])
    for rate, seconds, fill in zip(tokens_per_s, steps_s, (packed, padded), strict=True):
        assert rate * seconds == pytest.approx(2 * LENGTH * fill / 100, rel=0.01)
    assert numbers(row["most seqs"])[1] == 1
    assert 0 < number(row["attention share of FLOPs"]) < 100


@pytest.mark.parametrize("packing", [True, False])
def test_fill_and_waste_are_those_of_an_epochs_rows(padding, store, packing, tmp_path):
    rowset = padding.open_rowset(store, toy_recipe(), packing, tmp_path)
    ids = rowset.rows.assemble(np.arange(rowset.rows.count))["sequence_ids"]
    assert rowset.fill == pytest.approx((ids > 0).mean())
    together = (ids[:, :, None] == ids[:, None, :]) & (ids > 0)[:, :, None]
    assert rowset.wasted == pytest.approx(1 - together.mean())
    assert rowset.sequences_per_row == pytest.approx(ids.max(axis=1).mean())


def test_attention_has_the_share_of_its_two_products(padding, store, tmp_path):
    rowset = padding.open_rowset(store, toy_recipe(objective={"pair": "none"}), False, tmp_path)
    slots = rowset.rows.masked_slots
    attention = (LENGTH + slots) * LENGTH * 32 * 2
    first_layer = LENGTH * 32 * (3 * 32 + 32 + 2 * 64)
    last_layer = 32 * (LENGTH * 2 * 32 + slots * (32 + 32 + 2 * 64))
    head = slots * 32 * (32 + len(SMALL_VOCABULARY))
    expected = attention / (attention + first_layer + last_layer + head)
    assert padding.attention_share(rowset) == pytest.approx(expected)

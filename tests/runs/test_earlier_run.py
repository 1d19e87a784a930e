"""A run of an earlier version, whose recipe.toml lists the settings of all methods, resumes."""

import json
import shutil
from pathlib import Path

import pytest

from bert_horovod.corpus.store import Store
from bert_horovod.errors import UserError
from bert_horovod.runs.directory import claim
from tests.toy_runs import metrics, train
from tests.toys import SMALL_VOCABULARY, toy_recipe, write_toy_store

# Made at commit 2d7a251 by the settings below on such a store, with max_steps = 6.
RUN = Path(__file__).parent / "run_of_2d7a251"
SECTIONS = {
    "model": {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 32},
    "optimizer": {"name": "lamb", "adapt": "decayed"},
    "exchange": {"method": "onebit_lamb", "dense": 0.3},
    "phase": {"global_batch": 8, "steps": 10},
    "execution": {"micro_batch": 8, "checkpoint_steps": 6},
}
# Of the same run without an interruption, at that commit: steps 7 to 10 send signs.
LOSSES = [4.835670200983683, 4.863397338697987, 4.856930634071087, 4.858246789259069]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """The fixture `store`, as that version wrote it."""
    path = tmp_path_factory.mktemp("earlier") / "store"
    return write_toy_store(path, held_out=0.1, vocabulary=SMALL_VOCABULARY, earlier=True)


@pytest.fixture
def run(store, tmp_path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def test_it_goes_on_with_the_losses_that_it_would_have_had(run, store):
    assert json.loads((run / "run.json").read_text())["store"] == store.hash
    assert "full_interval" in (run / "recipe.toml").read_text()  # of another method
    claim(run, toy_recipe(**SECTIONS), store.hash)
    assert "full_interval" not in (run / "recipe.toml").read_text()
    train(store, run, **SECTIONS)
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["loss"] for line in lines[6:]] == pytest.approx(LOSSES, rel=1e-6)


def test_another_value_of_another_methods_setting_is_refused(run, store):
    path = run / "recipe.toml"
    path.write_text(path.read_text().replace("full_interval = 100", "full_interval = 50"))
    with pytest.raises(UserError, match=r"exchange\.full_interval = 50: .*expected 100, .*method = dreamddp"):
        claim(run, toy_recipe(**SECTIONS), store.hash)

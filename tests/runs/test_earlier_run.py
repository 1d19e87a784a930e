"""A run of an earlier version, whose recipe.toml lists the settings of all methods, resumes."""

import json
import shutil
from pathlib import Path

import pytest

from bert_horovod.errors import UserError
from bert_horovod.runs.directory import claim
from tests.toy_runs import metrics, train
from tests.toys import toy_recipe

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


@pytest.fixture
def run(store, tmp_path) -> Path:
    """The run, on the text of that store in today's format."""
    path = Path(shutil.copytree(RUN, tmp_path / "run"))
    (path / "run.json").write_text(json.dumps({"store": store.hash, "format": 1}))
    return path


def test_it_goes_on_with_the_losses_that_it_would_have_had(run, store):
    assert "chunk = 256" in (run / "recipe.toml").read_text()  # of another method
    claim(run, toy_recipe(**SECTIONS), store.hash)
    text = (run / "recipe.toml").read_text()
    assert ("chunk = 256" in text, "tensorboard" in text, "trackers = []" in text) == (False, False, True)
    train(store, run, **SECTIONS)
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["loss"] for line in lines[6:]] == pytest.approx(LOSSES, rel=1e-6)


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ("chunk = 256", "512", r"exchange\.chunk = 512: .*no such setting.*; leave it out: a chunk has 256 numbers"),
        ("decay_power = 1.0", "0.5", r"optimizer\.decay_power = 0\.5: .*no such setting.*; set phase\.N\.decay_power"),
    ],
)
def test_another_value_of_a_setting_of_another_method_or_place_is_refused(run, store, line, other, message):
    path = run / "recipe.toml"
    text = path.read_text()
    path.write_text(text.replace(line, f"{line.split('=')[0]}= {other}"))
    with pytest.raises(UserError, match=message):
        claim(run, toy_recipe(**SECTIONS), store.hash)

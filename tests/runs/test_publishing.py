"""`publish`: each checkpoint is a revision on the Hub, of a server that speaks its protocol; nothing is sent twice."""

import shutil
from pathlib import Path

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.errors import RunError, UserError
from bert_horovod.runs.publishing import publish, require_name, revisions
from tests.horovod_runs import run_command
from tests.runs.hub_server import TOKEN, Hub
from tests.runs.test_checkpoint import POSITION, flip, random_state
from tests.toy_runs import save
from tests.toys import toy_recipe

constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")
REPO = "lab/bert-of-ours"
RECIPE = toy_recipe(card={"language": ["no"], "license": "mit"})


@pytest.fixture
def hub(monkeypatch):
    """A Hub, and the user's token for it."""
    with Hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # other tests set it
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def run(tmp_path, store) -> Path:
    """A run with checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path / "run", random_state(step), RECIPE, store, POSITION)
    return tmp_path / "run"


def contents(checkpoint: Path) -> dict[str, bytes]:
    """What readers need of a checkpoint."""
    return {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.is_file()}


def published(run: Path, private: bool = False) -> list[str]:
    lines: list[str] = []
    publish(run, REPO, private, lines.append)
    return lines


def test_each_checkpoint_is_a_revision_and_main_is_the_newest(hub, run):
    lines = published(run)
    branches = hub.repositories[REPO]
    assert sorted(branches) == ["main", "step-00000010", "step-00000020"]
    for branch, step in (("step-00000010", 10), ("step-00000020", 20), ("main", 20)):
        files = contents(run / "checkpoints" / f"step-000000{step}")
        assert {name: content for name, content in branches[branch].items() if name != ".gitattributes"} == files
        assert {"config.json", "model.safetensors", "vocab.txt", "README.md"} <= files.keys()
    assert [commit[:3] for commit in hub.commits] == [
        (REPO, "step-00000010", "Step 10"),
        (REPO, "step-00000020", "Step 20"),
        (REPO, "main", "Step 20"),
    ]
    assert f"{hub.endpoint}/{REPO}/tree/step-00000010" in lines[0]
    assert hub.private == {REPO: False}
    sizes = [len(branches[f"step-000000{step}"]["model.safetensors"]) for step in (10, 20)]
    assert hub.uploads == sum(sizes)  # main's are there already


def test_a_second_time_only_what_is_new_is_sent(hub, run, store):
    published(run)
    save(run, random_state(30), RECIPE, store, POSITION)
    hub.commits.clear()
    hub.uploads = 0
    published(run)
    assert [(branch, summary) for _, branch, summary, _ in hub.commits] == [
        ("step-00000030", "Step 30"),
        ("main", "Step 30"),
    ]
    assert hub.uploads == (run / "checkpoints" / "step-00000030" / "model.safetensors").stat().st_size


def test_after_an_interruption_the_same_command_goes_on(hub, run):
    hub.fails["/commit/step-00000020"] = 500
    with pytest.raises(RunError, match=r"the test says so.*same command goes on"):
        published(run)
    assert [branch for _, branch, _, _ in hub.commits] == ["step-00000010"]
    published(run)
    assert hub.repositories[REPO]["main"]["README.md"].startswith(b'---\nlanguage: ["no"]\nlicense: "mit"')


def test_a_damaged_checkpoint_is_named_and_left_out(hub, run, capsys):
    flip(run / "checkpoints" / "step-00000020" / "model.safetensors", 999)
    published(run)
    assert sorted(hub.repositories[REPO]) == ["main", "step-00000010"]
    assert "step-00000020 is damaged (model.safetensors)" in capsys.readouterr().err


def test_a_checkpoint_that_its_run_removes_meanwhile_is_left_out(hub, run, monkeypatch):
    made = revisions(run)
    shutil.rmtree(run / "checkpoints" / "step-00000010")
    monkeypatch.setattr("bert_horovod.runs.publishing.revisions", lambda _: made)
    assert "left out" in published(run)[0]
    assert [branch for _, branch, _, _ in hub.commits] == ["step-00000020", "main"]


def test_an_unknown_user_is_told_to_log_in_and_no_message_holds_the_token(hub, run, monkeypatch):
    for token in ("hf_wrong", "hf_wrong\tand-more"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises((UserError, RunError)) as caught:
            published(run)
        assert token not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="hf auth login"):
        published(run)


def test_a_name_of_others_is_refused(hub, run):
    with pytest.raises(UserError, match=r"cannot publish to google/bert.*may not write there"):
        publish(run, "google/bert", False, print)


@pytest.mark.parametrize("name", ["a/b/c", "my lab/bert", "lab/", "lab/bert.git"])
def test_a_name_that_the_hub_cannot_have_is_refused(name):
    with pytest.raises(UserError, match=r"--repo .*expected a name on the Hub"):
        require_name(name)


def test_a_card_that_the_hub_refuses_is_told(hub, run):
    for checkpoint in (run / "checkpoints").iterdir():
        (checkpoint / "README.md").write_text("---\nlanguage: [no]\n---\n")
    with pytest.raises(UserError, match='"language" must be an array of strings'):
        published(run)


def test_a_hub_that_cannot_be_reached_is_an_error_of_the_network(run, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(RunError, match="See to the network"):
        published(run)


def test_a_run_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(UserError, match="no whole checkpoint to publish"):
        revisions(tmp_path)


def test_a_dry_run_prints_files_and_bytes_and_sends_nothing(hub, run, capsys):
    assert dispatch(parse(["bert-horovod", "publish", str(run), "--repo", REPO, "--dry_run"])) == 0
    printed = capsys.readouterr().out
    assert hub.repositories == {}
    sizes = {name: len(content) for name, content in contents(run / "checkpoints" / "step-00000010").items()}
    for name, size in sizes.items():
        assert f"  {size:15,}  {name}\n" in printed
    assert f"step-00000010: {len(sizes)} files, {sum(sizes.values()):,} bytes" in printed
    assert "main: the same as step-00000020" in printed
    assert "optimizer" not in printed


@pytest.mark.full
def test_the_command_publishes_and_prints_no_token(hub, run, tmp_path):
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    done = run_command("publish", str(run), "--repo", REPO, "--private", **environment)
    assert done.returncode == 0, done.stderr
    assert hub.private == {REPO: True}
    assert sorted(hub.repositories[REPO]) == ["main", "step-00000010", "step-00000020"]
    assert TOKEN not in done.stdout + done.stderr

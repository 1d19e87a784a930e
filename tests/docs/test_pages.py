"""The pages: links lead somewhere, made pages and pictures are current, commands parse, and they stay short."""

import ast
import csv
import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.recipe.fields import OneOf
from bert_horovod.recipe_files.loading import SECTIONS
from tests.horovod_runs import PATIENCE_S, PROJECT, clean_environment, run_python

DOCS = PROJECT / "docs"
MADE = ("recipe.md", "metrics.md")
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [page for page in PAGES if page.name not in MADE]
FRONT = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
LINK = re.compile(r"(?:\]\(|(?:src|srcset)=\")(?!https?:|mailto:)([^)#\s\"]*)(?:#([^)\s\"]+))?[)\"]")
SENTENCE_END = re.compile(r"(?<! al)(?<=[^.\d])[.?!] +[A-Z(\[*]")


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def load(path: Path) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_code(page: Path) -> list[str]:
    """The lines of a page, without blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if not line.startswith("    ")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page, as GitHub names its headings."""
    lines = without_code(page)
    headings = [re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()) for line in lines if line.startswith("#")]
    named = re.findall(r'<a id="([^"]+)">', "\n".join(lines))
    return {heading.replace(" ", "-") for heading in headings} | set(named)


@pytest.mark.parametrize("page", PAGES + FRONT, ids=name_of)
def test_links_lead_to_pages_files_and_headings(page):
    for path, anchor in LINK.findall("\n".join(without_code(page))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def words(pages: list[Path]) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_pages_stay_short():
    assert words([DOCS / "results.md"]) <= 900
    assert words([*WRITTEN, PROJECT / "README.md"]) <= 38_000


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_a_line_is_short_and_has_one_sentence(page):
    for line in page.read_text(encoding="utf-8").splitlines():
        assert len(line) <= 150 or line.startswith("|"), line
    for line in without_code(page):
        if not line.startswith("|"):
            assert not SENTENCE_END.search(re.sub(r"`[^`]*`", "`", line)), line


def test_results_name_no_commits():
    for page in [DOCS / "results.md", *sorted((DOCS / "results").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])(?!\d+e\d+)[0-9a-f]{7,40}\b", text), page.name
        if page.parent.name == "results":
            assert text.splitlines()[0].endswith("?"), page.name
            assert '<details markdown="1">' in text, page.name


def test_the_page_of_metrics_is_current():
    made = load(DOCS / "make_reference_pages.py").metrics_page()
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == made, "run: python docs/make_reference_pages.py"


def test_the_site_makes_the_pages_of_commands_and_of_lines():
    made = load(DOCS / "site_pages.py").made_pages()
    flags = json.loads((PROJECT / "tests" / "golden" / "flags.json").read_text(encoding="utf-8"))
    for command, names in flags.items():
        section = made["commands.md"].split(f"\n## {command}\n")[1].split("\n## ")[0]
        assert [name for name in names if name.startswith("--") and name not in section] == []
    rows = dict(re.findall(r"^\| (\w+) \| ([\d,]+) \|", made["lines.md"], flags=re.MULTILINE))
    exchange = sorted((PROJECT / "bert_horovod" / "exchange").rglob("*.py"))
    assert int(rows["exchange"].replace(",", "")) == sum(len(file.read_text().splitlines()) for file in exchange)


def test_the_page_of_recipes_is_current_and_tells_values_with_their_limits():
    maker = load(DOCS / "make_recipe_page.py")
    page = maker.page()
    assert maker.PAGE.read_text(encoding="utf-8") == page, "run: python docs/make_recipe_page.py"
    assert re.search(r'\| `dense` \| `onebit_adam`, [^|]+ \| `0\.2` \| number from 0 to 1; `"auto"` \|', page)
    assert '| `bucket_bytes` | `"auto"` | whole number from 1; `"auto"` |' in page
    assert '| `trackers` | `["tensorboard"]` | list of `"tensorboard"`, `"wandb"`, `"mlflow"` |' in page
    assert '| `pair` | `"next_sentence"` | `"next_sentence"`, `"sentence_order"`, `"none"` |' in page


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_says_what_it_means(section):
    of = SECTIONS[section]
    for kind in of.kinds.values() if isinstance(of, OneOf) else of if isinstance(of, list) else [of]:
        meanings = load(DOCS / "make_recipe_page.py").in_source(kind)
        assert set(meanings) == {entry.name for entry in dataclasses.fields(kind)}
        assert [each.name for each in dataclasses.fields(kind) if each.init and len(meanings[each.name][1]) < 8] == []


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    return load(DOCS / "pictures" / "make.py")


@pytest.mark.parametrize("name", ["loss", "slow-link", "growing", "scaling", "plan", "house"])
def test_pictures_show_the_kept_results(pictures, name):
    drawn = pictures.DRAWN[name]()
    path = DOCS / "pictures" / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == drawn, "run: python docs/pictures/make.py"
    assert len(drawn) < 100_000
    assert ElementTree.fromstring(drawn).get("width") == "800"
    assert "prefers-color-scheme: dark" in drawn


def test_badges_are_of_this_project_and_current(pictures):
    for name, drawn in pictures.badges().items():
        assert (DOCS / "pictures" / "badges" / f"{name}.svg").read_text(encoding="utf-8") == drawn
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
        assert f"docs/pictures/badges/{name}.svg" in FRONT[0].read_text(encoding="utf-8")


def test_every_picture_that_is_drawn_is_tested_and_shown(pictures):
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in pictures.DRAWN if f"pictures/{name}.svg" not in text] == []
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(pictures.DRAWN)


def test_the_slow_link_shows_the_hours_of_the_table(pictures):
    step_s = {"float16": 2.48, "int8": 1.57, "1-bit Adam": 0.66, "DreamDDP, 8": 0.67}
    there, hours = pictures.curves(), {}
    for name, key in pictures.ON_SLOW_LINK.items():
        hours[name] = pictures.seconds_of(there[key]["held_out"][-1][0], there[key], step_s, 1 / 3600)
    expected = {"float16": 0.83, "int8": 0.52, "1-bit Adam": 0.44, "DreamDDP": 0.22}
    assert {name: round(value, 2) for name, value in hours.items()} == expected


def commands(page: Path) -> list[str]:
    """The command lines of the program that a page shows, whole: no `...` and no other program's words."""
    blocks = re.findall(r"^```\n(.*?)^```|^((?:    .*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(fenced or indented for fenced, indented in blocks)
    lines = re.sub(r"\\\n\s*", "", lines).splitlines()
    shown = [re.split(r"\s+#|\s{4,}", line.strip())[0].removeprefix("$ ") for line in lines]
    shown += [quoted for line in lines for quoted in re.findall(r'"(bert-horovod [^"]+)"', line)]
    return [line for line in shown if line.startswith("bert-horovod ") and "..." not in line and "[" not in line]


@pytest.mark.parametrize("page", [*WRITTEN, PROJECT / "README.md"], ids=name_of)
def test_commands_that_pages_show_parse(page):
    for line in commands(page):
        try:
            parse(shlex.split(re.split(r" [>|] ", line)[0]))
        except SystemExit:
            pytest.fail(f"does not parse: {line}", pytrace=False)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_python_that_pages_show_parses(page):
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        ast.parse(block, str(page))


@pytest.mark.full
@pytest.mark.parametrize(
    ("recipe", "row", "hours"), [("bert-base", "from scratch", 24), ("domain", "from a published", 1)]
)
def test_the_days_for_one_node_are_the_plans(tmp_path, recipe, row, hours):
    page = (DOCS / "large_corpora.md").read_text(encoding="utf-8")
    [shown] = re.findall(rf"^\| {row}.*\| ([\d.]+) / ([\d.]+) \w+ \| [\d.]+ / [\d.]+ \w+ \|$", page, re.MULTILINE)
    (tmp_path / "node.toml").write_text(re.search(r"^```toml\n(.*?)^```", page, re.M | re.S)[1], encoding="utf-8")
    [line] = [line for line in commands(DOCS / "large_corpora.md") if f"plan --recipe {recipe}" in line]
    words = [sys.executable, "-m", "bert_horovod", *shlex.split(line)[1:], "--json"]
    plan = json.loads(subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    days = [sum(phase["days"] for phase in plan["plans"] if phase["world_size"] == ranks) for ranks in (1, 4)]
    assert [round(value * 24 / hours, 1) for value in days] == [float(value) for value in shown]


def test_the_tutorials_show_commands():
    assert sum(len(commands(page)) for page in (DOCS / "tutorials").glob("*.md")) >= 15


def typed(name: str) -> list[str]:
    """The command lines of a tutorial, in their order."""
    page = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", "".join(re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL))).splitlines()
    return [line for line in lines if re.match(r"(python|bert-horovod|horovodrun|touch) ", line)]


def test_rows_that_tutorials_show_are_of_a_recipe():
    """Without one `inspect --row` shows pairs and lengths that the run never sees."""
    lines = [line for page in WRITTEN for line in commands(page) if " --row " in line]
    assert [line for line in lines if " --recipe " not in line] == []
    assert len(lines) >= 2


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=name_of)
def test_a_tutorial_says_where_its_commands_run_and_what_its_scripts_need(page):
    text = page.read_text(encoding="utf-8")
    if "../bert_horovod/" in text:
        assert "beside the project" in text or "Begin with steps 1 to 3 of" in text
    for script in re.findall(r"docs/tutorials/(\w+\.py)", text):
        imported = set(
            re.findall(r"^ *(?:import|from) (torch|transformers)\b", (DOCS / "tutorials" / script).read_text(), re.M)
        )
        assert not imported or "pip install torch transformers" in text, script


# What a command of a tutorial is run as here: runs are short, hosts are this one, and no file is outside of the test.
REPLACED = {
    "python ../bert_horovod": f"{sys.executable} {PROJECT}",
    "quickstart_output/": "",
    "corpus/*.txt.gz": "corpus.jsonl",
    "bert-base-uncased-vocab.txt": "vocab.txt",
    "--workers 16": "--workers 2",
    "/data/store": "shared_store",
    "/shared/bert-large": "shared",
    "bert-horovod tune": "bert-horovod tune --help",
    "--recipe bert-large-lamb-64k --tuned /shared/tuned.toml": "--recipe quickstart --set phase.0.steps=4",
    "-np 32 -hostfile hosts": "-np 2 -H localhost:2",
    "--recipe bert-large-lamb-64k --data": "--recipe quickstart --data",
    "step --recipe bert-large-lamb-64k": "step --recipe quickstart --steps 2",
    "--watch": "--output page.html",
    "bert-horovod finetune": "bert-horovod finetune --max_steps 2 --set execution.xla=off",
    "pretrain --recipe domain": "pretrain --recipe domain --max_steps 2 --set execution.xla=off",
    "phase.0.steps=300 --set phase.0.global_batch=64": "phase.0.global_batch=4 --set execution.micro_batch=4",
    "pretrain --recipe quickstart --data_dir store": "pretrain --recipe quickstart --max_steps 2 --data_dir store",
    "--recipe quickstart": "--recipe quickstart --set execution.xla=off --set model.num_hidden_layers=1",
    "run/clusters": f"{PROJECT}/run/clusters",
}


@pytest.mark.full
@pytest.mark.xdist_group("tutorials")
def test_the_tutorials_run_one_after_another(tmp_path, monkeypatch):
    """Commands that start no ranks run in this process, which has imported TensorFlow; README's run as programs."""
    for place in ("runtime.devices", "finetuning.initialisation", "training.entering"):
        monkeypatch.setattr(f"bert_horovod.{place}.use_devices", lambda *arguments: None)
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("localhost slots=2\n")
    environment = clean_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    names = "classifier", "entities", "search", "ten-minutes", "cluster"
    for line in [line for name in names for line in typed(name)]:
        replaced = line
        for words, instead in REPLACED.items():
            replaced = replaced.replace(words, instead)
        if re.match(r"bert-horovod (?!launch|doctor|tune)", replaced):
            assert dispatch(parse(shlex.split(replaced))) == 0, replaced
            continue
        replaced = replaced.replace("bert-horovod", f"{sys.executable} -m bert_horovod")
        done = subprocess.run(
            shlex.split(replaced), env=environment, timeout=PATIENCE_S, capture_output=True, text=True
        )
        if " doctor " not in line:  # it may find a fault of this host
            assert done.returncode == 0, f"{replaced}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        if line.endswith(" corpus corpus.jsonl"):  # a fifth of the text is enough
            text = Path("corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
            Path("corpus.jsonl").write_text("".join(text[::5]), encoding="utf-8")
    with open(tmp_path / "answers.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == 4
    assert (tmp_path / "served" / "1" / "saved_model.pb").is_file()
    assert (tmp_path / "spans.csv").read_text(encoding="utf-8").startswith("line,begin,end,type,probability,entity\n")
    [search] = re.findall(r"^```python\n(.*?)^```", (DOCS / "tutorials" / "search.md").read_text(), re.M | re.S)
    words = [sys.executable, "-c", search]
    found = subprocess.run(words, cwd=tmp_path, env=environment, timeout=PATIENCE_S, capture_output=True, check=True)
    assert [line.startswith(b"    ") for line in found.stdout.splitlines()] == [False, True, True, True] * 3
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "shared" / "checkpoints" / "step-00000004" / "config.json").is_file()


@pytest.mark.parametrize(
    ("link", "on_the_site"),
    [
        ("[data](docs/data.md#inputs)", "[data](data.md#inputs)"),
        ("![loss](docs/pictures/loss.svg)", "![loss](pictures/loss.svg)"),
        ("[changes](CHANGELOG.md)", "[changes](CHANGELOG.md)"),
        ("[loop.py](bert_horovod/training/loop.py)", "loop.py"),
        ("[![licence](docs/pictures/x.svg)](LICENSE)", "![licence](pictures/x.svg)"),
        ('<img src="docs/pictures/loss.svg">', '<img src="pictures/loss.svg">'),
        ("[elsewhere](https://example.org/docs/x)", "[elsewhere](https://example.org/docs/x)"),
    ],
)
def test_links_of_the_first_page_fit_the_site(link, on_the_site):
    assert load(DOCS / "site_pages.py").root_page(link) == on_the_site


@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material", reason="needs mkdocs-material: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "tutorials" / "classifier" / "index.html").is_file()


@pytest.mark.full
def test_the_hubs_own_command_has_the_flags_that_the_page_gives_it():
    pages = {
        ("checkpoints", "upload"): {"--private", "--exclude", "--revision"},
        ("tutorials/domain", "download"): {"--local-dir"},
    }
    for (page, command), expected in pages.items():
        lines = re.findall(rf"^ *hf {command} .*", (DOCS / f"{page}.md").read_text(), re.M)
        flags = set(re.findall(r"(?<= )--[\w-]+", " ".join(lines)))
        shown = run_python("-m", "huggingface_hub.cli.hf", command, "--help")
        assert flags == expected
        assert all(flag in shown.stdout for flag in flags)

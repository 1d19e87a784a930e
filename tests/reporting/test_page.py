"""The page in a real browser: every metric is drawn, nothing is cut, nothing is said in the console."""

import csv
import json
import math
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_horovod.reporting.page import content, page
from bert_horovod.reporting.run_record import read_run, schema
from bert_horovod.runs import reference_curves
from bert_horovod.runs.reference_curves import curve_settings
from tests.horovod_runs import PROJECT
from tests.reporting.toy_record import write_run
from tests.toys import toy_recipe

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser) -> Iterator[Callable[..., Any]]:
    """Opens a tab with a page. In the end the console has said nothing, and the network was asked for nothing."""
    tabs, messages = [], []

    def open_tab(report: Path, width: int, height: int = 900, scheme: str = "light"):
        tabs.append(tab := browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme))
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.on("request", lambda request: messages.append(request.url))
        tab.goto(report.as_uri())
        return tab

    yield open_tab
    assert [message for message in messages if not message.startswith(("file:", "data:", "blob:"))] == []
    for tab in tabs:
        tab.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Of two runs, one with an incident, a pause, evaluations and a metric that no schema knows; with a band."""
    directory = tmp_path_factory.mktemp("report")
    numbers = {"seeds": 3, "window": 20, "means": [7.0, 6.0], "spreads": [0.1, 0.1], "noises": [0.1, 0.1]}
    mark = {"metric": "loss", "low": 1.67, "high": 1.71, "source": "published"}
    about = {"name": "toy", "runs": "other seeds", "command": "", "settings": {}}
    about["settings"] = curve_settings(toy_recipe(phase={"steps": 100}))
    (directory / "toy.json").write_text(json.dumps(about | numbers | {"marks": [mark]}), encoding="utf-8")
    runs = [write_run(directory / "one", odd_metric=True), write_run(directory / "two", {"data": {"seed": 8}})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_curves, "DIRECTORY", directory)
        runs_read = [
            read_run(run) | {"name": f"run </script> {run.name} with a long name that has to be broken"} for run in runs
        ]
    table = {"title": "Weak scaling", "head": ["layout", "rows/s"], "rows": [["1M1G", "10.0"], ["2M1G", "16.0"]]}
    (directory / "report.html").write_text(page(content(runs_read, schema(), tables=[table])), encoding="utf-8")
    return directory / "report.html"


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), pytest.param(1600, "dark", marks=pytest.mark.full)])
def test_all_is_drawn_and_nothing_is_cut(opened, report, width, scheme):
    tab = opened(report, width, scheme=scheme)
    tab.click("#machine summary")
    for seeds in (True, False):
        tab.set_checked("input[name=seeds]", seeds)
        for axis in ("step", "tokens", "hours", "bytes"):
            tab.check(f"input[value={axis}]")
            drawn = tab.eval_on_selector_all("figure", "all => all.map(each => each.dataset.metric)")
            assert {"loss", "learning_rate", "step_s", "odd_metric"} <= set(drawn)
            assert "mlm_loss" not in drawn  # the same numbers as the loss
            # Of two curves it has a figure of its own; on the mean of the seeds it is points.
            assert ("held_out_mlm_loss" in drawn) != seeds
            lines = tab.eval_on_selector_all(
                "figure", "all => all.map(each => each.querySelectorAll('polyline, circle, polygon').length)"
            )
            assert all(lines)
            assert tab.locator("polyline[points*=NaN], polygon[points*=NaN]").count() == 0
    # What is expected and what is published is by step: drawn once for runs that share it.
    assert tab.locator("figure[data-metric=loss] polygon").count() == 0
    tab.check("input[value=step]")
    assert tab.locator("figure[data-metric=loss] polygon").count() == 2
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert cut(tab) == []
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 26)"}[scheme]
    text = tab.inner_text("main")
    assert "run </script> one" in text
    assert "data.seed" in text.replace("\n", "")
    assert "2M1G" in text
    assert "expected: other seeds" in text
    assert "at the end: published" in text
    assert "the loss is not a number" in text
    assert "a restart or a pause" in text
    tab.hover("figure[data-metric=loss] svg")
    assert "at " in tab.inner_text("figure[data-metric=loss] .value")


@pytest.mark.full
@pytest.mark.parametrize("several", [False, True])
def test_the_first_curve_is_on_the_first_screen_of_a_phone(opened, tmp_path, several):
    runs = [write_run(tmp_path / "one")]
    (runs[0] / "notes.txt").write_text("a try\nwith notes <b>of two lines</b>\n", encoding="utf-8")
    if several:
        runs += [
            write_run(tmp_path / name, {"optimizer": {"beta_2": rate}}) for name, rate in (("two", 0.9), ("x", 0.8))
        ]
    tab = opened(written(tmp_path, runs), 400, height=700)
    box = tab.locator("figure[data-metric=loss] svg").bounding_box()
    assert box["y"] + box["height"] <= 700
    assert tab.locator("figure").first.get_attribute("data-metric") == "loss"
    assert "with notes <b>of two lines</b>" in tab.inner_text("main")
    assert tab.locator("#tiles div").count() == (0 if several else 6)
    assert not tab.is_visible("figure[data-metric=step_s]")  # of the machine: folded
    tab.click("#machine summary")
    parts = tab.locator("figure[data-metric=step_s] polygon").count()
    assert parts == (0 if several else 3)  # of the time of a run's step
    assert cut(tab) == []


@pytest.mark.full
def test_several_runs_are_compared_by_a_table_that_sorts_and_marks_the_best(opened, tmp_path):
    rates = {"a": 1e-3, "b": 1e-5, "c": 2e-3, "running": 4e-3}
    runs = [write_run(tmp_path / name, {"phase": {"learning_rate": rate}}) for name, rate in rates.items()]
    scaled(runs[0], "step_s", 2.0)
    write_run(runs[3], {"phase": {"learning_rate": 4e-3}}, steps=20)
    tab = opened(written(tmp_path, runs), 800)
    assert rows(tab, "name") == list(rates)
    tab.click("th[data-key='phase.0.learning_rate'] button")
    assert rows(tab, "name") == ["b", "a", "c", "running"]  # by number: as a text 1e-05 is the last
    tab.click("th[data-key='phase.0.learning_rate'] button")
    assert rows(tab, "name") == ["running", "c", "a", "b"]
    assert tab.get_attribute("th[data-key='phase.0.learning_rate']", "aria-sort") == "descending"
    tab.click("th[data-key=hours] button")
    assert rows(tab, "name") == ["running", "b", "c", "a"]
    heads = tab.eval_on_selector_all("#compared th", "all => all.map(each => each.dataset.key)")
    cells = tab.locator(f"#compared td:nth-child({heads.index('hours') + 1})")
    assert cells.evaluate_all("all => all.map(each => each.classList.contains('best'))") == [
        False,
        True,
        True,
        False,
    ]  # the one that runs has fewer hours because it is not done
    for axis in ("hours", "bytes"):
        figure = f"figure[data-metric='held_out_mlm_loss by {axis}']"
        assert tab.locator(f"{figure} polyline").count() == 4
        assert "held-out mlm loss by " in tab.inner_text(f"{figure} figcaption")
    tab.check("input[name=logY]")
    tab.check("input[name=logX]")
    labels = tab.locator("figure[data-metric=loss] svg text").all_text_contents()
    assert {"1", "10", "100", "5"} <= set(labels)
    assert "linear" not in tab.inner_text("figure[data-metric=loss] figcaption")


@pytest.mark.full
def test_seeds_are_drawn_as_mean_and_range(opened, tmp_path):
    runs = [write_run(tmp_path / f"seed-{seed}", {"data": {"seed": seed}}) for seed in (1, 2, 3)]
    runs.append(write_run(tmp_path / "other", {"optimizer": {"beta_2": 0.9}}))
    for run, factor in zip(runs, (1.0, 1.2, 1.4, 2.0), strict=True):
        scaled(run, "loss", factor)
        scaled(run, "mlm_loss", factor)
    tab = opened(written(tmp_path, runs), 800)
    assert rows(tab, "name") == ["seed-1\n3 seeds", "other"]
    loss = 4 + 6 * math.exp(-100 / 30)
    assert f"{1.2 * loss:.3f} \u00b1 {0.2 * loss:.3f}" in tab.inner_text("#compared")
    drawn = tab.eval_on_selector_all(
        "figure[data-metric=loss] polyline, figure[data-metric=loss] polygon", "all => all.map(each => each.tagName)"
    )
    assert sorted(drawn) == ["polygon", "polyline", "polyline"]
    tab.hover("figure[data-metric=loss] svg", position={"x": 53, "y": 50})
    first = 4 + 6 * math.exp(-1 / 30)
    shown = tab.inner_text("figure[data-metric=loss] .value")
    assert f"range {first:.4g} to {1.4 * first:.4g}; seed-1 (mean and range of 3 seeds) {1.2 * first:.4g};" in shown
    tab.uncheck("input[name=seeds]")
    assert len(rows(tab, "name")) == 4
    assert tab.locator("figure[data-metric=loss] polyline").count() == 4


def test_stores_share_a_figure_in_one_run_and_the_best_of_each_is_the_lowest_loss(opened, tmp_path):
    runs = [write_run(tmp_path / name, {"optimizer": {"beta_2": beta}}) for name, beta in (("one", 0.9), ("two", 0.95))]
    for run, more in zip(runs, (0.0, 0.5), strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
        for line in lines:
            for name in ("mlm_loss", "held_out_mlm_loss"):
                if name in line:  # of a step without a row of the store there is no loss
                    own = None if name == "mlm_loss" and line["step"] % 6 else line[name] + 1 + more
                    line |= {f"{name}.general": line[name] - 1 + more, f"{name}.own": own}
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tab = opened(written(tmp_path, runs[:1]), 800)
    figure = tab.locator("figure[data-metric='mlm_loss.*']")
    assert "mlm loss, by store nats" in figure.inner_text()
    assert figure.locator("polyline").count() == 4
    legend = ["general", "general, held out (points)", "own", "own, held out (points)"]
    assert figure.locator(".legend > span").all_inner_texts() == legend
    assert tab.locator("figure[data-metric='mlm_loss.own']").count() == 0
    assert "held-out mlm loss, own" in tab.inner_text("#tiles")
    assert cut(tab) == []
    tab = opened(written(tmp_path, runs), 800)
    assert tab.locator("figure[data-metric='mlm_loss.own'] polyline").count() == 2
    assert "★" in tab.inner_text("#compared tr:has-text('one')")
    assert "★" not in tab.inner_text("#compared tr:has-text('two')")


@pytest.mark.full
def test_the_comparison_is_kept_as_csv_that_no_spreadsheet_computes(opened, tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", {"optimizer": {"beta_2": 0.9}})]
    (runs[0] / "notes.txt").write_text('=1+1, "quoted"\nsecond line', encoding="utf-8")
    tab = opened(written(tmp_path, runs), 800)
    with tab.expect_download() as download:
        tab.click("#csv")
    assert download.value.suggested_filename == "runs.csv"
    with open(download.value.path(), encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["run"] for line in table] == ["a", "b"]
    assert table[0]["notes"] == '\'=1+1, "quoted"\nsecond line'
    assert [float(line["optimizer.beta_2"]) for line in table] == [0.999, 0.9]
    assert float(table[0]["hours"]) == pytest.approx((30 + 99 * 0.5) / 3600)
    assert float(table[0]["bytes"]) == 100e6
    assert float(table[0]["held_out_mlm_loss"]) == pytest.approx(4.1 + 6 * math.exp(-100 / 30))


def written(directory: Path, runs: list[Path]) -> Path:
    text = page(content([read_run(run) | {"name": run.name} for run in runs], schema()))
    (directory / "report.html").write_text(text, encoding="utf-8")
    return directory / "report.html"


def cut(tab) -> list[str]:
    """Texts that do not fit into the window."""
    return tab.evaluate(
        """() => [...document.querySelectorAll('h1, h2, dt, dd, figcaption, label, td, b, svg text')].filter(each => {
            const box = each.getBoundingClientRect(), scrolls = each.closest('.wide');
            return !scrolls && (box.right > innerWidth + 1 || box.left < -1);
        }).map(each => each.textContent)"""
    )


def rows(tab, column: str) -> list[str]:
    return [text.strip() for text in tab.locator(f"#compared td.{column}").all_inner_texts()]


def scaled(run: Path, metric: str, factor: float) -> None:
    """Multiply a metric in all lines."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:-1]]
    for line in lines:
        if metric in line:
            line[metric] *= factor
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.full
def test_bytes_of_a_short_dense_stage_are_drawn_whole_and_what_is_cut_is_said(opened, tmp_path):
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before, dense, compressed = (f'"bytes_reduced": {number}' for number in (1e6, 1.4e6, 6e4))
    changed = [line.replace(before, dense if i < 2 else compressed) for i, line in enumerate(lines)]
    (run / "metrics.jsonl").write_text("\n".join(changed) + "\n", encoding="utf-8")
    tab = opened(written(tmp_path, [run]), 800)
    tab.click("#machine summary")
    marks = tab.locator("figure[data-metric=bytes_reduced] svg text").all_text_contents()
    assert "1M" in marks
    tops = tab.eval_on_selector_all(
        "figure[data-metric=bytes_reduced] polyline",
        "all => all.flatMap(each => [...each.points].map(point => point.y))",
    )
    assert max(tops) - min(tops) == pytest.approx((190 - 30 - 8), abs=1)  # from the lowest value to the highest
    assert "upper edge" not in tab.inner_text("figure[data-metric=bytes_reduced] figcaption")
    assert "values up to 30 are at the upper edge" in tab.inner_text("figure[data-metric=step_s] figcaption")


@pytest.mark.full
def test_a_spike_is_cut_ticks_differ_and_a_hover_names_a_measured_step(opened, tmp_path):
    run = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:-1]]
    for line in lines:
        if "loss" in line:
            line["narrow_loss"] = 0.69312 + 1e-6 * line["step"]
            line["loss"] += 9 * (line["step"] == 60)
            line["mlm_loss"] = line["loss"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tab = opened(written(tmp_path, [run]), 800)
    caption = tab.inner_text("figure[data-metric=loss] figcaption")
    assert f"values up to {4 + 6 * math.exp(-2) + 9:.4g} are at the upper edge" in caption
    marks = tab.locator("figure[data-metric=loss] svg text").all_text_contents()
    assert "12" not in marks  # the first value is 9.8
    ticks = tab.locator("figure[data-metric=narrow_loss] svg text[text-anchor=end]").all_text_contents()
    assert len(ticks) == len(set(ticks)) > 2
    # An axis has two numbers at least: 1 to 900 in three parts had 500 alone.
    few = "[2, 3, 4].flatMap(n => Array.from({length: 999}, (_, i) => ticks(1, 2 + i, n, false).length))"
    assert tab.evaluate(f"Math.min(...{few})") >= 2
    steps = set()
    for x in range(60, 700, 7):
        tab.hover("figure[data-metric=loss] svg", position={"x": x, "y": 50})
        shown = tab.inner_text("figure[data-metric=loss] .value")
        step = int(shown.removeprefix("at step ").partition(":")[0])
        assert ("held out" in shown) == (step % 20 == 0)
        steps.add(step)
    assert steps <= {1, *range(2, 101, 2)}
    assert len(steps) > 30


@pytest.mark.full
def test_a_watched_page_follows_its_run(browser, tmp_path):
    run = write_run(tmp_path / "run", steps=20)
    words = [sys.executable, "-m", "bert_horovod", "report", str(run), "--watch"]
    with subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[0]
            tab = browser.new_page()
            tab.goto(address)
            assert "20\nof 100" in tab.inner_text("#tiles")
            write_run(run, steps=40)
            _wait_for(tab, "#tiles", "40\\nof 100")
            news = json.loads(urllib.request.urlopen(address + "report.json").read())
            assert news["runs"][0]["curves"]["step"][-1] == 40
            shutil.rmtree(run)
            _wait_for(tab, "#notice", "run.json")
            tab.close()
        finally:
            server.terminate()


def _wait_for(tab, selector: str, words: str) -> None:
    tab.wait_for_function(f"document.querySelector('{selector}').innerText.includes('{words}')", timeout=300_000)

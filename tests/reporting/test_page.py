"""The page in a real browser: every metric is drawn, nothing is cut, nothing is said in the console."""

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from bert_horovod.reporting.page import content, page
from bert_horovod.reporting.run_record import read_run, schema
from bert_horovod.runs import reference_curves
from bert_horovod.runs.reference_curves import curve_settings
from tests.horovod_runs import PROJECT
from tests.reporting.toy_record import write_run
from tests.toys import toy_recipe

CHROMIUM = shutil.which("chromium")
browser_is_there = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


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


@browser_is_there
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_is_drawn_and_nothing_is_cut(browser, report, width, scheme):
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on(
        "request",
        lambda request: messages.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
    )
    tab.goto(report.as_uri())
    for axis in ("step", "tokens", "hours"):
        tab.check(f"input[value={axis}]")
        drawn = tab.eval_on_selector_all("figure", "all => all.map(each => each.dataset.metric)")
        assert {"loss", "mlm_loss", "learning_rate", "step_s", "odd_metric"} <= set(drawn)
        lines = tab.eval_on_selector_all(
            "figure", "all => all.map(each => each.querySelectorAll('polyline, circle, polygon').length)"
        )
        assert all(lines)
        # Of each of two runs, what is expected and what is published.
        assert tab.locator("figure[data-metric=loss] polygon").count() == 4
        broken = tab.eval_on_selector_all(
            "polyline, polygon", "all => all.filter(each => /NaN/.test(each.outerHTML)).length"
        )
        assert broken == 0
    assert messages == []
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    cut = tab.evaluate(
        """() => [...document.querySelectorAll('h1, h2, dt, dd, figcaption, label, td, svg text')].filter(each => {
            const box = each.getBoundingClientRect(), scrolls = each.closest('.wide, details');
            return !scrolls && (box.right > innerWidth + 1 || box.left < -1);
        }).map(each => each.textContent)"""
    )
    assert cut == []
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 26)"}[scheme]
    text = tab.inner_text("main")
    assert "run </script> one" in text
    assert "data.seed" in text
    assert "2M1G" in text
    assert "expected: other seeds" in text
    assert "at the end: published" in text
    assert "the loss is not a number" in text
    assert "a restart or a pause" in text
    tab.hover("figure[data-metric=loss] svg")
    assert "at " in tab.inner_text("figure[data-metric=loss] .value")
    tab.close()


@browser_is_there
def test_bytes_of_a_short_dense_stage_are_drawn_whole_and_what_is_cut_is_said(browser, tmp_path):
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before, dense, compressed = (f'"bytes_reduced": {number}' for number in (1e6, 1.4e6, 6e4))
    changed = [line.replace(before, dense if i < 2 else compressed) for i, line in enumerate(lines)]
    (run / "metrics.jsonl").write_text("\n".join(changed) + "\n", encoding="utf-8")
    text = page(content([read_run(run) | {"name": "run"}], schema()))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    tab = browser.new_page()
    tab.goto((tmp_path / "report.html").as_uri())
    marks = tab.locator("figure[data-metric=bytes_reduced] svg text").all_text_contents()
    assert "1M" in marks
    tops = tab.eval_on_selector_all(
        "figure[data-metric=bytes_reduced] polyline",
        "all => all.flatMap(each => [...each.points].map(point => point.y))",
    )
    assert max(tops) - min(tops) == pytest.approx((220 - 30 - 8), abs=1)  # from the lowest value to the highest
    assert "upper edge" not in tab.inner_text("figure[data-metric=bytes_reduced] figcaption")
    assert "values up to 30 are at the upper edge" in tab.inner_text("figure[data-metric=step_s] figcaption")
    tab.close()


@pytest.mark.full
@browser_is_there
def test_a_watched_page_follows_its_run(browser, tmp_path):
    run = write_run(tmp_path / "run", steps=20)
    words = [sys.executable, "-m", "bert_horovod", "report", str(run), "--watch"]
    with subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[0]
            tab = browser.new_page()
            tab.goto(address)
            assert "20 of 100" in tab.inner_text("section.run")
            write_run(run, steps=40)
            _wait_for(tab, "section.run", "40 of 100")
            news = json.loads(urllib.request.urlopen(address + "report.json").read())
            assert news["runs"][0]["curves"]["step"][-1] == 40
            shutil.rmtree(run)
            _wait_for(tab, "#notice", "run.json")
            tab.close()
        finally:
            server.terminate()


def _wait_for(tab, selector: str, words: str) -> None:
    tab.wait_for_function(f"document.querySelector('{selector}').innerText.includes('{words}')", timeout=300_000)

#!/usr/bin/env python3
"""Photograph the first screen of a report page, for README.

    run/quickstart.sh
    python docs/pictures/photograph_report.py quickstart_output/report.html docs/pictures/report.png
    python docs/pictures/photograph_report.py --scheme dark quickstart_output/report.html docs/pictures/report-dark.png

Needs playwright, which the extra `test` installs, and Chromium.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, SCALE = 800, 420, 1.5  # CSS pixels, and pixels of the picture for each


def photograph(page: Path, picture: Path, scheme: str = "light") -> None:
    """Write a PNG of the page's first screen as a browser of 800 x 420 pixels, which loss.svg has too, shows it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        size = {"width": WIDTH, "height": HEIGHT}
        tab = browser.new_page(viewport=size, device_scale_factor=SCALE, color_scheme=scheme)
        tab.goto(page.resolve().as_uri())
        tab.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Photograph the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="a file that bert-horovod report wrote")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    arguments = parser.parse_args()
    photograph(arguments.page, arguments.picture, arguments.scheme)


if __name__ == "__main__":
    main()

"""One HTML file about runs: it opens from disk, and needs no network and no script from elsewhere."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_horovod import __version__

_TEMPLATE = Path(__file__).with_name("page.html")
_PARTS = ("page.css", "chart.js", "comparison.js", "page.js")  # files that page.html names as /* NAME */
_MARK = "null /* the runs */"


def page(content: dict[str, Any]) -> str:
    """The page.

    Args:
        content: the result of the function `content`.
    """
    text = json.dumps(content, allow_nan=False).replace("<", "\\u003c")  # a name may hold </script>
    template = _TEMPLATE.read_text(encoding="utf-8")
    for name in _PARTS:
        template = template.replace(f"/* {name} */", _TEMPLATE.with_name(name).read_text(encoding="utf-8"))
    return template.replace(_MARK, text)


def content(
    runs: list[dict[str, Any]],
    metrics: dict[str, dict[str, Any]],
    watched: bool = False,
    tables: Sequence[dict[str, Any]] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """The object that the page's script reads.

    Args:
        runs: results of reporting.run_record.read_run, with names.
        metrics: the result of reporting.run_record.schema.
        watched: whether the page asks its server for news.
        tables: further tables, such as weak scaling: title, head and rows of text.
        left_out: why runs that were found cannot be shown.
    """
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    about = {"watched": watched, "version": __version__, "made": made}
    return {"runs": runs, "metrics": metrics, "tables": list(tables), "left_out": list(left_out)} | about

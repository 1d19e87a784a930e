"""Lists files elsewhere folder by folder: a folder that cannot be listed is an error, where fsspec leaves it out."""

import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin

from bert_horovod.errors import RunError, UserError
from bert_horovod.storage.places import Place

BY_FOLDERS = ("http", "https", "file")  # others, such as S3, list all that is below a folder at once
Facts = dict[str, Any]  # what fsspec tells of a file or folder: name, type, size (None: not told yet), ...


def is_pattern(place: Place) -> bool:
    """Whether a place may be a glob pattern: it holds * or [, or ? where that does not begin a URL's parameters."""
    return _first_magic(place) < len(place.key)


def matching(pattern: Place, fs: Any) -> dict[str, Facts]:
    """The files and folders that a glob pattern matches, by name; the one of exactly this name, if there is one.

    None for a place that is no pattern.
    """
    from fsspec.utils import glob_translate

    if not is_pattern(pattern):
        return {}

    key = pattern.key
    root = key[: key.rfind("/", 0, _first_magic(pattern)) + 1]
    try:
        if "**" in key and pattern.scheme not in BY_FOLDERS:
            listed = fs.find(root, detail=True)
        else:
            listed = tree(pattern, fs, root, None if "**" in key else key.count("/", len(root)) + 1)
    except FileNotFoundError:
        return {}
    for name, facts in listed.items():
        if _plain(pattern, name) == _plain(pattern, key):
            return {key: facts}
    match = re.compile(glob_translate(key)).match
    return {
        name: facts
        for name, facts in listed.items()
        if match(name.rstrip("/")) or match(_plain(pattern, name))  # pages of links have %20 for a blank
    }


def tree(place: Place, fs: Any, key: str, depth: int | None = None) -> dict[str, Facts]:
    """The files and folders in a folder of the place's server, and in those, by name, at most `depth` levels.

    Raises FileNotFoundError if the folder is not there, RunError for one that is listed but is not there.
    """
    found: dict[str, Facts] = {}
    folders = [(key, 1)]
    while folders:
        folder, level = folders.pop()
        try:
            listed = contents(place, fs, folder)
        except FileNotFoundError as error:
            if folder == key:
                raise
            raise RunError(
                f"{place.of_key(folder)} is listed as a folder, but it is not there, so that its files would be left "
                "out; mend the server's list, or name the files; or run the same command again"
            ) from error
        for facts in listed:
            name = facts["name"]
            if name.rstrip("/") == folder.rstrip("/") or name in found:
                continue
            if facts["type"] == "other" and facts.get("islink"):  # fsspec does not say of what
                try:
                    facts = fs.info(name)
                except FileNotFoundError as error:
                    raise UserError(f"{place.of_key(name)} is a link to a file that is not there; remove it") from error
                facts = facts if facts["type"] == "file" else {**facts, "type": "other"}
            found[name] = facts
            if facts["type"] == "directory" and (depth is None or level < depth):
                folders.append((name, level + 1))
    return found


def contents(place: Place, fs: Any, folder: str) -> list[Facts]:
    """What lies directly in a folder; over HTTP: what its page links to below it."""
    if place.scheme not in ("http", "https"):
        return fs.ls(folder, detail=True)
    url = f"{folder.rstrip('/')}/"
    page = fs.cat_file(url).decode(errors="replace")
    if re.search(r"(?i)<html\b", page) and not re.search(r"(?i)</html\s*>", page):
        raise RunError(f"{url}: the page that lists the files breaks off before </html>; run the same command again")
    if not re.search(r"(?i)<(html|body|pre|ul|table|a)\b", page):
        raise UserError(f"{url}: expected a page that links to files, found none; name the files one by one")
    links = _Links()
    links.feed(page)
    found = set()
    for target in links.targets:
        link = urljoin(url, target).partition("#")[0]
        path, _, parameters = link.partition("?")
        below = link.partition("://")[2].removeprefix(url.partition("://")[2])
        # Servers link to the page itself in another order: ?C=N;O=D of Apache, ?sort=name of Caddy.
        if below and below != link.partition("://")[2] and not (parameters and path.endswith("/")):
            found.add(url + below)
    return [
        {"name": name, "size": None, "type": "directory" if name.endswith("/") else "file"} for name in sorted(found)
    ]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep where <a href=...> leads."""
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _first_magic(place: Place) -> int:
    """Where a key's first character of a pattern stands, behind the server; the key's length: nowhere."""
    key, is_web = place.key, place.scheme in ("http", "https")
    begin = key.find("/", key.find("://") + 3) if is_web else 0
    found = re.compile(r"[*\[]" if is_web else r"[*\[?]").search(key, max(begin, 0))
    return found.start() if found else len(key)


def _plain(place: Place, name: str) -> str:
    return (unquote(name) if place.scheme in ("http", "https") else name).rstrip("/")

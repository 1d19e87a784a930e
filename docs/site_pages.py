"""A hook of mkdocs: README, CONTRIBUTING and the like are pages of the site, and so are those that the code makes."""

import importlib.util
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")} | {"README.md": "index.md"}
# A link or picture to a path: its words (or a picture in its place), path and anchor.
LINK = re.compile(r"(!?)\[(!\[[^\]]*\]\([^)]*\)|[^\[\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
ATTRIBUTE = re.compile(r'\b(src|srcset|href)="(?:\./)?docs/')


def root_page(markdown: str) -> str:
    """The text of a page at the project's root, with links to pages of the site; other files become plain words."""

    def on_the_site(link: re.Match) -> str:
        picture, words, path, anchor = link[1], link[2], link[3], link[4] or ""
        target = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None or not (target.endswith(".md") or picture):
            return LINK.sub(on_the_site, words)
        return f"{picture}[{words}]({target}{anchor})"

    return ATTRIBUTE.sub(r'\1="', LINK.sub(on_the_site, markdown))


def docs_page(markdown: str, folder: PurePosixPath) -> str:
    """The text of a page of docs/, in which links to the root's pages lead to their copies on the site."""
    up = "../" * len(folder.parts)
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({up}../{name}", f"]({up}{target}")
    return markdown


def made_pages() -> dict[str, str]:
    """The pages that are made from the code, and their text."""
    spec = importlib.util.spec_from_file_location(
        "make_reference_pages", Path(__file__).parent / "make_reference_pages.py"
    )
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return {page: make() for page, make in maker.MADE_WITH_THE_SITE.items()}


def on_files(files: Any, config: Any) -> Any:
    """Add the root's pages, and those that are made from the code."""
    from mkdocs.structure.files import File

    for page, text in made_pages().items():
        files.append(File.generated(config, page, content=text))

    for name, target in PAGES.items():
        files.append(File.generated(config, target, content=root_page((ROOT / name).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mend the links of a page of docs/."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return docs_page(markdown, PurePosixPath(page.file.src_uri).parent)

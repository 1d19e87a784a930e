"""Finds the input files that `--input` values name; standard input is copied into a file."""

import functools
import glob
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from bert_horovod.corpus.reading.formats import FORMATS
from bert_horovod.corpus.reading.other_formats import refuse_content, refuse_name
from bert_horovod.corpus.reading.sources import BLOCK_BYTES, DUMP_SUFFIX, SourceFile, suffixes
from bert_horovod.errors import DamagedData, UserError, file_error
from bert_horovod.storage.connections import require_package
from bert_horovod.storage.places import Place, is_url, parse_place
from bert_horovod.storage.reading import parse_json, read_json
from bert_horovod.storage.remote import find, read
from bert_horovod.wording import counted, some

File = TypeVar("File", Path, Place)
STANDARD_INPUT = "-"
STANDARD_INPUT_NAME = "standard_input"
_DATASET_NOTES = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # beside Arrow files
_DUMP_INDEX = "-multistream-index"  # in the name of the page list that comes with a dump; it is no text
# Files without a suffix that stand beside texts; so do those whose names begin with "_", as Spark's.
_NOTES = (
    "authors changelog changes contributors copying copyright credits install licence license makefile manifest "
    "md5sums notice readme sha256sums todo version"
)
_SPARKS_FOLDERS = ("_temporary", "_delta_log", "_spark_metadata")  # hold no text, or rows that are elsewhere too
_OBJECT = re.compile(rb'\{\s*["}]')  # not RTF
_DUMP = re.compile(rb"(?:<\?xml[^<]*)?<(?:mediawiki|page)\b")
_HEAD_BYTES = 1 << 16


def find_sources(inputs: list[str]) -> list[SourceFile]:
    """List the files that `--input` values name, each file once, in a fixed order.

    A value is a file, a directory (searched recursively, sorted by name) or a glob (sorted), here or, as a URL,
    elsewhere. In a directory, hidden files are skipped; so are CSV and TSV tables, links to directories, and files with
    other suffixes than those of FORMATS, which are named on stderr. So are notes such as LICENSE and _SUCCESS, in a
    glob too. Raises UserError when a value matches no file, and for a format that is not read.
    """
    sources: dict[str, SourceFile] = {}
    for pattern in inputs:
        if is_url(pattern):
            for source in _elsewhere(pattern):
                sources.setdefault(str(source.path), source)
            continue
        for path, name in _matches(pattern):
            try:
                status = path.stat()
            except OSError as error:
                raise file_error(error, f"cannot read {path}: {error.strerror}") from error
            if not stat.S_ISREG(status.st_mode):
                raise UserError(
                    f"--input {path} is not a regular file (a pipe, a socket or a device); expected a file, or a "
                    "stream, as in: COMMAND | bert-horovod ... --input -"
                )
            source = SourceFile(path, writable(name), status.st_size)
            sources.setdefault(os.path.realpath(path), source)
    return list(sources.values())


def require_inputs(inputs: list[str]) -> None:
    """Raise UserError if a value of `--input` matches nothing here; find_sources looks closer, and elsewhere."""
    for pattern in inputs:
        if is_url(pattern):
            require_package(parse_place(pattern, "--input"))
        elif pattern != STANDARD_INPUT and not Path(pattern).exists() and not glob.glob(pattern, recursive=True):
            raise _no_such(pattern)


def writable(path: str | Path) -> str:
    r"""A path as UTF-8 can write it: bytes of a name that are not UTF-8 become escapes, such as \xe9."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextmanager
def standard_input(inputs: list[str], directory: Path) -> Iterator[list[str]]:
    """Copy standard input into a file in the directory, and yield the inputs with that file in place of "-".

    The file is JSON Lines if it begins with an object, a dump if it begins with <mediawiki>, else plain text; it is
    removed at the end. Raises UserError for a terminal and for data that is no text.
    """
    if STANDARD_INPUT not in inputs:
        yield inputs
        return
    stream = sys.stdin.buffer
    if stream.isatty():
        raise UserError("--input -: standard input is a terminal; expected text: COMMAND | bert-horovod ... --input -")
    head = stream.read(_HEAD_BYTES)
    beginning = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    suffix = ".jsonl" if _OBJECT.match(beginning) else DUMP_SUFFIX if _DUMP.match(beginning) else ".txt"
    if suffix == ".txt":
        refuse_content("--input -: standard input", head)
    path = (directory / STANDARD_INPUT_NAME).with_suffix(suffix)
    try:
        with open(path, "wb") as file:
            file.write(head)
            shutil.copyfileobj(stream, file, BLOCK_BYTES)
        yield [str(path) if pattern == STANDARD_INPUT else pattern for pattern in inputs]
    finally:
        path.unlink(missing_ok=True)


def _elsewhere(pattern: str) -> list[SourceFile]:
    """The same for files elsewhere; their names are those that copies on this machine would have."""
    place = parse_place(pattern, "--input")
    found, is_directory = find(place)
    entries = {}
    for entry in found:
        name = str(entry.place)[len(str(place).rstrip("/")) + 1 :] if is_directory else entry.place.name
        name = unquote(name) if place.scheme in ("http", "https") else name
        if entry.place == place or not _is_hidden(name):
            entries[name, entry.place] = entry
    names = {file: name for name, file in sorted(entries, key=lambda key: (key[0], str(key[1])))}
    texts = _texts(pattern, list(names), place if is_directory else None, is_named=place in names)
    return [SourceFile(file, names[file], *entries[names[file], file][1:]) for file in texts]


def _is_hidden(name: str) -> bool:
    *folders, own = name.split("/")
    return own.startswith(".") or any(folder.startswith(".") or folder in _SPARKS_FOLDERS for folder in folders)


def _matches(pattern: str) -> list[tuple[Path, str]]:
    path = Path(pattern)
    if path.is_dir():
        return [(file, file.relative_to(path).as_posix()) for file in _texts(pattern, walk(path), path)]
    paths = [path] if path.exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))
    files = [file for file in paths if not file.is_dir()]
    return [(file, file.name) for file in _texts(pattern, files, None, is_named=path.exists())]


def _texts(pattern: str, files: list[File], directory: File | None, is_named: bool = False) -> list[File]:
    """Those of the files of a directory, or of a glob pattern (None), that are texts; `is_named`: the pattern is one.

    Raises UserError if there are none.
    """
    if directory is not None:
        texts = [file for file in files if _is_text(file) and not _is_leftover(file, files)]
        if not texts:
            raise UserError(
                f"--input {pattern}: the directory holds no text; expected .txt, .jsonl, .xml or .wet files, plain or "
                "compressed, .parquet or .arrow files; name files with other suffixes, such as .csv, one by one or by "
                "a glob pattern"
            )
        _tell(pattern, [file for file in files if not _is_text(file)])
        return texts
    texts = [file for file in files if is_named or not _is_note(file)]
    if not texts and files:
        raise UserError(
            f"--input {pattern} matches notes alone, such as {files[0].name}; expected texts: name a note that is one"
        )
    if not texts:
        raise _no_such(pattern)
    _tell(pattern, [file for file in files if file not in texts])
    for file in texts:
        refuse_name(file, suffixes(file)[0])
    return texts


def _tell(pattern: str, not_text: Sequence[File]) -> None:
    """Say which files are passed over."""
    if not_text:
        names = some([file.name for file in not_text], 5)
        print(f"passing over {counted(len(not_text), 'file')} in {pattern} not named as text: {names}", file=sys.stderr)


def _no_such(pattern: str) -> UserError:
    return UserError(f"--input {pattern}: no such file; expected a file, a directory or a glob pattern in quotes")


def _is_text(file: File) -> bool:
    form = FORMATS.get(suffixes(file)[0])
    is_note = _is_note(file) or _DUMP_INDEX in file.name or file.name in _DATASET_NOTES
    return form is not None and not form.only_named and not is_note


def _is_note(file: File) -> bool:
    """Whether a name is one of files that accompany texts, such as LICENSE, or Spark's _SUCCESS and _metadata."""
    return not file.suffix and (file.name.startswith("_") or file.name.lower() in _NOTES.split())


def _is_leftover(file: File, files: Sequence[File]) -> bool:
    """Whether it is an Arrow file that the state.json beside it, one of the files, does not name.

    `datasets` writes state.json when it saves a dataset, and keeps other files there, such as cache-*.arrow.
    """
    state = file.with_name("state.json")
    return file.suffix.lower() == ".arrow" and state in files and file.name not in _saved_names(state)


@functools.lru_cache
def _saved_names(state: File) -> list[str]:
    try:
        content = parse_json(read(state)) if isinstance(state, Place) else read_json(state)
        names = [file["filename"] for file in content["_data_files"]]
        selected = content.get("_indices_files") or content.get("_indices_data_files")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedData(
            f"{state} cannot be read ({error!r}); expected what save_to_disk of datasets writes: save the dataset again"
        ) from error
    if selected:
        raise UserError(
            f"{str(state).removesuffix('/state.json')} holds a selection of rows; expected all of them: "
            "flatten_indices(), save again"
        )
    return names


def walk(directory: Path) -> list[Path]:
    """All files of a directory by name, but hidden ones, Spark's, and those behind links; raises file_error's error."""

    def refuse(error: OSError) -> None:
        raise file_error(error, f"cannot read {error.filename}: {error.strerror}") from error

    files = []
    for folder, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SPARKS_FOLDERS]
        if links := sorted(name for name in folders if os.path.islink(os.path.join(folder, name))):
            print(f"passing over links to directories in {folder}, name them too: {some(links, 5)}", file=sys.stderr)
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: file.relative_to(directory).as_posix())

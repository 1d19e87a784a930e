"""Reads, lists and writes files elsewhere by fsspec (extra: remote).

Each operation is tried as connections.py says: it raises UserError for what fails for good (Missing: there is no such
file) and RunError for what may succeed later.
"""

import errno
import functools
import io
import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bert_horovod.errors import RunError, UserError
from bert_horovod.storage.connections import Missing, Result, attempt, status_of, true_error
from bert_horovod.storage.listing import BY_FOLDERS, Facts, contents, is_pattern, matching, tree
from bert_horovod.storage.places import Place
from bert_horovod.storage.writing import sync

BLOCK_BYTES = 4 << 20  # read by one request
_BLOCKS_AHEAD = 2
_AT_A_TIME = 16  # small requests
_BLOCKS_KEPT = 6  # readers of tables alternate between two columns
_CHECKSUMS = ("ETag", "etag", "sha256", "blob_id", "md5Hash", "Content-MD5")
_TIMES = ("Last-Modified", "LastModified", "last_modified", "mtime", "updated")

_pools: dict[int, ThreadPoolExecutor] = {}


class Entry(NamedTuple):
    """A file elsewhere as it is now; another `tag` or another size is another content.

    `tag` is the server's ETag or checksum, else the time of change, else "".
    """

    place: Place
    bytes: int
    tag: str


def entry(place: Place) -> Entry:
    """Look at a file; raises Missing, also for a directory."""
    return attempt(place, lambda fs: _entry(place, fs.info(place.key)))


def entries(places: Sequence[Place]) -> list[Entry]:
    """Look at many files, some at a time; raises Missing if one is not there."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(entry, places))


def find(pattern: Place) -> tuple[list[Entry], bool]:
    """The files that a place names, sorted by URL, and whether it is a directory.

    It is a file, a directory (all files below it) or a glob pattern. No files: there are none.
    """
    return attempt(pattern, lambda fs: _find(pattern, fs))


def names(directory: Place) -> list[str]:
    """The names of what lies in a directory, sorted; none: there is no such directory."""
    try:
        listed = attempt(directory, lambda fs: contents(directory, fs, directory.key))
    except Missing:
        return []
    return sorted(facts["name"].rstrip("/").rpartition("/")[2] for facts in listed)


def read(place: Place, begin: int = 0, end: int | None = None) -> bytes:
    """A file's bytes from `begin` up to `end`, or to its end."""
    return attempt(place, lambda fs: _range(place, fs, begin, end))


def fetch(place: Place, path: Path) -> None:
    """Copy a file to a path on this machine."""
    attempt(place, lambda fs: fs.get_file(place.key, str(path)))


def write(place: Place, content: bytes | Path) -> None:
    """Write a file whole, from bytes or from a file on this machine; it replaces one of that name at once."""

    def put(fs: Any) -> None:
        # A file of this machine appears while it is being written, and can be renamed.
        key = f"{place.key}.partial" if place.scheme == "file" else place.key
        if isinstance(content, bytes):
            fs.pipe_file(key, content)
        else:
            fs.put_file(str(content), key)
        if place.scheme == "file":
            sync(Path(key))
        if key != place.key:
            fs.mv(key, place.key)

    attempt(place, lambda fs: _with_parent(place, fs, lambda: put(fs)), "write")


def write_new(place: Place, content: bytes) -> bool:
    """Write a file if there is none of that name, and tell whether it was written: of several writers, one has True.

    The contents of several writers must differ, because a writer whose answer was lost knows its file by its content.
    Raises NotImplementedError if the server cannot do that.
    """

    def put(fs: Any) -> bool:
        try:
            if place.scheme == "file":  # fsspec looks and then writes: two could, and a reader would see a part
                _create(Path(place.key), content)
            else:
                fs.pipe_file(place.key, content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:  # older s3fs', for a file that exists
            if isinstance(error, FileNotFoundError) or not fs.exists(place.key):
                raise
            return False
        except TypeError as error:
            raise NotImplementedError(f"{place.scheme}:// has no conditional writes") from error
        return True

    return attempt(place, lambda fs: _with_parent(place, fs, lambda: put(fs)), "write") or read(place) == content


def _create(path: Path, content: bytes) -> None:
    """Make a file that appears whole; raises FileExistsError if it is there, NotImplementedError without hard links."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        sync(temporary)
        os.link(temporary, path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise NotImplementedError("no hard links") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove(place: Place) -> None:
    """Remove a file, if it is there."""
    with suppress(Missing):
        attempt(place, lambda fs: fs.rm_file(place.key), "remove")


class RangeFile(io.RawIOBase):
    """A file elsewhere, read by ranges; blocks that follow one another are fetched ahead.

    It holds at most _BLOCKS_KEPT blocks. Raises RunError if the file's length is not the one that it had.
    """

    def __init__(self, file: Entry):
        super().__init__()
        self._entry, self._position = file, 0
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The position, in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; see io.IOBase."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer) -> int:
        """Fill the buffer, as far as the file goes; see io.RawIOBase."""
        wanted = max(0, min(len(buffer), self._entry.bytes - self._position))
        done = 0
        while done < wanted:
            number, at = divmod(self._position, BLOCK_BYTES)
            part = memoryview(self._block(number))[at : at + wanted - done]
            buffer[done : done + len(part)] = part
            done += len(part)
            self._position += len(part)
        return done

    def close(self) -> None:
        """Forget the blocks."""
        for block in self._blocks.values():
            block.cancel()
        self._blocks.clear()
        super().close()

    def _block(self, number: int) -> bytes:
        ahead = _BLOCKS_AHEAD if number - 1 in self._blocks else 0
        last = (self._entry.bytes - 1) // BLOCK_BYTES
        for wanted in range(number, min(number + ahead, last) + 1):
            if wanted not in self._blocks:
                fetch_block = _edge_block if wanted in (0, last) else _read_block
                self._blocks[wanted] = _pool().submit(fetch_block, self._entry, wanted)
        self._blocks.move_to_end(number)
        while len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)[1].cancel()
        return self._blocks[number].result()


def _read_block(file: Entry, number: int) -> bytes:
    return read(file.place, number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, file.bytes))


_edge_block = functools.lru_cache(4)(_read_block)  # every part of a dump or a Parquet file needs its head or its foot


def _with_parent(place: Place, fs: Any, action: Callable[[], Result]) -> Result:
    """Do something that needs the directory, and make it if it is missing; buckets have none."""
    try:
        return action()
    except FileNotFoundError:
        if place.scheme != "file":
            raise
        fs.makedirs(place.key.rpartition("/")[0], exist_ok=True)
        return action()


def _find(pattern: Place, fs: Any) -> tuple[list[Entry], bool]:
    key, is_web = pattern.key, pattern.scheme in ("http", "https")
    ways = [_info, matching] if "*" not in key else [matching, _info]  # data[1].jsonl is first of all a name
    found = next(filter(None, (way(pattern, fs) for way in ways)), {})
    is_directory = list(found) == [key] and (found[key]["type"] == "directory" or (is_web and key.endswith("/")))
    if is_directory:
        found = tree(pattern, fs, key) if pattern.scheme in BY_FOLDERS else fs.find(key, detail=True)
    files = {name: facts for name, facts in found.items() if facts["type"] == "file" and not name.endswith("/")}
    # A page that lists files does not tell their sizes.
    files = {name: fs.info(name) if facts.get("size") is None else facts for name, facts in files.items()}
    return [_entry(pattern.of_key(name), files[name]) for name in sorted(files)], is_directory


def _info(place: Place, fs: Any) -> dict[str, Facts]:
    try:
        return {place.key: fs.info(place.key)}
    except FileNotFoundError as error:
        status = status_of(true_error(error))
        if true_error(error) is error or status == 404 or (is_pattern(place) and status and 400 <= status < 500):
            return {}
        raise


def _entry(place: Place, facts: dict[str, Any]) -> Entry:
    if facts["type"] == "directory":
        raise Missing(f"{place} is a directory; expected a file")
    if facts.get("size") is None:
        raise UserError(f"{place}: its server does not tell the file's size; fetch the file, and name the copy")
    facts = {**facts, **(facts.get("lfs") or {})}  # Hugging Face's large files
    tag = next((facts[name] for name in (*_CHECKSUMS, *_TIMES) if facts.get(name)), "")
    # One text may have a weak and a strong ETag, by the encoding that a server chose: RFC 9110, 8.8.3.2.
    tag = tag.isoformat() if hasattr(tag, "isoformat") else str(tag).removeprefix("W/")
    return Entry(place, int(facts["size"]), tag)


def _range(place: Place, fs: Any, begin: int, end: int | None) -> bytes:
    content = fs.cat_file(place.key, start=begin or None, end=end)
    if end is None or len(content) == end - begin:
        return content
    if len(content) > end - begin:
        raise UserError(
            f"{place}: its server sends the whole file where a part was asked for; fetch the file, and name the copy"
        )
    raise RunError(f"{place} has become shorter while being read; run the same command again")


def _pool() -> ThreadPoolExecutor:
    """This process's threads for reading ahead."""
    return _pools.setdefault(os.getpid(), ThreadPoolExecutor(_BLOCKS_AHEAD, "reading ahead"))

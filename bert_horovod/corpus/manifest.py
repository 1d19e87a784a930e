"""A token store's manifest.json: the types of its fields, its text, and how it is read and checked."""

import json
import re
from pathlib import Path
from typing import Any, TypedDict

from bert_horovod.corpus.shard import ARRAYS, COUNTS, layout
from bert_horovod.errors import DamagedData, UserError, file_error, unreadable
from bert_horovod.storage.reading import check_type, read_json, shown

FORMAT = 3
SOURCES_FILE = "sources.jsonl"


class _Counts(TypedDict):
    documents: int
    sections: int
    sentences: int
    tokens: int
    bytes: int


class _Shard(_Counts):
    name: str
    sha256: str
    parts: int
    arrays: dict[str, list[int]]  # by name: its first byte in the file, its bytes, its CRC-32 (tokens: 0)


class _Totals(_Counts):
    held_out_sections: int
    held_out_tokens: int
    unknown_tokens: int
    dropped_documents: int


class _Tokenizer(TypedDict):  # of JsonTokenizer.recorded
    sha256: str
    pad: str
    unknown: str
    cls: str
    sep: str
    mask: str


class _TokenizerSettings(TypedDict, total=False):  # of TokenizerSettings.recorded
    strip_accents: bool
    tokenize_chinese_chars: bool
    added_tokens: dict[str, bool]
    tokenizer: _Tokenizer


class _Vocabulary(_TokenizerSettings):
    sha256: str
    size: int
    lowercase: bool


class SourceEntry(TypedDict):
    """A file of the input."""

    name: str
    bytes: int
    sha256: str
    documents: int
    tokens: int
    unknown_tokens: int


class _Duplicates(TypedDict):
    documents: int
    tokens: int
    sha256: str | None


class _Sources(TypedDict):
    files: int
    sha256: str


class _LaterFields(TypedDict, total=False):
    text: str  # corpus.store.sum_of_hashes


class _Manifest(_LaterFields):
    format: int
    settings: dict[str, bool | float | str]
    vocabulary: _Vocabulary
    totals: _Totals
    passed_over: dict[str, int]
    duplicates: _Duplicates
    sources: _Sources
    shards: list[_Shard]


def manifest_text(manifest: dict[str, Any]) -> str:
    """The manifest as the text of its file."""
    return json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(store: Path) -> dict[str, Any]:
    """Read a store's manifest; check its types and that its counts agree. Raises ReportedError."""
    path = store / "manifest.json"
    try:
        manifest = read_json(path, inside=store)
        refuse_format(store, manifest)
        check_type(manifest, _Manifest, "the manifest")
        _check(manifest)
    except OSError as error:
        raise unreadable(error, path) or file_error(
            error,
            f"{store} is not a token store: cannot read manifest.json ({error.strerror}); "
            "make one with: bert-horovod prepare",
        ) from error
    except ValueError as error:
        raise DamagedData(f"{path} is damaged: {error}; prepare the data again") from error
    return manifest


def refuse_format(store: Path, manifest: Any) -> None:
    """Raise UserError if a manifest is that of another version's store."""
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is int and found != FORMAT:
        raise UserError(
            f"{store} is a token store of format {shown(found)}, which another version of the program wrote; expected "
            f"format {FORMAT}: prepare its text anew, into another directory"
        )


def _check(manifest: dict[str, Any]) -> None:
    """Raise ValueError if the manifest's counts disagree or a shard's name leads out of the store."""
    names = [shard["name"] for shard in manifest["shards"]]
    for i, name in enumerate(names):
        if not re.fullmatch(r"shard-[0-9]{5,20}", name):
            raise ValueError(
                f"shards.{i}.name is {shown(name)}, expected that of a shard of the store, such as shard-00000"
            )
    for shard in manifest["shards"]:
        if shard["arrays"].keys() != set(ARRAYS) or any(len(numbers) != 3 for numbers in shard["arrays"].values()):
            raise ValueError(f"{shard['name']}.arrays: expected three numbers for each of {', '.join(ARRAYS)}")
        layout(shard, manifest["vocabulary"]["size"])
    if not names or len(set(names)) < len(names):
        raise ValueError(f"shards has {len(names)} entries, expected one or more, each once")
    for count in COUNTS:
        of_shards = sum(shard[count] for shard in manifest["shards"])
        if manifest["totals"][count] != of_shards:
            raise ValueError(f"totals.{count} is {manifest['totals'][count]}, but its shards have {of_shards}")
    if not manifest["totals"]["tokens"]:
        raise ValueError("totals.tokens is 0, expected text")
    if (manifest["duplicates"]["sha256"] is None) != (manifest["duplicates"]["documents"] == 0):
        raise ValueError("duplicates.sha256 is given for none, or lacks")
    if not re.fullmatch("[0-9a-f]{32}", text := manifest.get("text", "0" * 32)):
        raise ValueError(f"text is {shown(text)}, expected 32 hexadecimal digits")

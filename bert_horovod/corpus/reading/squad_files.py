"""Reads SQuAD's JSON files, versions 1.1 and 2.0, plain or compressed; a file with `is_impossible` is version 2.0."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_horovod.corpus.reading.sources import SourceFile, SourceReader
from bert_horovod.corpus.reading.table_files import refuse_other_tables
from bert_horovod.errors import DamagedData, UserError
from bert_horovod.storage.reading import shown

_LARGEST_BYTES = 1 << 30  # of a decompressed file; SQuAD's have at most 45 MB
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {list: "a list", str: "a text", dict: "an object", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class Questions:
    """A file's questions, in its order."""

    path: Path
    contexts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    context_of: list[int] = field(default_factory=list)
    answers: list[list[tuple[str, int]]] = field(default_factory=list)  # text, its first character in the context
    impossible: list[bool] = field(default_factory=list)  # marked as having no answer
    version_2: bool = False  # questions may have no answer


def find_squad_file(data_dir: Path, split: str) -> Path:
    """The file of a split, "train" or "dev", of either version; raises UserError where there is none or both."""
    names = [f"{split}-v{version}.json{suffix}" for version in ("1.1", "2.0") for suffix in ("", ".gz")]
    files = [data_dir / name for name in names if (data_dir / name).is_file()]
    versions = {path.name[: len(split) + 5] for path in files}
    if not files:
        raise UserError(
            f"--data_dir {data_dir} has no {', '.join(names[:-1])} or {names[-1]}; expected SQuAD's files, or name one "
            f"with --{split}_file"
        )
    if len(versions) > 1:
        raise UserError(
            f"--data_dir {data_dir} has both {' and '.join(path.name for path in files)}; name the one that is meant "
            f"with --{split}_file"
        )
    return files[0]


def read_squad(path: Path, scored: bool = False) -> Questions:
    """Read and check a file in SQuAD's format, plain or compressed; `scored`: each question must have answers.

    Raises UserError if it cannot be read, or is not in SQuAD's format, DamagedData if it is no JSON, or compressed and
    damaged.
    """
    articles = _member(path, _read_json(path), "the file", "data", list)
    questions = Questions(path)
    seen_ids: set[str] = set()
    marked, unanswered = False, ""
    for i, article in enumerate(articles):
        for j, paragraph in enumerate(_member(path, article, f"data[{i}]", "paragraphs", list)):
            place = f"data[{i}].paragraphs[{j}]"
            questions.contexts.append(_member(path, paragraph, place, "context", str))
            for k, question in enumerate(_member(path, paragraph, place, "qas", list)):
                at = f"{place}.qas[{k}]"
                number = _member(path, question, at, "id", str)
                if number in seen_ids:
                    raise UserError(f"{path}: {at} has the id {shown(number)} of another question; expected each once")
                seen_ids.add(number)
                marked |= "is_impossible" in question
                impossible = "is_impossible" in question and _member(path, question, at, "is_impossible", bool)
                questions.ids.append(number)
                questions.questions.append(_member(path, question, at, "question", str))
                questions.context_of.append(len(questions.contexts) - 1)
                questions.answers.append(_answers(path, question, at, scored))
                questions.impossible.append(impossible)
                if not questions.answers[-1]:
                    unanswered = unanswered or f"{at} (id {shown(number)})"
    if scored and unanswered and not marked:
        raise UserError(
            f"{path}: {unanswered} has no answers, and no question is marked with is_impossible; expected at least one "
            "answer, or SQuAD 2.0's is_impossible"
        )
    if not questions.ids:
        raise UserError(f"{path} has no questions; expected a file in SQuAD's format")
    return Questions(**(vars(questions) | {"version_2": marked}))


def _answers(path: Path, question: dict[str, Any], at: str, required: bool) -> list[tuple[str, int]]:
    if "answers" not in question and not required:
        return []
    answers = []
    for number, answer in enumerate(_member(path, question, at, "answers", list)):
        place = f"{at}.answers[{number}]"
        begin = _member(path, answer, place, "answer_start", int)
        answers.append((_member(path, answer, place, "text", str), begin))
    return answers


def _member(path: Path, table: Any, place: str, key: str, kind: type) -> Any:
    if type(table) is not dict:
        raise UserError(f"{path}: {place} is {shown(table)}, expected an object with {key!r}, as SQuAD's files have it")
    if key not in table:
        raise UserError(f"{path}: {place} has no {key!r}; expected a file in SQuAD's format")
    if type(table[key]) is not kind:
        raise UserError(f"{path}: {key!r} of {place} is {shown(table[key])}, expected {_KINDS[kind]}")
    if kind is str and (surrogate := _SURROGATE.search(table[key])):
        raise UserError(f"{path}: {key!r} of {place} holds half a character, {surrogate[0]!a}; expected Unicode text")
    return table[key]


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; expected one in SQuAD's format")
    refuse_other_tables(path, ".json in SQuAD's format")
    content = bytearray()
    with SourceReader(SourceFile(path, path.name, path.stat().st_size)) as reader:
        for _, block in reader.blocks():
            content += block
            if len(content) > _LARGEST_BYTES:
                raise UserError(f"{path} has more than {_LARGEST_BYTES >> 20} MiB; split it into several files")
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError as error:
        raise DamagedData(f"{path} is damaged: it is nested too deeply") from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise DamagedData(f"{path} is damaged: expected JSON in UTF-8: {error}") from error

"""What tuning has measured, kept in a file, so that the same question is answered at once and a stopped one goes on.

<index directory>/tune-<hash>.json:  {"format", "decided_by", "trials": {key: trial}, "answer"}. The hash is of what
decides the times: `decided_by`.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_horovod.errors import file_error
from bert_horovod.measuring.tuning.search import Found
from bert_horovod.measuring.tuning.trials import Settings, Trial
from bert_horovod.storage.reading import read_json
from bert_horovod.storage.typed import check_type
from bert_horovod.storage.writing import lock, write_atomically

FORMAT = 1


@dataclasses.dataclass
class _Content:
    """What the file holds."""

    decided_by: dict[str, Any]
    trials: dict[str, Trial] = dataclasses.field(default_factory=dict)
    question: dict[str, Any] | None = None  # the settings and limits that the answer was searched from
    answer: Found | None = None
    format: int = FORMAT


class Learned:
    """The file of one question's measurements, held against other processes; close it.

    Args:
        directory: where row indexes are.
        decided_by: what decides the times.

    Raises:
        UserError: another process tunes the same, or the directory cannot be written.
    """

    def __init__(self, directory: Path, decided_by: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()[:32]
        self.path = directory / f"tune-{digest}.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            refusal = f"another process tunes the same recipe on this machine, and keeps what it finds in {self.path}"
            self._lock = lock(self.path.with_suffix(".lock"), refusal)
        except OSError as error:
            raise file_error(
                error, f"cannot write to {directory}: {error.strerror}; name another directory with --index_dir"
            ) from error
        self._content = self._read() or _Content(dict(decided_by))

    def _read(self) -> _Content | None:
        """What is kept; None where there is nothing, or nothing whole: then it is measured again."""
        try:
            found = read_json(self.path)
            check_type(found, _Content, "")
            trials = {key: Trial(**each) for key, each in found["trials"].items()}
            answer = found["answer"] and Found(**found["answer"])
        except (OSError, ValueError, KeyError):
            return None
        return _Content(**{**found, "trials": trials, "answer": answer}) if found["format"] == FORMAT else None

    def close(self) -> None:
        """Let other processes have it."""
        os.close(self._lock)

    def forget(self) -> None:
        """Begin anew."""
        self._content = _Content(self._content.decided_by)
        self._write()

    def trial(self, settings: Settings, phase: int, number: int) -> Trial | None:
        """What was measured of these settings, in a round."""
        return self._content.trials.get(_key(settings, phase, number))

    def keep(self, settings: Settings, phase: int, number: int, trial: Trial) -> None:
        """Write what was measured."""
        self._content.trials[_key(settings, phase, number)] = trial
        self._write()

    def answer(self, question: Mapping[str, Any]) -> Found | None:
        """What a search from there has found."""
        return self._content.answer if self._content.question == dict(question) else None

    def keep_answer(self, question: Mapping[str, Any], found: Found) -> None:
        """Write what a search has found."""
        self._content.question, self._content.answer = dict(question), found
        self._write()

    def _write(self) -> None:
        content = dataclasses.asdict(self._content)
        for trial in content["trials"].values():
            if trial["failure"]:
                del trial["step_s"]  # infinite, which JSON has no word for
        write_atomically(self.path, json.dumps(content, indent=1) + "\n")


def _key(settings: Settings, phase: int, number: int) -> str:
    return json.dumps([phase, number, settings], sort_keys=True)

"""Keep tuning's measurements in a file, so that the same call answers at once and a stopped call goes on.

<index directory>/tune-<hash>.json:  {"format", "decided_by", "trials": {key: trial}, "answer"}. The hash is computed
from `decided_by`: all that the step times depend on, beside the settings that are tried.
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
    """The content of the file."""

    decided_by: dict[str, Any]
    trials: dict[str, Trial] = dataclasses.field(default_factory=dict)
    question: dict[str, Any] | None = None  # first settings and limits of the search that found `answer`
    answer: Found | None = None
    format: int = FORMAT


class Learned:
    """The file of measurements for one recipe, store and machine, locked against other processes; close it at the end.

    Args:
        directory: the directory of row indexes.
        decided_by: all that the step times depend on, beside the settings that are tried.

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
        """The file's content; None if the file is missing, damaged or of another format: then measure again."""
        try:
            contents = read_json(self.path)
            check_type(contents, _Content, "")
            trials = {key: Trial(**trial_table) for key, trial_table in contents["trials"].items()}
            answer = contents["answer"] and Found(**contents["answer"])
        except (OSError, ValueError, KeyError):
            return None
        return _Content(**{**contents, "trials": trials, "answer": answer}) if contents["format"] == FORMAT else None

    def close(self) -> None:
        """Unlock the file, for other processes."""
        os.close(self._lock)

    def forget(self) -> None:
        """Drop all measurements and the answer."""
        self._content = _Content(self._content.decided_by)
        self._write()

    def trial(self, settings: Settings, phase: int, number: int) -> Trial | None:
        """The kept trial of these settings in round `number`; None if there is none."""
        return self._content.trials.get(_key(settings, phase, number))

    def keep(self, settings: Settings, phase: int, number: int, trial: Trial) -> None:
        """Write a trial to the file."""
        self._content.trials[_key(settings, phase, number)] = trial
        self._write()

    def answer(self, question: Mapping[str, Any]) -> Found | None:
        """The kept result of the search for this question; None if there is none."""
        return self._content.answer if self._content.question == dict(question) else None

    def keep_answer(self, question: Mapping[str, Any], answer: Found) -> None:
        """Write a search's result to the file."""
        self._content.question, self._content.answer = dict(question), answer
        self._write()

    def _write(self) -> None:
        content = dataclasses.asdict(self._content)
        for trial in content["trials"].values():
            if trial["failure"]:
                del trial["step_s"]  # infinite: JSON cannot hold it
        write_atomically(self.path, json.dumps(content, indent=1) + "\n")


def _key(settings: Settings, phase: int, number: int) -> str:
    return json.dumps([phase, number, settings], sort_keys=True)

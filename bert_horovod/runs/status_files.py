"""Files in a run's directory for other processes: status.json, a sign of life, and command.json, the run's command.

Imports no TensorFlow. A sign of life that cannot be written is left out, so that it never ends a run.
"""

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.storage.reading import Seconds, read_record
from bert_horovod.storage.writing import write_atomically

STATUS, COMMAND, SESSIONS = "status.json", "command.json", "sessions.json"
NOTES = "notes.txt"  # what people write about the run; `report` shows it
BEAT_S = 10.0  # seconds between two signs of life
LAUNCHED_BY = "BERT_HOROVOD_COMMAND"  # environment variable in which `launch` gives ranks its command line, as JSON


@dataclass(frozen=True)
class Sign:
    """A run's sign of life."""

    step: int  # optimizer steps that are done
    last_step: int  # the step at which this run ends
    doing: str  # rank 0's activity
    doing_since: Seconds
    started: Seconds
    time: Seconds
    ranks: int
    waits: list[str] = field(default_factory=list)  # which rank waits for which, if an activity takes long
    ended: str = ""  # how the run ended; empty: it still runs
    error: str = ""  # the message of the error that ended it
    again: bool = True  # whether the same command may succeed after that error
    host: str = field(default_factory=socket.gethostname)
    process: str = field(default_factory=lambda: process_identity(os.getpid()))

    def write(self, output_dir: Path) -> None:
        """Replace status.json atomically, without a sync: after a power cut the file would be of no use anyway.

        On a full disk the sign is written over the one before, which has the room.
        """
        path, temporary = output_dir / STATUS, output_dir / f".{STATUS}.partial"
        content = (json.dumps(asdict(self), indent=1) + "\n").encode()
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
                with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b", buffering=0) as file:
                    file.write(content.ljust(os.fstat(file.fileno()).st_size))  # at once: readers see one or the other
                    file.truncate(len(content))

    def is_young(self) -> bool:
        """Whether the sign is so recent that its run is taken to be alive."""
        return time.time() - self.time < 6 * BEAT_S

    def is_gone(self) -> bool:
        """Whether the run's process has surely ended; only a process on the same host can know that."""
        place, process, _ = self.process.split()
        return place == _place() and process_identity(int(process)) != self.process


@dataclass(frozen=True)
class Command:
    """How a run was started."""

    words: list[str]  # arguments of bert-horovod
    directory: str  # the working directory
    output_dir: str
    launcher: str | None  # horovodrun, mpirun or srun, with unknown arguments; None: no launcher, or `launch`
    ranks: int

    def write(self, output_dir: Path) -> None:
        """Write command.json; raises the errors of write_atomically."""
        write_atomically(output_dir / COMMAND, json.dumps(asdict(self), indent=1) + "\n")


def read_sign(output_dir: Path) -> Sign | None:
    """The run's last sign of life; None if there is none or it cannot be read."""
    try:
        sign = read_record(output_dir / STATUS, Sign, inside=output_dir)
        _, process, since = sign.process.split()
        int(process), int(since)
        return sign
    except (OSError, ValueError):
        return None


def read_command(output_dir: Path) -> Command:
    """The command that started the run; raises ReportedError if it is unknown."""
    try:
        return read_record(output_dir / COMMAND, Command, inside=output_dir)
    except OSError as error:
        raise UserError(
            f"{output_dir} does not tell how it was started: {COMMAND}: {error.strerror}; expected the directory of a "
            "run (its --output_dir)"
        ) from error
    except ValueError as error:
        raise DamagedData(
            f"{output_dir / COMMAND} is damaged ({error}); run the command again that made {output_dir}"
        ) from error


def record_command(output_dir: Path, words: list[str], launcher: str | None, ranks: int) -> None:
    """Write this run's command: the one in the environment, if `launch` started the run, else `words`."""
    by_launch = os.environ.get(LAUNCHED_BY)
    words, launcher = (json.loads(by_launch), None) if by_launch else (words, launcher)
    Command(words, os.getcwd(), str(output_dir.absolute()), launcher, ranks).write(output_dir)


def process_identity(process: int) -> str:
    """A unique name of a process over all hosts: boot id and PID namespace, PID, start time."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        started = stat.rpartition(")")[2].split()[19]
    except OSError:
        started = "0"
    return f"{_place()} {process} {started}"


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux: a value that equals no other
        return f"unknown/{time.time()}"

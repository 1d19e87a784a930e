"""What a run leaves in its directory for other processes: status.json, a sign of life, and command.json, how it was
started. Imports no TensorFlow, and nothing here ends a run: a sign that cannot be written is left out."""

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bert_horovod.errors import DamagedData, UserError
from bert_horovod.storage.reading import read_json
from bert_horovod.storage.typed import check_type
from bert_horovod.storage.writing import write_atomically

STATUS, COMMAND = "status.json", "command.json"
BEAT_S = 10.0  # between two signs of life
LAUNCHED_BY = "BERT_HOROVOD_COMMAND"  # in which `launch` tells its ranks the whole command line, as JSON


@dataclass(frozen=True)
class Sign:
    """A run's sign of life."""

    step: int  # optimizer steps that are done
    last_step: int  # at which this run ends
    doing: str  # what rank 0 does
    doing_since: float  # seconds since the epoch, as `started` and `time`
    started: float
    time: float
    ranks: int
    waits: list[str] = field(default_factory=list)  # lines that say which rank waits for which, if one thing takes long
    ended: str = ""  # how; empty: it lives
    host: str = field(default_factory=socket.gethostname)
    process: str = field(default_factory=lambda: process_identity(os.getpid()))

    def write(self, output_dir: Path) -> None:
        """Put it in the place of the one before, whole, but not synced: it is worth nothing after a power cut."""
        temporary = output_dir / f".{STATUS}.partial"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, output_dir / STATUS)

    def is_young(self) -> bool:
        """Whether so little time has passed since that its run is taken to live."""
        return time.time() - self.time < 6 * BEAT_S

    def is_gone(self) -> bool:
        """Whether its process is known to have ended, which can only be known where it ran."""
        place, process, _ = self.process.split()
        return place == _place() and process_identity(int(process)) != self.process


@dataclass(frozen=True)
class Command:
    """How a run was started."""

    words: list[str]  # of bert-horovod
    directory: str  # the working directory
    output_dir: str
    launcher: str | None  # horovodrun, mpirun or srun, whose own words are not known; None: none, or `launch`
    ranks: int

    def write(self, output_dir: Path) -> None:
        """Write it; raises what file_error makes."""
        write_atomically(output_dir / COMMAND, json.dumps(asdict(self), indent=1) + "\n")


def read_sign(output_dir: Path) -> Sign | None:
    """The run's last sign of life, if there is one that can be read."""
    try:
        content = read_json(output_dir / STATUS, inside=output_dir)
        check_type(content, Sign, "it")
        sign = Sign(**content)
        _, process, since = sign.process.split()
        int(process), int(since)
        return sign
    except (OSError, ValueError, TypeError):
        return None


def read_command(output_dir: Path) -> Command:
    """How the run was started; raises ReportedError where that is not known."""
    try:
        content = read_json(output_dir / COMMAND, inside=output_dir)
        check_type(content, Command, "it")
        return Command(**content)
    except OSError as error:
        raise UserError(
            f"{output_dir} does not tell how it was started: {COMMAND}: {error.strerror}; expected the directory of a "
            "run (its --output_dir)"
        ) from error
    except (ValueError, TypeError) as error:
        raise DamagedData(
            f"{output_dir / COMMAND} is damaged ({error}); run the command again that made {output_dir}"
        ) from error


def record_command(output_dir: Path, words: list[str], launcher: str | None, ranks: int) -> None:
    """Write how this run was started: by `words`, or by `launch`, which has said so in the environment."""
    by_launch = os.environ.get(LAUNCHED_BY)
    words, launcher = (json.loads(by_launch), None) if by_launch else (words, launcher)
    Command(words, os.getcwd(), str(output_dir.absolute()), launcher, ranks).write(output_dir)


def process_identity(process: int) -> str:
    """Names a process among those of all hosts: the booted system and its space of ids, the id, when it was started."""
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
    except OSError:  # not Linux: nothing can be known
        return f"unknown/{time.time()}"

"""The files that a user names for a fine-tuning."""

from dataclasses import dataclass
from pathlib import Path

from bert_horovod.errors import UserError


@dataclass(frozen=True)
class Files:
    """The files that a user names; the other files are looked for in `data_dir`, under their usual names."""

    data_dir: Path | None = None
    train: Path | None = None
    dev: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()

    def refuse_unread_directory(self, has_test: bool) -> None:
        """Raise UserError if nothing of `data_dir` is read: train and dev are named, and it has no test file."""
        if self.data_dir and self.train and self.dev and not has_test:
            raise UserError(
                f"--data_dir {self.data_dir}: train and dev files are named by flags, and it has no test file; leave "
                "it out"
            )

"""Git LFS pointers: a repository that was cloned without Git LFS has three lines of text in place of a large file."""

from pathlib import Path

from bert_horovod.errors import UserError
from bert_horovod.storage.reading import open_regular

_BEGINNING = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointer(path: Path, inside: Path | None = None) -> None:
    """Raise UserError if the file is a Git LFS pointer.

    If it is unreadable, or a link out of `inside`, its reader raises the error.
    """
    try:
        with open_regular(path, inside) as file:
            beginning = file.read(len(_BEGINNING))
    except OSError:
        return
    if beginning == _BEGINNING:
        raise UserError(
            f"{path} is a pointer of Git LFS, a text of {path.stat().st_size} bytes, in place of the file; run "
            "git lfs pull where it was cloned, or download the file itself"
        )

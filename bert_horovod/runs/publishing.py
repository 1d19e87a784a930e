"""Uploads a run's checkpoints to the Hugging Face Hub: a revision (branch) for each, and the newest one as `main`.

huggingface_hub speaks to the Hub and finds the user's token; this program never reads it. A file that the Hub has
already is not sent again, so the same command goes on after an interruption and adds newer checkpoints later.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bert_horovod import __version__
from bert_horovod.errors import RunError, UserError
from bert_horovod.runs.checkpoint import step_of, whole_checkpoints

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
_STATUS = {
    401: "the Hub does not know this user: log in with `hf auth login`, or set HF_TOKEN to a token that may write",
    403: "this user, or this token, may not write there: take a name of your own, and a token that may write",
    404: "there is no such repository, or this token may not see it: see to --repo and the token",
}


class Revision(NamedTuple):
    """What a revision of the repository holds."""

    name: str  # of the branch
    step: int
    directory: Path
    files: dict[str, int]  # their bytes, by their paths in the repository

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(self.files.values())


def revisions(run: Path) -> list[Revision]:
    """The revisions for a run's whole checkpoints, oldest first, then `main`, which is as the newest one.

    Files for resuming (training/) stay at home. Damaged checkpoints are named on stderr and left out.

    Raises UserError if `run` has no whole checkpoint.
    """
    made = []
    for directory in whole_checkpoints(run):
        step = step_of(directory.name)
        made.insert(0, Revision(directory.name, -1 if step is None else step, directory, _files(directory)))
    made = [revision for revision in made if revision.files]  # a live run may have removed one meanwhile
    if not made:
        raise UserError(
            f"{run} has no whole checkpoint to publish; expected the --output_dir of a run that has saved one"
        )
    return [*made, made[-1]._replace(name=MAIN)]


def require_name(repo: str) -> None:
    """Raise UserError if the extra `hub` is not installed, or the Hub could not have a repository of this name."""
    try:
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id
    except ImportError as error:
        raise UserError(
            f"publish needs the package huggingface_hub ({error}); install it: pip install 'bert_horovod[hub]'"
        ) from error
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"--repo {repo!r}: expected a name on the Hub, as in my-lab/bert-of-ours: {error}") from error


def publish(run: Path, repo: str, private: bool, say: Callable[[str], None]) -> None:
    """Upload all revisions of a run; one commit for each, whole or not at all.

    Args:
        run: its output_dir.
        repo: name of the repository, "user/name"; made if it is missing.
        private: whether a new repository is private.
        say: called with a line for people after each revision.

    Raises:
        UserError: nothing to publish; the Hub does not know the user, or refuses a name or a file.
        RunError: the Hub cannot be reached or fails; the same command goes on with what is missing.
    """
    require_name(repo)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    made = revisions(run)
    api = HfApi(library_name="bert_horovod", library_version=__version__)
    where = f"cannot publish to {repo} at {api.endpoint}"
    try:
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        for revision in made:
            if not _upload(api, url.repo_id, revision):
                say(f"{revision.name}: left out, because its run has removed the checkpoint meanwhile")
                continue
            say(
                f"{revision.name}: step {revision.step:,}, {len(revision.files)} files, {revision.bytes:,} bytes: "
                f"{url}/tree/{revision.name}"
            )
    except HfHubHTTPError as error:
        status = error.response.status_code
        message = error.server_message or str(error).splitlines()[0]
        if status in _STATUS:
            raise UserError(f"{where}: {_STATUS[status]} ({message})") from error
        failed = RunError if status >= 500 or status == 429 else UserError
        raise failed(f"{where}: {message}. The same command goes on with what is missing") from error
    except ValueError as error:  # the Hub's answer about a model card, or about a file
        raise UserError(f"{where}: {error}") from error
    except (HTTPError, OSError, RuntimeError) as error:
        reason = error.__cause__ or error
        raise RunError(
            f"{where}: {type(reason).__name__}: {_without_token(str(reason))}. See to the network; the same command "
            "goes on with what is missing"
        ) from None  # the cause may hold the token


def _without_token(message: str) -> str:
    """A message of another library, in which the user's token, if it is there, is replaced."""
    from huggingface_hub import get_token

    token = get_token()
    return message.replace(token, "***") if token else message


def _upload(api: HfApi, repo: str, revision: Revision) -> bool:
    """Commit a revision's files to its branch; False if the checkpoint is there no longer."""
    from huggingface_hub import CommitOperationAdd

    try:
        added = [CommitOperationAdd(name, str(revision.directory / name)) for name in revision.files]
        if revision.name != MAIN:
            api.create_branch(repo, branch=revision.name, exist_ok=True)
        api.create_commit(repo, added, commit_message=f"Step {revision.step}", revision=revision.name)
    except (OSError, RuntimeError, ValueError):
        if revision.directory.is_dir():
            raise
        return False
    return True


def _files(directory: Path) -> dict[str, int]:
    """The files of a checkpoint that readers need, with their bytes; none if the run removes it meanwhile."""
    try:
        names = sorted(
            str(path.relative_to(directory))
            for path in directory.rglob("*")
            if path.is_file() and not path.relative_to(directory).parts[0].startswith(("training", "."))
        )
        return {name: os.path.getsize(directory / name) for name in names}
    except FileNotFoundError:
        return {}

"""Files elsewhere, named by URLs such as s3://bucket/text.jsonl; storage/remote.py reads and writes them.

A URL goes into manifests, logs and messages, so one that holds a password, a token or a signature is refused.
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from bert_horovod.errors import UserError, printable_line


class Scheme(NamedTuple):
    """How files of a URL's scheme are reached."""

    package: str  # that fsspec needs for it
    credentials: str  # where they come from


_AWS = Scheme(
    "s3fs", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws; for a public bucket: FSSPEC_S3_ANON=true"
)
_GOOGLE = Scheme("gcsfs", "GOOGLE_APPLICATION_CREDENTIALS, or: gcloud auth application-default login")
_AZURE = Scheme("adlfs", "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN")
_HTTP = Scheme("aiohttp", "~/.netrc")
SCHEMES = {
    "s3": _AWS,
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "hf": Scheme("huggingface_hub", "HF_TOKEN, or: hf auth login"),
    "https": _HTTP,
    "http": _HTTP,
    "file": Scheme("fsspec", "the rights of this user"),
}
_EXPECTED = "s3://, gs://, abfs://, hf:// or https://"
_SSH = ("sftp", "ssh", "scp")
_BY_SSH = "mount the directory (sshfs HOST:DIR MOUNTED) or copy it here (rsync -a HOST:DIR .), and name that path"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_SHORTENED = re.compile(rf"(?i)(?:{'|'.join((*SCHEMES, *_SSH))}):/[^/]")  # by pathlib
_SECRET_FIELD = re.compile(
    r"(?i)[?&;]([^=&;]*(?:sig|signature|token|secret|passw\w*|pwd|credentials?|jwt|bearer|auth|authorization|api_?key)|"
    r"(?:[^=&;]*[-_])?key|sas)="
)
_QUERY = re.compile(r"(://[^\s'\"<>?]+)\?[^\s'\"<>)]*")
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


def is_url(text: object) -> bool:
    """Whether a value names a file elsewhere, also one that pathlib has shortened to a single slash."""
    return bool(_URL.match(str(text)) or _SHORTENED.match(str(text)))


def without_secrets(text: str) -> str:
    """A message of a library without the queries and passwords of the URLs in it (a server may sign an address)."""
    return printable_line(_QUERY.sub(r"\1?...", _PASSWORD.sub(r"\1:...@", text)))


@dataclass(frozen=True)
class Place:
    """A file or a directory elsewhere; it has the parts of a name that pathlib.Path has.

    Make one by parse(); `url` holds no secret and does not end with a slash, but for http, where that is a directory.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "Place":
        return Place(f"{self.url.rstrip('/')}/{name}")

    @property
    def scheme(self) -> str:
        """The scheme, a key of SCHEMES."""
        return self.url.partition("://")[0]

    @property
    def server(self) -> str:
        """What stands between the scheme and the path: host and port, bucket, or container@account."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """The file's name for fsspec's file system of the scheme."""
        rest = self.url.partition("://")[2]
        if self.scheme in ("http", "https"):
            return self.url
        if self.scheme in ("abfs", "abfss", "az"):
            return f"{self.server.partition('@')[0]}/{rest.partition('/')[2]}"
        return rest

    def of_key(self, key: str) -> "Place":
        """The place of a file that fsspec lists, on the same server."""
        if self.scheme in ("http", "https") or not self.url.endswith(self.key):  # the latter: container@account
            return Place(key if "://" in key else f"{self.scheme}://{self.server}/{key.partition('/')[2]}")
        return Place(self.url[: len(self.url) - len(self.key)] + key)

    @property
    def _path(self) -> PurePosixPath:
        path = self.url.partition("://")[2]
        return PurePosixPath(path.partition("?")[0] if self.scheme in ("http", "https") else path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.name

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot, or ""."""
        return self._path.suffix

    def with_name(self, name: str) -> "Place":
        """The place of another name beside this one; a query is left out."""
        return Place(f"{self.scheme}://{self._path.with_name(name)}")

    def with_suffix(self, suffix: str) -> "Place":
        """The place whose name has another suffix."""
        return self.with_name(self._path.with_suffix(suffix).name)


def parse_place(text: str | Path, flag: str) -> Place:
    """The place that a flag's value names, a URL or (for file systems that are mounted) a directory.

    Raises UserError for a scheme that is not known, and for a URL that holds a secret, which the message leaves out.
    """
    if not is_url(text):
        return Place(f"file://{Path(text).absolute()}")
    url = str(text)
    if not _URL.match(url):
        url = url.replace(":/", ":///" if url.lower().startswith("file:") else "://", 1)
    scheme, rest = url.partition("://")[::2]
    scheme = scheme.lower()
    shown = without_secrets(f"{flag} {scheme}://{rest}")
    if scheme not in SCHEMES:
        mend = f"; files that ssh reaches: {_BY_SSH}" if scheme in _SSH else ""
        raise UserError(f"{shown}: no such scheme, {scheme}://; expected a path, or {_EXPECTED}{mend}")
    _refuse_secret(scheme, rest, flag)
    if not rest.strip("/"):
        raise UserError(f"{shown}: expected a name behind ://, such as {scheme}://{_example(scheme)}/text.jsonl")
    return Place(f"{scheme}://{rest if scheme in ('http', 'https') else rest.rstrip('/')}")


def _refuse_secret(scheme: str, rest: str, flag: str) -> None:
    server, _, path = rest.partition("/")
    user = server.rpartition("@")[0]
    name_only = scheme in ("abfs", "abfss", "az", "hf") and ":" not in user
    problem = ""
    if user and not name_only:
        server, problem = server.rpartition("@")[2], "has a user or a password before @"
    elif field := _SECRET_FIELD.search(rest):
        path, problem = f"{path.partition('?')[0]}?...", f"is signed, or holds a key, in its parameter {field[1]}"
    if problem:
        raise UserError(
            without_secrets(
                f"{flag} {scheme}://{server}/{path} {problem}; expected a URL without secrets, because it is written "
                "into files and logs (take this one back, your shell remembers it); credentials come from "
            )
            + f"{SCHEMES[scheme].credentials}"
        )


def _example(scheme: str) -> str:
    return {"hf": "datasets/ORGANISATION/NAME", "https": "HOST", "http": "HOST"}.get(scheme, "BUCKET")

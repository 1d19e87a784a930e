"""Connections to the servers of files elsewhere, and tries that end.

What fails for good (no such file, no right) is a UserError; what a network or a server does is tried again until
PATIENCE_S seconds were waited, and then a RunError: the same command may succeed later. Every process has its own
connections.
"""

import importlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bert_horovod.errors import NO_ROOM, ReportedError, RunError, UserError
from bert_horovod.storage.places import SCHEMES, Place, without_secrets

PATIENCE_S = 60.0  # the longest that one operation waits between its tries, in all
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_TIMEOUT_S = 60  # of a silent connection
# By names, because the libraries of other schemes need not be installed. Those of AWS and of aiohttp are no OSErrors.
_TRANSIENT = {"OSError", "EOFError", "TimeoutError", "HTTPClientError", "ConnectionError", "ClientError"}
_TRANSIENT |= {"HttpError", "HTTPError", "TransportError", "AzureError", "FSTimeoutError"}
_DENIED = {"PermissionError", "NoCredentialsError", "PartialCredentialsError"}
_DENIED |= {"ClientAuthenticationError", "DefaultCredentialsError", "ProfileNotFound", "GatedRepoError"}
_MISSING = {"FileNotFoundError", "ResourceNotFoundError", "IsADirectoryError", "NotADirectoryError"}
_FOR_GOOD = {"FileExistsError", "ClientConnectorCertificateError", "NotImplementedError"}
_REDIRECTS = {"TooManyRedirects", "RedirectClientError", "InvalidURL"}  # of aiohttp: in a circle, or to no web address
_RETRIED_STATUS = (408, 409, 425, 429)
_LOGGERS = (
    *("aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google", "httpx"),
    *("huggingface_hub", "s3fs", "urllib3"),
)

Result = TypeVar("Result")
_filesystems: dict[tuple[int, str], Any] = {}


class Missing(UserError):
    """There is no such file."""


def attempt(place: Place, action: Callable[[Any], Result], doing: str = "read") -> Result:
    """Do something with the place's file system, again after an error that may go away."""
    waited, tries = 0.0, 0
    while True:
        tries += 1
        try:
            return action(_filesystem(place))
        except ReportedError:
            raise
        except Exception as raised:
            error = true_error(raised)
            if isinstance(error, ReportedError):
                raise error from None
            wait_s = min(_FIRST_WAIT_S * 2 ** (tries - 1), _LONGEST_WAIT_S)
            if not _is_transient(error) or waited + wait_s > PATIENCE_S:
                raise _reported(place, error, doing, tries, waited) from None  # a cause may tell a secret
        _filesystems.pop(_connection(place), None)
        time.sleep(wait_s)
        waited += wait_s


def true_error(error: BaseException) -> BaseException:
    """What is behind an error: fsspec says of any failure of a HEAD request that there is no such file."""
    cause = error.__cause__
    return cause if cause is not None and isinstance(error, FileNotFoundError) and not _is(cause, _MISSING) else error


def _is(error: BaseException, names: set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error is about, if it is one."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if isinstance(response, dict):  # botocore's
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    holders = ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code"))
    found = [getattr(holder, name, None) for holder, name in holders]
    return next((int(status) for status in found if isinstance(status, int)), None)


def _is_transient(error: BaseException) -> bool:
    status = status_of(error) or 500
    is_final = (400 <= status < 500 and status not in _RETRIED_STATUS) or status == 501  # the last: not implemented
    if is_final or _is_denied(error) or getattr(error, "errno", None) in NO_ROOM:
        return False
    return _is(error, _TRANSIENT) and not _is(error, _MISSING | _FOR_GOOD | _REDIRECTS)


def _is_denied(error: BaseException) -> bool:
    return _is(error, _DENIED) or status_of(error) in (401, 403)


def _reported(place: Place, error: BaseException, doing: str, tries: int, waited: float) -> Exception:
    """The error to raise after the last try."""
    if isinstance(error, NotImplementedError):
        return NotImplementedError(str(error))
    if doing == "read" and isinstance(error, OSError) and error.errno in NO_ROOM:  # of this machine's disk
        return error
    reason = without_secrets(f"{type(error).__name__}: {error}")
    status = status_of(error)
    if _is_denied(error):
        return UserError(
            f"cannot {doing} {place}: no right to do so ({reason}); credentials come from "
            f"{SCHEMES[place.scheme].credentials}"
        )
    if _is(error, _MISSING) or status == 404:
        return Missing(f"{place}: no such file")
    if _is(error, _REDIRECTS):
        return UserError(
            f"cannot {doing} {place}: its server redirects in a circle, or to no address of the web ({reason}); "
            "give the URL under which the file itself lies"
        )
    again = f"; tried {tries} times, over {waited:.0f} s of waiting" if tries > 1 else ""
    return RunError(
        f"cannot {doing} {place} ({reason}){again}. See to the network or the server, then run the same command again"
    )


def _connection(place: Place) -> tuple[int, str]:
    server = place.server if place.scheme in ("abfs", "abfss", "az") else ""
    return os.getpid(), f"{place.scheme}://{server}"


def _filesystem(place: Place) -> Any:
    """The file system of a place's scheme and server, connected."""
    connection = _connection(place)
    if connection not in _filesystems:
        require_package(place)
        for logger in _LOGGERS:  # they would print what attempt() reports, and addresses with signatures
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        fsspec: Any = importlib.import_module("fsspec")
        _filesystems[connection] = fsspec.filesystem(place.scheme, skip_instance_cache=True, **_options(place))
    return _filesystems[connection]


def require_package(place: Place) -> None:
    """Raise UserError if a package that the place's scheme needs cannot be imported."""
    package = SCHEMES[place.scheme].package
    try:
        importlib.import_module("fsspec")
        importlib.import_module(package)
    except ImportError as error:
        missing = error.name if error.name in ("fsspec", package) else package
        raise UserError(
            f"{place} needs {missing}, which cannot be imported ({error}); install it: pip install {missing}, or, for "
            "URLs of every kind: pip install 'bert_horovod[remote]'"
        ) from error


async def _refuse_encoding(response: Any) -> None:
    """Raise UserError for an answer that is not the file's own bytes."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if response.status < 400 and encoding not in ("identity", ""):
        raise UserError(
            f"{without_secrets(str(response.url))}: its server sends it with Content-Encoding: {encoding}, though "
            "asked for the bytes as they lie there; fetch the file, and name the copy"
        )


def _options(place: Place) -> dict[str, Any]:
    if place.scheme in ("http", "https"):
        import aiohttp

        client = {
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S),
            "trust_env": True,
            "headers": {"Accept-Encoding": "identity"},  # the bytes as they lie there, of which ranges are asked for
            "raise_for_status": _refuse_encoding,
        }
        return {"use_listings_cache": False, "client_kwargs": client}
    if place.scheme in ("abfs", "abfss", "az"):
        account = place.server.partition("@")[2].partition(".")[0]
        return {"use_listings_cache": False, **({"account_name": account} if account else {"anon": False})}
    return {"use_listings_cache": False}

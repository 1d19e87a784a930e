"""The errors of the tokenizers library as errors that a person reads."""

import contextlib
from collections.abc import Iterator

from bert_horovod.corpus.reading.tokenizer_settings import TokenizerSettings
from bert_horovod.errors import DamagedData, ReportedError, UserError
from bert_horovod.runtime.quiet import native_messages_held_back
from bert_horovod.storage.reading import shown


@contextlib.contextmanager
def library_at_work(message: str, kind: type[ReportedError] = DamagedData, quiet: bool = True) -> Iterator[None]:
    """Raise an error for what the tokenizers library raises: Exception, or for a panic of its Rust code another.

    Args:
        message: its beginning.
        kind: of the error.
        quiet: whether the library's own messages are held back, which costs a temporary file.
    """
    try:
        with native_messages_held_back() if quiet else contextlib.nullcontext():
            yield
    except ReportedError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{message}: {shown(error)}") from error


def cutting(settings: TokenizerSettings) -> contextlib.AbstractContextManager[None]:
    """As library_at_work, while texts are cut into tokens with these settings."""
    message = f"the tokenizer {settings} cannot cut a text; expected a tokenizer.json whose expressions end"
    return library_at_work(message, UserError, quiet=False)

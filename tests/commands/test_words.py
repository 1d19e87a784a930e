"""Texts of arguments and of standard input whose bytes are not all UTF-8."""

import io
import os

from bert_horovod.commands.shared.flags import lines_of, whole_text


def test_an_argument_is_text_whatever_its_bytes():
    assert whole_text(os.fsdecode(b"caf\xe9 [MASK]")) == "caf\ufffd [MASK]"
    assert whole_text("café 北京 \U0001f600") == "café 北京 \U0001f600"


def test_lines_go_on_after_bytes_that_are_no_text(capsys):
    stream = io.TextIOWrapper(io.BytesIO(b"good\r\ncaf" + b"\xe9\n\n\xff\n" + "né\ufffd".encode()), "ascii")
    assert list(lines_of(stream)) == ["good", "caf\ufffd", "", "\ufffd", "né\ufffd"]
    assert capsys.readouterr().err.count("line 2 of standard input has bytes that are not UTF-8") == 1
    assert list(lines_of(io.StringIO("a\nb\udcff"))) == ["a", "b?"]

"""Files that a user names, read."""

import pytest

from bert_horovod.errors import ReportedError, UserError
from bert_horovod.storage.reading import read_given_json


def test_a_json_file_that_a_flag_names_is_read_or_told_with_the_flag(tmp_path):
    path = tmp_path / "given.json"
    path.write_text('{"a": 1}', encoding="utf-8")
    assert read_given_json(path, "--given", "an object") == {"a": 1}
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"--given .*given\.json: expected an object \("):
        read_given_json(path, "--given", "an object")
    with pytest.raises(ReportedError, match=r"--given .*none\.json: No such file"):
        read_given_json(tmp_path / "none.json", "--given", "an object")

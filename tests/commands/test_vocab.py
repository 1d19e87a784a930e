"""The vocab command, as it is typed."""

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.corpus.reading.vocabulary import read_vocabulary


def test_vocab_writes_a_vocabulary_and_names_the_next_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Some words here and some there. " * 9, encoding="utf-8")
    words = ["vocab", "--input", "a.txt", "--size", "600", "--output", "v.txt", "--cased"]
    assert dispatch(parse(["bert-horovod", *words])) == 0
    assert "Some" in read_vocabulary("v.txt")
    out = capsys.readouterr().out
    assert "next: bert-horovod prepare --input ... --vocab v.txt --output_dir DIR --cased" in out
    assert "too few different words" in out


def test_a_mistake_is_one_message_and_leaves_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("", encoding="utf-8")
    assert dispatch(parse(["bert-horovod", "vocab", "--input", "a.txt", "--output", "v.txt"])) == 2
    assert "holds no words" in capsys.readouterr().err
    assert not (tmp_path / "v.txt").exists()

"""URLs that name files elsewhere: their parts, and secrets that are refused."""

from pathlib import Path

import pytest

from bert_horovod.errors import UserError
from bert_horovod.storage.places import is_url, parse_place, without_secrets


@pytest.mark.parametrize(
    ("url", "key", "name", "suffix"),
    [
        ("s3://lab/a b/x.jsonl.gz", "lab/a b/x.jsonl.gz", "x.jsonl.gz", ".gz"),
        ("abfs://box@account.dfs.core.windows.net/d/x.txt", "box/d/x.txt", "x.txt", ".txt"),
        ("hf://datasets/org/set@main/x.parquet", "datasets/org/set@main/x.parquet", "x.parquet", ".parquet"),
        ("https://host/d/x.txt?download=1", "https://host/d/x.txt?download=1", "x.txt", ".txt"),
        ("S3:/lab/x.txt", "lab/x.txt", "x.txt", ".txt"),  # as pathlib shortens it
    ],
)
def test_a_place_has_the_parts_of_a_url_and_its_neighbours(url, key, name, suffix):
    place = parse_place(url, "--input")
    assert is_url(url)
    assert (place.key, place.name, place.suffix) == (key, name, suffix)
    assert place.of_key(key) == place
    assert place.with_suffix("").name == name.removesuffix(suffix)
    assert place.of_key(key.replace(name, "other")).name == "other"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://key:hidden@lab/x.txt", "a user or a password before @"),
        ("sftp://me:hidden@host/x.txt", "files that ssh reaches: mount the directory (sshfs HOST:DIR"),
        ("ssh:/host/x.txt", "no such scheme, ssh://"),
        ("https://hidden@host/x.txt", "a user or a password before @"),
        ("https://host/x.txt?a=1&X-Amz-Signature=hidden", "in its parameter X-Amz-Signature"),
        ("https://account.blob.core.windows.net/c/x.txt?sv=2024&sig=hidden", "in its parameter sig"),
        ("https://host/x.txt?token=hidden", "in its parameter token"),
        ("https://host/x.txt?api_key=hidden", "api_key"),
        ("s3://lab/x.txt?X-Amz-Credential=hidden", "X-Amz-Credential"),
        ("ftp://me:hidden@host/x.txt", "no such scheme, ftp://"),
        ("s3://", "expected a name behind ://"),
    ],
)
def test_a_url_with_a_secret_or_without_a_name_is_refused_and_the_secret_is_not_repeated(url, words):
    with pytest.raises(UserError, match="--input") as caught:
        parse_place(url, "--input")
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://host/x.txt?author=me&page=3",
        "https://host/monkey=1/x.txt",
        "hf://datasets/o/s@v1/x.txt",
        "s3://b/a?.txt",
    ],
)
def test_ordinary_parameters_are_kept(url):
    assert str(parse_place(url, "--input")) == url


def test_a_path_is_no_url_and_a_message_of_a_library_loses_its_secrets():
    assert not any(map(is_url, ("data/x.txt", Path("/c:/x"), "-")))
    assert parse_place("/mnt/mirror", "--mirror").key == "/mnt/mirror"
    text = without_secrets("404, url='https://cdn/x?sig=abc', then https://me:pw@host/y")
    assert text == "404, url='https://cdn/x?...', then https://me:...@host/y"

"""Dumps: which pages are articles, what is counted, and how bad dumps are refused."""

import bz2
import gzip
import tracemalloc

import pytest

from bert_horovod.corpus.reading.finding import find_sources
from bert_horovod.corpus.reading.formats import DUMP, format_of, read_sections
from bert_horovod.corpus.reading.pieces import split_source
from bert_horovod.corpus.reading.sources import SourceReader
from bert_horovod.corpus.reading.text import SECTION_BYTES
from bert_horovod.corpus.reading.wikipedia import read_articles
from bert_horovod.errors import DamagedData, UserError
from tests.corpus.reading.documents import HEAD, TAIL, documents, dump, page, source_of, texts_of

PROSE = "'''Ants''' are [[insect]]s. They live & work in nests."


def articles(path):
    source = source_of(path)
    with SourceReader(source) as reader:
        return [(article.title, article.wikitext) for article in read_articles(reader)], reader.passed_over


def write(path, data):
    path.write_bytes(bz2.compress(data) if path.suffix == ".bz2" else data)
    return path


@pytest.mark.parametrize("name", ["a.xml", "a.xml.bz2", "enwiki-pages-articles1.xml-p1p41242", "a.xml-p1p41242.bz2"])
def test_articles_come_with_title_and_text_and_the_rest_is_counted(tmp_path, name):
    pages = [
        page("Ant", PROSE),
        page("Ants", "#REDIRECT [[Ant]]", redirect="Ant"),
        page("Talk:Ant", "Is it?", namespace=1),
        page("Bee & wasp", "Second <ref>x</ref> text."),
        page("Cee (disambiguation)", "C may be"),
        page("No text", ""),
    ]
    titled_texts, passed_over = articles(write(tmp_path / name, dump(*pages)))
    assert titled_texts == [("Ant", PROSE), ("Bee & wasp", "Second <ref>x</ref> text."), ("No text", "")]
    assert passed_over == {"redirects": 1, "pages in other namespaces": 1, "disambiguation pages": 1}


@pytest.mark.parametrize(
    ("wikitext", "is_article"),
    [
        ("X may be: {{disambiguation}}", False),
        ("X may be: {{ Disambiguation|geo|ship}}", False),
        ("X may be: {{human name disambiguation}}", False),
        ("X may be: {{Disambiguation_page\n}}", False),
        ("X may be: {{disambig}}", False),
        ("X may be: {{hndis|Smith, John}}", False),
        ("X may be: {{SIA|mountains}}", False),
        ("X may be: __DISAMBIG__", False),
        ("X kann sein: {{Begriffsklärung}}", False),
        ("X is. {{disambiguation needed|date=May 2020}}", True),
        ("{{redirect|X|other uses|X (disambiguation)}} X is.", True),
        ("{{cite web|title=Disambiguation}} X is {{dablink|y}}.", True),
        ("X is a disambiguation [[disambiguation]].", True),
    ],
)
def test_disambiguation_pages_are_known_by_their_templates(tmp_path, wikitext, is_article):
    titled_texts, _ = articles(write(tmp_path / "a.xml", dump(page("X", wikitext))))
    assert bool(titled_texts) == is_article


def test_articles_become_documents_with_a_title_and_every_document_is_counted(tmp_path):
    long = "\n\n".join(f"Paragraph {i}. " + "word " * 2000 + "end." for i in range(20))
    endless = "Before.\n\n" + "word " * 20_000 + "\n\nAfter [[x."
    pages = [page("Empty", "{{Infobox}}"), page("Long", long), page("B", "#R", redirect="C"), page("Endless", endless)]
    source = source_of(tmp_path / "a.xml", dump(*pages))
    with SourceReader(source) as reader:
        sections = list(read_sections(reader, "file"))
    assert (sections[0].text, sections[0].bytes, sections[0].ends_document) == ("", 0, True)
    assert [section.title for section in sections if section.ends_document] == ["Empty", "Long", "Endless"]
    assert len(sections) > 4
    assert {section.title for section in sections[1:-1]} == {"Long"}
    assert all(section.bytes == len(section.text.encode()) <= SECTION_BYTES for section in sections)
    assert sections[-1].text == "Before."
    assert reader.passed_over == {
        "redirects": 1,
        "templates": 1,
        "paragraphs with an endless sentence": 1,
        "paragraphs with markup left": 1,
    }


def test_skipped_documents_are_skipped_exactly_and_count_for_nothing(tmp_path):
    pages = [
        page(f"{kind} {i}", "Text." if kind == "A" else "[[x", redirect="A" if kind == "R" else "")
        for i in range(4)
        for kind in "ARB"
    ]
    source = source_of(tmp_path / "a.xml", dump(*pages))
    with SourceReader(source) as reader:
        all_sections = [(section, reader.passed_over.copy()) for section in read_sections(reader, "file")]
    for skip in range(len(all_sections) + 2):
        with SourceReader(source) as reader:
            assert list(read_sections(reader, "file", skip)) == [section for section, _ in all_sections[skip:]]
            before = all_sections[min(skip, len(all_sections)) - 1][1] if skip else {}
            after = {name: count - before.get(name, 0) for name, count in all_sections[-1][1].items()}
            if skip <= len(all_sections):
                assert reader.passed_over == {name: count for name, count in after.items() if count}


WHOLE = dump(page("Ant", PROSE), page("Bee", PROSE * 300))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not XML"),
        (b"Just some words.\n" * 200, "is not XML .it begins with b'Just some words"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<feed>' + b"<doc/>" * 9999, "is XML, but not of MediaWiki"),
        (WHOLE.decode().encode("utf-16"), "is not XML"),
        (WHOLE[: len(WHOLE) // 2], "page 'Bee': the dump ends in the middle of this page"),
        (WHOLE[: WHOLE.index(b"<title>Ant") + 3], "page 'without a title': the dump ends in the middle"),
        (WHOLE.removesuffix(TAIL.encode()), "ends without </mediawiki>"),
        (HEAD.encode(), "ends without </mediawiki>"),
        (WHOLE.replace(b"</revision>", b"</revisio>", 1), "page 'Ant': not well-formed XML"),
    ],
)
def test_what_is_not_a_whole_dump_is_refused(tmp_path, data, message):
    damaged = DamagedData if "XML, but not" not in message and "is not XML" not in message else UserError
    with pytest.raises(damaged, match=f"a.xml.*{message}"):
        articles(write(tmp_path / "a.xml", data))


FULL = dump(page("Ant", PROSE))
STUB = page("Ant", "").replace('bytes="0" xml:space="preserve"></text>', 'bytes="500" id="7" />')


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HEAD.encode() + b"<logitem><id>1</id></logitem>" * 20 + TAIL.encode(), "a.xml is a dump of a wiki's log"),
        (dump(STUB), "a.xml is a dump without text .a stub dump.: its first 1 article has none"),
        (dump(page("R", "", redirect="Q"), *[STUB] * 99), "a stub dump.: its first 10 articles have none"),
        (FULL.replace(b"<ns>0</ns>", b""), "page 'Ant': no <ns>: a dump of the old format export-0.11, which does not"),
    ],
)
def test_a_dump_without_text_or_namespaces_is_named_at_its_first_pages(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        articles(write(tmp_path / "a.xml", data))


def test_a_text_that_a_dump_lacks_is_counted(tmp_path):
    deleted = STUB.replace('bytes="500" id="7"', 'bytes="500" deleted="deleted"')
    titled_texts, passed_over = articles(write(tmp_path / "a.xml", dump(STUB, deleted, page("Bee", PROSE), STUB)))
    assert titled_texts == [("Bee", PROSE)]
    assert passed_over == {"articles whose text the dump lacks": 3}


def history(title, *revisions):
    """A page with a revision for each (timestamp, number, text); without a timestamp where it is ""."""
    times = [f"<timestamp>{time}</timestamp>" if time else "" for time, _, _ in revisions]
    return (
        f"<page><title>{title}</title><ns>0</ns><id>9999</id>"
        + "".join(
            f"<revision><id>{number}</id><parentid>8</parentid>{time}<text>{text}</text></revision>"
            for time, (_, number, text) in zip(times, revisions, strict=True)
        )
        + "<discussionthreadinginfo /></page>"
    )


@pytest.mark.parametrize("block_bytes", [7, 100, 1 << 20])
def test_the_newest_revision_of_a_page_is_taken(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr("bert_horovod.corpus.reading.sources.BLOCK_BYTES", block_bytes)
    old, new = "2010-01-01T00:00:00Z", "2020-01-01T00:00:00Z"
    pages = [
        history("Rising", (old, 1, "a"), (new, 2, "b")),
        history("Falling", (new, 2, "b"), (old, 1, "a")),
        history("Later number", (old, 9, "a"), (new, 2, "b"), (old, 11, "c")),
        history("One time", (new, 10, "b"), (new, 9, "a")),
        history("No times", ("", 10, "b"), ("", 9, "a")),
        history("One", (old, 1, "b")),
        history("Empty in the end", (old, 1, "a"), (new, 2, "")).replace("<text></text>", '<text bytes="0" />'),
    ]
    titled_texts, passed_over = articles(write(tmp_path / "a.xml", dump(*pages)))
    assert [text for _, text in titled_texts] == ["b"] * 6 + [""]
    assert passed_over == {"older revisions of articles": 7}


def test_a_page_with_an_endless_history_takes_the_memory_of_two_revisions(tmp_path, monkeypatch):
    path = tmp_path / "a.xml.gz"
    revision = f"<revision><timestamp>{{}}</timestamp><text>{PROSE * 1000}</text></revision>".replace("&", "&amp;")
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((HEAD + "<page><title>All</title><ns>0</ns>").encode())
        for i in range(400):
            file.write(revision.format(f"20{i:03}").encode())
        file.write(b"</page>" + TAIL.encode())
    monkeypatch.setattr("bert_horovod.corpus.reading.wikipedia.MAXIMUM_PAGE_BYTES", 5 << 20)
    tracemalloc.start()
    [(title, _)], passed_over = articles(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert title == "All"
    assert passed_over == {"older revisions of articles": 399}
    assert peak < 10e6


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("38-kowiki.xml", "백두산은 한국에서 가장 높은 산이다. 높이는 2744 미터이다."),
        ("38-dewiki.xml", "Berlin ist die Hauptstadt und die größte Stadt des Landes. Die Spree fließt hindurch."),
        ("38b-dewiki.xml", "Berlin ist die Hauptstadt des Landes und liegt an der Spree.\nParis est la capitale."),
        ("43-history.xml", "Newest version of this page is complete and good."),
    ],
)
def test_reported_dumps_give_their_prose_alone(shared_data, file, text):
    found = documents(SourceReader(source_of(shared_data / "cases" / file)))
    assert "\n".join(body for _, body in found) == text


def test_names_in_siteinfo_hold_for_every_part_of_a_dump(tmp_path):
    site = HEAD.replace("</namespaces>", '<namespace key="6">Qqq</namespace></namespaces>')
    body = "".join(page(f"P{i}", f"[[Qqq:a|Caption.]]Text {i}.") for i in range(50))
    source = source_of(tmp_path / "a.xml", (site + body + TAIL).encode())
    assert texts_of(split_source(source, "file", 4000)) == [f"Text {i}." for i in range(50)]


def test_xml_declaration_comment_and_joined_dumps_are_no_mistake(tmp_path):
    joined = b'<?xml version="1.0" encoding="utf-8"?>\n<!-- of\ntoday -->\n' + WHOLE + b"\n" + WHOLE + b"<!-- end -->"
    titled_texts, _ = articles(write(tmp_path / "a.xml", joined))
    assert [title for title, _ in titled_texts] == ["Ant", "Bee", "Ant", "Bee"]


def test_memory_does_not_grow_with_a_dump_and_an_enormous_page_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.xml.gz"
    body = page("Ant", PROSE * 400)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(HEAD.encode())
        for _ in range(20):
            file.write(body.encode() * 50)
        file.write(TAIL.encode())
    source = source_of(path)
    tracemalloc.start()
    with SourceReader(source) as reader:
        assert sum(1 for _ in read_articles(reader)) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((HEAD + "<page><title>All</title>").encode())
        for _ in range(10):
            file.write(b"revision" * (1 << 17))
    monkeypatch.setattr("bert_horovod.corpus.reading.wikipedia.MAXIMUM_PAGE_BYTES", 5 << 20)
    with pytest.raises(UserError, match="page 'All': longer than 5 MiB"):
        articles(path)


def test_a_directory_is_searched_for_dumps_but_not_for_their_indexes(tmp_path, capsys):
    for name in ("x-articles.xml.bz2", "y.xml-p1p2.bz2", "x-articles-multistream-index.txt.bz2", "z.html"):
        (tmp_path / name).write_bytes(b"")
    sources = find_sources([str(tmp_path)])
    assert [(source.name, format_of(source)) for source in sources] == [
        ("x-articles.xml.bz2", DUMP),
        ("y.xml-p1p2.bz2", DUMP),
    ]
    assert "x-articles-multistream-index.txt.bz2, z.html" in capsys.readouterr().err


def test_the_real_sample_has_known_pages_and_no_markup_left(shared_data):
    path = shared_data / "wikipedia" / "enwiki-sample-pages-articles.xml.bz2"
    if not path.exists():
        pytest.skip("needs a real piece of Wikipedia, which is not here")
    source = source_of(path)
    with SourceReader(source) as reader:
        sections = list(read_sections(reader, "file"))
    passed_over = reader.passed_over
    assert (passed_over["redirects"], passed_over["disambiguation pages"]) == (100, 8)
    assert sum(section.ends_document for section in sections) == 98
    assert passed_over["paragraphs with markup left"] < 30
    text = "\n".join(section.text for section in sections)
    assert len(text) > 2_500_000
    for residue in ("[[", "]]", "{{", "}}", "<ref", "==", "|thumb", "thumb|", "Category:", "''", "&nbsp;", "<br"):
        assert residue not in text
    anarchism = next(section for section in sections if section.title == "Anarchism")
    assert anarchism.text.startswith("Anarchism is a political philosophy that advocates self-governed societies based")

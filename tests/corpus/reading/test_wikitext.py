"""Wikitext to paragraphs: a case for every rule, and headings of sections without prose in many languages."""

import pytest

from bert_horovod.corpus.reading.wikitext import MARKUP_LEFT, WikiNames, is_without_prose, plain_text


@pytest.mark.parametrize(
    ("wikitext", "paragraphs"),
    [
        ("One.\nTwo.\n\n\nThree.", ["One. Two.", "Three."]),
        ("'''Ants''' are ''very'' '''''small'''''; it's so.", ["Ants are very small; it's so."]),
        ("An [[ant]], [[Bee (insect)|bees]], [[#x|x]]s.", ["An ant, bees, xs."]),
        ("A [http://a.b/c site], bare [http://a.b] or not.", ["A site, bare or not."]),
        ("A&nbsp;b &amp; c&#8211;d &lt; e &amp;lt; AT&T &copy.", ["A b & c–d < e &lt; AT&T &copy."]),
        ("A<!-- b\n\n{{c -->d. <!-- endless\n\nE.", ["Ad."]),
        ("A<ref>b {{c}} [[d</ref>e<ref name=f />g<REF name='h'>i</Ref >.", ["Aeg."]),
        ("A<ref name=\"x\">{{cite|title=a}}\n\n* b</ref> b.", ["A b."]),
        ("Sum <math>\\frac{{a}}{b}}}</math> is <math />so.", ["Sum is so."]),
        ("A.\n<gallery>\nFile:B.jpg|c\n</gallery>\n<timeline>x\n</timeline><score>y</score>D.", ["A.", "D."]),
        ("A.\n<syntaxhighlight lang=c>\nint a[[1]];\n</syntaxhighlight>\n<pre>x {{</pre>\nB.", ["A.", "B."]),
        ("{{Infobox\n| a = {{b|{{c}}}}\n| d = [[e]]\n}}\n'''A''' {{b}} c.", ["A c."]),
        ("{{a|{{{b|}}}}} A {{{{c}} d}} b.", ["A b."]),
        ("{{Infobox}} '''A''' b.\n{{x}}\nC.", ["A b.", "C."]),
        ("A.\n{|class=x\n! h\n|-\n| a || b {{c}}\n{|\n| in\n|}\n|}\nB.", ["A.", "B."]),
        ("A.\n:{| \n| x\n{{y\n|}}\n|}\nB.", ["A.", "B."]),
        ("[[File:a.jpg|thumb|left|A [[b]] {{c}} by [[d|e]]]]F.", ["F."]),
        ("[[image:a.jpg|thumb|In [http://b c]]]F. [[Datei:g.png|mini|H.]]I. [[ Fichier : j.png]]", ["F. I."]),
        ("A.[[Category:B]][[Kategorie:C|d]]\n[[Category:E]]\n[[fr:Ant]]\n[[zh-min-nan:X]]\n[[simple:Ant]]", ["A."]),
        ("See [[:File:a.jpg|this picture]] and [[s:Ant|text]] or [[Re: x]].", ["See this picture and text or Re: x."]),
        ("A.\n== B ==\nC.\n=== D===  \nE.\n==F<!-- x -->==\nG.", ["A.", "C.", "E.", "G."]),
        ("A.\n== References ==\nB.\n=== X ===\nC.\n== '''D''' ==\nE.\n==See also==\nF.", ["A.", "E."]),
        ("A.\n== D ==\n=== Notes ===\nB.\n==== X ====\nC.\n=== E ===\nF.", ["A.", "F."]),
        ("Ants:\n* Black.\n* The [[red]] one is not at home.\n** None of them said a word!\nB.",
         ["Ants:", "The red one is not at home.", "None of them said a word!", "B."]),
        ("; Term\n: It means that all ants sleep.\n# A list of five words\n: (x)", ["It means that all ants sleep."]),
        ("A.\n  int main() {}\nB.\n----\nC.", ["A.", "B.", "C."]),
        ("<div style='x'>A.<br>B.</div><br/> C<sup>2</sup>.\n<blockquote>\nD.\n\nE.</blockquote>",
         ["A. B.", "C2.", "D.", "E."]),
        ("A <nowiki>[[b]]</nowiki>c.\n\n<nowiki>''</nowiki>D <nowiki>&amp; e</nowiki>.", ["''D & e."]),
        ("Ant ({{lang|el|x}}; {{y}}) is. Bee ({{z}}, born 1) . Cee {{x}}, d. The .NET.",
         ["Ant is. Bee (born 1). Cee, d. The .NET."]),
        ("__NOTOC__A.\n\n123\n\n--\n\n日本。", ["A.", "日本。"]),
        ("", []),
    ],
)  # fmt: skip
def test_each_rule(wikitext, paragraphs):
    computed, removed = plain_text(wikitext)
    assert computed == paragraphs
    assert removed[MARKUP_LEFT] == wikitext.count("<nowiki>[[")


@pytest.mark.parametrize(
    "bad",
    [
        *("A [[b.", "A ]] b.", "A {{b.", "A }} b.", "{| class=x", "| a || b", "! a", "|- x", "A <ref>b."),
        *("A <ref name=x b.", "A <foo>b.", "A &lt;ref&gt;b.", "A a|thumb|b.", "A thumb|left|b."),
        *("See [[:Category:Ants]].", "A == b.", "A [//x.y z"),
    ],
)
def test_a_paragraph_that_still_holds_markup_is_left_out_and_counted(bad):
    paragraphs, removed = plain_text(f"One.\n\n{bad}\n\nTwo.")
    assert (paragraphs, removed[MARKUP_LEFT]) == (["One.", "Two."], 1)


def test_an_unclosed_template_or_table_does_not_swallow_what_is_whole():
    paragraphs, removed = plain_text("A {{b.\n\nC {{d}} e.\n\n{|\n| f\n\nG [[File:h|{{i}}]] j.")
    assert (paragraphs, removed[MARKUP_LEFT]) == (["C e.", "G j."], 3)


def test_what_is_removed_is_counted_once_by_its_kind():
    paragraphs, removed = plain_text(
        "{{a|{{b}}[[File:c.jpg]]}}One.<ref>{{cite}}</ref> [[File:d.jpg|thumb|A [[e]] {{f}}.]]\n"
        "<math>x</math><!-- no --><nowiki>''</nowiki>\n{|\n| {{g}}\n|}\n[[Category:H]][[Category:I]] [[de:J]]\n"
        "== See also ==\n=== K ===\n[[L]] __NOTOC__\n== __init__ ==\nThe __init__ method."
    )
    assert paragraphs == ["One. ''", "The __init__ method."]
    assert removed == {
        "templates": 1,
        "references": 1,
        "links to files, with their captions": 1,
        "formulas, galleries and the like": 1,
        "tables": 1,
        "links to categories": 2,
        "links to other languages": 1,
        "sections without prose (references, links, ...)": 1,
    }


@pytest.mark.parametrize(
    ("text", "paragraph"),
    [
        ("[[Stó:lō]] and [[re:publica]] and [[Star Trek: Picard]].", "Stó:lō and re:publica and Star Trek: Picard."),
        ("[[2001: A Space Odyssey|The film]], [[:Category:X|this]].", "The film, this."),
        ("[[It: Chapter Two]], [[:fr:Mot|mot]], [[wikt:word|word]].", "It: Chapter Two, mot, word."),
        ("[[abc:de]] is [[x: Y.2]][[be-x-old:A]][[als:B]].", "abc:de is x: Y.2."),
    ],
)
def test_a_title_with_a_colon_that_is_no_namespace_is_words(text, paragraph):
    assert plain_text(text)[0] == [paragraph]


@pytest.mark.parametrize(
    ("file", "category"),
    [
        *(("Tiedosto", "Luokka"), ("ملف", "تصنيف"), ("Soubor", "Kategorie"), ("Dosya", "Kategori"), ("파일", "분류")),
        *(("Tập tin", "Thể loại"), ("پرونده", "رده"), ("Файл", "Категорія"), ("Qqq file", "Qqq category")),
    ],
)
def test_files_and_categories_are_known_by_the_names_of_the_dump_the_english_and_older_ones(file, category):
    names = WikiNames({"-2": "Medium", "6": file, "14": category, "0": ""})
    mark = "\u200f"
    for own_file in (file, file.lower(), file.replace(" ", "_"), mark + file + " ", "File", "Image", "Medium", "Kuva"):
        text = f"[[{own_file}:A b.jpg|mini|In [[c]].]]\nText.\n[[{category.replace(' ', '_')}:D|e]]\n[[Category:F]]"
        paragraphs, removed = plain_text(text, names)
        assert paragraphs == ["Text."]
        assert removed == {"links to files, with their captions": 1, "links to categories": 2}
    assert plain_text("[[Unnamed alias:a.svg|x|Caption.]]Text.", names)[0] == ["Text."]
    assert plain_text(f"A.\n\nSee [[:{category}:B]].", names) == (["A."], {MARKUP_LEFT: 1})


@pytest.mark.timeout(120)  # it takes a second; when it grows with the square of the text, minutes
def test_time_does_not_explode_on_broken_markup():
    plain_text("[[" * 20_000 + "}} " * 20_000)
    plain_text("* A" + " " * 50_000 + "b c d e f g" * 5_000 + ".(" * 5_000)
    for piece in (
        *("<a ", "<nowiki>", "[[", "{{", "{|\n", "<ref>", "<!--", "]]", "}}", "|}\n", "<math>{{", "[[File:a|{{"),
        *("[http://", "''", "(", " "),
    ):
        plain_text(piece * 20_000 + "}} ]] |}")


@pytest.mark.parametrize(
    "heading",
    [
        *("References", "see also", "Sources and further reading", "Notes, references and sources"),
        *("Literatur und Weblinks", "Einzelnachweise:", "Notes et références", "Voir aussi", "Referencias y notas"),
        *("Véase  también", "Note e riferimenti", "Ver também", "Bronnen, noten en/of referenties", "Див. також"),
        *("Källor och referenser", "Przypisy i bibliografia", "Примечания и литература", "脚注・参考文献"),
        *("注释及参考文献", "參考文獻", "각주 및 참고 문헌", "المراجع والمصادر", "وصلات خارجية"),
        *("پانویس و منابع", "پیوند به بیرون"),
        *("Liên kết ngoài", "Chú thích và tham khảo", "Vegeu també", "Lähteet ja viitteet", "Aiheesta muualla"),
        *("Poznámky a reference", "Související články", "Kaynakça ve dış bağlantılar", "DIŞ BAĞLANTILAR"),
    ],
)
def test_sections_without_prose_are_known_in_many_languages(heading):
    assert is_without_prose(heading)


@pytest.mark.parametrize("heading", ["History", "Notes on style", "Literature and arts", "", "Geschichte", "歴史", "и"])
def test_other_sections_stay(heading):
    assert not is_without_prose(heading)

"""Headings of sections without prose, in many languages."""

import pytest

from bert_horovod.corpus.reading.wiki_names import is_without_prose


@pytest.mark.parametrize(
    "heading",
    [
        "References",
        "see also",
        "Sources and further reading",
        "Notes, references and sources",
        "Literatur und Weblinks",
        "Einzelnachweise:",
        "Notes et références",
        "Voir aussi",
        "Referencias y notas",
        "Véase  también",
        "Note e riferimenti",
        "Ver também",
        "Bronnen, noten en/of referenties",
        "Källor och referenser",
        "Przypisy i bibliografia",
        "Примечания и литература",
        "Див. також",
        "脚注・参考文献",
        "注释及参考文献",
        "參考文獻",
        "각주 및 참고 문헌",
        "المراجع والمصادر",
        "وصلات خارجية",
        "پانویس و منابع",
        "پیوند به بیرون",
        "Liên kết ngoài",
        "Chú thích và tham khảo",
        "Vegeu també",
        "Lähteet ja viitteet",
        "Aiheesta muualla",
        "Poznámky a reference",
        "Související články",
        "Kaynakça ve dış bağlantılar",
        "DIŞ BAĞLANTILAR",
    ],
)
def test_sections_without_prose_are_known_in_many_languages(heading):
    assert is_without_prose(heading)


@pytest.mark.parametrize("heading", ["History", "Notes on style", "Literature and arts", "", "Geschichte", "歴史", "и"])
def test_other_sections_stay(heading):
    assert not is_without_prose(heading)

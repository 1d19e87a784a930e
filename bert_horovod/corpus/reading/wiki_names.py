"""Names by which a wiki's markup is known in each language: of namespaces, sections without prose, other wikis.

The dump says its own namespaces' names in <siteinfo>. The tables here have what it does not say: older names of the
namespaces of files and categories, and the headings of sections without prose, of the largest Wikipedias.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from unicodedata import normalize

FILE_NAMESPACES = ("-2", "6")  # Media, File
CATEGORY_NAMESPACE = "14"

# Each wiki knows the English names beside its own.
_FILE_NAMES = (
    "file image media datei bild fichier archivo imagen immagine ficheiro imagem arquivo bestand afbeelding plik "
    "grafika fil файл изображение зображення ファイル 画像 文件 檔案 档案 图像 圖像 파일 그림 ملف صورة پرونده تصویر "
    "tập_tin hình fitxer imatge payl paypay soubor tiedosto kuva dosya resim fájl kép berkas gambar fișier imagine "
    "датотека слика datoteka slika bilde billede קובץ תמונה αρχείο εικόνα картинка súbor fitxategi irudi pilt fail"
)
_CATEGORY_NAMES = (
    "category kategorie catégorie categoría categoria categorie kategoria kategori категория категорія カテゴリ 分类 "
    "分類 분류 تصنيف رده thể_loại kategoriya kaarangay luokka kategória kategorija категорија קטגוריה κατηγορία "
    "kategória kategooria"
)
# A link with such an end is to a file, whatever the name of the namespace: wikis have aliases that no dump names.
_FILE_ENDS = "jpe?g|png|svg|gif|tiff?|webp|xcf|pdf|djvu|og[agv]|webm|mp[34]|midi?|wav|flac"

_SECTIONS = {
    "en": "references, external links, external link, see also, further reading, notes, bibliography, sources, "
    "footnotes, citations, works cited, literature, reference, selected bibliography, gallery, endnotes, explanatory "
    "notes, general references, cited sources, notelist, additional reading, related articles",
    "de": "literatur, weblinks, weblink, einzelnachweise, siehe auch, quellen, anmerkungen, fußnoten, belege, "
    "einzelbelege, quellenangaben, bibliographie, bibliografie, externe links, galerie, referenzen, nachweise, "
    "quellen- und literaturverzeichnis, literaturverzeichnis, weiterführende literatur",
    "fr": "références, référence, notes, voir aussi, liens externes, lien externe, bibliographie, annexes, articles "
    "connexes, article connexe, sources, galerie, liens internes, notes de bas de page, lectures complémentaires, "
    "webographie, ouvrages, pour approfondir, voir également, à lire également",
    "es": "referencias, enlaces externos, enlace externo, véase también, vease también, notas, bibliografía, "
    "fuentes, galería, bibliografía adicional, lecturas adicionales, notas al pie, lectura adicional, otras lecturas",
    "it": "note, bibliografia, collegamenti esterni, voci correlate, altri progetti, fonti, riferimenti, galleria "
    "d'immagini, letture consigliate, note bibliografiche, annotazioni",
    "pt": "referências, referência, ligações externas, ligação externa, ver também, veja também, notas, "
    "bibliografia, fontes, leitura adicional, galeria, leituras adicionais, links externos, leitura complementar, "
    "notas de rodapé, referências bibliográficas",
    "nl": "externe links, externe link, zie ook, bronnen, bron, referenties, noten, voetnoten, literatuur, "
    "bronvermelding, bibliografie, galerij, bronnen en referenties, verder lezen",
    "sv": "källor, referenser, externa länkar, extern länk, se även, noter, fotnoter, litteratur, tryckta källor, "
    "vidare läsning, bibliografi, källförteckning, webbkällor, galleri, anmärkningar, källhänvisningar",
    "pl": "przypisy, bibliografia, linki zewnętrzne, link zewnętrzny, zobacz też, uwagi, źródła, literatura, "
    "galeria, literatura uzupełniająca, literatura dodatkowa",
    "ru": "примечания, литература, ссылки, см. также, смотри также, смотрите также, источники, комментарии, сноски, "
    "библиография, галерея, внешние ссылки, дополнительная литература, использованная литература, список литературы",
    "uk": "примітки, література, посилання, див. також, дивись також, дивіться також, джерела, виноски, "
    "бібліографія, галерея, зовнішні посилання, коментарі, додаткова література, зноски",
    "ja": "脚注, 参考文献, 外部リンク, 関連項目, 出典, 注釈, 注, 参照, 関連文献, 関連書籍, 文献, ギャラリー, 注記, "
    "脚註, 註釈, 引用文献, 参考資料, 参考図書, 外部サイト, 出典・脚注, 関連図書",
    "zh": "参考文献, 參考文獻, 外部链接, 外部連結, 外部鏈接, 参见, 參見, 参看, 參看, 注释, 註釋, 注釋, 注解, 註解, "
    "参考资料, 參考資料, 参考来源, 參考來源, 延伸阅读, 延伸閱讀, 脚注, 腳註, 腳注, 备注, 備註, 来源, 來源, 相关条目, "
    "相關條目, 参考, 參考, 扩展阅读, 擴展閱讀, 参考书目, 參考書目, 图库, 圖庫, 相关链接, 相關連結, 画廊, 畫廊",
    "ko": "각주, 참고 문헌, 참고문헌, 외부 링크, 외부링크, 같이 보기, 같이보기, 주석, 참고, 출처, 참고 자료, "
    "참고자료, 주해, 갤러리, 내용주, 참조주, 관련 항목, 더 읽어보기, 더 읽기, 바깥 고리, 함께 보기",
    "ar": "المراجع, مراجع, وصلات خارجية, روابط خارجية, انظر أيضا, انظر أيضًا, انظر أيضاً, المصادر, مصادر, ملاحظات, "
    "هوامش, الهوامش, قراءات إضافية, قراءة إضافية, للمزيد من القراءة, معرض صور, معرض الصور, ببليوغرافيا, اقرأ أيضا, "
    "اقرأ أيضًا, اقرأ أيضاً, فهرس المراجع, حواشي, الحواشي, المراجع والمصادر, مصادر ومراجع, هوامش ومراجع, شوف كمان, "
    "لينكات برانيه, لينكات خارجيه, مصادر خارجيه, مراجع ومصادر, المصادر والمراجع",
    "fa": "منابع, پانویس, جستارهای وابسته, پیوند به بیرون, پیوندهای بیرونی, یادداشت‌ها, یادداشت, یادداشتها, "
    "کتاب‌شناسی, کتابشناسی, منبع, پیوند بیرونی, برای مطالعه بیشتر, برای مطالعهٔ بیشتر, مطالعه بیشتر, نگارخانه, "
    "ارجاعات, پی‌نوشت, پی‌نوشت‌ها, پانویس‌ها, همچنین ببینید, یادکردها, فهرست منابع, پانوشت, گالری, گالری تصاویر",
    "vi": "tham khảo, chú thích, liên kết ngoài, xem thêm, ghi chú, thư mục, đọc thêm, nguồn, nguồn tham khảo, tài "
    "liệu tham khảo, tài liệu, thư viện ảnh, hình ảnh, thư mục tham khảo, nguồn trích dẫn, sách tham khảo",
    "ca": "referències, referència, enllaços externs, enllaç extern, vegeu també, notes, bibliografia, fonts, "
    "galeria, bibliografia complementària, per a saber-ne més, lectures addicionals, bibliografia addicional",
    "ceb": "mga gikutlo niini, ang mga gi basihan niini, mga sumpay sa gawas, tan-awa usab, mga pakisayran, mga "
    "reperensya, mga tinubdan",
    "war": "mga kasarigan, mga sumpay ha gawas, kitaa liwat, kitaa gihapon, mga sumpay, mga reperensya",
    "fi": "lähteet, viitteet, aiheesta muualla, katso myös, kirjallisuutta, kirjallisuus, huomautukset, alaviitteet, "
    "kuvia, lähdeviitteet, aiheesta lisää, lähde",
    "cs": "reference, poznámky, odkazy, externí odkazy, související články, literatura, zdroje, galerie, "
    "bibliografie, podobné články, související stránky, prameny, citace, další literatura",
    "sk": "referencie, poznámky, iné projekty, externé odkazy, pozri aj, literatúra, zdroje, galéria",
    "tr": "kaynakça, kaynaklar, dış bağlantılar, ayrıca bakınız, notlar, dipnotlar, konuyla ilgili yayınlar, galeri, "
    "referanslar, okuma listesi, bibliyografya, daha fazla okuma, ek okumalar",
    "hu": "jegyzetek, források, további információk, kapcsolódó szócikkek, irodalom, külső hivatkozások, "
    "megjegyzések, lásd még, galéria, hivatkozások, ajánlott irodalom, képgaléria, kapcsolódó lapok",
    "no": "referanser, eksterne lenker, se også, kilder, fotnoter, litteratur, bibliografi, galleri, eksterne "
    "lenkjer, sjå òg, kjelder, bakgrunnsstoff, referansar, videre lesning",
    "da": "referencer, eksterne henvisninger, se også, kilder, fodnoter, litteratur, noter, eksterne links, galleri, "
    "kildehenvisninger, yderligere læsning",
    "id": "referensi, pranala luar, lihat pula, lihat juga, catatan, catatan kaki, sumber, bacaan lanjutan, bacaan "
    "lebih lanjut, daftar pustaka, galeri, bibliografi, pustaka, rujukan",
    "ms": "rujukan, pautan luar, lihat juga, nota, nota kaki, bacaan lanjut, sumber",
    "ro": "note, referințe, bibliografie, legături externe, vezi și, surse, lectură suplimentară, lecturi "
    "suplimentare, galerie, referinţe, galerie de imagini, note de subsol, lectură suplimentară",
    "sr": "референце, извори, спољашње везе, види још, литература, напомене, белешке, галерија, фусноте, reference, "
    "izvori, spoljašnje veze, vidi još, literatura, napomene, vanjske veze, vidi također, također pogledajte, "
    "vanjske poveznice, povezano, spoljne veze, bilješke, галерија слика, библиографија",
    "bg": "източници, външни препратки, вижте също, бележки, литература, галерия, библиография, виж още",
    "he": "הערות שוליים, קישורים חיצוניים, ראו גם, לקריאה נוספת, ביאורים, מקורות, גלריה, גלריית תמונות, ביבליוגרפיה",
    "el": "παραπομπές, εξωτερικοί σύνδεσμοι, δείτε επίσης, βιβλιογραφία, πηγές, σημειώσεις, υποσημειώσεις, περαιτέρω "
    "ανάγνωση, δείτε ακόμη, συλλογή εικόνων",
    "eu": "erreferentziak, kanpo estekak, ikus, gainera, bibliografia, oharrak, oharrak eta erreferentziak",
    "et": "viited, välislingid, vaata ka, kirjandus, märkused",
    "tt": "искәрмәләр, чыганаклар, сылтамалар, әдәбият, шулай ук карагыз, тышкы сылтамалар",
    "hi": "सन्दर्भ, संदर्भ, बाहरी कड़ियाँ, बाहरी कड़ियां, इन्हें भी देखें, टिप्पणी, स्रोत, ग्रन्थसूची",
}
# Between the parts of a heading such as "Notes et références" or "脚注・参考文献".
_AND = re.compile(
    r"\s*[,;/&+・、，；]\s*|\s+(?:and/or|en/of|und/oder|and|or|und|oder|et|ou|y|e|ed|o|en|of|och|og|i|oraz|и|или|та|й|і|а|a|è|และ|và|ve|veya|"
    r"ja|és|dan|și|şi|και|eta|या|और|و|및|와|과)\s+|(?<=[ぁ-ヿ一-鿿])[及和与與](?:び)?(?=[ぁ-ヿ一-鿿])|(?<=[가-힣])[와과]\s+|"
    r"\s+و(?=\w)|\s+ו(?=\w)"
)

# Languages of Wikipedias: a link to one of them is no text but a link to the same article there.
_LANGUAGES = (
    "aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar "
    "bat-smg bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo ce "
    "ceb ch cho chr chy ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es et "
    "eu ext fa fat ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc "
    "gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam "
    "jbo jv ka kaa kab kaj kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb "
    "lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mos "
    "mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv "
    "ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu rm rmy rn ro roa-rup "
    "roa-tara rsk ru rue rup rw sa sah sat sc scn sco sd se sg sgs sh shi shn shy si simple sk skr sl sm smn sn so "
    "sq sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly tn to tpi tr trv ts tt "
    "tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea zgh zh "
    "zh-classical zh-cn zh-min-nan zh-tw zh-yue zu"
)

_DISAMBIGUATION = (
    "dab, disamb, hndis, hndab, geodis, geodab, numberdis, schooldis, hospitaldis, roaddis, sia, callsigndis, "
    "letterdis, mathdab, stationdis, shipindex, mountainindex, lakeindex, roadindex, aimai, begriffsklärung, "
    "desambiguación, desambiguação, disambigua, dp, doorverwijspagina, förgrening, gren, homonymie, homonymes, "
    "ujednoznacznienie, неоднозначность, неоднозначність, багатозначність, 曖昧さ回避, 消歧义, 消歧義, 동음이의, "
    "توضيح, ابهام‌زدایی, định hướng, trang định hướng, desambiguació, täsmennyssivu, rozcestník, anlam ayrımı, "
    "egyért, egyértelműsítő lap, peker, flertydig, disambiguasi, dezambiguizare, вишезначна одредница, פירושונים, "
    "αποσαφήνιση, giklaro, pansayod"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _folded(name: str) -> str:
    """A name for comparison: without case (also of the Turkish i), and with single spaces."""
    return " ".join(normalize("NFC", name).casefold().replace("i\u0307", "i").replace("ı", "i").split())


def _headings(text: str) -> frozenset[str]:
    return frozenset(_folded(name) for name in text.split(", "))


DISAMBIGUATION_NAMES = frozenset(_DISAMBIGUATION.split(", "))
_SECTION_NAMES = frozenset().union(*map(_headings, _SECTIONS.values()))


def is_without_prose(heading: str) -> bool:
    """Whether a heading's section holds no prose: references, links, books, in any language of the table."""
    name = _folded(heading.strip(" \t:.…'\""))
    return name in _SECTION_NAMES or all(part in _SECTION_NAMES for part in _AND.split(name))


@dataclass(frozen=True)
class WikiNames:
    """How one wiki names files and categories."""

    namespaces: Mapping[str, str] = field(default_factory=dict)  # the names that its dump gives, by key ("6": "File")

    @cached_property
    def hidden_link(self) -> re.Pattern[str]:
        """Matches a link that is never shown as text; the group that matched is "file", "category" or "language"."""
        blank = "[\\s_\u200e\u200f\u202a-\u202e]*"  # marks of direction are no part of a title
        return re.compile(
            rf"\[\[{blank}(?:(?P<file>(?:{self._files}){blank}:|[^\W\d_][^\[\]{{}}|<>:\n]*:[^\[\]{{}}|<>\n]*"
            rf"\.(?:{_FILE_ENDS}){blank}(?:\||\]\]))|(?P<category>(?:{self._categories}){blank}:)|"
            rf"(?P<language>(?-i:{_any_of(_words(_LANGUAGES))}):[^|\[\]]*\]\]))",
            re.IGNORECASE,
        )

    @cached_property
    def shown_name(self) -> re.Pattern[str]:
        """Matches the name of a file or a category in what should be text."""
        names = frozenset(("file", "image", "category")) | self._own("6", CATEGORY_NAMESPACE)
        return re.compile(rf"(?<!\w)(?:{_any_of(names)}):\S", re.IGNORECASE)

    @property
    def _files(self) -> str:
        return _any_of(_words(_FILE_NAMES) | self._own(*FILE_NAMESPACES))

    @property
    def _categories(self) -> str:
        return _any_of(_words(_CATEGORY_NAMES) | self._own(CATEGORY_NAMESPACE))

    def _own(self, *keys: str) -> frozenset[str]:
        return frozenset(name for key in keys if (name := self.namespaces.get(key, "").strip()))


def _any_of(names: frozenset[str]) -> str:
    """A pattern for any of these names, the longest first; a blank in a name is also written as "_"."""
    patterns = {r"[\s_]+".join(map(re.escape, re.split(r"[\s_]+", name.strip()))) for name in names}
    return "|".join(sorted(patterns, key=lambda pattern: (-len(pattern), pattern)))

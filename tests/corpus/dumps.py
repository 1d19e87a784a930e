"""Toy dumps in MediaWiki's format."""

from xml.sax.saxutils import escape

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <namespaces><namespace key="0" case="first-letter" /><namespace key="1">Talk</namespace></namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(title, wikitext, namespace=0, redirect=""):
    """A page element."""
    redirect = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>12</id>
{redirect}    <revision>
      <id>34</id>
      <text bytes="{len(wikitext)}" xml:space="preserve">{escape(wikitext)}</text>
    </revision>
  </page>
"""


def dump(*pages):
    """A whole dump, as bytes."""
    return (HEAD + "".join(pages) + TAIL).encode()

"""HTML pages as a test looks at them."""

from html.parser import HTMLParser

VOID = {"meta", "img", "source", "br", "link"}


class Page(HTMLParser):
    """What a browser would fetch, the identifiers, the text, and whether tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "srcset") or (tag, name) == ("link", "href")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

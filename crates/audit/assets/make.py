"""Cuts the built-in digits and photographs out of the original files, in file order.

    python crates/audit/assets/make.py DATA

DATA holds `mnist/train-images-idx3-ubyte.gz`, `mnist/train-labels-idx1-ubyte.gz`
and `cifar10/data_batch_1.bin` in their original layouts. The cuts keep those
layouts, so that the ordinary loaders read them. `tabular/digits.csv.gz`, 64 pixels
from 0 to 16 and a class in every line, becomes a pair in the layout of MNIST.
"""

import gzip
import pathlib
import struct
import sys

COUNT = 600
HERE = pathlib.Path(__file__).parent


def pack(name, data):
    with open(HERE / name, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", compresslevel=9, mtime=0) as out:
        out.write(data)


def main():
    root = pathlib.Path(sys.argv[1])
    images = gzip.open(root / "mnist/train-images-idx3-ubyte.gz").read()
    labels = gzip.open(root / "mnist/train-labels-idx1-ubyte.gz").read()
    pack("digits-images.idx.gz", images[:4] + struct.pack(">I", COUNT) + images[8 : 16 + COUNT * 784])
    pack("digits-labels.idx.gz", labels[:4] + struct.pack(">I", COUNT) + labels[8 : 8 + COUNT])
    lines = gzip.open(root / "tabular/digits.csv.gz", "rt").read().split()
    rows = [[int(float(value)) for value in line.split(",")] for line in lines]
    count = struct.pack(">I", len(rows))
    pixels = b"".join(bytes(row[:64]) for row in rows)
    pack("digits-8x8-images.idx.gz", images[:4] + count + struct.pack(">II", 8, 8) + pixels)
    pack("digits-8x8-labels.idx.gz", labels[:4] + count + bytes(row[64] for row in rows))
    pack("photos.bin.gz", (root / "cifar10/data_batch_1.bin").read_bytes()[: COUNT * 3073])


if __name__ == "__main__":
    main()

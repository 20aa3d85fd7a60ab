"""Small valid files, one for each way in: the corpus that fuzzing starts from.

    python fuzz/seeds.py      (needs numpy; what it writes is committed)
"""

import io
import json
import pathlib
import struct
import zlib

import numpy as np

HERE = pathlib.Path(__file__).parent / "corpus"


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def png():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([9, 8, 7, 100, 50, 25]) for _ in range(2))
    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def safetensors(tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        start, data = len(data), data + array.tobytes()
        kind = {"float32": "F32", "float64": "F64", "int64": "I64"}[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def observation():
    network = {"input": [2], "layers": [{"kind": "linear", "outputs": 1}]}
    text = {"kind": "gradient", "network": network, "loss": "logistic", "reduction": "mean", "batch_size": 1}
    text["range"] = [0.0, 1.0]
    names = [f"{prefix}.0.{part}" for prefix in ("theta", "grad") for part in ("weight", "bias")]
    values = [np.ones((1, 2), np.float32), np.ones(1, np.float32)] * 2
    return safetensors(dict(zip(names, values)), {"observation": json.dumps(text)})


SEEDS = {
    "idx": struct.pack(">IIII", 0x803, 1, 2, 2) + bytes([1, 2, 3, 4]),
    "cifar": bytes([5]) + bytes(i % 256 for i in range(3072)),
    "npy": npy(np.array([[0.5, 1.0]], np.float32)),
    "npz": npz(x=np.array([[0.5, 1.0]], np.float32), y=np.array([3])),
    "csv": b"a,b,label\n1,0.5,2\n0,1,0\n",
    "image": png(),
    "safetensors": safetensors({"x": np.ones((2, 2)), "y": np.arange(2)}, {"a": "b"}),
    "observation": observation(),
    "plan": b'[data]\nsource = "builtin:photos"\nmembers = 1\n[network]\nkind = "mlp"\nhidden = [4]\noutputs = 10\n'
    b'[victim]\nkind = "federated"\n[attack]\nkind = "analytic"\n',
}

# What other programs write is taken from the golden files.
GOLDEN = HERE.parent.parent / "golden/import/mlp"
SEEDS["pytorch"] = (GOLDEN / "checkpoint.pth").read_bytes()
SEEDS["onnx"] = (GOLDEN / "model.onnx").read_bytes()

if __name__ == "__main__":
    for name, data in SEEDS.items():
        (HERE / name).mkdir(parents=True, exist_ok=True)
        (HERE / name / "seed").write_bytes(data)

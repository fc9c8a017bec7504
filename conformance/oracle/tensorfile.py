"""safetensors files and MXFP4 blocks for the oracle: read(), write(), Checkpoint. Needs numpy only.

Written from the format descriptions alone, sharing nothing with the engine, so that a misreading in one of the two
shows as a difference.
"""
import glob
import json
import os
import struct

import numpy as np

# The types numpy has. BF16 and MXFP4 it has not: they are widened below.
PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}

# E2M1: sign, two bits of exponent, one of mantissa.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def header(path):
    """The JSON header of a file and the offset its data starts at."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(n)), 8 + n


def tensor(path, entry, start):
    """One tensor of a file as float64 (floats), or in its own integer type."""
    a, b = entry["data_offsets"]
    with open(path, "rb") as f:
        f.seek(start + a)
        raw = f.read(b - a)
    if entry["dtype"] == "BF16":
        wide = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        wide = np.frombuffer(raw, PLAIN[entry["dtype"]])
    if wide.dtype.kind == "f":
        wide = wide.astype(np.float64)
    return wide.reshape(entry["shape"])


def read(path):
    """All tensors of one file, by name."""
    head, start = header(path)
    return {name: tensor(path, entry, start) for name, entry in head.items() if name != "__metadata__"}


def mxfp4(packed, scale):
    """Widens MXFP4: two weights a byte with the even one in the low nibble, one E8M0 scale per 32 weights of a row."""
    rows, half = packed.shape
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, 2 * half)
    factor = np.where(scale == 255, 0.0, np.ldexp(1.0, scale.astype(np.int64) - 127))
    return E2M1[nibbles] * np.repeat(factor, 32, axis=1)


def write(path, tensors, metadata=None, remainder=0, by_name=False):
    """Writes (name, dtype, array) triples in order. The data starts at an address of the given remainder modulo 8; the
    header lists the tensors in their order in the data, or by name."""
    head, offset = {}, 0
    if metadata:
        head["__metadata__"] = metadata
    blobs = []
    for name, dtype, array in tensors:
        blob = encode(dtype, array)
        head[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(head, separators=(",", ":"), sort_keys=by_name).encode()
    text += b" " * ((remainder - len(text)) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def encode(dtype, array):
    """The bytes of an array in a dtype; BF16 rounds to nearest even."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(array, PLAIN[dtype]).tobytes()


class Checkpoint:
    """The tensors of a directory of shards, found by name. An index file is not needed and not read."""

    PREFIX = "language_model."

    def __init__(self, directory):
        self.where = {}
        shards = sorted(glob.glob(os.path.join(directory, "*.safetensors")))
        if not shards:
            raise FileNotFoundError(f"{directory}: no .safetensors files")
        for path in shards:
            head, start = header(path)
            for name, entry in head.items():
                if name != "__metadata__":
                    self.where[name] = (path, entry, start)

    def has(self, name):
        return self.PREFIX + name in self.where

    def read(self, name):
        return tensor(*self.where[self.PREFIX + name])

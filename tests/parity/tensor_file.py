"""Reads and writes safetensors with only numpy, for machines that lack the library."""
import json

import numpy

TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8"}
NAMES = {"float64": "F64", "float32": "F32", "int64": "I64"}


def load(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    part = lambda entry: data[entry["data_offsets"][0] : entry["data_offsets"][1]]
    return {name: numpy.frombuffer(part(entry), TYPES[entry["dtype"]]).reshape(entry["shape"]) for name, entry in header.items()}


def save(tensors, path):
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": NAMES[value.dtype.name], "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(numpy.ascontiguousarray(value).tobytes())

"""Answers as bytes: JSON in chunks, compressed if the client accepts it. Other greenlets run in between.

Compression costs CPU time on the loop that carries messages, so it is fast rather than thorough, and
goes by slices that take a part of a millisecond each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ddmq.server.http.pace import yield_if_long

CHUNK_BYTES = 256 << 10  # of an answer
GZIP_BYTES_MIN = 1 << 10  # of an answer that is compressed
GZIP_LEVEL = 1
GZIP_SLICE_BYTES = 16 << 10  # that are compressed at a time
_GZIP_WBITS = 16 + zlib.MAX_WBITS  # zlib's number for gzip with the largest window


def encode_json(value: Any) -> list[bytes]:
    """Encode the value as JSON, in chunks."""
    chunks, chunk = [], bytearray()
    for fragment in _json_fragments(value):
        if len(chunk) + len(fragment) > CHUNK_BYTES:
            chunks += [bytes(chunk), fragment]
            chunk.clear()
        else:
            chunk += fragment
        yield_if_long()
    return [*chunks, bytes(chunk)]


def _json_fragments(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value in fragments. A value without nested containers, such as the row of a
    listing, is one fragment."""
    if isinstance(value, dict) and any(each and isinstance(each, dict | list) for each in value.values()):
        for index, (key, each) in enumerate(value.items()):
            yield (b"," if index else b"{") + msgspec.json.encode(str(key)) + b":"
            yield from _json_fragments(each)
        yield b"}"
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield b"," if index else b"["
            yield from _json_fragments(each)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def compress_chunks(chunks: Sequence[bytes]) -> list[bytes]:
    """Return the chunks compressed with gzip, slice by slice."""
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    compressed = []
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(chunk), GZIP_SLICE_BYTES):
            compressed.append(compressor.compress(view[start : start + GZIP_SLICE_BYTES]))
            yield_if_long()
    return [*filter(None, compressed), compressor.flush()]


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client with this Accept-Encoding accepts gzip. A client that names no coding does
    not."""
    weights = dict(map(_read_coding, accept_encoding.lower().split(",")))
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _read_coding(text: str) -> tuple[str, float]:
    """Return the name and the weight of `NAME;q=WEIGHT`. A weight that is no number counts as 0."""
    name, _, parameter = text.partition(";")
    try:
        weight = float(parameter.partition("=")[2] or "1")
    except ValueError:
        weight = 0.0
    return name.strip(), weight

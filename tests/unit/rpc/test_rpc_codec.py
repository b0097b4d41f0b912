"""Our codec against two others (thriftpy2's and Apache's pure Python), and against hostile structs."""

from __future__ import annotations

import itertools
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rpc_support import CONSUMER, PRODUCER, C, P
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.transport.TTransport import TMemoryBuffer as ApacheBuffer
from thriftpy2.protocol.binary import TBinaryProtocol as OtherBinary
from thriftpy2.protocol.compact import TCompactProtocol as OtherCompact
from thriftpy2.transport.memory import TMemoryBuffer as OtherBuffer

from ddmq_client.idl import consumer, producer
from ddmq_rpc.api import Wire
from ddmq_rpc.codec import CHUNK_BYTES, ENCODERS, Codec, DecodeError, methods, structs, type_args
from tests.examples import examples

WIRES = list(Wire)
text = st.text(st.characters(codec="utf-8"), max_size=40)
maybe_text = st.none() | text
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
offsets = st.none() | st.lists(i64, max_size=20)
properties = st.none() | st.dictionaries(text, text, max_size=5)
messages = st.fixed_dictionaries(
    {
        "topic": maybe_text, "key": maybe_text, "value": maybe_text, "hashId": i64, "tags": maybe_text,
        "partitionId": i32, "body": st.none() | st.binary(max_size=200), "properties": properties,
        "clientId": maybe_text,
    }
)  # fmt: skip


def codec(**changed: Any) -> Codec:
    bounds: dict[str, Any] = {"frame_bytes_max": 5_000_000, "container_elements_max": 16_384}
    return Codec(**{**bounds, "decode_cpu_s": 5.0, **changed})


def decode(kind: Any, data: bytes, wire: Wire, **changed: Any) -> Any:
    return codec(**changed).decode(wire, b"head" + data, 4, type_args(kind))


def encode_struct(struct: Any, wire: Wire) -> bytes:
    """Stop byte included."""
    return ENCODERS[wire](struct, type_args(type(struct)))


def as_text(struct: Any, binary: str = "body") -> dict[str, Any]:
    """Fields of one of our structs, bytes as str where the IDL says string."""
    struct_values = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, bytes) and name != binary:
            value = value.decode()
        elif isinstance(value, dict):
            value = {key.decode(): each.decode() for key, each in value.items()}
        struct_values[name] = value
    return struct_values


def other(wire: Wire, buffer: Any) -> Any:
    return OtherCompact(buffer) if wire is Wire.COMPACT else OtherBinary(buffer)


def apache(wire: Wire, buffer: Any) -> Any:
    return TCompactProtocol(buffer) if wire is Wire.COMPACT else TBinaryProtocol(buffer)


@given(messages, st.sampled_from(WIRES))
def test_thriftpy2_reads_what_we_write(fields: dict[str, Any], wire: Wire) -> None:
    read = producer.Message()
    read.read(other(wire, OtherBuffer(encode_struct(P.Message(**fields), wire))))
    assert {name: getattr(read, name) for name in fields} == fields


@given(messages, st.sampled_from(WIRES))
def test_we_read_what_thriftpy2_writes(fields: dict[str, Any], wire: Wire) -> None:
    buffer = OtherBuffer()
    producer.Message(**fields).write(other(wire, buffer))
    read = as_text(decode(P.Message, buffer.getvalue(), wire))
    assert {name: read[name] for name in fields} == fields


def results(depth: int) -> Any:
    fields = {"successOffsets": offsets, "failOffsets": offsets, "successLeases": offsets}
    context = st.builds(C.Context, groupId=st.binary(max_size=9), topic=st.none(), qid=st.binary(max_size=9))
    deeper = results(depth - 1) if depth else st.none()
    return st.builds(C.ConsumeResult, context=context, nextResult=st.none() | deeper, **fields)


class ApacheStruct:
    """A struct as Apache's generated code has it: reads and writes itself by its specification."""

    spec: tuple[Any, ...] = ()

    def read(self, protocol: Any) -> None:
        protocol.readStruct(self, self.spec)

    def write(self, protocol: Any) -> None:
        protocol.writeStruct(self, self.spec)


def to_apache_spec(args: Any, specs: dict[int, Any]) -> Any:
    """The same specification with a Loose class for every struct."""
    if isinstance(args, tuple):
        return tuple(to_apache_spec(each, specs) for each in args)
    if not isinstance(args, list):
        return args
    if id(args) not in specs:
        fields = {entry[2]: None for entry in args[1] if entry}
        kind = type(args[0].__name__, (ApacheStruct,), fields)
        specs[id(args)] = [kind, ()]
        kind.spec = specs[id(args)][1] = to_apache_spec(args[1], specs)  # type: ignore[attr-defined]
    return specs[id(args)]


def to_apache(struct: Any, kind: type[ApacheStruct]) -> ApacheStruct:
    """One of our structs, with those inside it, as Loose ones."""
    converted = kind()
    for entry in filter(None, kind.spec):
        value = getattr(struct, entry[2])
        setattr(converted, entry[2], to_apache(value, entry[3][0]) if entry[1] == 12 and value else value)
    return converted


def plain(struct: Any) -> Any:
    """Nested dicts of whatever struct it is."""
    if isinstance(struct, ApacheStruct):
        return {entry[2]: plain(getattr(struct, entry[2])) for entry in struct.spec if entry}
    if hasattr(struct, "__struct_fields__"):
        return {name: plain(getattr(struct, name)) for name in struct.__struct_fields__}
    return struct


@settings(max_examples=examples(60))
@given(results(3), st.sampled_from(WIRES))
def test_apaches_python_codec_agrees_both_ways(result: Any, wire: Wire) -> None:
    kind = to_apache_spec(type_args(C.ConsumeResult), {})[0]
    written = ApacheBuffer()
    to_apache(result, kind).write(apache(wire, written))
    data = encode_struct(result, wire)
    assert written.getvalue() == data
    read = kind()
    read.read(apache(wire, ApacheBuffer(data)))
    assert plain(read) == plain(result)
    assert decode(C.ConsumeResult, data, wire) == result


@pytest.mark.parametrize("wire", WIRES)
def test_every_struct_of_both_services_survives_a_round_trip(wire: Wire) -> None:
    for idl in (producer, consumer):
        for name, kind in vars(structs(idl)).items():
            spec = [entry for entry in type_args(kind)[1] if entry]
            value = kind(**{entry[2]: sample(entry[1], entry[3]) for entry in spec})
            assert decode(kind, encode_struct(value, wire), wire) == value, name


def sample(kind: int, args: Any, depth: int = 0) -> Any:
    """A value of a type; structs inside structs down to two levels."""
    if kind == 11:
        return b"text"
    if kind == 12:
        entries = [entry for entry in args[1] if entry and (depth < 2 or entry[1] not in (12, 15))]
        return args[0](**{entry[2]: sample(entry[1], entry[3], depth + 1) for entry in entries})
    if kind == 13:
        return {sample(args[0], args[1]): sample(args[2], args[3])}
    if kind == 15:
        return [sample(args[0], args[1], depth + 1)]
    return kind == 2 or kind


@pytest.mark.parametrize("wire", WIRES)
def test_absent_fields_take_the_defaults(wire: Wire) -> None:
    message = decode(P.Message, b"\x00", wire)
    assert (message.hashId, message.partitionId) == (0, -1)
    assert message.topic is message.body is message.properties is message.clientId is None
    rest = decode(P.RestMessage, b"\x00", wire)
    assert (rest.type, rest.mode, rest.retryCnt) == (1, 1, 3)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("kind", "missing"),
    [(C.PullRequest, "groupId"), (C.AckResult, "consumerId"), (C.FetchRequest, "consumerId")],
)
def test_required_fields_are_demanded(kind: Any, missing: str, wire: Wire) -> None:
    with pytest.raises(DecodeError, match=missing):
        decode(kind, b"\x00", wire)


@pytest.mark.parametrize("wire", WIRES)
def test_absent_arguments(wire: Wire) -> None:
    described = methods(producer, PRODUCER)
    with pytest.raises(DecodeError, match="message"):
        codec().decode(wire, b"\x00", 0, described["sendSync"].args)
    with pytest.raises(DecodeError, match="messages"):
        codec().decode(wire, b"\x00", 0, described["sendBatchSync"].args)
    args = described["sendSync"].args[0](message=P.Message())
    assert args.timeout == 0


def test_oneway_is_known() -> None:
    assert methods(producer, PRODUCER)["sendOneway"].oneway
    assert not any(method.oneway for method in methods(consumer, CONSUMER).values())


def chain(length: int) -> Any:
    result = None
    for _ in range(length):
        result = C.ConsumeResult(context=C.Context(groupId=b"g"), nextResult=result)
    return result


@pytest.mark.parametrize("wire", WIRES)
def test_linked_results_end_at_a_depth(wire: Wire) -> None:
    assert decode(C.ConsumeResult, encode_struct(chain(60), wire), wire) == chain(60)
    deep = b"\xac" * 100_000 if wire is Wire.COMPACT else b"\x0c\x00\x0a" * 100_000
    with pytest.raises(DecodeError, match="recursion depth"):
        decode(C.ConsumeResult, deep, wire)
    unknown = b"\x0c\xc8\x01" + b"\x1c" * 100_000 if wire is Wire.COMPACT else b"\x0c\x00\xc8" * 100_000
    with pytest.raises(DecodeError, match="recursion depth"):
        decode(C.ConsumeResult, unknown, wire)


@pytest.mark.parametrize("wire", WIRES)
def test_unknown_fields_of_every_type_are_skipped(wire: Wire) -> None:
    extended = P.DelayMessage(
        topic=b"t", body=b"b", action=1, timestamp=5, properties={b"a": b"b"}, dmsgtype=2, dueMs=9
    )
    read = decode(P.DelayMeta, encode_struct(extended, wire), wire)
    assert read.properties is None  # its id 7 has another type there
    assert decode(C.PullResponse, encode_struct(extended, wire), wire) == C.PullResponse()


@pytest.mark.parametrize("wire", WIRES)
def test_container_bounds(wire: Wire) -> None:
    many = C.ConsumeResult(successOffsets=list(range(101)))
    data = encode_struct(many, wire)
    assert decode(C.ConsumeResult, data, wire, container_elements_max=101) == many
    with pytest.raises(DecodeError, match="limit: 100"):
        decode(C.ConsumeResult, data, wire, container_elements_max=100)


LENGTHS = [-1, -(1 << 31), (1 << 31) - 1, 5_000_001]


@pytest.mark.parametrize("length", LENGTHS)
def test_impossible_lengths_in_binary(length: int) -> None:
    for head in (b"\x0b\x00\x01", b"\x0b\x7f\x00", b"\x0d\x00\x09\x0b\x0b", b"\x0f\x7f\x00\x02"):
        with pytest.raises(DecodeError):
            decode(P.Message, head + pack(">i", length) + b"x" * 50, Wire.BINARY)


@pytest.mark.parametrize("varint", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff" * 12])
def test_impossible_lengths_in_compact(varint: bytes) -> None:
    for head in (b"\x18", b"\x08\xfe\x01", b"\x9b", b"\x09\xfe\x01\xf1"):
        with pytest.raises(DecodeError):
            decode(P.Message, head + varint + b"\x88" + b"x" * 50, Wire.COMPACT)


@pytest.mark.parametrize("wire", WIRES)
def test_every_truncation_is_an_error(wire: Wire) -> None:
    message = P.Message(topic=b"t", key=b"k", body=b"body", properties={b"a": b"b"}, clientId=b"c")
    data = encode_struct(message, wire)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(P.Message, data[:end], wire)


@pytest.mark.parametrize("wire", WIRES)
def test_large_frames_are_fed_in_chunks(wire: Wire) -> None:
    sizes = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 100, 2_000_000]
    many = [P.Message(topic=b"t%d" % size, body=bytes(size)) for size in sizes]
    args = methods(producer, PRODUCER)["sendBatchSync"].args
    data = ENCODERS[wire](args[0](messages=many), args)
    assert codec().decode(wire, b"1234" + data, 4, args).messages == many
    for end in (len(data) - 1, len(data) - 2_000_001, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES):
        with pytest.raises(DecodeError):
            codec().decode(wire, b"1234" + data[:end], 4, args)


@pytest.mark.slow
def test_a_frame_of_tiny_elements_is_cut_off_by_processor_time() -> None:
    ticks = itertools.count()
    tight = codec(decode_cpu_s=10.0, cpu=lambda: next(ticks))  # a second passes at each look
    huge = P.Message(properties={b"%d" % n: b"" for n in range(16_000)})
    one = encode_struct(huge, Wire.COMPACT)
    batch = b"\x19\xfc\x64" + one * 100 + b"\x00"
    args = methods(producer, PRODUCER)["sendBatchSync"].args
    with pytest.raises(DecodeError, match="more than 10000 ms"):
        tight.decode(Wire.COMPACT, batch, 0, args)
    assert len(codec().decode(Wire.COMPACT, batch, 0, args).messages) == 100


def test_a_decode_leaves_nothing_behind() -> None:
    reader = codec()
    args = type_args(P.Message)
    large = encode_struct(P.Message(body=bytes(3 * CHUNK_BYTES)), Wire.COMPACT)
    small = encode_struct(P.Message(topic=b"after"), Wire.COMPACT)
    for data in (large, large[:-9], small[:-1], b""):
        with pytest.raises(DecodeError):
            reader.decode(Wire.COMPACT, data[:-1], 0, args)
        assert reader.decode(Wire.COMPACT, small, 0, args).topic == b"after"

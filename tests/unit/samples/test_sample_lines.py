"""Lines of sample files: what is written is read back, and what is no sample is refused with its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import BUCKETS
from ddmq_common.metrics.metric import Metric
from ddmq_common.metrics.samples import (
    BAD_VALUE,
    CORRUPT,
    UNKNOWN_METRIC,
    UNKNOWN_VERSION,
    LineError,
    SampleLine,
    decode,
    encode,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)
MS = st.integers(0, 2**53)


@st.composite
def lines(draw: st.DrawFn) -> SampleLine:
    metric: Metric = draw(st.sampled_from(list(CATALOGUE.values())))
    line = SampleLine(
        v=1,
        process=draw(st.text(min_size=1, max_size=30)),
        instance=f"{draw(st.integers(0, 2**64 - 1)):016x}",
        seq=draw(st.integers(0, 2**53)),
        from_=draw(MS),
        to=draw(MS),
        metric=metric.name,
        labels={name: draw(st.text(max_size=30)) for name in metric.labels},
    )
    if metric.kind != "histogram":
        return msgspec.structs.replace(line, value=draw(FINITE))
    counts = draw(st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 2**53), max_size=20))
    buckets = sorted(counts)
    return msgspec.structs.replace(
        line, sum=draw(FINITE), buckets=buckets, counts=[counts[index] for index in buckets]
    )


@given(lines())
def test_what_is_written_is_read_back(line: SampleLine) -> None:
    text = encode(line)
    assert b"\n" not in text
    assert decode(text) == line
    keys = ["v", "process", "instance", "seq", "from", "to", "metric", "labels"]
    rest = ["value"] if line.value is not msgspec.UNSET else ["sum", "buckets", "counts"]
    assert list(json.loads(text)) == keys + rest


GOOD = {
    "v": 1,
    "process": "p",
    "instance": "0" * 16,
    "seq": 3,
    "from": 5,
    "to": 4,
    "metric": "ddmq_send_bytes_total",
    "labels": {"topic": "t"},
    "value": 12,
}
HISTOGRAM = {key: value for key, value in GOOD.items() if key != "value"} | {
    "metric": "ddmq_send_latency_us",
    "sum": 3.5,
    "buckets": [1, 2],
    "counts": [1, 1],
}
HEAD = GOOD | {"metric": "ddmq_process", "labels": {"state": "first"}, "value": 1}


@pytest.mark.parametrize("good", [GOOD, HISTOGRAM, HEAD, GOOD | {"later": [1, {"a": 2}]}])
def test_these_are_samples(good: dict[str, object]) -> None:
    decode(json.dumps(good).encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, UNKNOWN_VERSION),
        ({"v": 2, "seq": "other"}, UNKNOWN_VERSION),
        ({"v": "1"}, CORRUPT),
        ({"seq": "3"}, CORRUPT),
        ({"seq": 3.5}, CORRUPT),
        ({"labels": {"topic": 1}}, CORRUPT),
        ({"labels": None}, CORRUPT),
        ({"value": "12"}, CORRUPT),
        ({"value": None}, CORRUPT),
        ({"value": [1]}, CORRUPT),
        ({"seq": -1}, BAD_VALUE),
        ({"process": ""}, BAD_VALUE),
        ({"metric": "ddmq_nothing"}, UNKNOWN_METRIC),
        ({"labels": {}}, BAD_VALUE),
        ({"labels": {"topic": "t", "group": "g"}}, BAD_VALUE),
        ({"sum": 1}, BAD_VALUE),
        ({"metric": "ddmq_send_latency_us"}, BAD_VALUE),
        ({"metric": "ddmq_process"}, BAD_VALUE),
        ({"metric": "ddmq_process", "labels": {"state": "gone"}}, BAD_VALUE),
        ({"metric": "ddmq_process", "labels": {"state": "last"}, "value": 0}, BAD_VALUE),
        ({"metric": "ddmq_process", "labels": {"state": "last"}, "value": 1.5}, BAD_VALUE),
    ],
)
def test_what_is_no_sample_is_refused_with_its_reason(change: dict[str, object], reason: str) -> None:
    with pytest.raises(LineError) as caught:
        decode(json.dumps(GOOD | change).encode())
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("buckets", "counts"),
    [
        ([1], [1, 2]),
        ([2, 1], [1, 1]),
        ([1, 1], [1, 1]),
        ([-1], [1]),
        ([BUCKETS], [1]),
        ([1], [0]),
        ([1], [-4]),
    ],
)
def test_a_histogram_has_rising_buckets_and_a_count_for_each(buckets: list[int], counts: list[int]) -> None:
    with pytest.raises(LineError, match=BAD_VALUE):
        decode(json.dumps(HISTOGRAM | {"buckets": buckets, "counts": counts}).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\x00\xff\xfe",
        b'{"v":1',
        b'{"v":1}',
        b'{"v":1e400}',
        b'{"v":NaN}',
        b'{"v":1,"process":"\xff"}',
        b'{"v":1,"labels":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"v":' + b"9" * 5_000 + b"}",
        json.dumps(GOOD).encode()[:-1],
        json.dumps(GOOD).encode() + b"x",
        json.dumps(GOOD).replace("12", "1e999").encode(),
        json.dumps(GOOD).replace("12", "NaN").encode(),
    ],
)
def test_hostile_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(LineError):
        decode(text)


def test_the_example_on_the_page_of_the_format_is_a_sample() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "formats-samples.md"
    examples = re.findall(r"```json\n(\{.*?)```", page.read_text(), re.DOTALL)
    assert [decode(text.encode()).metric for text in examples] == ["ddmq_acked_total"]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_sample_or_refused(text: bytes) -> None:
    with pytest.raises(LineError):
        decode(text)


@given(st.data())
def test_a_sample_with_one_byte_changed_is_a_sample_or_refused(data: st.DataObject) -> None:
    text = bytearray(json.dumps(HISTOGRAM).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(text))
    except LineError:
        pass

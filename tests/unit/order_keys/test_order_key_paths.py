"""Order keys: the dialect, identity of values, null, and bodies that are meant to hurt."""

from __future__ import annotations

import json

import pytest

from ddmq_common.delivery import encode
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.order_keys.reader import find_order_key_error, key_reader

BODY = {
    "a": {"b": [{"c": 7}, {"c": 8}], "k-k": 5, "x.y": "dot", "": 1, "é": "ü"},
    "l": [1, 2, 3],
    "o": [{"a": 1, "c": 5, "s": "x"}, {"a": 2, "c": 0, "s": "y"}, {"a": 3}],
    "deep": {"one": {"id": 1}, "two": [{"id": 2}, {"id": {"id": 3}}]},
    "nested": [[{"a": 1}], [{"a": 2}]],
    "n": None,
    "nulls": [{"a": None}, {"a": None}],
    "f": 1.50,
    "t": True,
}


def key_of(order_key: str, body: object = BODY, key: bytes = b"") -> str | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return key_reader(order_key)(encode(key, raw, b"tag", None))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("$.f", "1.5"), ("f", "1.5"), (".f", "1.5"), ("/f", "1.5"), ("$/f", "1.5"), ("$['f']", "1.5"),
        ('["f"]', "1.5"), ("t", "true"),
        ("$.a.b[0].c", "7"), ("a/b[-1]/c", "8"), ("a.b[2].c", None), ("a.b[-3].c", None),
        ("$.a['k-k']", "5"), ("a['x.y']", '"dot"'), ("a['']", "1"), ("a.é", '"ü"'),
        ("l[-1]", "3"), ("l[0:1]", "1"), ("l[0:2]", "[1,2]"), ("l[1:]", "[2,3]"), ("l[::2]", "[1,3]"),
        ("l[0,1]", "[1,2]"), ("l[0,9]", "1"), ("l[*]", "[1,2,3]"), ("l.*", "[1,2,3]"),
        ("l", "[1,2,3]"), ("a.b[*].c", "[7,8]"), ("a.b.c", "[7,8]"), ("o.a", "[1,2,3]"), ("o.c", "[5,0]"),
        ("nested.a", "[1,2]"), ("o.s", '["x","y"]'), ("o.b", None), ("l.a", None),
        ("..id", '[1,2,{"id":3},3]'), ("$..c", "[7,8,5,0]"), ("deep..id", '[1,2,{"id":3},3]'),
        ("o[?(@.c>1)]", '{"a":1,"c":5,"s":"x"}'), ("o[?(@.c>1)].a", "1"), ("o[?(@.a>1 && @.s=='y')].c", "0"),
        ("o[c=5].a", "1"), ("o[s='y'].a", "2"), ('o[@.s="y"].a', "2"), ("o[a>=2].a", "[2,3]"),
        ("o[a<>2].a", "[1,3]"), ("o[c=9]", None),
        ("l.size()", "3"), ("a.b.size()", "2"), ("o[0].size()", "3"), ("f.size()", None),
        ("$.a.b", '[{"c":7},{"c":8}]'), ("o[1]", '{"a":2,"c":0,"s":"y"}'), ("$['f','t']", "[1.5,true]"),
        ("n", None), ("n.x", None), ("nulls.a", "[null,null]"), ("nulls[0].a", None), ("zz", None),
        ("f.x", None), ("f[0]", None), ("a[0]", None), ("t.x.y", None),
    ],
)  # fmt: skip
def test_the_dialect(path: str, text: str | None) -> None:
    assert find_order_key_error(path) is None
    assert key_of(path) == text


@pytest.mark.parametrize(
    ("path", "at", "what"),
    [
        ("$.", 3, "found 'the end'; expected a name"),
        ("$.a-b", 4, "['a-b']"),
        ("a..", 4, "expected a name"),
        ("//a", 2, "expected a name"),
        ("a b", 2, "found ' '; expected . / .. or ["),
        ("a[", 2, "not closed"),
        ("a['b]", 2, "not closed"),
        ("a[b]", 2, "[b] is not understood; expected a name in quotes"),
        ("a[1.5]", 2, "not understood"),
        ("a[::0]", 3, "step 0"),
        ("a[?(@.c>)]", 2, "the filter [?(@.c>)] is not understood"),
        ("a[?(@.c =~ '(a+)+$')]", 9, "regular expressions"),
        ("a[?(@['`'].`sub(/(a+)+$/, b)` == 'x')]", 12, "functions in `"),
        ("a[?(@.b & @.c)]", 2, "and, or of conditions: && ||"),
        ("a[?(@.b | @.c)]", 2, "and, or of conditions: && ||"),
        ("a[?($..c == 1)]", 2, "$ on the left"),
        ("a[?(@.c[?($.b[*].c == 1)].d == 1)]", 2, "$ on the left"),
        ("a.size().b", 3, "nothing may follow .size()"),
        ("..a..b..c", 1, "3 times `..`; allowed: at most 2"),
        ("a" + ".a" * 32, 65, "33 steps; allowed: at most 32"),
        ("a" * 1025, 1, "1025 characters; allowed: at most 1024"),
    ],
)
def test_a_bad_path_says_where(path: str, at: int, what: str) -> None:
    error = find_order_key_error(path)
    assert error is not None
    assert f"at character {at}: " in error
    assert what in error
    assert error.startswith("order_key is ")
    with pytest.raises(ValueError, match="order_key is"):
        SubscriptionDefaults(order_key=path)


def test_words_that_are_no_paths() -> None:
    assert [find_order_key_error(word) for word in ("", "QID", "KEY")] == [None] * 3
    for word in ("", "QID"):
        with pytest.raises(ValueError, match="not read from messages"):
            key_reader(word)


@pytest.mark.parametrize(
    "same",
    [
        [b"1", b"1.0", b"1e0", b"10e-1", b"0.1e1", b"1.000", b"100E-2"],
        [b"0", b"-0", b"0.0", b"-0.0e5", b"0e9"],
        [b"-2.5", b"-25e-1", b"-2.50"],
        [b"100000000000000000000000", b"1e23", b"1E+23", b"10.0e22"],
        [b"12345678901234567890123", b"12345678901234567890123.0"],
        [b"9007199254740993", b"9007199254740993.0"],
        [b"0.1", b"1e-1", b"0.10"],
        [b"1e400", b"10e399"],
        [b"0.00000000000000000000000000000000001", b"1e-35"],
        [b'"a"', b'"\\u0061"'],
        [b'"\xc3\xa9/"', b'"\\u00e9\\/"'],
        [b'"\\n\\"\\\\"', b'"\\u000a\\u0022\\u005c"'],
        [b'{"a":1,"b":[1,2]}', b'{ "b" : [1.0, 2e0], "a" : 1 }'],
        [b"[]", b"[ ]"],
        [b"{}", b"{ }"],
    ],
)
def test_equal_values_are_one_key(same: list[bytes]) -> None:
    alone = {key_of("a", b'{"a": ' + text + b" }") for text in same}
    inside = {key_of("a", b'{"a":[' + text + b"]}") for text in same}
    assert len(alone) == len(inside) == 1
    (text,) = alone
    assert text is not None
    assert inside == {f"[{text}]"}
    assert text == key_of("['a','zz']", b'{"a":' + same[0] + b"}")


def test_different_values_are_different_keys() -> None:
    texts = [
        b"1", b'"1"', b"true", b'"true"', b'"null"', b"[1]", b"[[1]]", b'{"1":1}', b"-1", b"10", b"1.5",
        b"[]",
        b"{}", b'""', b"9007199254740992", b"9007199254740993", b"9007199254740993.5", b'"a"', b'"A"',
        b'"\xc3\xa9"', b'"e\xcc\x81"', b"0.1", b"0.10000000000000001", b"1e400", b"1e401", b"[1,2]", b"[2,1]",
    ]  # fmt: skip
    keys = [key_of("a", b'{"a":' + text + b"}") for text in texts]
    assert None not in keys
    assert len(set(keys)) == len(texts)


@pytest.mark.parametrize("key", ["abc", "1", "é", 'a"b', "a\\b", "a b/c", "\u2028", "x" * 5000])
def test_a_message_key_equals_a_member_with_its_text(key: str) -> None:
    text = key_of("KEY", b"{}", key.encode())
    assert text == key_of("$.a", {"a": key})
    assert text is not None
    assert text.startswith("sha256:") if len(key) > 4096 else json.loads(text) == key


def test_no_message_key_is_no_key() -> None:
    assert key_of("KEY") is None


def test_a_long_key_differs_from_others_by_all_of_its_text() -> None:
    one, other = ("x" * 10_000 + end for end in "ab")
    assert key_of("a", {"a": one}) == key_of("a", {"a": one}) != key_of("a", {"a": other})
    assert len(str(key_of("a", {"a": one}))) == len("sha256:") + 64
    assert key_of("a", {"a": "sha256:" + "0" * 64}) == '"sha256:' + "0" * 64 + '"'
    key = key_of("a", {"a": "y" * 4094})
    assert key == '"' + "y" * 4094 + '"'


@pytest.mark.parametrize(
    "body", [b"", b" ", b"x", b"{", b'{"a":1', b'{"a":1}x', b"\xff", b'{"a":"\xff"}', b'{"a":"\x01"}',
             b"null",
             b"5",
             b'{"a":01}', b'{"a":NaN}', b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000],
)  # fmt: skip
@pytest.mark.parametrize("path", ["a", "$.a.b", "a[0]", "..a", "[*].a", "a[?(@.x>1)]"])
def test_what_is_not_readable_has_no_key(body: bytes, path: str) -> None:
    assert key_of(path, body) is None


def test_a_member_that_stands_twice_counts_as_its_last() -> None:
    assert key_of("a.b", b'{"a":{"b":1},"a":{"b":2}}') == "2"
    assert key_of("a.b", b'{"a":5,"a":{"b":2}}') == "2"
    assert key_of("a.b", b'{"a":{"b":1},"a":5}') is None


MIB2 = 2 << 20
HOSTILE = {
    "a long array": b'{"x":[' + b"1," * 1_000_000 + b'1],"a":1}',
    "many members": b"{" + b",".join(b'"k%d":1' % n for n in range(100_000)) + b',"a":1}',
    "a deep nest": b'{"a":' * 500 + b"1" + b"}" * 500,
    "many commas": b'{"a":"' + b"," * (MIB2 - 20) + b'"}',
    "a long number": b'{"a":' + b"1" * (MIB2 - 20) + b"}",
    "a large value": b'{"a":[' + b"[]," * 600_000 + b"[]]}",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["a", "..a", "..a..a", "$", "..*", "a[0]", "[?(@.a>0)]"])
def test_a_hostile_body_costs_a_bounded_number_of_values(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: what is decoded into values, and what a key's text is made of."""
    from proxy_consumer.order_keys import canonical, general

    value_counts = []

    def counting(data: bytes) -> object:
        value_counts.append(1 + data.count(b",") + data.count(b"[") + data.count(b"{"))
        return decode(data)

    decode = canonical.decode
    monkeypatch.setattr(canonical, "decode", counting)
    monkeypatch.setattr(general, "decode", counting)
    key_of(path, HOSTILE[name])
    assert all(count <= canonical.VALUES_MAX for count in value_counts)


def test_values_up_to_the_bound_are_looked_through() -> None:
    assert key_of("[-1:]", list(range(4000))) == "3999"
    assert key_of("[-1:]", list(range(5000))) is None
    assert key_of("[-1]", list(range(100_000))) == "99999"  # a plain path has no such bound

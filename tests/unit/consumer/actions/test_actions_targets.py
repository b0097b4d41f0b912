"""Which URLs may be pushed to."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest

from proxy_consumer.config import ConsumerConfig
from proxy_consumer.push.actions import targets
from proxy_consumer.push.actions.targets import AllowList, parse_url


@pytest.mark.parametrize(
    ("entries", "host", "port", "allowed"),
    [
        ([], "127.0.0.1", 80, False),
        (["127.0.0.0/8"], "127.0.0.1", 80, True),
        (["127.0.0.0/8"], "localhost", 80, False),
        (["localhost"], "localhost", 80, True),
        (["localhost:80"], "localhost", 81, False),
        (["Hooks.Example"], "hooks.example", 443, True),
        (["hooks.example"], "evil-hooks.example", 443, False),
        (["*.example"], "a.b.example", 1, True),
        (["*.example"], "example", 1, False),
        (["*.example"], "notexample", 1, False),
        (["10.1.0.0/16:80"], "10.1.2.3", 80, True),
        (["10.1.0.0/16:80"], "10.1.2.3", 81, False),
        (["10.1.2.3"], "10.1.2.4", 80, False),
        (["::1"], "::1", 80, True),
        (["[::1]:80"], "::1", 81, False),
        (["127.0.0.1"], "::ffff:127.0.0.1", 80, True),
        (["10.0.0.0/8"], "10.evil.example", 80, False),
    ],
)
def test_the_allow_list(entries: list[str], host: str, port: int, allowed: bool) -> None:
    allow_list = AllowList(entries)
    assert allow_list.allows_target(host, port) is allowed
    assert (allow_list.find_target_error(host, port) is None) is allowed


@pytest.mark.parametrize(
    "entry",
    [
        "http://x/?a=b",
        "http://x/a/../b",
        "http://a b/",
        "ftp://x/",
        "http://x y",
        "10.0.0.0/99",
        "a b",
        "",
        "*",
        "x/24",
    ],
)
def test_bad_entries_are_named(entry: str) -> None:
    with pytest.raises(ValueError, match="push_targets"):
        ConsumerConfig(push_targets=(entry,))


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("https://H.example/hooks/", "https://h.example/hooks/", True),
        ("https://h.example/hooks/", "https://h.example/hooks/a/b%20c?x=/../y", True),
        ("https://h.example/hooks/", "https://h.example:443/hooks/..a/.b/c..", True),
        ("https://h.example/hooks/", "https://h.example/hooks", False),
        ("https://h.example/hooks/", "https://h.example/hooksX", False),
        ("https://h.example/hooks/", "https://h.example/HOOKS/a", False),
        ("https://h.example/hooks/", "https://h.example/", False),
        ("https://h.example/hooks/", "http://h.example:443/hooks/a", False),
        ("https://h.example/hooks/", "https://h.example:444/hooks/a", False),
        ("https://h.example/hooks/", "https://g.example/hooks/a", False),
        ("https://h.example/hooks/", "https://h.example/x/../hooks/a", False),
        ("https://h.example/hooks/", "https://h.example/x?/hooks/", False),
        ("https://h.example/hooks", "https://h.example/hooks", True),
        ("https://h.example/hooks", "https://h.example/hooks/a", True),
        ("https://h.example/hooks", "https://h.example/hooks?a", True),
        ("https://h.example/hooks", "https://h.example/hooksX", False),
        ("https://*.example", "https://h.example/any", True),
        ("http://10.0.0.1:8080/in/", "http://10.0.0.1:8080/in/a", True),
        ("http://[::1]:8080/in/", "http://[::1]:8080/in/a", True),
        ("http://[::1]:8080/in/", "http://[::1]:8080/out", False),
        *(
            ("https://h.example/hooks/", f"https://h.example/hooks/{up}admin", False)
            for up in (
                "../",
                "./../",
                "a/../../",
                "../../",
                "%2e%2e/",
                ".%2E/",
                "..%2f",
                "..%5c",
                "..\\",
                "%252e%252e%252f",
                "%25252e%25252e%25252f",
                "..;/",
                "..;a=b/",
                "%2e%2e%3b/",
                "%c0%ae%c0%ae/",
                "..%00/",
                "..%20/",
            )
        ),
    ],
)
def test_an_entry_that_is_a_url_allows_paths_below_it(entry: str, url: str, allowed: bool) -> None:
    allow_list = AllowList([entry])
    parsed = parse_url(url)
    assert (allow_list.find_url_error(parsed) is None) is allowed
    assert not allow_list.allows_target(parsed.host, parsed.port), "what is no HTTP is not meant"
    assert AllowList([entry, parsed.host]).find_url_error(parsed) is None


@pytest.mark.parametrize(("nested", "plain"), [(0, True), (2, True), (3, False), (32_760, False)])
def test_a_path_is_decoded_a_few_times(monkeypatch: pytest.MonkeyPatch, nested: int, plain: bool) -> None:
    """Every decoding passes over the whole path on the hub, and the path may be a producer's."""
    allow_list, decoded = AllowList(["https://h.example"]), []

    def counted(raw: bytes) -> bytes:
        decoded.append(raw)
        return unquote_to_bytes(raw)

    monkeypatch.setattr(targets, "unquote_to_bytes", counted)
    url = parse_url(f"https://h.example/hooks/a%{'25' * nested}41")
    assert (allow_list.find_url_error(url) is None) is plain
    assert len(decoded) <= targets.DECODINGS_MAX
    assert AllowList(["h.example"]).find_url_error(url) is None, (
        "whose host is allowed whole is not looked into"
    )


@pytest.mark.parametrize(
    ("text", "origin", "target"),
    [
        ("http://Host", ("http", "host", 80), "/"),
        ("https://h/a?b=c", ("https", "h", 443), "/a?b=c"),
        ("http://[::1]:8080/x", ("http", "::1", 8080), "/x"),
    ],
)
def test_urls(text: str, origin: tuple[str, str, int], target: str) -> None:
    url = parse_url(text)
    assert url.pool_key == origin
    assert url.target == target


@pytest.mark.parametrize(
    "text", ["x", "http://", "http://h:99999/", "http://h/\r\nX: y", "file:///etc/passwd"]
)
def test_bad_urls(text: str) -> None:
    with pytest.raises(ValueError):
        parse_url(text)


def test_a_host_is_no_longer_than_a_name_can_be() -> None:
    assert parse_url(f"http://{'h' * 253}/in").host == "h" * 253
    with pytest.raises(ValueError, match="its host has 254 characters; allowed: at most 253"):
        parse_url(f"http://{'h' * 254}/in")


@pytest.mark.parametrize("text", ["http://h/a b?k=s3cret", "http://h:x/?k=s3cret", "ftp://h/?k=s3cret"])
def test_an_invalid_url_is_reported_without_its_query(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL '\w+://h") as caught:
        parse_url(text)
    assert "s3cret" not in str(caught.value)

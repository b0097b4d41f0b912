"""HOST:PORT on the command line."""

import pytest

from ddmq.address import HostPort, parse


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9613", "127.0.0.1", 9613),
        ("[::1]:0", "::1", 0),
        ("proxy.example:65535", "proxy.example", 65535),
    ],
)
def test_what_is_an_address(text: str, host: str, port: int) -> None:
    found = parse(text)
    assert found == HostPort(host, port)
    assert str(found) == text


@pytest.mark.parametrize("text", ["", "9613", ":9613", "host:", "host:65536", "host:-1", "host:9 6"])
def test_what_is_not_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT \(for example"):
        parse(text)

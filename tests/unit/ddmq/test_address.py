"""HOST:PORT on the command line."""

from pathlib import Path

import pytest

from ddmq.address import HostPort, parse, read_ready, ready_line


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


@pytest.mark.parametrize("folder", ["data", "/srv/my data/a=b", "/srv/ data-dir=x"])
def test_the_ready_line_tells_where_the_parts_are_whatever_the_directory_is_called(folder: str) -> None:
    addresses = {"producer": HostPort("127.0.0.1", 9613), "admin": HostPort("::1", 9813)}
    assert read_ready(ready_line(addresses, Path(folder)) + "\n") == addresses
    assert read_ready("") == read_ready("already\n") == {}

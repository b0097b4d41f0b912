"""The token provider of the Kafka engine: one token for all clients, reasons, and no token in any text."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from backend.kafka.errors import LastError
from backend.kafka.opening import ClusterCheck
from backend.kafka.options import KafkaOptions
from backend.kafka.tokens import TokenProvider, load_provider
from ddmq_common.errors import ConfigError, RemoteError
from tests.support.pages import Block, page_blocks

NAME = "of_a_user:tokens"


class Provided:
    """The user's function: gives or raises what a test says, and counts."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def module() -> Iterator[ModuleType]:
    module = ModuleType("of_a_user")
    sys.modules[module.__name__] = module
    load_provider.cache_clear()
    yield module
    del sys.modules[module.__name__]
    load_provider.cache_clear()


def test_one_token_serves_all_clients_until_most_of_its_life_is_over() -> None:
    now = [1_000.0]
    provided = Provided(("first", 1_100.0))
    provider = TokenProvider(NAME, provided, lambda: now[0])
    assert [provider(), provider("")] == [("first", 1_100.0)] * 2
    now[0] = 1_069.0
    provided.answer = ("second", 1_200, "me", {"pool": "7"})
    assert provider() == ("first", 1_100.0)
    now[0] = 1_080.0  # when clients ask for another
    assert [provider(), provider()] == [("second", 1_200.0, "me", {"pool": "7"})] * 2
    assert provided.calls == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (5, "it returned int; allowed: (token, expiry"),
        (("t",), "it returned tuple"),
        ((b"t", 2_000), "the token is bytes; allowed: a text"),
        (("", 2_000), "the token is empty"),
        (("t", "2000"), "the expiry is str; allowed: seconds"),
        (("t", 900), "the expiry is 900, which is over; allowed: seconds since 1970, later than now"),
        (("t", 1_700_000_000_000), "which are milliseconds"),
        (OSError("no route to the service"), "OSError: no route to the service"),
    ],
)
def test_an_invalid_token_is_explained(answer: Any, reason: str) -> None:
    provided = Provided(answer)
    provider = TokenProvider(NAME, provided, lambda: 1_000.0)
    with pytest.raises(RemoteError) as raised:
        provider()
    assert f"{NAME}: " in str(raised.value)
    assert reason in str(raised.value)
    assert provider.waiting_reason in str(raised.value)
    provided.answer = ("t", 2_000)
    provider()
    assert provider.waiting_reason == "", "it is over"


def test_a_call_that_takes_long_is_the_reason() -> None:
    now, called, end = [1_000.0], threading.Event(), threading.Event()

    def slow() -> Any:
        called.set()
        end.wait(30)
        return "t", 2_000

    provider = TokenProvider(NAME, slow, lambda: now[0])
    thread = threading.Thread(target=provider)
    thread.start()
    assert called.wait(30)
    assert provider.waiting_reason == ""
    now[0] += 7
    assert provider.waiting_reason == f"{NAME} has not returned for 7 s"
    end.set()
    thread.join(30)
    assert provider.waiting_reason == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tokens", "allowed: MODULE:FUNCTION"),
        ("of_nobody:tokens", "ModuleNotFoundError"),
        ("of_a_user:nothing", "of_a_user has none of that name"),
        ("of_a_user:constant", "allowed: a function"),
    ],
)
def test_a_provider_that_cannot_be_loaded(module: ModuleType, name: str, reason: str) -> None:
    module.constant = 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=f"kafka: token_provider is {name}; ") as raised:
        ClusterCheck(KafkaOptions(token_provider=name))
    assert reason in str(raised.value)


def test_a_module_that_fails_is_named() -> None:
    with pytest.raises(ConfigError, match="token_provider is antigravity_of_nobody:x"):
        load_provider("antigravity_of_nobody:x")


@pytest.mark.parametrize("other", [{"sasl.mechanism": "PLAIN"}, {"sasl.oauthbearer.method": "oidc"}])
def test_another_mechanism_beside_it_is_refused(other: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="because there is a token_provider"):
        KafkaOptions(token_provider=NAME, librdkafka=other)


def test_every_client_gets_it(module: ModuleType) -> None:
    module.tokens = Provided(("t", time.time() + 60))  # type: ignore[attr-defined]
    options = KafkaOptions(token_provider=NAME, librdkafka={"security.protocol": "SASL_PLAINTEXT"})
    settings = options.client_settings(client_id="x")
    assert settings["oauth_cb"] is options.loaded_provider
    assert (settings["security.protocol"], settings["sasl.mechanism"]) == ("SASL_PLAINTEXT", "OAUTHBEARER")
    assert KafkaOptions(token_provider=NAME).client_settings()["security.protocol"] == "SASL_SSL"
    assert "oauth_cb" not in KafkaOptions().client_settings()
    Producer({**settings, "bootstrap.servers": "127.0.0.1:1"})  # waits until librdkafka has a token
    assert module.tokens.calls == 1


def test_no_token_is_in_any_text(module: ModuleType) -> None:
    now = [1_000.0]
    provided = Provided(("geheim", 1_100.0))
    provider = TokenProvider(NAME, provided, lambda: now[0])
    provider()
    now[0] += 90
    provided.answer = RuntimeError("geheim is too old")
    with pytest.raises(RemoteError, match=r"RuntimeError: \*\*\* is too old"):
        provider()
    module.tokens = Provided(("geheim", time.time() + 60))  # type: ignore[attr-defined]
    options = KafkaOptions(token_provider=NAME)
    assert options.loaded_provider is not None
    options.loaded_provider.fetch()
    assert options.mask_secrets("Bearer geheim is not taken") == "Bearer *** is not taken"
    assert "geheim" not in str(options.shown())


def test_its_failure_is_why_the_cluster_does_not_answer(module: ModuleType) -> None:
    module.tokens = Provided(RuntimeError("no route"))  # type: ignore[attr-defined]
    options = KafkaOptions("a:9092", token_provider=NAME)
    last, silent = LastError(options), KafkaError(KafkaError._TRANSPORT)
    assert "token provider" not in last.reason_for(silent), "none was requested yet"
    with pytest.raises(RemoteError, match=r"Kafka at a:9092 is not asked: the token provider .*no route"):
        ClusterCheck(options)
    assert last.reason_for(silent) == f"the token provider {NAME}: RuntimeError: no route"


@pytest.mark.parametrize("block", page_blocks("docs/kafka-security.md", "python"), ids=str)
def test_the_functions_of_the_page_return_what_a_provider_must(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages of AWS and Azure, which the functions import, are replaced by their answers."""
    expiry = 2_000_000_000
    aws, azure, identity = map(ModuleType, ("aws_msk_iam_sasl_signer", "azure", "azure.identity"))
    signer = SimpleNamespace(generate_auth_token=lambda region: ("token", expiry * 1000))
    credential = SimpleNamespace(get_token=lambda scope: SimpleNamespace(token="token", expires_on=expiry))
    aws.MSKAuthTokenProvider = signer  # type: ignore[attr-defined]
    identity.DefaultAzureCredential = lambda: credential  # type: ignore[attr-defined]
    for module in (aws, azure, identity):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names: dict[str, Any] = {}
    exec(compile(block.text, str(block), "exec"), names)
    provider = TokenProvider(NAME, names["kafka_token"], lambda: expiry - 900.0)
    assert provider() == ("token", float(expiry))

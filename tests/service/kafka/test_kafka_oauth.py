"""A broker that takes OAUTHBEARER tokens alone, and a server with a function of its user that makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.real_server import ddmq
from tests.service.kafka.cluster_kit import KafkaServer, own_cluster, pulled
from tests.support.waits import until

pytestmark = pytest.mark.slow
LIFE_S = 6
WITH_TOKENS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required username="
        '"admin" password="admin-secret" user_admin="admin-secret";'
    ),
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    ),
    "listener.name.plaintext.oauthbearer.connections.max.reauth.ms": "3000",
}
# Unsecured tokens, as Kafka's own validator for trials takes them.
MODULE = """
import base64, json, pathlib, time
HERE = pathlib.Path(__file__).parent

def encoded(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

def token():
    with (HERE / "calls").open("a") as calls:
        calls.write("x")
    if (HERE / "broken").exists():
        raise OSError("the identity provider is away")
    now = time.time()
    claims = {"sub": "ddmq", "iat": now, "exp": now + LIFE_S}
    return encoded({"alg": "none"}) + "." + encoded(claims) + ".", now + LIFE_S
"""


def test_a_server_lives_on_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "our_tokens.py").write_text(MODULE.replace("LIFE_S", str(LIFE_S)))
    monkeypatch.setenv("PYTHONPATH", str(home))
    (home / "broken").touch()
    with own_cluster(tmp_path / "kafka", more=WITH_TOKENS) as cluster:
        server = KafkaServer(
            tmp_path / "server",
            cluster.bootstrap,
            session_ms=10_000,
            token_provider="our_tokens:token",
            librdkafka={"security.protocol": "SASL_PLAINTEXT"},
        )
        try:
            server.launch()
            until(lambda: "OSError: the identity provider is away" in server.reason())
            output = ddmq("doctor", "--config", str(server.config)).stdout
            assert "the token provider our_tokens:token: OSError: the identity provider is away" in output
            (home / "broken").unlink()
            server.started()
            server.subscribe("readers", "orders")
            with server.producer() as producer, server.consumer("readers", "orders") as consumer:
                calls = len((home / "calls").read_text())

                def renewed() -> bool:
                    producer.send("orders", b"x")
                    pulled(consumer, 1)
                    return len((home / "calls").read_text()) > calls + 3

                until(renewed, "several tokens of it have ended since")
            assert "Traceback" not in server.log
            assert "eyJ" not in server.log, "no token is logged"
        finally:
            server.end()

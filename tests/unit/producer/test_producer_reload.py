"""Limits and rates that change while clients are connected."""

from proxy_producer.config import DelayLimits, ProducerConfig, RateLimit
from tests.unit.producer.producer_rig import ProducerRig


def test_limits_and_rates_of_a_running_proxy_change():
    rig = ProducerRig()
    assert rig.send(body=b"x" * 100).open
    fresh = ProducerConfig(
        body_bytes_max=99,
        topic_rate=RateLimit(messages_per_s=1.0),
        timeout_ms_max=300,
        delay=DelayLimits(absent_ms=9),
    )
    done = rig.proxy.reconfigure(fresh)
    assert done.changed == ("body_bytes_max", "timeout_ms_max", "topic_rate")
    assert done.waiting == ("delay",)
    assert rig.code(body=b"x" * 100) == 11
    assert rig.send(body=b"x", timeout=0).open
    assert rig.backend.sent[-1].deadline == rig.clock.monotonic() + 0.3
    assert "1 messages/s" in rig.send(body=b"x", timeout=100).answer.msg
    rig.proxy.reconfigure(ProducerConfig())
    assert rig.send(body=b"x" * 100).open
    assert rig.send(body=b"x" * 100).open


def test_what_did_not_change_keeps_its_bucket():
    rig = ProducerRig(topic_rate=RateLimit(messages_per_s=1.0))
    assert rig.send().open
    done = rig.proxy.reconfigure(ProducerConfig(topic_rate=RateLimit(messages_per_s=1.0), defer_ms_max=5))
    assert done.changed == ("defer_ms_max",)
    assert rig.code(timeout=100) == 15

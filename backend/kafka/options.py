"""The options of the Kafka engine, and the names of topics on both sides.

The names of the options are those of conf/backend.yaml; each comment says what the option bounds.

No two topics of one side share a name of the other. Kafka's alphabet is letters, digits and `. _ -`, ours has
no dot but `% |`. A topic of another program keeps its name, with each dot as `%2E`. Of our topics, a name
that Kafka can take is the same there (`%2E` is a dot again); the rest becomes `NAMESPACE.x.` and the name,
with each byte that Kafka forbids, and each `-`, as `-HH`. `topic_prefix` precedes every name, also those of
groups and transactional ids.
docs/formats-kafka.md has examples.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import ClassVar, NamedTuple

from backend.kafka.coordination.feature_level import LEVEL, NUMBERS_LEVEL
from backend.kafka.tokens import TokenProvider, load_provider
from backend.records import Capabilities, Durability
from ddmq_common.errors import CallerError, ConfigError
from ddmq_common.names import find_topic_name_error

KAFKA_NAME_MAX = 249
_LEGAL = re.compile(r"[A-Za-z0-9._\-]+\Z")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_]")
_CODED = re.compile(r"-([0-9A-F]{2})")


class Names(NamedTuple):
    """Converts between our topic names and Kafka's, for one installation.

    It knows the namespace, the prefix, and which topics of other programs are admitted.
    """

    namespace: str = "ddmq"
    prefix: str = ""
    patterns: tuple[str, ...] = ("*",)

    def system_topic(self, suffix: str) -> str:
        """Return Kafka's name of the system topic with this `suffix`, such as `settings`."""
        return f"{self.prefix}{self.namespace}.{suffix}"

    def system_group(self, suffix: str) -> str:
        """Return the Kafka group id of the engine's own consumers with this `suffix`, such as `reader`."""
        return self.system_topic(suffix)

    def to_kafka_group(self, group: str) -> str:
        """Return the Kafka group to which the committed offsets of our `group` are mirrored."""
        return self.prefix + group

    def to_kafka(self, name: str) -> str:
        """Return Kafka's name of our topic `name`. Raises CallerError if that would be too long."""
        plain = name.replace("%2E", ".")
        if not self._is_plain(plain):
            plain = f"{self.namespace}.x." + _FORBIDDEN.sub(lambda match: f"-{ord(match[0]):02X}", name)
        kafka_name = self.prefix + plain
        if len(kafka_name) > KAFKA_NAME_MAX:
            raise CallerError(
                f"topic {name} would be called {kafka_name[:60]}… in Kafka, {len(kafka_name)} bytes; "
                f"allowed: at most {KAFKA_NAME_MAX}"
            )
        return kafka_name

    def from_kafka(self, kafka_name: str, recorded: Container[str] = ()) -> str | None:
        """Return our name of the Kafka topic.

        None if it is neither ours nor an admitted topic of another program. `recorded`: our names of the
        topics in the settings topic; these are ours, whatever the patterns say.
        """
        if not kafka_name.startswith(self.prefix):
            return None
        plain = kafka_name[len(self.prefix) :]
        coded = plain.startswith(f"{self.namespace}.x.")
        if coded:
            text = plain[len(self.namespace) + 3 :]
            name = _CODED.sub(lambda hexed: chr(int(hexed[1], 16)), text)
        elif self._is_plain(plain):
            name = plain.replace(".", "%2E")
            if name not in recorded and not self.admits_topic(plain):
                return None
        else:
            return None
        if find_topic_name_error(name) is not None:
            return None
        return name if self._is_same(name, kafka_name) else None

    def admits_topic(self, plain: str) -> bool:
        """Return whether the patterns admit another program's topic. `plain`: its name without prefix."""
        return any(fnmatchcase(plain, pattern) for pattern in self.patterns)

    def _is_plain(self, name: str) -> bool:
        """Return whether our topic name may be used in Kafka without the coded form."""
        return (
            _LEGAL.match(name) is not None
            and name not in (".", "..")
            and not name.startswith(("_", f"{self.namespace}."))
        )

    def _is_same(self, name: str, kafka_name: str) -> bool:
        try:
            return self.to_kafka(name) == kafka_name
        except CallerError:
            return False


def is_namespace(text: str) -> bool:
    """Return whether `text` may be the namespace of an installation."""
    return _NAMESPACE.match(text) is not None


def incarnation_of(topic_id: str) -> int:
    """Return the incarnation of the topic with this id in Kafka; a recreated topic has another id."""
    return int.from_bytes(blake2b(topic_id.encode(), digest_size=6).digest(), "big") or 1


MIB = 1 << 20
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-]{0,39}\Z")
_PREFIX = re.compile(r"[A-Za-z0-9._\-]{0,60}\Z")
_ADDRESS = re.compile(r"[^\s,:]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}")
_SECRET = re.compile(r"pass?w|secret|\.key|\.pem|token|jaas", re.IGNORECASE)
# Of `sasl.` these alone are shown: what stands under a mistyped name may be a password, too.
_SHOWN = frozenset(
    ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.kerberos.service.name",
     "sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.oauthbearer.method",
     "sasl.oauthbearer.client.id")
)  # fmt: skip
MASKED = "***"
HEARTBEATS_PER_SESSION = 3
# What the promises rest on: never from the configuration.
ENGINE_SETTINGS = frozenset(
    ("bootstrap.servers", "enable.idempotence", "acks", "request.required.acks", "isolation.level",
     "transactional.id", "group.id", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof")
)  # fmt: skip
# What may be given otherwise: a broker that died is not asked for long, nor waited for when it is back.
DEFAULT_SETTINGS: Mapping[str, str | int] = {
    "topic.metadata.refresh.interval.ms": 10_000,  # errors and lost connections cause a refresh at once
    "reconnect.backoff.max.ms": 1_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "log_level": 2,  # librdkafka's own lines, several a second while a broker is away; reasons come otherwise
}
OAUTHBEARER = "OAUTHBEARER"
TOKEN_SETTINGS: Mapping[str, str] = {"security.protocol": "SASL_SSL", "sasl.mechanism": OAUTHBEARER}

# Of the producer of all appends.
APPEND_SETTINGS: Mapping[str, str | int | float | bool] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0.5,  # a lot goes in one request; with 0 its first record goes alone, and the others spin
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 500,
    "message.timeout.ms": 0,  # never: see engine/partitions.py
    "message.max.bytes": 1_000_000_000,  # what a topic takes is checked before, and by the broker
    "topic.metadata.propagation.max.ms": 2_000,
}


class StoreOnce(StrEnum):
    """The sends that are stored once."""

    NONE = "none"  # no sends: keys are rejected, and numbers are ignored
    KEYS = "keys"  # sends with an idempotency key; numbers are ignored
    ALL = "all"  # sends with a key or a number


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of the Kafka engine: sizes in bytes, periods in the unit of the name."""

    bootstrap: str = "127.0.0.1:9092"  # HOST:PORT of one or more brokers, commas between
    namespace: str = "ddmq"  # the system's own topics are NAMESPACE.settings and so on
    topic_prefix: str = ""  # before each name of a topic, group and transactional id in Kafka
    topics: tuple[str, ...] = ("*",)  # patterns of the topics of others that are let in
    replication_factor: int = 0  # of topics that are made; 0 = what the cluster does
    min_insync: int = 0  # the same of min.insync.replicas
    retention_ms: int = 0  # the same of retention.ms; -1 = for ever
    session_ms: int = 3_000  # silent for so long, a process holds nothing any more
    body_bytes_max: int = 2 * MIB  # topics that are made take such messages; those of others say themselves
    properties_bytes_max: int = 32 * 1024
    pending_bytes_max: int = 128 * MIB  # records on their way to the brokers; more are rejected
    window_bytes: int = 4 * MIB  # read ahead of one queue
    windows_bytes_max: int = 256 * MIB  # of all queues; the longest unused go first
    readers: int = 4  # consumers that read; each reads a queue at one place
    topics_poll_ms: int = 1_000  # how soon topics that others made are seen
    store_once: StoreOnce = (
        StoreOnce.KEYS
    )  # the sends of which a resend is recognised; these are transactions
    librdkafka: Mapping[str, str] = field(default_factory=dict)  # to every client: TLS, SASL, compression
    feature_level: int = 0  # the highest level that this process states; 0 = that of its version
    token_provider: str = ""  # MODULE:FUNCTION that returns the tokens of SASL OAUTHBEARER

    heartbeat_ms_max: ClassVar[int] = 500
    progress_partitions: ClassVar[int] = 4  # of NAMESPACE.progress when it is created
    transaction_timeout_ms: ClassVar[int] = 10_000
    pending_max: ClassVar[int] = 100_000  # records on their way to the brokers; more are rejected
    waits_max: ClassVar[int] = 100_000  # waiting readers; more fail
    sweep_ms: ClassVar[int] = 5  # how exact deadlines are

    def __post_init__(self) -> None:
        addresses = [address.strip() for address in self.bootstrap.split(",")]
        for address in addresses:
            if not _ADDRESS.fullmatch(address):
                _reject("bootstrap", self.bootstrap, "HOST:PORT, or several with commas between")
        if not _NAMESPACE.match(self.namespace):
            _reject("namespace", self.namespace, "1 to 40 letters, digits and -, not - first")
        if not _PREFIX.match(self.topic_prefix):
            _reject("topic_prefix", self.topic_prefix, "at most 60 letters, digits and . _ -")
        if self.store_once not in tuple(StoreOnce):
            _reject("store_once", self.store_once, ", ".join(StoreOnce))
        self._check_numbers()
        for name in self.librdkafka:
            if name in ENGINE_SETTINGS:
                _reject("librdkafka", name, "anything but what the engine sets itself")
        if self.token_provider:
            self._check_token_settings()

    def _check_token_settings(self) -> None:
        for name, value in self.librdkafka.items():
            if name in ("sasl.mechanism", "sasl.mechanisms") and value != OAUTHBEARER:
                _reject(f"librdkafka.{name}", value, f"{OAUTHBEARER}, because there is a token_provider")
            if name == "sasl.oauthbearer.method" and value != "default":
                _reject(f"librdkafka.{name}", value, "default, because there is a token_provider")

    def _check_numbers(self) -> None:
        lows = {
            "replication_factor": 0,
            "min_insync": 0,
            "retention_ms": -1,
            "session_ms": HEARTBEATS_PER_SESSION,
            "feature_level": 0,
        }
        for name in (option.name for option in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int) and value < lows.get(name, 1):
                _reject(name, value, f"{lows.get(name, 1)} or more")
        if self.replication_factor and self.min_insync > self.replication_factor:
            _reject("min_insync", self.min_insync, f"at most replication_factor, {self.replication_factor}")
        if self.feature_level > LEVEL:
            _reject("feature_level", self.feature_level, f"0 to {LEVEL}")
        if self.store_once == StoreOnce.ALL and self.supported_level < NUMBERS_LEVEL:
            _reject(
                "store_once", self.store_once, f"none, keys, because feature_level is {self.feature_level}"
            )
        if self.window_bytes > self.windows_bytes_max:
            _reject("window_bytes", self.window_bytes, f"at most windows_bytes_max, {self.windows_bytes_max}")

    @property
    def supported_level(self) -> int:
        """The highest feature level that this process states."""
        return self.feature_level or LEVEL

    @property
    def heartbeat_ms(self) -> int:
        """The time between two heartbeats of a process; at least three fit into a session."""
        return min(self.heartbeat_ms_max, self.session_ms // HEARTBEATS_PER_SESSION)

    @property
    def names(self) -> Names:
        """The converter of topic names for this installation."""
        return Names(self.namespace, self.topic_prefix, self.topics)

    @property
    def message_bytes_max(self) -> int:
        """The `max.message.bytes` of created topics: body, twice the properties, and what a retry adds."""
        return self.body_bytes_max + 4 * self.properties_bytes_max + 64 * 1024

    def client_settings(self, **settings: object) -> dict[str, object]:
        """Return the settings with which a librdkafka client is created: defaults, configured ones and
        `settings`.

        `settings` have _ for each dot and take precedence over the configured ones.
        """
        fixed = {name.replace("_", "."): value for name, value in settings.items()}
        tokens = {} if self.loaded_provider is None else {**TOKEN_SETTINGS, "oauth_cb": self.loaded_provider}
        return {**DEFAULT_SETTINGS, **tokens, **self.librdkafka, "bootstrap.servers": self.bootstrap, **fixed}

    @property
    def loaded_provider(self) -> TokenProvider | None:
        """The token provider of all clients, or None. Raises ConfigError if it cannot be loaded."""
        return load_provider(self.token_provider) if self.token_provider else None

    def mask_secrets(self, text: str) -> str:
        """Mask every configured secret in an error text of librdkafka or a broker."""
        secrets = (value for name, value in self.librdkafka.items() if _is_secret(name))
        for secret in sorted(map(str, secrets), key=len, reverse=True):
            if secret:
                text = text.replace(secret, MASKED)
        return text if self.loaded_provider is None else self.loaded_provider.mask_token(text)

    def secret_names(self) -> list[str]:
        """Return the names of the configured librdkafka settings that hold a secret."""
        return [f"librdkafka.{name}" for name, value in self.librdkafka.items() if value and _is_secret(name)]

    def shown(self) -> dict[str, object]:
        """Return all options for the log, with secrets masked."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        values["librdkafka"] = {
            name: MASKED if _is_secret(name) else value for name, value in self.librdkafka.items()
        }
        return values


def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None or (name.startswith("sasl.") and name not in _SHOWN)


def _reject(name: str, value: object, allowed: str) -> None:
    raise ConfigError(f"kafka: {name} is {value}; allowed: {allowed}")


def capabilities(options: KafkaOptions) -> Capabilities:
    """Return the capabilities of this engine."""
    return Capabilities(
        engine="kafka",
        atomic=True,
        idempotent=options.store_once != StoreOnce.NONE,
        find_by_key=False,
        topic_order=False,
        durability=frozenset(Durability),
        body_bytes_max=options.body_bytes_max,
        properties_bytes_max=options.properties_bytes_max,
        forbidden_bytes=b"",
        empty_body=True,
        queues_can_grow=True,
    )

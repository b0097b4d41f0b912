"""The quotas of the senders of this process, by the owner that the identities of their sends state.

The engine compares with them where it remembers sends (backend/idempotency.py). Only senders with quotas of
their own are here. A change replaces the whole mapping, so that any thread may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddmq_common.security.policy import Identity
from ddmq_common.security.quotas import SenderQuota
from ddmq_common.send_identity import make_owner


class SenderQuotas:
    """The quotas of the process; `by_owner` is empty without rights."""

    def __init__(self) -> None:
        self.by_owner: Mapping[str, SenderQuota] = {}

    def use_identities(self, identities: Iterable[Identity]) -> None:
        """Use the quotas of these identities from now on, in place of all earlier ones."""
        self.by_owner = {
            make_owner(identity.name): SenderQuota(quotas.idempotency_keys, quotas.producers)
            for identity in identities
            if (quotas := identity.quotas).idempotency_keys or quotas.producers
        }


SENDER_QUOTAS = SenderQuotas()

"""Json: parse the stored body. Not JSON = failed; empty or `null` = done."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import msgspec

from proxy_consumer.push.actions.job import CONTINUE, ActionJob, ActionOutcome, fail, finish

_DECODER = msgspec.json.Decoder(float_hook=Decimal)  # 1.50 stays 1.50 on its way through
EMPTY = finish("empty body")
NULL = finish("body is null")


def parse(job: ActionJob) -> ActionOutcome:
    """The action."""
    if not job.body.strip(b" \t\r\n"):
        return EMPTY
    try:
        value = _DECODER.decode(job.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return fail(f"Json: the body is not JSON: {error}")
    except InvalidOperation:
        return fail("Json: a number in the body has an exponent beyond all bounds")
    except RecursionError:
        return fail("Json: the body is nested too deeply")
    if value is None:
        return NULL
    job.json = value
    return CONTINUE

"""sendDelaySync's own codes, their order, and the id's shape."""

import pytest

from ddmq_common.delays.schedules import ScheduleLimits
from proxy_producer.core.delay_requests import DelayRequest, check_delay_request, echoed_id

NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1_000
LIMITS = ScheduleLimits(delay_ms_max=62 * 86_400_000, occurrences_max=1_000)
SHARDS = 8
UUID = b"a4207970-e5e1-11f1-a4e0-02fc00000001"
ID = b"1795289273-2-1795462073-0-0-0-7-" + UUID
ADD = DelayRequest(1, b"", NOW + 60, 2, None, None, None, UUID, None)
LOOP = ADD._replace(kind=3, interval=3, expire=NOW + 61, times=1)
CANCEL = DelayRequest(2, ID, None, None, None, None, None, b"", None)


def code(request):
    rejection = check_delay_request(request, LIMITS, SHARDS, NOW_MS)
    return 0 if rejection is None else int(rejection.code)


@pytest.mark.parametrize(
    ("request_", "expected", "words"),
    [
        (ADD._replace(action=None), 32, "absent"),
        (ADD._replace(action=0), 32, "action is 0"),
        (ADD._replace(action=3), 32, "allowed: 1 (add), 2 (cancel)"),
        (ADD._replace(timestamp=None), 33, "absent"),
        (ADD._replace(timestamp=999_999_999), 33, "999999999"),
        (ADD._replace(timestamp=NOW + 62 * 86_400 + 1), 33, "5356800 s (62 days) from now"),
        (ADD._replace(due_ms=(NOW + 62 * 86_400 + 1) * 1_000), 33, "2024-01-15T22:13:21Z; allowed: "),
        (ADD._replace(due_ms=-5), 33, "the due time is 1969-12-31T23:59:59.995Z"),
        (ADD._replace(kind=None), 31, "dmsgtype is absent"),
        (ADD._replace(kind=1), 31, "allowed: 2 (once), 3 (loop), 4 (exponential loop)"),
        (ADD._replace(kind=5), 31, "dmsgtype is 5"),
        (ADD._replace(times=1), 35, "0 for type 2"),
        (LOOP._replace(times=0), 35, "times is 0"),
        (LOOP._replace(times=-1), 35, "times is -1"),
        (LOOP._replace(times=None), 35, "absent"),
        (LOOP._replace(times=1_001), 35, "1 to 1000"),
        (LOOP._replace(expire=NOW + 60), 36, str(NOW + 60)),
        (LOOP._replace(expire=None), 36, "absent"),
        (LOOP._replace(interval=2), 37, "3 s or more"),
        (LOOP._replace(interval=None), 37, "absent"),
        (LOOP._replace(kind=4, interval=1), 38, "2 or more"),
        (ADD._replace(uuid=b"not-a-uuid"), 30, "not-a-uuid"),
        (ADD._replace(uuid=UUID.upper()), 30, "lower-case"),
        (CANCEL._replace(delay_id=b""), 30, "''"),
        (CANCEL._replace(delay_id=b"nonsense"), 30, "nonsense"),
        (CANCEL._replace(delay_id=ID + b"x"), 30, "uniqDelayMsgId"),
        (CANCEL._replace(delay_id=ID.replace(b"-2-", b"-5-", 1)), 31, "type in uniqDelayMsgId is 5"),
        (CANCEL._replace(delay_id=ID.replace(b"-7-", b"-8-", 1)), 34, "allowed: 0 to 7"),
        (CANCEL._replace(delay_id=ID.replace(b"-7-", b"--1-", 1)), 34, "is -1"),
    ],
)
def test_each_code(request_, expected, words):
    rejection = check_delay_request(request_, LIMITS, SHARDS, NOW_MS)
    assert rejection is not None
    assert rejection.code == expected
    assert rejection.text.startswith("FAILED: ")
    assert words in rejection.text


@pytest.mark.parametrize(
    "request_",
    [
        ADD,
        ADD._replace(timestamp=1_000_000_000),
        ADD._replace(timestamp=NOW + 62 * 86_400),
        ADD._replace(timestamp=None, due_ms=NOW_MS + 1),
        ADD._replace(uuid=b""),
        ADD._replace(times=0, interval=0, expire=0),
        LOOP,
        LOOP._replace(times=1_000),
        LOOP._replace(kind=4, interval=2),
        CANCEL,
        CANCEL._replace(delay_id=ID.replace(b"-2-", b"-4-", 1)),
        CANCEL._replace(delay_id=b"1795290630-4-1795290688-2-0-2-7-zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz"),
    ],
)
def test_what_is_legal(request_):
    assert check_delay_request(request_, LIMITS, SHARDS, NOW_MS) is None


def test_the_order_of_an_add():
    request = ADD._replace(timestamp=0, kind=9, times=-1, expire=0, interval=0, uuid=b"x")
    codes = [code(request)]
    for fix in ({"timestamp": NOW}, {"kind": 3}, {"times": 2}, {"expire": NOW + 1}, {"interval": 3}):
        request = request._replace(**fix)
        codes.append(code(request))
    assert codes == [33, 31, 35, 36, 37, 30]


def test_the_order_of_a_cancel():
    both = ID.replace(b"-2-", b"-9-", 1).replace(b"-7-", b"-99-", 1)
    assert code(CANCEL._replace(delay_id=both)) == 31
    assert code(CANCEL._replace(delay_id=both[:-1])) == 30


def test_the_id_is_echoed_for_30_31_and_34_only():
    echoed = [n for n in range(10, 39) if n in (30, 31, 34)]
    from ddmq_client.idl.codes import Code

    assert [int(one) for one in Code if echoed_id(one, b"id") == b"id"] == echoed

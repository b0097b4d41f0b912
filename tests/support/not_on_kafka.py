"""The tests that pass on another engine and cannot be asked of Kafka, by file, each with the reason.

They are skipped there and counted in the table of docs/kafka.md. tests/unit/suite/test_not_on_kafka.py proves
that each is there, and that what is said to be off is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple


class Reason(NamedTuple):
    """`capability`: the one that is off; empty where nothing is missing but what a test may move."""

    text: str
    capability: str = ""


NO_FIND = Reason("Kafka keeps no index by key or message id", "find_by_key")
NO_ORDER = Reason("Kafka assigns no position that orders records across topics", "topic_order")
QUEUE_BY_KEY = Reason(
    "without positions across topics, each message goes to the queue of its key", "topic_order"
)
NO_COPIES = Reason(
    "the window does not contain messages that a commit has stored, such as copies made by `ddmq move`"
)
NO_LOG = Reason("the metrics of the file log do not exist on Kafka")
NO_DISK = Reason("the log is on the disks of the brokers, of which a server knows neither size nor contents")
NO_CLOCK = Reason("the broker stamps records with its own clock, which a test cannot set")
NO_MODEL = Reason("a naive model cannot predict the gaps in offsets or the broker's clock")
OTHER_KILLS = Reason("on Kafka, other tests kill brokers and whole processes instead")

NOT_ON_KAFKA: Mapping[str, Mapping[str, Reason]] = {
    "contract/test_contract_append.py": {
        "test_positions_order_all_topics": NO_ORDER,
    },
    "contract/test_contract_find.py": {
        "test_the_first_offset_at_or_after_a_time": NO_CLOCK,
        "test_times_are_per_queue": NO_CLOCK,
        "test_store_time_never_goes_back": NO_CLOCK,
        "test_the_store_s_clock_follows_the_wall": NO_CLOCK,
        "test_by_key_newest_first": NO_FIND,
        "test_by_message_id": NO_FIND,
        "test_an_id_that_is_stored_twice_matches_twice": NO_FIND,
        "test_other_topics_with_the_same_key_stay_out": NO_FIND,
        "test_a_missing_key_or_id_has_no_match": NO_FIND,
        "test_a_record_matches_as_soon_as_it_is_answered": NO_FIND,
    },
    "contract/test_contract_killed.py": {
        "test_answered_appends_survive_kill_9": OTHER_KILLS,
        "test_answered_appends_survive_repeated_kill_9": OTHER_KILLS,
    },
    "contract/test_contract_model.py": {
        "test_an_engine_agrees_with_the_model": NO_MODEL,
        "test_an_engine_agrees_with_the_model_at_length": NO_MODEL,
    },
    "contract/test_contract_once.py": {
        "test_commits_do_not_check_identities": NO_COPIES,
    },
    "contract/test_contract_lasting.py": {
        "test_every_record_matches_after_a_restart": NO_FIND,
    },
    "service/cli/test_transcripts.py": {
        "test_a_session_prints_what_its_transcript_says[*found*]": NO_FIND,
    },
    "service/cli/test_hostile_text.py": {
        "test_a_hostile_text_is_text[*--key*]": NO_FIND,
        "test_json_is_harmless_too[*--key*]": NO_FIND,
    },
    "service/cli/test_message_states.py": {
        "test_where_a_failed_message_went": NO_FIND,
    },
    "service/cli/test_story.py": {
        "test_delayed_ordered_failed_and_acknowledged": NO_FIND,
        "test_a_dead_letter": NO_FIND,
        "test_behind_another_of_its_key": NO_FIND,
        "test_a_story_is_printed_for_people": NO_FIND,
        "test_rolled_back": NO_FIND,
        "test_cancelled_and_moved": NO_FIND,
    },
    "service/cli/test_blocked_keys.py": {
        "test_skip_makes_a_dead_letter_and_delivers_the_next": NO_FIND,
    },
    "service/cli/test_admin_contract.py": {
        "test_every_route_answers_as_described": NO_FIND,
    },
    "service/cli/test_admin_api.py": {
        "test_health_and_metrics": NO_LOG,
    },
    "scenarios/test_incident_of_the_disk.py": {
        "test_the_largest_writer_of_a_full_disk_is_closed": NO_DISK,
    },
    "console/test_console_incidents.py": {
        "test_the_topic_that_fills_the_disk_is_closed": NO_DISK,
    },
    "interop/test_interop_send.py": {
        "test_send_batch_keeps_its_order_in_one_queue": QUEUE_BY_KEY,
    },
}


def reason(file: str, test: str) -> Reason | None:
    """Why this test (of this file under tests/, with its parameters) is not asked of Kafka; None: it is."""
    return next((why for name, why in NOT_ON_KAFKA.get(file, {}).items() if _names(name, test)), None)


def _names(pattern: str, test: str) -> bool:
    """A function stands for all its parameters; with brackets for those that match, as file names do."""
    function, _, parameter_pattern = pattern.rstrip("]").partition("[")
    name, _, parameters = test.rstrip("]").partition("[")
    return function == name and (not parameter_pattern or fnmatchcase(parameters, parameter_pattern))

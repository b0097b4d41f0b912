/*
 * What producers speak to the producer proxy (port 9613): framed, compact or binary protocol.
 *
 * Names, ids and types up to 99 are those of the clients that exist already; they never change.
 * Ids from 100 are our additions (docs/wire-additions.md): a client that does not know them skips
 * them, and reply fields among them go only to callers whose request carried one of ours.
 */

const string PRESSURE_TRAFFIC = "isPressureTraffic"
const string TRACE_ID = "traceId"
const string SPAN_ID = "spanId"
const string CARRERA_HEADERS = "carrera_headers"

/* The outcome of one send, or of a whole sendBatchSync. */
struct Result {
    1: i32 code
    2: string msg
    3: optional string key
    100: optional string messageId
    101: optional i32 queueId
    102: optional i64 offset
    /* 0 written, 1 durable, 2 replicated */
    103: optional i32 durability
    104: optional string delayId
    /* of a message with a key or sequence: 0 stored by this call, 1 it was stored before, 2 that, with another body */
    105: optional i32 duplicate
}

/* The payload is in `body`, or in `value` where a client knows only strings. */
struct Message {
    1: string topic
    2: string key
    3: string value
    4: i64 hashId = 0
    5: string tags
    /* >= 0 that queue, -1 by hashId, < -1 any */
    6: i32 partitionId = -1
    7: optional binary body
    8: optional string version
    9: optional map<string, string> properties
    100: optional string clientId
    101: optional string producerGroup
    /* stored once per topic and key; goes before property idempotency-key */
    102: optional string idempotencyKey
    /* stored once per producer and sequence; of that producer everything below answeredBelow is answered */
    103: optional binary producerId
    104: optional i64 sequence
    105: optional i64 answeredBelow
    /* of one that may be stored already: for how long it has been under way, at most, when this call's time is up */
    106: optional i64 underWayMs
}

/* Adds or cancels a delayed message, or (of ours) changes one. Times are epoch seconds unless the name says otherwise. */
struct DelayMessage {
    1: string topic
    2: optional string uniqDelayMsgId
    3: optional binary body
    4: string tags
    /* 1 add, 2 cancel; of ours: 100 reschedule, 101 fire now, 102 hold, 103 release */
    5: i32 action
    6: optional i64 timestamp
    /* 2 delay, 3 loop, 4 exponential loop; of ours: 5 schedule */
    7: optional i32 dmsgtype
    /* seconds between occurrences, or the base for type 4 */
    8: optional i64 interval
    9: optional i64 expire
    10: optional i64 times
    11: optional string uuid
    13: optional string version
    14: optional map<string, string> properties
    100: optional string clientId
    /* epoch milliseconds, instead of timestamp */
    101: optional i64 dueMs
    /* a schedule: dmsgtype 5, of ours. Five-field cron, and its time zone (UTC) */
    102: optional string cron
    103: optional string zone
    /* milliseconds from now, instead of dueMs; with a cron from each of its times */
    104: optional i64 delayMs
    /* between deliveries, and how many follow the first (-1: without end) */
    105: optional i64 periodMs
    106: optional i64 repeat
    /* deliveries in all, 0 or absent: no cap of its own */
    107: optional i64 occurrencesMax
    /* fire_once, all or skip: what happens to deliveries that were missed */
    108: optional string catchUp
    /* of dmsgtype 5: the message's own key, and its queue as in a plain Message */
    109: optional string key
    110: optional i32 partitionId
    111: optional i64 hashId
    /* of an add: its uuid was made for it and never sent before, so nobody need look whether it is known */
    112: optional bool fresh
}

struct DelayResult {
    1: i32 code
    2: string msg
    3: string uniqDelayMsgId
    /* 1 added, 2 cancelled, 3 already fired, 4 unknown, 5 older than kept, 6 pending */
    100: optional i32 outcome
    101: optional i64 firedAtMs
    /* when it is due (next) */
    102: optional i64 dueMs
}

/* A part of a transaction, ours: its messages are stored, and invisible until it is committed. */
struct PrepareRequest {
    /* 32 hexadecimal digits of a UUID of version 7 that the caller made; more calls with it add messages */
    1: string transactionId
    /* whose members are asked when nobody says how it ended */
    2: string producerGroup
    3: list<Message> messages
    4: string clientId
    /* ms; absent or <= 0: the proxy's cap of 10 s */
    5: optional i64 timeout
    /* of the first call: ms until the group is first asked; goes before CHECK_IMMUNITY_TIME_IN_SECONDS */
    6: optional i64 checkAfterMs
    /* properties deliver-at, deliver-after … ask for a delay, whether or not the topic speaks dialect ddmq */
    7: optional bool dueTimes
    /* the proxy that passes a client's call on to the owner of the transaction; such a call is never passed on again */
    8: optional string forwardedBy
    /* with forwardedBy: the identity of the client, among whose open transactions this one counts */
    9: optional string onBehalfOf
}

struct PrepareResponse {
    /* 0: all messages are stored, else none is part of the transaction */
    1: i32 code
    2: string msg
    /* one per message, with messageId */
    3: list<Result> results
    /* for endTransaction: how far its messages reach in the half topic's queue */
    4: optional i64 throughOffset
}

struct EndTransactionRequest {
    1: string transactionId
    2: string producerGroup
    /* RocketMQ's: 8 commit, 12 rollback, 0 not known yet */
    3: i32 action
    4: string clientId
    5: optional i64 timeout
    /* the highest that any answer of the transaction named */
    6: optional i64 throughOffset
    /* of an answer to a check: its number */
    7: optional i32 check
    /* the proxy that passes a client's call on; such a call is never passed on again */
    8: optional string forwardedBy
    /* of a commit: how many message ids the answers of the transaction named; if some of them are lost, none is seen */
    9: optional i32 messages
}

struct EndTransactionResponse {
    /* 0: it is as `action` asked, by this call or before */
    1: i32 code
    2: string msg
    /* 1 committed, 2 rolled back, 3 never there, 4 no longer known, 5 a dead letter, 6 still open */
    3: optional i32 outcome
    /* where each message of it landed, in the order they were prepared; only from the call that committed it */
    4: optional list<Result> results
}

struct PollChecksRequest {
    1: string producerGroup
    2: string clientId
    3: i32 countMax
    /* ms that the call may wait for a check */
    4: i64 timeout
    5: optional string forwardedBy
}

/* Asks whether a transaction was committed; answered by endTransaction with `check`. */
struct TransactionCheck {
    1: string transactionId
    /* 1 first, 15 last */
    2: i32 check
    3: list<Message> messages
    4: i64 preparedMs
    5: i64 throughOffset
}

struct PollChecksResponse {
    1: i32 code
    2: string msg
    3: list<TransactionCheck> checks
}

/* Used inside client libraries only; no method takes it. */
struct DelayMeta {
    1: i64 timestamp
    2: optional i32 dmsgtype
    3: optional i64 interval
    4: optional i64 expire
    5: optional i64 times
    7: optional map<string, string> properties
}

/* Part of the clients' IDL; no method takes it. */
struct RestMessage {
    1: byte type = 1
    2: byte mode = 1
    3: string url
    4: map<string, string> params
    5: map<string, string> headers
    6: i64 timestamp
    7: i64 expire
    8: i64 timeout
    9: i32 retryCnt = 3
}

/* Says who the caller is, ours. For the rest of the connection, or until the next one. */
struct AuthRequest {
    /* token */
    1: string mechanism
    2: binary credentials
    3: optional string clientId
}

struct AuthResponse {
    /* 0 accepted, 13 not: the connection is closed then */
    1: i32 code
    2: string msg
    /* the name that the credentials stand for */
    3: optional string identity
    /* epoch milliseconds; absent: they do not expire */
    4: optional i64 expiresMs
}

service ProducerService {
    /* ours: may be sent ahead of the first call, and again at any time */
    AuthResponse authenticate(1: AuthRequest request)

    /* timeout in ms; absent or <= 0: the proxy's cap of 10 s */
    Result sendSync(1: Message message, 2: i64 timeout)

    /* one Result for all: 0 only if every message is stored */
    Result sendBatchSync(1: list<Message> messages)

    /* answered when the backend has acknowledged, 10 s at most */
    Result sendAsync(1: Message message)

    DelayResult sendDelaySync(1: DelayMessage delayMessage, 2: i64 timeout)

    /* ours: one Result per message, in the order of the messages */
    list<Result> sendBatch(1: list<Message> messages, 2: i64 timeout)

    /* ours: no answer; what is refused is counted */
    oneway void sendOneway(1: Message message)

    /* ours: transactions, docs/transactions.md */
    PrepareResponse sendPrepared(1: PrepareRequest request)
    EndTransactionResponse endTransaction(1: EndTransactionRequest request)
    PollChecksResponse pollTransactionChecks(1: PollChecksRequest request)

    /* ours: between the proxies of one installation; the data is the engine's, and clients have no use for it */
    binary callEngine(1: binary data, 2: i64 timeout)
}

/*
 * What consumers speak to the consumer proxy (port 9713): framed, compact or binary protocol.
 *
 * Names, ids and types up to 99 are those of the clients that exist already; they never change.
 * Ids from 100 are our additions (docs/wire-additions.md): a client that does not know them skips
 * them, and reply fields among them go only to callers whose request carried one of ours.
 */

/* One delivered message. The topic and queue stand in the answer's Context. */
struct Message {
    1: string key
    2: binary value
    3: string tag
    4: i64 offset
    5: optional map<string, string> properties
    100: optional string messageId
    101: optional i64 leaseId
    /* 1 on the first delivery */
    102: optional i32 attempt
    103: optional i64 bornMs
    104: optional i64 storedMs
    /* of the queue: how far behind this message is */
    105: optional i64 nextOffset
}

/* Where messages came from; clients send it back with their results. */
struct Context {
    1: string groupId
    2: string topic
    3: string qid
}

/* What became of messages of one Context; a linked list, one element per Context. */
struct ConsumeResult {
    1: Context context
    3: list<i64> successOffsets
    4: list<i64> failOffsets
    10: optional ConsumeResult nextResult
    /* beside the offset lists and in their order */
    100: optional list<i64> successLeases
    101: optional list<i64> failLeases
    102: optional list<i64> failDelaysMs
    103: optional list<i64> extendLeases
    /* beside failOffsets: why, for people */
    104: optional list<string> failReasons
    /* handed back: not looked at, free for others at once, not counted */
    105: optional list<i64> returnOffsets
    106: optional list<i64> returnLeases
    /* beside extendLeases: this offset of that lease only */
    107: optional list<i64> extendOffsets
    /* set by a proxy that passes a client's results on; such a call is never passed on again */
    110: optional string forwardedBy
}

struct PullRequest {
    1: required string groupId
    2: optional string topic
    /* absent or 0: the subscription's limit */
    10: optional i32 maxBatchSize
    /* ms; absent or 0: 20 */
    11: optional i32 maxLingerTime
    /* taken before messages are delivered */
    50: optional ConsumeResult result
    60: optional string version
    100: optional string clientId
    /* TAG or SQL92 */
    101: optional string filterType
    102: optional string filter
    /* first, last, or epoch ms: where the subscription starts if this pull makes it */
    103: optional string start
    /* QID, KEY or a JSONPath: the order key of a subscription that this pull makes; refused when one that
       exists has another */
    104: optional string orderKey
}

/* Results that changed nothing because their lease was over. */
struct LateResult {
    1: Context context
    2: list<i64> offsets
    3: list<i64> leases
    /* of the offsets: finished before, by whomever */
    4: list<i64> finished
}

/* Messages of exactly one (topic, queue); empty context and list when there is nothing. */
struct PullResponse {
    1: Context context
    2: list<Message> messages
    /* of the leases in this answer, and of each extension of them */
    100: optional i64 leaseMs
    101: optional list<LateResult> late
    /* odd, but not refused: for people */
    102: optional string notice
}

struct SettleRequest {
    1: optional ConsumeResult result
    2: optional string groupId
    3: optional string clientId
    /* the client stops: answer its waiting pulls of the group now */
    4: optional bool leave
}

struct SettleResponse {
    1: list<LateResult> late
}

/* A message to send, ours; as a producer's Message. */
struct ReplyMessage {
    1: string topic
    2: string key
    4: i64 hashId = 0
    5: string tags
    /* >= 0 that queue, -1 by hashId, < -1 any */
    6: i32 partitionId = -1
    7: binary body
    9: optional map<string, string> properties
    /* properties deliver-at, deliver-after … ask for a delay, whether or not the topic speaks dialect ddmq */
    10: optional bool dueTimes
}

/* The acknowledgement of one message, and messages that are stored in the same commit. */
struct ReplyRequest {
    /* of the delivered message: where it came from, its offset and leaseId */
    1: Context context
    2: i64 offset
    3: i64 lease
    4: list<ReplyMessage> messages
    5: optional string clientId
    /* ms; absent or <= 0: the proxy's cap of 10 s */
    6: optional i64 timeout
    /* set by a proxy that passes a client's call on; such a call is never passed on again */
    7: optional string forwardedBy
}

/* Fields as those of a producer's Result. */
struct ReplyResult {
    100: optional string messageId
    101: optional i32 queueId
    102: optional i64 offset
    103: optional i32 durability
    104: optional string delayId
}

struct ReplyResponse {
    /* 0: the message is finished and all messages are stored */
    1: i32 code
    2: string msg
    /* 1 by this call, 2 by an earlier one; 3 the lease is over, 4 the message is finished: not by this call */
    3: optional i32 outcome
    4: optional list<ReplyResult> results
}

struct ConsumeStatsRequest {
    1: required string group
    2: optional string topic
    3: optional string version
}

struct FetchRequest {
    1: required string consumerId
    2: required string groupId
    3: required string cluster
    /* topic -> qid -> first offset wanted */
    4: optional map<string, map<string, i64>> fetchOffset
    10: optional i32 maxBatchSize
    11: optional i32 maxLingerTime
    60: optional string version
    100: optional string clientId
    /* only these of the group's topics */
    101: optional list<string> topics
    /* clustering or broadcasting: refused when the subscription says otherwise */
    102: optional string model
    /* broadcast topics only: read what fetchOffset names and nothing else, without it tell bounds;
       nothing is assigned or remembered, and every QidResponse tells the queue's bounds */
    103: optional bool exact
    /* consumerId fetches no more: its queues go to the others; the answer is empty */
    104: optional bool leave
}

struct QidResponse {
    1: required string topic
    2: required string qid
    3: optional i64 nextRequestOffset
    10: required list<Message> messages
    /* with exact: the oldest readable offset, and where the next message will land */
    100: optional i64 firstOffset
    101: optional i64 endOffset
}

struct FetchResponse {
    1: optional i32 code
    10: required list<QidResponse> results
    /* why nothing can be fetched; then code is set, too */
    100: optional string error
}

struct AckResult {
    1: required string consumerId
    2: required string groupId
    3: required string cluster
    /* topic -> qid -> next offset to consume */
    4: required map<string, map<string, i64>> offsets
}

struct ConsumeStats {
    1: string group
    2: string topic
    3: map<string, i64> consumeOffsets
    4: map<string, i64> produceOffsets
}

exception PullException {
    1: i32 code
    2: string message
    /* filter or orderKey: what the pull states cannot be used, or is not what the subscription has */
    100: optional string option
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

service ConsumerService {
    /* ours: may be sent ahead of the first call, and again at any time */
    AuthResponse authenticate(1: AuthRequest request)

    PullResponse pull(1: PullRequest request) throws (1: PullException error)

    /* true always: unknown offsets, queues and groups are ignored */
    bool submit(1: ConsumeResult result) throws (1: PullException error)

    /* ours: like submit, and tells what came too late */
    SettleResponse settle(1: SettleRequest request) throws (1: PullException error)

    /* ours: acknowledges one message and sends others, in one commit */
    ReplyResponse reply(1: ReplyRequest request)

    list<ConsumeStats> getConsumeStats(1: ConsumeStatsRequest request) throws (1: PullException error)

    FetchResponse fetch(1: FetchRequest request)

    bool ack(1: AckResult result)
}

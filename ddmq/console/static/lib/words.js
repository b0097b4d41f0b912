// Words for the codes that the API answers with.

/** Why a subscription has unfinished messages (docs/operating-groups.md). */
export const CAUSES = {
  paused: "an operator has paused it",
  "nobody-consumes": "no client pulls",
  "topic-closed": "the topic is closed to consumers",
  "push-held-back": "the push receiver rejects messages",
  "other-proxy": "another proxy holds the queues",
  stalled: "some queues make no progress",
  concurrency: "its concurrency is used up",
  "retrying-max": "too many messages are failing",
  "ack-span-max": "an early message is unfinished for too long",
  "rate-max": "its rate limit is reached",
  "clients-differ": "its clients state different filters or topics",
  "slower-than-arrivals": "it finishes fewer messages than arrive",
  "keys-blocked": "keys fail and block what waits behind them",
};

/** Whether a topic takes delayed messages. */
export const DELAYS = { both: "allowed", none: "rejected", only: "required" };

/** What to do about an error of the API, by its status. 0: no answer; -1: an answer that is not JSON. */
export const ADVICE = {
  [-1]: "Perhaps something else has answered, such as a proxy between this browser and the server.",
  0: "Check whether the server runs, and whether this computer reaches it.",
  403: "An administrator can give this right; ddmq auth explain shows which rule allows what.",
  409: "It has been changed meanwhile. Look at it before you try again.",
  412: "Somebody else has changed it meanwhile. Look at it before you try again.",
  429: "Wait a moment before you try again.",
  500: "This is an error of the server. Its log says more.",
  503: "The server cannot do this now.",
  504: "The server waited for another process in vain. See the page System.",
};

/** What an operator can do about each cause: the setting to raise, or a sentence. */
export const REMEDIES = {
  concurrency: { setting: "concurrency", text: "Raise the concurrency, if the clients can do more at once." },
  "retrying-max": { setting: "retrying_max", text: "Mend what fails first; a higher bound lets more messages fail at once." },
  "ack-span-max": { setting: "ack_span_max", text: "Find the unfinished message below: its story says where it is." },
  "rate-max": { setting: "rate_max", text: "Raise the rate limit, or remove it with 0." },
  "nobody-consumes": { text: "Start a client of the group." },
  "slower-than-arrivals": { text: "Add clients, or make them faster." },
  "keys-blocked": { page: "keys", text: "Park the failing keys, mend the cause, then replay them." },
  paused: { text: "Resume the group." },
  "clients-differ": { text: "Deploy the same release to all clients of the group." },
};

// The console's pure functions; `node --test` runs this file, and tests/console/test_pure_modules.py runs node.
import assert from "node:assert/strict";
import test, { mock } from "node:test";
import * as format from "../../ddmq/console/static/lib/format.js";

test("durations use the two largest units", () => {
  const cases = [[0, "0 ms"], [999, "999 ms"], [1_000, "1 s"], [61_000, "1 min 1 s"], [3_600_000, "1 h"], [90_061_000, "1 d 1 h"], [-5_000, "−5 s"]];
  for (const [ms, text] of cases) assert.equal(format.formatDuration(ms), text);
});

test("a value that is not known is a dash", () => {
  const functions = [format.formatNumber, format.formatCompact, format.formatRate, format.formatSize, format.formatDuration, format.formatTime];
  for (const each of functions) {
    assert.equal(each(null), "–");
    assert.equal(each(undefined), "–");
  }
});

test("a subscription drains in a time or never, unless a rate is not known", () => {
  const rates = { arriving_per_s: 1, finished_per_s: 1 };
  assert.equal(format.formatDrain({ ...rates, drain_s: 90 }), "1 min 30 s");
  assert.equal(format.formatDrain({ ...rates, drain_s: null }), "never");
  assert.equal(format.formatDrain({ ...rates, drain_s: null, finished_per_s: null }), "–");
});

test("times are relative to now, and absolute in UTC", () => {
  assert.equal(format.formatRelative(1_000, 61_000), "1 min ago");
  assert.equal(format.formatRelative(61_000, 1_000), "in 1 min");
  assert.equal(format.formatTime(0), "1970-01-01 00:00:00");
  assert.equal(format.formatTime(Date.UTC(2026, 10, 28, 19, 38, 15, 250)), "2026-11-28 19:38:15.250");
});

test("sizes have a unit", () => {
  assert.equal(format.formatSize(1_023), "1,023 B");
  assert.equal(format.formatSize(1_536), "1.5 KiB");
  assert.equal(format.formatSize(2 ** 40), "1 TiB");
});

test("control and direction characters become visible", () => {
  assert.equal(format.visible("a\u0000b"), "a␀b");
  assert.equal(format.visible("a\u202eb"), "a⟨U+202E⟩b");
  assert.equal(format.visible("a\nb", true), "a\nb");
  assert.equal(format.visible("a\u001b[31mb", true), "a␛[31mb");
  for (let code = 0; code < 0x20; code += 1) assert.ok(!format.visible(String.fromCharCode(code)).includes(String.fromCharCode(code)));
});

test("arguments are quoted for a shell", () => {
  assert.equal(format.quoteArgument("billing"), "billing");
  assert.equal(format.quoteArgument("it's $HOME"), `'it'"'"'s $HOME'`);
  assert.equal(format.quoteArgument(""), "''");
});

test("a command has its options before its arguments, and arguments cannot be options", () => {
  assert.equal(format.commandLine("topic set", ["orders"], { writable: true, queues: "" }), "ddmq topic set --writable orders");
  assert.equal(format.commandLine("group pause", ["-rf"], { topic: "a b" }), "ddmq group pause --topic 'a b' -- -rf");
});

test("events of a stream are the same however it is cut into chunks", async () => {
  const { splitEvents } = await import("../../ddmq/console/static/lib/live.js");
  const stream = 'retry: 2000\n\nid: 1\nevent: snapshot\ndata: {"a": "x: y"}\n\n:\n\nevent: end\ndata: {"reason": "stopping"}\n\n';
  const named = (events) => events.filter((each) => each.name);
  const expected = [{ name: "snapshot", data: '{"a": "x: y"}' }, { name: "end", data: '{"reason": "stopping"}' }];
  for (let size = 1; size <= stream.length; size += 1) {
    let text = "";
    const received = [];
    for (let start = 0; start < stream.length; start += size) {
      const [events, rest] = splitEvents(text + stream.slice(start, start + size));
      received.push(...events);
      text = rest;
    }
    assert.deepEqual(named(received), expected);
    assert.equal(text, "");
  }
});

test("a change shows only the keys that it changed", async () => {
  globalThis.localStorage = { getItem: () => null, setItem: () => {} };
  globalThis.addEventListener ??= () => {};
  globalThis.location ??= { pathname: "/console/", search: "" };
  const { difference } = await import("../../ddmq/console/static/pages/changes.js");
  assert.deepEqual(difference({ a: 1, b: [2] }, { a: 1, b: [3] }), { b: [2] });
  assert.equal(difference(null, { a: 1 }), null);
  assert.equal(difference("text", { a: 1 }), "text");
});

test("a message's span lies on the track of its story", async () => {
  const { place } = await import("../../ddmq/console/static/pages/message.js");
  assert.deepEqual(place({ start_ms: 150, ms: 25 }, 100, 200), { left: "25%", width: "12.5%" });
  assert.deepEqual(place({ start_ms: 100, ms: 0 }, 100, 0), { left: "0%", width: "0%" });
});

test("a stretch of the timeline may be dragged in any direction and stays inside", async () => {
  const { stretch } = await import("../../ddmq/console/static/lib/timeline.js");
  assert.deepEqual(stretch(2, 5, 10), [2, 6]);
  assert.deepEqual(stretch(5, 2, 10), [2, 6]);
  assert.deepEqual(stretch(-3, 40, 10), [0, 10]);
});

test("a line of a chart has a gap where a value is not known, and includes zero", async () => {
  const { linePaths } = await import("../../ddmq/console/static/lib/spark.js");
  const { lines, top } = linePaths([1, null, 2, 3], 30, 10);
  assert.equal(lines.length, 2);
  assert.equal(top, 3);
  assert.equal(linePaths([null, null], 30, 10).lines.length, 0);
});

async function loadingUntil(milliseconds, everyMs, act, lastsMs = 3_000) {
  const { Loader } = await import("../../ddmq/console/static/lib/loader.js");
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const log = { begun: [], published: 0, atOnce: 0 };
  const load = () => new Promise((resolve) => {
    log.begun.push(Date.now());
    log.atOnce += 1;
    setTimeout(() => ((log.atOnce -= 1), resolve(1)), lastsMs);
  });
  const loader = new Loader(load, () => (log.published += 1), () => 60_000);
  let most = 0;
  for (let passed = 0; passed < milliseconds; passed += everyMs) {
    act(loader);
    most = Math.max(most, log.atOnce);
    mock.timers.tick(everyMs);
    for (let turn = 0; turn < 5; turn += 1) await Promise.resolve();
  }
  loader.stop();
  mock.timers.reset();
  return { ...log, most };
}

test("data that changes all the time at a slow server is fetched again and again, with one request at a time", async () => {
  const { begun, published, most } = await loadingUntil(30_000, 500, (loader) => loader.refresh());
  assert.equal(most, 1);
  assert.deepEqual(begun.slice(0, 3), [0, 5_000, 10_000]);
  assert.ok(published >= 5, `published ${published} times`);
});

test("data that does not change is left alone until it is old", async () => {
  const { begun } = await loadingUntil(100_000, 1_000, () => {}, 100);
  assert.equal(begun.length, 2);
});

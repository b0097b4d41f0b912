// The console's pure functions; `node --test` runs this file, and tests/console/test_pure_modules.py runs node.
import assert from "node:assert/strict";
import test from "node:test";
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
  assert.equal(format.quoteArgument("-rf"), "-- -rf");
  assert.equal(format.quoteArgument(""), "''");
});

// Plays scripts against the real lodash, on a clock of its own.
//
//   NODE_PATH=.../node_modules node debounce.js < scripts
//
// A line of input is a script; a line of output says when the action ran, with which value, and
// whether lodash had a timer after each event:
//
//   {"throttle": false, "wait": 10, "max_wait": 20, "leading": true, "trailing": true,
//    "keep_stale": false, "events": [[0, "trigger", 1], [5, "flush", 0]], "inside": [["trigger"]],
//    "end": 100}
//   {"runs": [[0, 1], [0, 1000]], "pending": [true, false]}
//
// `inside[k]` is what run number k does; a value triggered there is 1000 + k. An event "late" sets
// the time without firing the timers that are due, and triggers.
"use strict";

// Not at zero, which lodash takes for "never".
const ORIGIN = 1000000;
let now = ORIGIN;
let next = 1;
let timers = new Map();

class FakeDate extends Date {
  static now() {
    return now;
  }
}

function setTimer(call, wait) {
  const id = next++;
  timers.set(id, { call, due: now + Math.max(0, wait) });
  return id;
}

function advance(to) {
  for (;;) {
    let first;
    for (const [id, { due }] of timers) {
      if (due <= to && (first === undefined || due < timers.get(first).due)) first = id;
    }
    if (first === undefined) break;
    const { call, due } = timers.get(first);
    timers.delete(first);
    now = Math.max(now, due);
    call();
  }
  now = Math.max(now, to);
}

const lodash = require("lodash").runInContext({
  Date: FakeDate,
  setTimeout: setTimer,
  clearTimeout: (id) => timers.delete(id),
});

function play(script) {
  now = ORIGIN;
  timers = new Map();
  const { throttle, wait, max_wait, leading, trailing, keep_stale, events, inside, end } = script;
  const runs = [];
  const act = (op, value) => {
    if (op === "trigger" || op === "late") debounced(value);
    else if (op === "cancel") debounced.cancel();
    else if (op === "flush") {
      // Lodash forgets its timer here without clearing it.
      if (!keep_stale) timers.clear();
      debounced.flush();
    }
  };
  const action = (value) => {
    const run = runs.length;
    runs.push([now - ORIGIN, value]);
    for (const op of inside[run] || []) act(op, 1000 + run);
  };
  const options = { leading, trailing };
  if (max_wait !== null && !throttle) options.maxWait = max_wait;
  const debounced = lodash[throttle ? "throttle" : "debounce"](action, wait, options);
  const pending = events.map(([at, op, value]) => {
    if (op === "late") now = ORIGIN + at;
    else advance(ORIGIN + at);
    act(op, value);
    return timers.size > 0;
  });
  advance(ORIGIN + end);
  return { runs, pending };
}

const lines = require("fs").readFileSync(0, "utf8").split("\n").filter(Boolean);
process.stdout.write(lines.map((line) => JSON.stringify(play(JSON.parse(line))) + "\n").join(""));

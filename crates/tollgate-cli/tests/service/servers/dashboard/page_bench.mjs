// What the dashboard costs a browser when the service has 10 000 policies that all decide something.
//   node page_bench.mjs
// prints, as medians of three runs, when the first content is painted and how long the main thread is busy. Environment: that of
// harness.mjs. A long task is one of 50 ms and more.

import { execFile } from "node:child_process";
import { children, close, open, start } from "./harness.mjs";

const POLICIES = 10_000;
const RUNS = 3;
const LIVE_MS = 10_000;

const name = (number) => `p${String(number).padStart(12, "0")}`;
const rules = Array.from(
  { length: POLICIES },
  (_, number) => `  - { key: k, value: v${number}, rate_limit: { name: ${name(number)}, quota: 1/min } }\n`,
);

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

/** Returns what the main thread has done so far, in ms. */
async function busy(session, page) {
  const { metrics } = await session.send("Performance.getMetrics");
  const of = (name) => metrics.find((metric) => metric.name === name).value * 1000;
  const long = await page.evaluate(() => window.longTasks);
  return { task: of("TaskDuration"), script: of("ScriptDuration"), long };
}

async function run(service, view) {
  const page = await open();
  await page.addInitScript(() => {
    window.longTasks = [];
    new PerformanceObserver((list) =>
      window.longTasks.push(...list.getEntries().map((entry) => entry.duration)),
    ).observe({ type: "longtask", buffered: true });
  });
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  await page.goto(`${service.admin}/ui/${view}`);
  await page.locator("#connection", { hasText: "live" }).waitFor();
  await page.locator("tbody tr").nth(10).waitFor();
  const paint = await page.evaluate(
    () => performance.getEntriesByName("first-contentful-paint")[0].startTime,
  );
  const rows = await page.evaluate(() => performance.now());
  const loaded = await busy(session, page);
  await page.waitForTimeout(LIVE_MS);
  const after = await busy(session, page);
  await page.context().close();
  return {
    "first paint, ms": paint,
    "rows shown, ms": rows,
    "main thread until then, ms": loaded.task,
    "of that scripts, ms": loaded.script,
    "main thread in 10 s live, ms": after.task - loaded.task,
    "of that scripts in 10 s, ms": after.script - loaded.script,
    "long tasks": after.long.length,
    "longest task, ms": Math.max(0, ...after.long),
  };
}

try {
  const service = await start({ token: false, config: `domain: d\ndescriptors:\n${rules.join("")}` });
  const flags = ["load", "http", service.ports.http, "--body", '{"policy":"{key}"}', "--key-prefix", "p"];
  flags.push("--keys", `${POLICIES}`, "--rate", "1000", "--duration", "300s");
  children.add(execFile(process.env.TOLLGATE, flags));
  for (const view of ["", "#/policies"]) {
    const runs = [];
    for (let number = 0; number < RUNS; number += 1) runs.push(await run(service, view));
    console.log(`/ui/${view}`);
    for (const row of Object.keys(runs[0])) {
      const values = runs.map((found) => found[row]);
      const shown = values.map((value) => value.toFixed(0)).join(" ");
      console.log(`  ${row.padEnd(30)} ${median(values).toFixed(0).padStart(6)}   (${shown})`);
    }
  }
} finally {
  await close();
}

// Adaptive limits, stores and their breakers, and the audit log.

import { get } from "/ui/actions.js";
import { el, number, shown, table, update } from "/ui/draw.js";
import { everyOther, failed, policyLink } from "/ui/parts.js";

export function resilience() {
  const [rates, slots, servers] = [el("div"), el("div"), el("div")];
  async function load() {
    try {
      const [adaptive, concurrency] = await Promise.all(
        ["adaptive", "concurrency"].map((only) => get(`/policies?limit=200&only=${only}`)),
      );
      update(
        rates,
        table(
          "Rates that adapt",
          [
            ["Policy", false, policyLink],
            ["Follows", false, (row) => row.adaptive.follow],
            ["Rate", true, (row) => `${number(row.adaptive.per_second)}/s`],
            ["Of this process", true, (row) => `${number(row.adaptive.own_per_second)}/s`],
            ["Lowest", true, (row) => `${number(row.adaptive.min_per_second)}/s`],
            ["Highest", true, (row) => `${number(row.adaptive.max_per_second)}/s`],
            ["Reason", false, (row) => row.adaptive.reason],
          ],
          adaptive.policies,
          "No policy has `adaptive`.",
          adaptive.total,
        ),
      );
      update(
        slots,
        table(
          "Concurrency",
          [
            ["Policy", false, policyLink],
            ["Limit of each key", false, (row) => row.limit.text],
            ["In flight, all keys", true, (row) => number(row.in_flight)],
          ],
          concurrency.policies,
          "No policy has `concurrency`.",
          concurrency.total,
        ),
      );
      const store = await get("/store");
      const nodes = store.stores.flatMap((one) =>
        (one.shared?.nodes ?? []).map((node) => ({ store: one.name, ...node })),
      );
      update(
        servers,
        table(
          "Servers of shared stores, and their breakers",
          [
            ["Store", false, (row) => shown(row.store)],
            ["Server", false, (row) => row.address],
            [
              "State",
              false,
              (row) =>
                el(
                  "span",
                  { class: row.state === "up" || row.state === "closed" ? "good" : "bad" },
                  row.state,
                ),
            ],
            ["In flight", true, (row) => number(row.in_flight)],
            ["Calls", true, (row) => number(row.calls)],
            ["Failed", true, (row) => number(row.errors)],
            ["Late", true, (row) => number(row.timeouts)],
            ["Shed", true, (row) => number(row.shed)],
            ["Last error", false, (row) => shown(row.last_error ?? "", 200)],
          ],
          nodes,
          "The state is in this process: no server to lose.",
        ),
        el(
          "p",
          {},
          `Store errors: ${number(store.errors)}. Decisions without the store: ${number(store.degraded_decisions)}. Bounds reached: ${number(store.bounds_reached)}.`,
        ),
      );
    } catch (error) {
      update(rates, failed(error));
    }
  }
  load();
  return {
    title: "Resilience",
    node: el("div", {}, el("h1", {}, "Adaptive limits and resilience"), rates, slots, servers),
    tick: everyOther(load),
  };
}

/** The moment of a change, in UTC. */
const when = (at) =>
  el("time", { datetime: at, class: "whole" }, at.replace("T", " ").replace(/\.\d+Z$/, " UTC"));

export function audit() {
  const list = el("div");
  let written = -1;
  async function load() {
    try {
      const found = await get("/audit?n=200");
      update(
        list,
        table(
          "The last 200 changes, newest first",
          [
            ["When", false, (row) => when(row.when.at)],
            ["Who", false, (row) => el("span", { class: "whole" }, shown(row.who))],
            ["Action", false, (row) => row.action],
            ["With", false, (row) => el("span", { class: "key" }, shown(row.what, 600))],
            [
              "Result",
              false,
              (row) => (row.error ? el("span", { class: "bad" }, shown(row.error, 300)) : "done"),
            ],
          ],
          found.changes,
          "No change since the start of the process.",
        ),
      );
    } catch (error) {
      update(list, failed(error));
    }
  }
  return {
    title: "Audit",
    node: el("div", {}, el("h1", {}, "Audit log"), list),
    tick: (now) => {
      if (now.audit !== written) {
        written = now.audit;
        load();
      }
    },
  };
}

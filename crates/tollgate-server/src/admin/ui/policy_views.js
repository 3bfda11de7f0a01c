// Overview, the list of policies, and one policy. A view is { title, node, tick(figures), close() }.

import { confirmChange, get } from "/ui/actions.js";
import { Chart, bytes, el, number, share, shown, shownLines, span, spark, table, update } from "/ui/draw.js";
import { durations, everyOther, failed, field, keyLink, policyLink } from "/ui/parts.js";

const tile = (label) => {
  const value = el("b", {}, "–");
  return {
    node: el("div", { class: "tile" }, value, el("span", {}, label)),
    set: (text, kind = "") => {
      value.textContent = text;
      value.className = kind;
    },
  };
};

/** Whether a store can be asked. */
function storeState(store) {
  if (store.servers === null) return "in this process";
  return store.degraded
    ? el("span", { class: "bad" }, `away: ${shown(store.degraded, 300)}`)
    : el("span", { class: "good" }, "answers");
}

/** How many servers of a store get calls; the circuit breakers of the others are open. */
function serversUp(store) {
  if (store.servers === null) return "–";
  const isWell = store.servers_up === store.servers;
  return el("span", { class: isWell ? "good" : "bad" }, `${store.servers_up} of ${store.servers}`);
}

const limitOf = (row) => row.adaptive?.limit ?? row.limit?.text ?? "unlimited";

/** What is left of a policy, or in flight. */
function level(row) {
  if (row.in_flight !== null && row.in_flight !== undefined) return `${number(row.in_flight)} in flight`;
  return row.level === null ? "–" : `${number(row.level)} of ${number(row.capacity)}`;
}

export function overview(live) {
  const chart = new Chart("Decisions of all policies");
  const tiles = {
    allowed: tile("allowed per second (10 s)"),
    denied: tile("denied per second (10 s)"),
    share: tile("of decisions denied (10 s)"),
    status: tile("state"),
    version: tile("configuration version"),
    policies: tile("policies"),
  };
  const [problems, busy, stores] = [el("div"), el("div"), el("div")];
  const node = el(
    "div",
    {},
    el("h1", {}, "Overview"),
    el("div", { class: "tiles" }, ...Object.values(tiles).map((one) => one.node)),
    problems,
    chart.node,
    el("h2", {}, "Busiest policies"),
    busy,
    el("h2", {}, "Stores"),
    stores,
  );
  const tick = (now) => {
    tiles.allowed.set(number(now.allowed_per_second));
    tiles.denied.set(number(now.denied_per_second));
    tiles.share.set(share(now.allowed_per_second, now.denied_per_second));
    tiles.status.set(now.status.word, now.status.word === "ready" ? "good" : "bad");
    tiles.version.set(String(now.version));
    tiles.policies.set(number(now.policies));
    chart.show(live.points);
    update(
      problems,
      ...(now.problems.length > 0
        ? [
            el("h2", {}, "Problems"),
            el("ul", {}, ...now.problems.map((one) => el("li", { class: "bad" }, shownLines(one.text)))),
          ]
        : []),
    );
    update(
      busy,
      table(
        `The policies with the most refusals in the last 10 s; ${now.busy} decided something`,
        [
          ["Policy", false, policyLink],
          ["Allowed/s", true, (row) => number(row.allowed_per_second)],
          ["Denied/s", true, (row) => number(row.denied_per_second)],
          ["Denied", true, (row) => share(row.allowed_per_second, row.denied_per_second)],
        ],
        now.rows.slice(0, 10),
        "No decision in the last 10 s.",
      ),
    );
    update(
      stores,
      table(
        "Where the state is",
        [
          ["Store", false, (store) => shown(store.name)],
          ["Kind", false, (store) => store.kind],
          ["State", false, storeState],
          ["Breakers closed", true, serversUp],
          ["Keys", true, (store) => number(store.keys)],
          ["Memory", true, (store) => bytes(store.bytes)],
        ],
        now.stores,
      ),
    );
  };
  return { title: "Overview", node, tick, close: () => chart.close() };
}

/** Rows of the list that are shown at once. */
const PAGE = 100;

export function policies() {
  const filter = el("input", { id: "filter", type: "search" });
  const sort = el(
    "select",
    { id: "sort" },
    ...[
      ["file", "as in the file"],
      ["name", "by name"],
      ["denied", "most denied"],
      ["allowed", "most allowed"],
    ].map(([value, text]) => el("option", { value }, text)),
  );
  const [list, place] = [el("div"), el("span", { class: "dim" })];
  let [offset, total] = [0, 0];
  const turn = (by) => {
    offset = Math.max(0, offset + by);
    load();
  };
  const [before, after] = [
    el("button", { type: "button", onclick: () => turn(-PAGE) }, "Previous"),
    el("button", { type: "button", onclick: () => turn(PAGE) }, "Next"),
  ];
  const anew = (event) => {
    event?.preventDefault();
    offset = 0;
    load();
  };
  const form = el(
    "form",
    { class: "line", onsubmit: anew },
    field("Name contains", filter),
    field("Order", sort),
    el("button", {}, "Show"),
    before,
    after,
    place,
  );
  sort.addEventListener("change", anew);
  let asked = 0;
  async function load() {
    const mine = (asked += 1);
    const query = new URLSearchParams({
      limit: PAGE,
      offset,
      history: 30,
      sort: sort.value,
      filter: filter.value,
    });
    try {
      const found = await get(`/policies?${query}`);
      // Another page was asked for meanwhile.
      if (mine !== asked) return;
      total = found.total;
      if (found.policies.length > 0 || total === 0) return draw(found.policies);
      // A reload has made the list shorter.
      offset = Math.floor((total - 1) / PAGE) * PAGE;
      load();
    } catch (error) {
      update(list, failed(error));
    }
  }
  function draw(rows) {
    place.textContent = total === 0 ? "no policy" : `${offset + 1} to ${offset + rows.length} of ${total}`;
    [before.disabled, after.disabled] = [offset === 0, offset + rows.length >= total];
    const badge = (kind, text) => [" ", el("span", { class: `badge ${kind}` }, text)];
    update(
      list,
      table(
        "Solid lines are allowed, dashed ones denied decisions. Rates are means of 10 s. What is left is known of policies without a key.",
        [
          ["Policy", false, policyLink],
          ["Limit", false, (row) => el("span", { class: "whole" }, limitOf(row))],
          [
            "Mode",
            false,
            (row) =>
              el(
                "span",
                {},
                row.mode,
                ...(row.bypassed_until ? badge("warn", "bypassed") : []),
                ...(row.adaptive ? badge("", `adaptive: ${row.adaptive.reason}`) : []),
              ),
          ],
          ["Last 30 s", false, (row) => spark(row.history)],
          ["Allowed/s", true, (row) => number(row.rates["10s"].allowed_per_second)],
          ["Denied/s", true, (row) => number(row.rates["10s"].denied_per_second)],
          ["Left", true, level],
        ],
        rows,
        filter.value ? "No name contains this." : "The configuration has no policy.",
      ),
    );
  }
  load();
  return {
    title: "Policies",
    node: el("div", {}, el("h1", {}, "Policies"), form, list),
    tick: everyOther(load),
  };
}

export function policy(live, id) {
  const chart = new Chart("Decisions of this policy in the last minute");
  const [facts, reasons, top] = [el("div"), el("div"), el("div")];
  const long = durations("bypass-for", 86400000);
  const node = el(
    "div",
    {},
    el("h1", {}, shown(id)),
    facts,
    chart.node,
    el("h2", {}, "Decisions by reason"),
    reasons,
    el("h2", {}, "Top keys"),
    top,
    el("h2", {}, "Bypass"),
  );
  let isShown = false;
  async function load() {
    try {
      const found = await get(`/policies/${encodeURIComponent(id)}`);
      draw(found);
      const keys = await get(`/top?${new URLSearchParams({ policy: id, n: 10 })}`);
      drawTop(found, keys);
      isShown = true;
    } catch (error) {
      update(facts, failed(error));
    }
    for (const part of [...node.children].slice(2)) part.hidden = !isShown;
  }
  function draw(found) {
    node.firstElementChild.textContent = shown(found.label);
    const now = Math.floor(Date.parse(live.figures.at) / 1000);
    chart.show(
      found.history.map(([allowed, denied], index) => [now - found.history.length + index, allowed, denied]),
    );
    const rows = [
      ["Limit", limitOf(found)],
      ["Algorithm", found.algorithm ?? "–"],
      ["Mode", found.mode + (found.enforce_percent < 100 ? `, ${found.enforce_percent} %` : "")],
      ["Key", found.key.length > 0 ? found.key.join(", ") : "none: one limit for all"],
      ["While its store is away", found.failure],
      ["Declared in", found.declared],
      ["Left", level(found) === "–" ? null : level(found)],
      [
        "Adaptive rate",
        found.adaptive
          ? `${number(found.adaptive.per_second)}/s of ${number(found.adaptive.min_per_second)} to ${number(found.adaptive.max_per_second)} (${found.adaptive.reason})`
          : null,
      ],
      [
        "Thresholds",
        found.warn.length > 0
          ? found.warn.map(({ percent, crossed }) => `${percent} % (${number(crossed)} crossed)`).join(", ")
          : null,
      ],
      ["Parents", found.parents.length > 0 ? found.parents.join(", ") : null],
      ["Bypassed for", found.bypassed_until ? span(found.bypassed_until.left_ms) : null],
      ["Bound over the fleet", found.bounds?.text ?? null],
    ].filter(([, value]) => value !== null);
    update(
      facts,
      table(
        "What it is",
        [
          ["Setting", false, ([name]) => name],
          ["Value", false, ([, value]) => shown(value, 400)],
        ],
        rows,
      ),
    );
    const counted = Object.entries(found.decisions).filter(([, count]) => count > 0);
    update(
      reasons,
      table(
        "Since the start of the process",
        [
          ["Result", false, ([name]) => name.split(".")[0]],
          ["Reason", false, ([name]) => name.split(".")[1]],
          ["Decisions", true, ([, count]) => number(count)],
        ],
        counted,
        "No decision yet.",
      ),
    );
  }
  function drawTop(found, keys) {
    if (!keys.watched)
      return void update(top, el("p", { class: "dim" }, `Not available: ${keys.why}.`));
    const columns = [
      ["Key", false, (row) => keyLink(id, row)],
      ["Permits", true, (row) => number(row.cost)],
      ["Of these uncertain", true, (row) => number(row.error)],
    ];
    update(
      top,
      el(
        "p",
        {},
        `About ${number(keys.distinct)} distinct keys. Permits that they have asked for, since the start of the process:`,
      ),
      table("Denied most", columns, keys.denied, "No key was denied."),
      table("Allowed most", columns, keys.allowed, "No key yet."),
    );
  }
  const bypass = (ms) =>
    confirmChange(
      ms === 0 ? "End the bypass" : "Bypass this policy",
      ms === 0
        ? `The policy ${shown(id)} is enforced again.`
        : `Every request passes the policy ${shown(id)} for ${span(ms)}. The change is lost at a restart.`,
      "/bypass",
      { policy: id, for_ms: ms },
      load,
    );
  node.append(
    el(
      "form",
      { class: "line", onsubmit: (event) => event.preventDefault() },
      field("For", long),
      el(
        "button",
        {
          type: "button",
          disabled: !live.mayChange,
          onclick: () => bypass(Number(long.value)),
        },
        "Bypass …",
      ),
      el("button", { type: "button", disabled: !live.mayChange, onclick: () => bypass(0) }, "End bypass …"),
    ),
  );
  load();
  return {
    title: shown(id),
    node,
    tick: everyOther(load),
    close: () => chart.close(),
  };
}

// Overview, the list of policies, and one policy. A view is { title, node, tick(figures), close() }.

import { confirmChange, get } from "/ui/actions.js";
import { Chart, bytes, el, keyText, number, share, shown, span, spark, table } from "/ui/draw.js";
import { durations, failed, field, keyAddress, policyLink } from "/ui/parts.js";

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

export function overview(live) {
  const chart = new Chart("Decisions of all policies");
  const tiles = {
    allowed: tile("allowed per second, 10 s"),
    denied: tile("denied per second, 10 s"),
    share: tile("denied, 10 s"),
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
    problems.replaceChildren(
      ...(now.problems.length > 0
        ? [
            el("h2", {}, "Problems"),
            el("ul", {}, ...now.problems.map((one) => el("li", { class: "bad" }, shown(one.text, 500)))),
          ]
        : []),
    );
    busy.replaceChildren(
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
    stores.replaceChildren(
      table(
        "Where the state is",
        [
          ["Store", false, (store) => shown(store.name)],
          ["Kind", false, (store) => store.kind],
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
  let [offset, total, shownRows] = [0, 0, new Map()];
  const turn = (by) => {
    offset = Math.max(0, Math.min(offset + by, Math.max(0, total - 1)));
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
  async function load() {
    const query = new URLSearchParams({
      limit: PAGE,
      offset,
      history: 30,
      sort: sort.value,
      filter: filter.value,
    });
    try {
      const found = await get(`/policies?${query}`);
      total = found.total;
      draw(found.policies);
    } catch (error) {
      list.replaceChildren(failed(error));
    }
  }
  function draw(rows) {
    shownRows = new Map();
    place.textContent = total === 0 ? "no policy" : `${offset + 1} to ${offset + rows.length} of ${total}`;
    [before.disabled, after.disabled] = [offset === 0, offset + rows.length >= total];
    const cells = (row) => ({
      row,
      history: row.history,
      spark: el("span", {}, spark(row.history)),
      allowed: el("span", {}, number(row.rates["10s"].allowed_per_second)),
      denied: el("span", {}, number(row.rates["10s"].denied_per_second)),
      level: el("span", {}, number(row.in_flight ?? row.level)),
    });
    for (const row of rows) shownRows.set(row.id, cells(row));
    const part = (name) => (row) => shownRows.get(row.id)[name];
    list.replaceChildren(
      table(
        "Policies",
        [
          ["Policy", false, (row) => policyLink(row)],
          ["Limit", false, (row) => row.adaptive?.limit ?? row.limit?.text ?? "unlimited"],
          [
            "Mode",
            false,
            (row) =>
              el(
                "span",
                {},
                row.mode,
                ...(row.bypassed_until ? [" ", el("span", { class: "badge warn" }, "bypassed")] : []),
                ...(row.adaptive
                  ? [" ", el("span", { class: "badge" }, `adaptive: ${row.adaptive.reason}`)]
                  : []),
              ),
          ],
          ["Last 30 s", false, part("spark")],
          ["Allowed/s", true, part("allowed")],
          ["Denied/s", true, part("denied")],
          ["Level", true, part("level")],
        ],
        rows,
        "No policy has this name.",
      ),
    );
  }
  function tick(now) {
    const busy = new Map(now.rows.map((row) => [row.id, row]));
    for (const [id, cell] of shownRows) {
      const row = busy.get(id);
      const wasBusy = cell.history.some(([allowed, denied]) => allowed + denied > 0);
      if (!row && !wasBusy) continue;
      cell.history = [...cell.history, row?.last ?? [0, 0]].slice(-30);
      cell.spark.replaceChildren(spark(cell.history));
      cell.allowed.textContent = number(row?.allowed_per_second ?? 0);
      cell.denied.textContent = number(row?.denied_per_second ?? 0);
      if (row) cell.level.textContent = number(row.in_flight ?? row.level);
    }
  }
  load();
  return { title: "Policies", node: el("div", {}, el("h1", {}, "Policies"), form, list), tick };
}

export function policy(live, id) {
  const chart = new Chart("Decisions of this policy in the last minute");
  const [facts, reasons, top] = [el("div"), el("div"), el("div")];
  const long = durations("bypass-for");
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
  let samples = 0;
  async function load() {
    try {
      const found = await get(`/policies/${encodeURIComponent(id)}`);
      draw(found);
      const keys = await get(`/top?${new URLSearchParams({ policy: id, n: 10 })}`);
      drawTop(found, keys);
    } catch (error) {
      facts.replaceChildren(failed(error));
    }
  }
  function draw(found) {
    node.firstElementChild.textContent = shown(found.label);
    const now = Math.floor(Date.now() / 1000);
    chart.show(
      found.history.map(([allowed, denied], index) => [now - found.history.length + index, allowed, denied]),
    );
    const rows = [
      ["Limit", found.adaptive?.limit ?? found.limit?.text ?? "unlimited"],
      ["Algorithm", found.algorithm ?? "–"],
      ["Mode", found.mode + (found.enforce_percent < 100 ? `, ${found.enforce_percent} %` : "")],
      ["Key", found.key.length > 0 ? found.key.join(", ") : "none: one limit for all"],
      ["While its store is away", found.failure],
      ["Declared in", found.declared],
      ["Level", found.level === null ? null : number(found.level)],
      [
        "In flight",
        found.in_flight === undefined || found.in_flight === null ? null : number(found.in_flight),
      ],
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
    facts.replaceChildren(
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
    reasons.replaceChildren(
      table(
        "Since the start of the process",
        [
          ["Result and reason", false, ([name]) => name],
          ["Decisions", true, ([, count]) => number(count)],
        ],
        counted,
        "No decision yet.",
      ),
    );
  }
  function drawTop(found, keys) {
    if (!keys.watched)
      return void top.replaceChildren(el("p", { class: "dim" }, `Not available: ${keys.why}.`));
    const columns = [
      ["Key", false, (row) => el("a", { href: keyAddress(id, found.key, row.key) }, keyText(row.key))],
      ["Cost", true, (row) => number(row.cost)],
      ["Too high by at most", true, (row) => number(row.error)],
    ];
    top.replaceChildren(
      el("p", {}, `About ${number(keys.distinct)} distinct keys.`),
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
          onclick: () => bypass(Math.min(Number(long.value), 86400000)),
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
    tick: () => {
      samples += 1;
      if (samples % 2 === 0) load();
    },
    close: () => chart.close(),
  };
}

// Keys: those that an administrator has changed, and one key with its actions; and the explanation of a request.

import { confirmChange, get } from "/ui/actions.js";
import { el, keyText, number, shown, span, table, update } from "/ui/draw.js";
import { durations, everyOther, failed, field, keyAddress, keyLink, policyLink } from "/ui/parts.js";

/** Enter sends a form also from a field of several lines. */
function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

export function keys() {
  const [name, value] = [
    el("input", { id: "policy-name", required: true }),
    el("textarea", { id: "key-value", rows: 1, cols: 30, onkeydown: submitOnEnter }),
  ];
  const list = el("div");
  const policyOf = (row) => policyLink({ id: row.id, label: row.policy });
  const look = (event) => {
    event.preventDefault();
    const values = value.value.split("\n");
    location.hash = keyAddress(name.value, value.value === "" ? [] : values);
  };
  async function load() {
    try {
      const found = await get("/specials");
      const ends = ["Ends in", true, (row) => span(row.until.left_ms)];
      const who = [
        ["Policy", false, policyOf],
        ["Key", false, (row) => keyLink(row.id, row)],
      ];
      update(
        list,
        table("Blocked keys", [...who, ends], found.blocked, "No key is blocked."),
        table(
          "Keys with a quota of their own",
          [...who, ["Limit", false, (row) => row.limit?.text ?? "unlimited"], ends],
          found.overridden,
          "No key has an override.",
        ),
        table(
          "Banned keys",
          [...who, ends],
          found.banned,
          "No key is banned: none was denied as often as the `ban` of its policy says.",
        ),
        table(
          "Bypassed policies",
          [["Policy", false, policyOf], ends],
          found.bypassed,
          "No policy is bypassed.",
        ),
      );
    } catch (error) {
      update(list, failed(error));
    }
  }
  load();
  let audit = null;
  const tick = (now) => {
    if (audit !== null && now.audit !== audit) load();
    audit = now.audit;
  };
  const form = el(
    "form",
    { class: "line", onsubmit: look },
    field("Policy", name),
    field("Key (several values: Shift+Enter between them)", value),
    el("button", {}, "Show key"),
  );
  return {
    title: "Keys",
    tick,
    node: el(
      "div",
      {},
      el("h1", {}, "Keys"),
      form,
      el("h2", {}, "Changes in force in this process"),
      list,
      el(
        "p",
        { class: "hint" },
        "Blocks, overrides, bans and bypasses are lost at a restart. Put what should last into the configuration.",
      ),
    ),
  };
}

export function key(live, policyId, values) {
  const [state, change] = [el("div"), el("div")];
  const target = { policy: policyId };
  if (values.length === 1) target.key = values[0];
  if (values.length > 1) target.keys = values;
  const name = values.map((one) => (one === "" ? "(empty)" : shown(one))).join(", ") || "(no key)";
  async function load() {
    const query = new URLSearchParams({ policy: policyId });
    for (const value of values) query.append("key", value);
    try {
      const found = await get(`/key?${query}`);
      change.hidden = false;
      const parts = [found.decision, ...found.others].filter(Boolean);
      update(
        state,
        el(
          "p",
          {},
          "A request now: ",
          el("b", { class: found.would_pass ? "good" : "bad" }, found.would_pass ? "passes" : "is denied"),
        ),
        table(
          "Limits of this key",
          [
            ["Policy", false, (part) => shown(part.policy)],
            ["Result", false, (part) => part.result],
            ["Limit", true, (part) => number(part.limit)],
            ["Remaining after it", true, (part) => number(part.remaining)],
            ["Full again in", true, (part) => span(part.reset_after_ms)],
            ["Retry in", true, (part) => span(part.retry_after_ms)],
          ],
          parts,
        ),
        ...[
          ["Blocked", found.blocked_until],
          ["Banned", found.banned_until],
          [`Override ${found.override?.limit?.text ?? "unlimited"}`, found.override?.until],
        ]
          .filter(([, until]) => until)
          .map(([text, until]) =>
            el("p", {}, el("span", { class: "badge warn" }, text), ` ends in ${span(until.left_ms)}`),
          ),
      );
    } catch (error) {
      const empty = el("a", { href: keyAddress(policyId, [""]) }, "Show the empty key");
      update(state, failed(error), ...(values.length === 0 ? [empty] : []));
      change.hidden = true;
    }
  }
  const act = (label, path, text, extra = () => ({})) =>
    el(
      "button",
      {
        type: "button",
        disabled: !live.mayChange,
        class: path === "/block" ? "danger" : null,
        onclick: () => confirmChange(label.replace(" …", ""), text(), path, { ...target, ...extra() }, load),
      },
      label,
    );
  const [blockFor, overrideFor, limit] = [
    durations("block-for"),
    durations("override-for"),
    el("input", { id: "limit", placeholder: "100/s burst 200" }),
  ];
  change.append(
    el("h2", {}, "Change"),
    el(
      "form",
      { class: "line", onsubmit: (event) => event.preventDefault() },
      act("Reset …", "/reset", () => `Forgets what ${name} has used of ${policyId}.`),
      field("Block for", blockFor),
      act(
        "Block …",
        "/block",
        () => `Every request of ${name} is denied for ${span(Number(blockFor.value))}.`,
        () => ({ for_ms: Number(blockFor.value) }),
      ),
      act("Unblock …", "/unblock", () => `Ends a block or a ban of ${name}.`),
    ),
    el(
      "form",
      { class: "line", onsubmit: (event) => event.preventDefault() },
      field("Quota", limit),
      field("For", overrideFor),
      act(
        "Override …",
        "/override",
        () => `${name} gets the quota ${shown(limit.value)} for ${span(Number(overrideFor.value))}.`,
        () => ({ limit: limit.value, for_ms: Number(overrideFor.value) }),
      ),
      act("Clear override …", "/override/clear", () => `${name} gets the quota of its policy again.`),
    ),
  );
  load();
  return {
    tick: everyOther(load),
    title: `Key ${name}`,
    node: el(
      "div",
      {},
      el("h1", {}, "Key ", keyText(name)),
      el(
        "p",
        {},
        "of the policy ",
        el("a", { href: `#/policy/${encodeURIComponent(policyId)}` }, shown(policyId)),
      ),
      state,
      change,
    ),
  };
}

export function explain() {
  const domains = el("datalist", { id: "domains" });
  const domain = el("input", { id: "domain", list: "domains" });
  get("/config")
    .then((found) => {
      domains.append(...found.domains.map((name) => el("option", { value: name })));
      domain.value ||= found.domains.length === 1 ? found.domains[0] : "";
    })
    .catch(() => {});
  const entries = el("textarea", {
    id: "entries",
    rows: 3,
    cols: 40,
    placeholder: "user=alice\npath=/search",
  });
  const cost = el("input", { id: "cost", type: "number", min: 0, value: 1, class: "short" });
  const result = el("div", { role: "status" });
  async function ask(event) {
    event.preventDefault();
    const query = new URLSearchParams({ domain: domain.value, cost: cost.value });
    // A value may end in a space.
    const lines = entries.value.split("\n").map((line) => line.trimStart());
    for (const line of lines.filter((one) => one !== "")) query.append("entry", line);
    try {
      draw(await get(`/explain?${query}`));
    } catch (error) {
      result.replaceChildren(failed(error));
    }
  }
  function draw(found) {
    const [{ matched, would_pass: most }] = found.asks;
    const word = found.allowed ? "would pass now" : "would be denied now";
    const columns = [
      ["Policy", false, (row) => shown(row.policy) + (row.is_parent ? " (parent)" : "")],
      ["Key", false, (row) => keyText(row.key)],
      ["Mode", false, (row) => row.mode],
      ["Result", false, (row) => `${row.allowed ? "allowed" : "denied"}: ${row.reason}`],
      ["Limit", true, (row) => number(row.limit)],
      ["Left before", true, (row) => number(row.before)],
      ["Left after", true, (row) => number(row.after)],
      ["Retry in", true, (row) => span(row.retry_after_ms)],
      ["Binds", false, (row) => (row.is_bound ? "yes" : "")],
    ];
    const cause = found.bound ? `; ${shown(found.bound)} binds.` : ".";
    const room =
      most.cost === null ? "Nothing limits it." : `A cost of up to ${number(most.cost)} would pass now.`;
    result.replaceChildren(
      el(
        "p",
        {},
        "This request ",
        el("b", { class: found.allowed ? "good" : "bad" }, word),
        cause,
        ` ${room}`,
      ),
      el("ol", {}, ...matched.map((step) => el("li", {}, shown(step, 300)))),
      table("The rules that it meets", columns, found.rules, "No rule matches: nothing limits it."),
    );
  }
  const form = el(
    "form",
    { class: "line", onsubmit: ask },
    field("Domain", domain),
    domains,
    field("Descriptor: one key=value a line", entries),
    field("Cost", cost),
    el("button", {}, "Explain"),
  );
  const title = "Which limit would this request meet, and why?";
  const hint = el(
    "p",
    { class: "hint" },
    "Write the descriptor as a caller sends it: its entries in their order. Nothing is charged.",
  );
  return { title: "Explain", node: el("div", {}, el("h1", {}, title), hint, form, result) };
}

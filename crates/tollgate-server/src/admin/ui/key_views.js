// Keys: those that an administrator has changed, and one key with its actions; and the explanation of a request.

import { confirmChange, get } from "/ui/actions.js";
import { el, keyText, number, shown, span, table } from "/ui/draw.js";
import { durations, failed, field, keyAddress } from "/ui/parts.js";

export function keys() {
  const [name, value] = [
    el("input", { id: "policy-name", required: true }),
    el("input", { id: "key-value" }),
  ];
  const list = el("div");
  const look = (event) => {
    event.preventDefault();
    location.hash = keyAddress(name.value, value.value === "" ? [] : ["one"], value.value);
  };
  async function load() {
    try {
      const found = await get("/specials");
      const ends = ["Ends in", true, (row) => span(row.until.left_ms)];
      const who = [
        ["Policy", false, (row) => shown(row.policy)],
        [
          "Key",
          false,
          (row) => el("a", { href: keyAddress(row.policy, ["one"], row.key) }, keyText(row.key)),
        ],
      ];
      list.replaceChildren(
        table("Blocked keys", [...who, ends], found.blocked.slice(0, 200), "No key is blocked."),
        table(
          "Keys with a quota of their own",
          [...who, ["Limit", false, (row) => row.limit?.text ?? "unlimited"], ends],
          found.overridden.slice(0, 200),
          "No key has an override.",
        ),
        table(
          "Bypassed policies",
          [["Policy", false, (row) => shown(row.policy)], ends],
          found.bypassed.slice(0, 200),
          "No policy is bypassed.",
        ),
      );
    } catch (error) {
      list.replaceChildren(failed(error));
    }
  }
  load();
  const form = el(
    "form",
    { class: "line", onsubmit: look },
    field("Policy", name),
    field("Key", value),
    el("button", {}, "Show key"),
  );
  return {
    title: "Keys",
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
        "Blocks, overrides and bypasses are lost at a restart. Put what should last into the configuration.",
      ),
    ),
  };
}

export function key(live, policyId, values) {
  const [state, answer] = [el("div"), el("p", { role: "status" })];
  const chosen = values.filter((_, index) => index > 0 || values.length > 1 || values[0] !== "");
  const target =
    chosen.length > 1
      ? { policy: policyId, keys: chosen }
      : chosen.length === 1
        ? { policy: policyId, key: chosen[0] }
        : { policy: policyId };
  const name = chosen.map((one) => shown(one)).join(", ") || "(no key)";
  async function load() {
    const query = new URLSearchParams({ policy: policyId });
    for (const value of chosen) query.append("key", value);
    try {
      const found = await get(`/key?${query}`);
      const parts = [found.decision, ...found.others].filter(Boolean);
      state.replaceChildren(
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
      state.replaceChildren(failed(error));
    }
  }
  const done = (told) => {
    answer.textContent = shown(JSON.stringify(told), 400);
    load();
  };
  const act = (label, path, text, extra = () => ({})) =>
    el(
      "button",
      {
        type: "button",
        disabled: !live.mayChange,
        class: path === "/block" ? "danger" : null,
        onclick: () => confirmChange(label.replace(" …", ""), text(), path, { ...target, ...extra() }, done),
      },
      label,
    );
  const [blockFor, overrideFor, limit] = [
    durations("block-for"),
    durations("override-for"),
    el("input", { id: "limit", placeholder: "100/s burst 200" }),
  ];
  const actions = el(
    "div",
    {},
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
  const again = el("button", { type: "button", onclick: load }, "Look again");
  return {
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
      again,
      el("h2", {}, "Change"),
      actions,
      answer,
    ),
  };
}

export function explain() {
  const [domain, entries, cost] = [
    el("input", { id: "domain" }),
    el("textarea", { id: "entries", rows: 3, cols: 40, placeholder: "user=alice\npath=/search" }),
    el("input", { id: "cost", type: "number", min: 0, value: 1 }),
  ];
  const result = el("div", { role: "status" });
  async function ask(event) {
    event.preventDefault();
    const query = new URLSearchParams({ cost: cost.value });
    if (domain.value !== "") query.append("domain", domain.value);
    for (const line of entries.value.split("\n").filter((one) => one.trim() !== ""))
      query.append("entry", line.trim());
    try {
      const found = await get(`/explain?${query}`);
      result.replaceChildren(
        el(
          "p",
          {},
          "This request ",
          el(
            "b",
            { class: found.allowed ? "good" : "bad" },
            found.allowed ? "would pass now" : "would be denied now",
          ),
          found.text ? `: ${shown(found.text, 400)}` : ".",
        ),
        table(
          "The rules that it meets, in order",
          [
            ["Policy", false, (row) => shown(row.policy)],
            ["Result", false, (row) => row.result],
            ["Limit", true, (row) => number(row.limit)],
            ["Before", true, (row) => number(row.before)],
            ["After", true, (row) => number(row.after)],
            ["Retry in", true, (row) => span(row.retry_after_ms)],
            ["Bound", false, (row) => (row.bound ? "yes" : "")],
          ],
          found.rules,
          "No rule matches: the request passes and is not counted.",
        ),
      );
    } catch (error) {
      result.replaceChildren(failed(error));
    }
  }
  const form = el(
    "form",
    { class: "line", onsubmit: ask },
    field("Domain", domain),
    field("Descriptor: one key=value a line", entries),
    field("Cost", cost),
    el("button", {}, "Explain"),
  );
  return {
    title: "Explain",
    node: el(
      "div",
      {},
      el("h1", {}, "Which limit would this request meet, and why?"),
      el("p", { class: "hint" }, "Nothing is charged."),
      form,
      result,
    ),
  };
}

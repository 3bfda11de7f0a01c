// Parts that several views use.

import { DURATIONS } from "/ui/actions.js";
import { el, shown } from "/ui/draw.js";

export const policyLink = (row) =>
  el("a", { href: `#/policy/${encodeURIComponent(row.id)}` }, shown(row.label));

export const field = (label, control) => el("div", {}, el("label", { for: control.id }, label), control);

/** A choice of durations, an hour at first. */
export function durations(id) {
  const options = DURATIONS.map(([text, ms]) => el("option", { value: ms, selected: ms === 3600000 }, text));
  return el("select", { id }, ...options);
}

export const failed = (error) => el("p", { class: "notice", role: "alert" }, error.message);

/** The address of a key's view. The text of a key with several values has ", " between them. */
export function keyAddress(policyId, names, text) {
  const values = names.length > 1 ? text.split(", ") : [text];
  return `#/key/${encodeURIComponent(policyId)}/${values.map(encodeURIComponent).join("/")}`;
}

// Parts that several views use.

import { DURATIONS } from "/ui/actions.js";
import { el, keyText, shown, shownLines } from "/ui/draw.js";

export const policyLink = (row) =>
  el("a", { href: `#/policy/${encodeURIComponent(row.id)}` }, shown(row.label));

export const field = (label, control) => el("div", {}, el("label", { for: control.id }, label), control);

/** A choice of durations, an hour at first. */
export function durations(id, most = Infinity) {
  const options = DURATIONS.filter(([, ms]) => ms <= most).map(([text, ms]) => el("option", { value: ms, selected: ms === 3600000 }, text));
  return el("select", { id }, ...options);
}

export const failed = (error) => el("p", { class: "notice", role: "alert" }, shownLines(error.message));

/** The address of a key's view; the key is the list of its values. */
export const keyAddress = (policyId, values) =>
  `#/key/${[policyId, ...values].map(encodeURIComponent).join("/")}`;

/** The text of a key, and its address if the server knows all of it. */
export const keyLink = (policyId, row) =>
  row.keys
    ? el("a", { href: keyAddress(policyId, row.keys) }, keyText(row.key))
    : el("span", { title: "Only a part of this key is known." }, keyText(row.key));

/** Calls `load` at every other sample, unless the call before has not ended. */
export function everyOther(load) {
  let [samples, isBusy] = [0, false];
  return async () => {
    samples += 1;
    if (samples % 2 !== 0 || isBusy) return;
    isBusy = true;
    await load();
    isBusy = false;
  };
}

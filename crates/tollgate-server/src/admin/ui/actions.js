// Requests to this server, and changes with their confirmation.

import { shown } from "/ui/draw.js";

/** Fetches JSON. An answer that says "log in" loads the page again, which shows the login. */
export async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (answer.status === 401) location.reload();
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail ?? answer.statusText);
  return body;
}

async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (answer.status === 401) location.reload();
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail ?? answer.statusText);
  return told;
}

/** Returns the command for a shell that does the same. */
export function curl(path, body) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  return `curl -H "Authorization: Bearer $TOKEN" ${quoted(location.origin + path)} \\\n  --json ${quoted(JSON.stringify(body))}`;
}

export const DURATIONS = [
  ["1 minute", 60000],
  ["10 minutes", 600000],
  ["1 hour", 3600000],
  ["6 hours", 21600000],
  ["1 day", 86400000],
  ["7 days", 604800000],
  ["30 days", 2592000000],
];

/** Asks whether to change something, does it, and calls `done` with the answer. */
export function confirmChange(title, text, path, body, done) {
  const part = (name) => document.getElementById(`dialog${name}`);
  const [dialog, act, copy] = [part(""), part("-do"), part("-copy")];
  part("-title").textContent = title;
  part("-text").textContent = text;
  part("-curl").textContent = shown(curl(path, body), 2000).replaceAll("\\u{a}", "\n");
  part("-error").textContent = "";
  act.disabled = false;
  act.onclick = async () => {
    act.disabled = true;
    try {
      const told = await post(path, body);
      dialog.close();
      document.getElementById("status").textContent = `${title}: done.`;
      done(told);
    } catch (error) {
      part("-error").textContent = error.message;
      act.disabled = false;
    }
  };
  copy.onclick = () => navigator.clipboard?.writeText(curl(path, body));
  dialog.showModal();
}

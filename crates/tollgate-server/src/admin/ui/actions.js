// Requests to this server, and changes with their confirmation.

import { seenJson, shown } from "/ui/draw.js";

/** Sends a request and returns its JSON. An answer that says "log in" loads the page again, which shows the login. */
async function call(path, options) {
  const answer = await fetch(path, options).catch(() => null);
  if (!answer) throw new Error("The server does not answer. Is it running?");
  if (answer.status === 401) location.reload();
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail ?? answer.statusText);
  return body;
}

export const get = (path) => call(path, { headers: { accept: "application/json" } });

const post = (path, body) =>
  call(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });

/** Returns the command for a shell that does the same. */
export function curl(path, body) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  return `curl -H "Authorization: Bearer $TOKEN" ${quoted(location.origin + path)} \\\n  --json ${quoted(seenJson(body))}`;
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

/** Asks whether to change something, does it, and calls `done`. */
export function confirmChange(title, text, path, body, done) {
  const part = (name) => document.getElementById(`dialog${name}`);
  const [dialog, act, copy] = [part(""), part("-do"), part("-copy")];
  part("-title").textContent = title;
  part("-text").textContent = text;
  const command = curl(path, body);
  part("-curl").textContent = command;
  copy.textContent = "Copy command";
  part("-error").textContent = "";
  act.disabled = false;
  act.onclick = async () => {
    act.disabled = true;
    try {
      await post(path, body);
      dialog.close();
      document.getElementById("status").textContent = `${title}: done.`;
      done();
    } catch (error) {
      part("-error").textContent = shown(error.message, 500);
      act.disabled = false;
    }
  };
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(command);
      copy.textContent = "Copied";
    } catch {
      // Over plain HTTP, browsers give pages no clipboard.
      getSelection().selectAllChildren(part("-curl"));
      copy.textContent = "Selected: copy it";
    }
  };
  dialog.showModal();
}

// The page: which view is shown, and the stream of live figures.

import { explain, key, keys } from "/ui/key_views.js";
import { overview, policies, policy } from "/ui/policy_views.js";
import { audit, resilience } from "/ui/state_views.js";

/** Points that the chart of all decisions keeps: ten minutes. */
const POINTS = 600;

/** What the views know: the newest figures, and [second, allowed, denied] of the time that the page was open. */
const live = { figures: null, points: [], mayChange: false };
/** The second before the first sample of the server: the clock may say one second twice, and leave out the next. */
let origin = 0;

const main = document.getElementById("main");
const status = document.getElementById("status");
let view = null;
let source = null;

const ROUTES = [
  [/^#?\/?$/, () => overview(live)],
  [/^#\/policies$/, () => policies(live)],
  [/^#\/policy\/([^/]+)$/, (id) => policy(live, id)],
  [/^#\/keys$/, () => keys(live)],
  [
    /^#\/key\/([^/]+)((?:\/[^/]*)*)$/,
    (id, values) => key(live, id, values.split("/").slice(1).map(decodeURIComponent)),
  ],
  [/^#\/explain$/, () => explain(live)],
  [/^#\/resilience$/, () => resilience(live)],
  [/^#\/audit$/, () => audit(live)],
];

function route() {
  if (!live.figures) return;
  view?.close?.();
  view = null;
  let wrong = "There is no such view. This is the overview.";
  for (const [pattern, make] of ROUTES) {
    const found = pattern.exec(location.hash);
    if (!found) continue;
    wrong = "";
    try {
      const [first, ...rest] = found.slice(1);
      view = first === undefined ? make() : make(decodeURIComponent(first), ...rest);
    } catch (error) {
      wrong = `This address cannot be shown: ${error.message}`;
    }
    break;
  }
  view ??= overview(live);
  status.textContent = wrong;
  main.replaceChildren(view.node);
  document.title = `${view.title} · Tollgate`;
  for (const link of document.querySelectorAll("nav a")) {
    const hash = link.getAttribute("href");
    const isHere =
      hash === "#/" ? /^#?\/?$/.test(location.hash) : location.hash.startsWith(hash.replace(/ies$|s$/, ""));
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.tick?.(live.figures);
}

function connection(word, kind) {
  const badge = document.getElementById("connection");
  badge.textContent = word;
  badge.className = `badge ${kind}`;
}

/** Says what has changed since the figures before, for readers of the screen. */
function announce(before, after) {
  if (!before) return;
  if (before.version !== after.version)
    status.textContent = `Configuration version ${after.version} is in force.`;
  if (before.status.word !== after.status.word)
    status.textContent = `The service is ${after.status.word}. ${after.status.why ?? ""}`;
}

function add(at, allowed, denied) {
  const last = live.points.at(-1);
  if (last && at <= last[0]) return;
  live.points.push([at, allowed, denied]);
  if (live.points.length > POINTS) live.points.shift();
}

function receive(event) {
  const figures = JSON.parse(event.data);
  if (event.type === "state") status.textContent = "";
  announce(live.figures, figures);
  const now = Math.round(Date.parse(figures.at) / 1000);
  if (event.type === "state") {
    origin = now - figures.sample;
    live.mayChange = figures.may_change;
    document.getElementById("read-only").textContent = figures.may_change
      ? ""
      : `Read-only: ${figures.read_only_because}.`;
    document.getElementById("read-only").hidden = figures.may_change;
    document.getElementById("logout").hidden = !figures.has_session;
    figures.history.forEach(([allowed, denied], index) =>
      add(now - figures.history.length + 1 + index, allowed, denied),
    );
  } else {
    add(origin + figures.sample, ...figures.last);
  }
  const isFirst = live.figures === null;
  const mayChangeBefore = live.figures?.may_change;
  live.figures = { ...figures, may_change: live.mayChange };
  connection("live", "good");
  if (isFirst || (event.type === "state" && mayChangeBefore !== live.mayChange)) route();
  else view?.tick?.(live.figures);
}

function open() {
  source?.close();
  source = new EventSource("/events");
  source.addEventListener("state", receive);
  source.addEventListener("tick", receive);
  source.addEventListener("error", async () => {
    connection("reconnecting", "warn");
    // The browser tries again by itself, unless the server has answered with an error.
    if (source.readyState !== EventSource.CLOSED) return;
    const answer = await fetch("/health/detail").catch(() => null);
    if (answer?.status === 401) return void location.reload();
    if (answer) status.textContent = "The server sends no live figures: too many dashboards are open.";
    setTimeout(open, 3000);
  });
}

addEventListener("hashchange", () => {
  document.getElementById("dialog").close();
  route();
  main.focus();
});
// A page that is left open for hours in the background needs no figures.
document.addEventListener("visibilitychange", () => (document.hidden ? source?.close() : open()));
open();

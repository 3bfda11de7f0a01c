// Elements, numbers and charts. Keys and names come from strangers: they become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element: properties that start with "on" are listeners, the others attributes. */
export function el(name, props = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Control, format and ignorable characters: what cannot be seen, or moves other text. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{DI}\u2028\u2029]/gu;

/** Writes JSON in which everything can be seen. JSON escapes UTF-16 units, of which a character may have two. */
export const seenJson = (value) =>
  JSON.stringify(value).replace(UNSEEN, (char) =>
    char.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`),
  );

/** Shows control and direction characters by their code, and cuts what is very long. */
export function shown(text, most = 128) {
  const plain = String(text).replace(UNSEEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
  const chars = Array.from(plain);
  return chars.length > most ? `${chars.slice(0, most).join("")}…` : plain;
}

/** The same for a text that may have several lines, such as an error with its place in a file. */
export const shownLines = (text) =>
  el(
    "span",
    { class: text.includes("\n") ? "lines" : null },
    text
      .split("\n")
      .map((line) => shown(line, 500))
      .join("\n"),
  );

export const keyText = (text) =>
  text === "" ? el("i", {}, "empty") : el("span", { class: "key" }, shown(text));

const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const number = (value) => (value === null || value === undefined ? "–" : FINE.format(value));

/** The time of day here, of a Unix second. */
export const clock = (second) => new Date(second * 1000).toLocaleTimeString("en-GB");

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${FINE.format(value)} ${units[at]}`;
}

export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms} ms`;
  const units = [
    ["d", 86400000],
    ["h", 3600000],
    ["min", 60000],
    ["s", 1000],
  ];
  const parts = [];
  for (const [name, size] of units) {
    const count = Math.floor(ms / size);
    if (count > 0) parts.push(`${count} ${name}`);
    ms -= count * size;
  }
  return parts.slice(0, 2).join(" ");
}

export const share = (allowed, denied) =>
  allowed + denied > 0 ? `${FINE.format((100 * denied) / (allowed + denied))} %` : "–";

let isHeld = false;
addEventListener("pointerdown", () => (isHeld = true));
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => (isHeld = false));

/**
 * Makes these nodes the content of `place`. What is the same stays, so that readers keep the focus and their position
 * in a wide table. Nothing changes under a pointer that is held down, or while a text in it is selected. The nodes have
 * no listeners.
 */
export function update(place, ...nodes) {
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && place.contains(selection.anchorNode);
  if (place.hasChildNodes() && (isHeld || isSelected)) return;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const address = focused?.getAttribute("href");
  merge(place, nodes);
  // The row of the link may have moved.
  if (!address || (focused.isConnected && focused.getAttribute("href") === address)) return;
  const links = [...place.querySelectorAll("a")];
  links.find((link) => link.getAttribute("href") === address)?.focus({ preventScroll: true });
}

function merge(place, nodes) {
  const old = [...place.childNodes];
  nodes.forEach((node, index) => {
    const known = old[index];
    if (!known) place.append(node);
    else if (known.isEqualNode(node)) return;
    else if (known.nodeName !== node.nodeName) known.replaceWith(node);
    else if (known.nodeType === Node.TEXT_NODE) known.data = node.data;
    else {
      for (const name of known.getAttributeNames()) if (!node.hasAttribute(name)) known.removeAttribute(name);
      for (const { name, value } of node.attributes)
        if (known.getAttribute(name) !== value) known.setAttribute(name, value);
      merge(known, [...node.childNodes]);
    }
  });
  for (const rest of old.slice(nodes.length)) rest.remove();
}

/** Rows that a table shows at most. */
const ROWS = 200;

/** Makes a table of the first of `total` rows: columns are [title, is numeric, cell of a row]. */
export function table(caption, columns, rows, nothing = "Nothing yet.", total = rows.length) {
  rows = rows.slice(0, ROWS);
  if (rows.length < total) caption += `: the first ${rows.length} of ${number(total)}`;
  const head = columns.map(([title, numeric]) =>
    el("th", { scope: "col", class: numeric ? "n" : null }, title),
  );
  const body = rows.map((row) =>
    el("tr", {}, ...columns.map(([, numeric, cell]) => el("td", { class: numeric ? "n" : null }, cell(row)))),
  );
  if (body.length === 0)
    body.push(el("tr", {}, el("td", { colspan: columns.length, class: "dim" }, nothing)));
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      el("caption", {}, el("span", {}, caption)),
      el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...body),
    ),
  );
}

/** Draws allowed and denied of each second as two lines. */
export function spark(history) {
  const recent = history.slice(-30);
  const top = Math.max(1, ...recent.flat());
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("role", "img");
  const last = recent.at(-1) ?? [0, 0];
  svg.setAttribute(
    "aria-label",
    `last second: ${last[0]} allowed, ${last[1]} denied; most in ${recent.length} seconds: ${top}`,
  );
  for (const [at, name] of [
    [0, "a"],
    [1, "d"],
  ]) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", name);
    line.setAttribute(
      "points",
      recent.map((slot, index) => `${(index * 119) / 29},${23 - (slot[at] * 22) / top}`).join(" "),
    );
    svg.append(line);
  }
  return svg;
}

/** A chart of allowed and denied decisions per second, with the same figures as a table. */
export class Chart {
  constructor(caption) {
    this.caption = caption;
    this.place = el("div", { class: "chart", "aria-hidden": "true" });
    this.figures = el("details", {}, el("summary", {}, `${caption}, as a table`), el("div"));
    this.figures.addEventListener("toggle", () => this.#table());
    this.node = el("div", {}, this.place, this.figures);
    this.points = [];
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.#make();
    this.scheme.addEventListener("change", this.redraw);
  }

  /** Shows points [second, allowed, denied], the oldest first. */
  show(points) {
    this.points = points;
    if (!this.plot) this.#make();
    else this.plot.setData(this.#data());
    this.#table();
  }

  close() {
    this.scheme.removeEventListener("change", this.redraw);
    this.observer?.disconnect();
    this.plot?.destroy();
  }

  #data() {
    return [0, 1, 2].map((at) => this.points.map((point) => point[at]));
  }

  #make() {
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      labelSize: 18,
      stroke: colour("--dim"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
    };
    const line = (series) => ({
      width: 2,
      points: { show: false },
      value: (plot, count) => number(count ?? plot.data[series].at(-1)),
    });
    const width = () => Math.max(280, this.place.clientWidth || 600);
    const options = {
      width: width(),
      height: 220,
      cursor: { drag: { x: false, y: false } },
      scales: {
        // At least a minute, so that a page that was just opened does not show milliseconds.
        x: { range: (_, from, to) => [Math.min(from, to - 60), to] },
        y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] },
      },
      axes: [
        { ...axis, size: 34, space: 90, label: "time of day", values: (_, at) => at.map(clock) },
        { ...axis, size: 56, label: "decisions per second" },
      ],
      // Beside the pointer, or else the newest.
      series: [
        { label: "Time", value: (plot, at) => clock(at ?? plot.data[0].at(-1) ?? 0) },
        { label: "Allowed per second", stroke: colour("--allowed"), ...line(1) },
        { label: "Denied per second", stroke: colour("--denied"), ...line(2), dash: [6, 4] },
      ],
    };
    this.plot = new globalThis.uPlot(options, this.#data(), this.place);
    this.observer ??= new ResizeObserver(() => this.plot.setSize({ width: width(), height: 220 }));
    this.observer.observe(this.place);
  }

  #table() {
    if (!this.figures.open) return;
    const columns = [
      ["Time", false, ([at]) => clock(at)],
      ["Allowed", true, ([, allowed]) => number(allowed)],
      ["Denied", true, ([, , denied]) => number(denied)],
    ];
    update(
      this.figures.lastElementChild,
      table(`${this.caption}, newest first`, columns, this.points.slice(-60).reverse()),
    );
  }
}

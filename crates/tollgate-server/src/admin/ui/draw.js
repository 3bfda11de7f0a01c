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

/** Shows control and direction characters by their code, and cuts what is very long. */
export function shown(text, most = 128) {
  const plain = String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (char) => `\\u{${char.codePointAt(0).toString(16)}}`,
  );
  const chars = Array.from(plain);
  return chars.length > most ? `${chars.slice(0, most).join("")}…` : plain;
}

export const keyText = (text) => el("span", { class: "key" }, shown(text));

const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const number = (value) => (value === null || value === undefined ? "–" : FINE.format(value));

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

/** Makes a table: columns are [title, is numeric, cell of a row]. */
export function table(caption, columns, rows, nothing = "Nothing yet.") {
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
      el("caption", {}, caption),
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
      stroke: colour("--dim"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
    };
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
      axes: [axis, { ...axis, size: 60 }],
      series: [
        { label: "Time" },
        { label: "Allowed per second", stroke: colour("--allowed"), width: 2, points: { show: false } },
        {
          label: "Denied per second",
          stroke: colour("--denied"),
          width: 2,
          dash: [6, 4],
          points: { show: false },
        },
      ],
    };
    this.plot = new globalThis.uPlot(options, this.#data(), this.place);
    this.observer ??= new ResizeObserver(() => this.plot.setSize({ width: width(), height: 220 }));
    this.observer.observe(this.place);
  }

  #table() {
    if (!this.figures.open) return;
    const columns = [
      ["Time", false, ([at]) => new Date(at * 1000).toLocaleTimeString()],
      ["Allowed", true, ([, allowed]) => number(allowed)],
      ["Denied", true, ([, , denied]) => number(denied)],
    ];
    this.figures.lastElementChild.replaceChildren(
      table(`${this.caption}, newest first`, columns, this.points.slice(-60).reverse()),
    );
  }
}

// What the scenarios and the bench of the dashboard share: a service, a browser, and their end.
// Environment: TOLLGATE (the program), NPM (a folder with node_modules), FOLDER (for files).

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(`${process.env.NPM}/package.json`)("playwright-core");
export const TOKEN = "let me in";
export const PATIENCE = 30_000;

export const children = new Set();

/** Starts `tollgate serve`; `ports` are those of an earlier start. */
export async function start({ token = true, ports = {}, config }) {
  const file = (name, text) => {
    writeFileSync(`${process.env.FOLDER}/${name}`, text);
    return `${process.env.FOLDER}/${name}`;
  };
  const flags = ["serve", file("limits.yaml", config)];
  for (const name of ["http", "grpc", "resp", "admin"]) flags.push(`--${name}`, ports[name] ?? "127.0.0.1:0");
  if (token) flags.push("--admin-token-file", file("token", TOKEN));
  const child = spawn(process.env.TOLLGATE, flags, { stdio: ["ignore", "ignore", "pipe"] });
  children.add(child);
  const found = {};
  let log = "";
  for await (const line of createInterface({ input: child.stderr })) {
    log += `${line}\n`;
    const listening = /^listening (\w+) (\S+)/.exec(line);
    if (listening) found[listening[1]] = listening[2];
    if (Object.keys(found).length === 4) break;
  }
  assert.equal(Object.keys(found).length, 4, log);
  child.stderr.resume();
  return { child, ports: found, admin: `http://${found.admin}`, http: `http://${found.http}` };
}

export function stop(service) {
  children.delete(service.child);
  return new Promise((resolve) => {
    service.child.once("exit", resolve);
    service.child.kill("SIGTERM");
  });
}

let browser;
export const violations = [];
export const errors = [];

/** Opens a page that writes down what the content security policy stopped, and errors of scripts. */
export async function open(options = {}) {
  browser ??= await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  const context = await browser.newContext({ viewport: { width: 1100, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  await context.exposeFunction("violated", (text) => violations.push(text));
  await context.addInitScript(() =>
    document.addEventListener("securitypolicyviolation", (event) =>
      window.violated(`${event.violatedDirective} ${event.blockedURI}`),
    ),
  );
  const page = await context.newPage();
  page.on("pageerror", (error) => errors.push(String(error)));
  return page;
}

/** Ends the browser, and what was started. */
export async function close() {
  await browser?.close();
  for (const child of children) child.kill("SIGKILL");
}

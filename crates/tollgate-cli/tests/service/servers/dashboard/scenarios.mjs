// Scenarios of the dashboard in Chromium. `node scenarios.mjs NAME` prints "NAME: ok" or throws.
// Environment: that of harness.mjs, and SHOTS (where to write screenshots; optional).

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import * as harness from "./harness.mjs";

const { PATIENCE, TOKEN, children, close, errors, open, stop, violations } = harness;

const POLICIES = `
domain: shop
descriptors:
  - key: user
    rate_limit: { name: per-user, unit: minute, requests_per_unit: 20 }
  - key: site
    value: all
    rate_limit: { name: whole-site, quota: 50/s burst 100, algorithm: gcra }
  - key: upstream
    rate_limit: { name: upstream, quota: 100/s, algorithm: gcra }
    adaptive: { follow: reports, min: 10/s }
  - key: country
    descriptors:
      - key: city
        rate_limit: { name: per-city, unit: hour, requests_per_unit: 3 }
  - key: export
    concurrency: { name: exports, limit: 2, lease: 10s }
`;

/** Starts the service with these policies, and with what a scenario adds. */
const start = ({ extra = "", ...options } = {}) => harness.start({ config: POLICIES + extra, ...options });

async function login(page, service, token = TOKEN) {
  await page.goto(`${service.admin}/`);
  await page.getByLabel("Token of this server").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
}

const isLive = (page) => page.locator("#connection", { hasText: "live" }).waitFor();
const tileOf = (page, label) => page.locator(".tile", { hasText: label }).locator("b");
const numberOf = async (place) => Number((await place.textContent()).replaceAll(",", ""));

async function check(service, policy, ...keys) {
  const query = new URLSearchParams([["policy", policy], ...keys.map((key) => ["key", key])]);
  const answer = await fetch(`${service.http}/v1/check?${query}`);
  return answer.status;
}

/** Calls the admin API as a program does. */
async function asAdmin(service, path, body) {
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  const answer = await fetch(
    `${service.admin}${path}`,
    body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers },
  );
  return answer.json();
}

/** Waits until `look` returns something true. */
async function until(look, what) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(Date.now() < end, `never: ${what}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

async function shot(page, name) {
  if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/${name}.png` });
}

/** Sends load for a few seconds, in the background. */
function load(service, seconds) {
  const flags = [
    "load",
    "http",
    service.ports.http,
    "--body",
    '{"policy":"per-user","key":"{key}"}',
    "--keys",
    "20",
    "--rate",
    "200",
    "--duration",
    `${seconds}s`,
  ];
  const child = execFile(process.env.TOLLGATE, flags);
  children.add(child);
  return child;
}

/** Pastes the commands that the dialog shows into a shell. */
async function hostileCommands(service, page, keys) {
  for (const key of keys) {
    await page.goto(`${service.admin}/ui/#/key/per-user/${encodeURIComponent(key)}`);
    await page.getByRole("button", { name: "Block …", exact: true }).click();
    const command = await page.locator("#dialog-curl").innerText();
    assert.ok(!/[\u0007\u001b\u3164\p{Cf}]/u.test(command), command);
    await page.getByRole("button", { name: "Cancel" }).click();
    const env = { ...process.env, TOKEN };
    const told = JSON.parse(execFileSync("bash", ["-c", command], { env, stdio: "pipe" }));
    assert.equal(told.key, key);
    assert.equal(await check(service, "per-user", key), 429, key);
    await asAdmin(service, "/unblock", { policy: "per-user", key });
  }
}

/** Follows links to keys whose values look as if they were several. */
async function hostileValues(service, page) {
  const values = ["a, b\\", "c, d"];
  await check(service, "per-city", ...values);
  await asAdmin(service, "/block", { policy: "per-city", keys: values, for_ms: 60000 });
  for (const view of ["#/policy/per-city", "#/keys"]) {
    await page.goto(`${service.admin}/ui/${view}`);
    await page.getByRole("link", { name: "a\\, b" }).first().click();
    await page.locator("main b.bad").waitFor();
  }
}

const scenarios = {
  async login() {
    const service = await start();
    const page = await open();
    await page.goto(`${service.admin}/`);
    assert.equal(new URL(page.url()).pathname, "/ui/");
    const shown = await page.content();
    assert.ok(!shown.includes("nav") && !shown.includes("per-user"), shown);
    for (const path of ["/events", "/policies", "/audit", "/top?policy=per-user"]) {
      assert.equal((await page.request.get(service.admin + path)).status(), 401, path);
    }
    assert.equal((await page.request.get(`${service.admin}/ui/index.html`)).status(), 404);
    await login(page, service, "let me out");
    await page.getByText("That is not the token of this server.").waitFor();
    await login(page, service);
    await isLive(page);
    const [cookie] = await page.context().cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/"]);
    // The first five wrong tokens of an address are answered at once, then one each second.
    const begun = Date.now();
    const wrong = () =>
      fetch(`${service.admin}/login`, { method: "POST", body: new URLSearchParams({ token: "wrong" }) });
    const answers = await Promise.all(Array.from({ length: 8 }, wrong));
    assert.ok(answers.every((answer) => answer.status === 401));
    assert.ok(Date.now() - begun >= 1000, "eight wrong tokens were answered at once");
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token of this server").waitFor();
    assert.equal((await page.request.get(`${service.admin}/policies`)).status(), 401);
  },

  async readOnly() {
    const open_ = await start({ token: false });
    const page = await open();
    await page.goto(`${open_.admin}/`);
    await isLive(page);
    await page.getByText("Read-only: changes need a token").waitFor();
    await page.goto(`${open_.admin}/ui/#/key/per-user/ann`);
    await page.getByText("A request now:").waitFor();
    assert.ok(await page.getByRole("button", { name: "Block …", exact: true }).isDisabled());
    await stop(open_);
    writeFileSync(`${process.env.FOLDER}/reader`, "just looking");
    const extra = `\nserver:\n  tokens:\n    - { file: ${process.env.FOLDER}/reader, listeners: [admin], permissions: [read] }\n`;
    const service = await start({ extra });
    await login(page, service, "just looking");
    await isLive(page);
    await page.getByText("Read-only: your token grants").waitFor();
    const answer = await page.evaluate(async () => {
      const body = JSON.stringify({ policy: "per-user", key: "ann", for_ms: 1000 });
      return (
        await fetch("/block", { method: "POST", headers: { "content-type": "application/json" }, body })
      ).status;
    });
    assert.equal(answer, 403);
  },

  async live() {
    const service = await start();
    const page = await open();
    await login(page, service);
    await isLive(page);
    assert.equal(await tileOf(page, "denied per second").textContent(), "0");
    load(service, 8);
    await until(async () => (await numberOf(tileOf(page, "denied per second"))) > 0, "a denial in the tile");
    await page.getByRole("cell", { name: "per-user" }).waitFor();
    await page.getByRole("link", { name: "Policies", exact: true }).click();
    const row = page.getByRole("row", { name: /per-user/ });
    const before = await row.locator("svg").getAttribute("aria-label");
    await until(
      async () => (await row.locator("svg").getAttribute("aria-label")) !== before,
      "a sparkline that moves",
    );
    await shot(page, "dashboard-policies");
    await page.getByRole("link", { name: "per-user" }).click();
    await page.getByText("Denied most").waitFor();
    await page.getByRole("row", { name: "denied quota" }).waitFor();
    await page.getByRole("link", { name: "Overview" }).click();
    await page.locator("canvas").waitFor();
    await until(
      async () => (await numberOf(tileOf(page, "allowed per second"))) > 0,
      "an admission in the tile",
    );
    await shot(page, "dashboard-light");
    await page.emulateMedia({ colorScheme: "dark" });
    await shot(page, "dashboard-dark");
  },

  async restart() {
    const service = await start();
    const page = await open();
    await login(page, service);
    await isLive(page);
    await stop(service);
    await page.locator("#connection", { hasText: "reconnecting" }).waitFor();
    const again = await start({ ports: service.ports });
    await isLive(page);
    assert.equal(await page.locator("h1").textContent(), "Overview");
    await check(again, "per-user", "ann");
    await until(
      async () => (await numberOf(tileOf(page, "allowed per second"))) > 0,
      "figures after the restart",
    );
  },

  async reload() {
    const service = await start();
    const page = await open();
    await login(page, service);
    await isLive(page);
    const write = (text) => writeFileSync(`${process.env.FOLDER}/limits.yaml`, text);
    write(POLICIES.replace("unit: minute", "unit: minit"));
    const problem = page.locator("main li", { hasText: "minit" });
    await problem.waitFor();
    assert.match(await problem.innerText(), /limits.yaml:5:\d+: .*\n.*\n5 .*\n.*\^/, "lines, with the place marked");
    await page.getByRole("link", { name: "Policies", exact: true }).click();
    await page.getByRole("row", { name: /per-user 20\/min/ }).waitFor();
    write(POLICIES.replace("requests_per_unit: 20", "requests_per_unit: 25"));
    await page.getByRole("row", { name: /per-user 25\/min/ }).waitFor();
    // Somebody else bypasses a policy.
    await asAdmin(service, "/bypass", { policy: "whole-site", for_ms: 60000 });
    await page.getByRole("row", { name: /whole-site .* bypassed/ }).waitFor();
    // The page that is open loses its session with the token.
    writeFileSync(`${process.env.FOLDER}/token`, "another token");
    service.child.kill("SIGHUP");
    await page.getByLabel("Token of this server").waitFor();
  },

  async block() {
    const service = await start();
    const page = await open();
    await login(page, service);
    await isLive(page);
    assert.equal(await check(service, "per-user", "mallory"), 200);
    await page.goto(`${service.admin}/ui/#/key/per-user/mallory`);
    await page.getByRole("button", { name: "Block …", exact: true }).click();
    const command = await page.locator("#dialog-curl").textContent();
    assert.ok(command.includes("curl -H") && command.includes(`"key":"mallory"`), command);
    await page.keyboard.press("Enter");
    assert.equal(await check(service, "per-user", "mallory"), 200, "the first button cancels");
    await page.getByRole("button", { name: "Block …", exact: true }).click();
    await shot(page, "dashboard-block");
    await page.getByRole("button", { name: "Confirm" }).click();
    await page.locator("main b.bad").waitFor();
    assert.equal(await check(service, "per-user", "mallory"), 429);
    await page.getByRole("button", { name: "Unblock …" }).click();
    await page.getByRole("button", { name: "Confirm" }).click();
    await page.getByText("A request now: passes").waitFor();
    assert.equal(await check(service, "per-user", "mallory"), 200);
    await page.getByLabel("Quota").fill("1 per century");
    await page.getByRole("button", { name: "Override …", exact: true }).click();
    await page.getByRole("button", { name: "Confirm" }).click();
    await page.locator("#dialog-error", { hasText: "century" }).waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("link", { name: "Audit" }).click();
    await page.getByRole("cell", { name: "/unblock" }).waitFor();
  },

  async steady() {
    const service = await start();
    const page = await open();
    await login(page, service);
    await isLive(page);
    load(service, 20);
    /** Waits until the text of a place has changed twice. */
    const changes = async (place, what) => {
      for (let turn = 0; turn < 2; turn += 1) {
        const before = await place.innerText();
        await until(async () => (await place.innerText()) !== before, what);
      }
    };
    // A reader keeps the focus, and the keyboard does what it says.
    const busy = page.getByRole("table", { name: /most refusals/ });
    await busy.getByRole("link", { name: "per-user" }).focus();
    await changes(busy, "figures of busy policies");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "per-user");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "per-user" }).waitFor();
    // So does a selection, and the part of a wide table that a narrow window shows.
    const reasons = page.getByRole("table", { name: /Since the start/ });
    await page.locator("main .key").first().waitFor();
    const selected = await page.evaluate(() => {
      const key = document.querySelector("main .key");
      getSelection().selectAllChildren(key);
      return key.textContent;
    });
    await changes(reasons, "counts of decisions");
    assert.equal(await page.evaluate(() => getSelection().toString()), selected);
    await page.getByRole("link", { name: "Policies", exact: true }).click();
    await page.setViewportSize({ width: 400, height: 900 });
    const wide = page.locator(".scroll", { hasText: "Last 30 s" });
    await wide.evaluate((node) => (node.scrollLeft = 60));
    await changes(wide, "rates of policies");
    assert.equal(await wide.evaluate((node) => node.scrollLeft), 60);
    // A dialog belongs to its view.
    await page.goto(`${service.admin}/ui/#/key/per-user/ann`);
    await page.getByRole("button", { name: "Block …", exact: true }).click();
    await page.evaluate(() => (location.hash = "#/key/per-user/bob"));
    await page.getByRole("heading", { name: "Key bob" }).waitFor();
    assert.ok(await page.locator("#dialog").isHidden());
  },

  async manyPolicies() {
    const names = Array.from({ length: 300 }, (_, index) => `p${index}`);
    const limit = "unit: hour, requests_per_unit: 1000";
    const extra = names
      .map((name) => `  - { key: ${name}, value: all, rate_limit: { name: ${name}, ${limit} } }\n`)
      .join("");
    const service = await start({ extra });
    const page = await open();
    await login(page, service);
    await isLive(page);
    await page.goto(`${service.admin}/ui/#/policies`);
    await page.getByLabel("Name contains").fill("p0");
    await page.getByRole("button", { name: "Show" }).click();
    const row = page.getByRole("row", { name: /^p0 / });
    await row.waitFor();
    // Of 300 busy policies an update has 200: this one is not among them.
    for (const name of names.slice(1)) for (let turn = 0; turn < 2; turn += 1) await check(service, name);
    await check(service, "p0");
    await until(async () => !(await row.innerText()).includes("\t0\t0\t"), "a rate of the least busy policy");
    // A list gets shorter while a later page of it is shown.
    await page.getByLabel("Name contains").fill("");
    await page.getByRole("button", { name: "Show" }).click();
    for (let turn = 0; turn < 3; turn += 1) {
      await page.getByText(`${100 * turn + 1} to `).waitFor();
      await page.getByRole("button", { name: "Next" }).click();
    }
    await page.getByText("301 to 305 of 305").waitFor();
    writeFileSync(`${process.env.FOLDER}/limits.yaml`, POLICIES);
    await page.getByText("1 to 5 of 5").waitFor();
    // Another service on this host has a session of its own.
    const other = await start();
    const second = await page.context().newPage();
    await login(second, other);
    await isLive(second);
    assert.equal((await page.request.get(`${service.admin}/policies`)).status(), 200);
    assert.equal((await page.request.get(`${other.admin}/policies`)).status(), 200);
  },

  async otherOrigin() {
    const service = await start();
    const page = await open();
    await login(page, service);
    await isLive(page);
    // Another port of the same host is the same site: the browser sends the cookie along.
    const body = JSON.stringify({ policy: "per-user", key: "ann", for_ms: 60000 });
    const server = createServer((_, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end(`<form method="post" action="${service.admin}/reload"><button>go</button></form>`);
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const evil = await page.context().newPage();
    await evil.goto(`http://127.0.0.1:${server.address().port}/`);
    for (const type of ["text/plain", "application/json"]) {
      await evil.evaluate(
        ([url, text, kind]) =>
          fetch(url, {
            method: "POST",
            mode: "no-cors",
            credentials: "include",
            headers: { "content-type": kind },
            body: text,
          }).catch(() => {}),
        [`${service.admin}/block`, body, type],
      );
    }
    const [answer] = await Promise.all([evil.waitForNavigation(), evil.getByRole("button").click()]);
    assert.equal(answer.status(), 403);
    server.close();
    assert.equal(await check(service, "per-user", "ann"), 200);
    assert.deepEqual((await asAdmin(service, "/audit")).changes, []);
    // The session alone is not enough either: the request must come from a page.
    const cookies = (await page.context().cookies()).map(({ name, value }) => `${name}=${value}`).join("; ");
    const bare = await fetch(`${service.admin}/block`, {
      method: "POST",
      headers: { cookie: cookies, "content-type": "application/json" },
      body,
    });
    assert.equal(bare.status, 403);
  },

  async hostile() {
    const service = await start();
    const keys = [
      "<img src=x onerror=window.pwned=1>",
      "\u202egnp.live",
      "a\u0007b\u001b[31m",
      "x".repeat(500),
      "'; $(reboot) '",
      "back\\slash \\u{a} \"quoted\"",
      "a/b?c#d%2F",
      "two\nlines",
      "",
      "</script><script>window.pwned=1</script>",
    ];
    for (const key of keys) assert.equal(await check(service, "per-user", key), 200);
    const page = await open();
    await login(page, service);
    await isLive(page);
    await page.goto(`${service.admin}/ui/#/policy/per-user`);
    await page.getByRole("link", { name: "<img src=x" }).first().waitFor();
    const text = await page.locator("main").innerText();
    assert.ok(text.includes("\\u{202e}gnp.live") && text.includes("a\\u{7}b\\u{1b}[31m"), text);
    assert.ok(!/[\u202e\u0007\u001b]/.test(text));
    assert.ok(text.includes(`${"x".repeat(128)}…`) && !text.includes("x".repeat(129)));
    // The server knows only the beginning of a long key, and that is another key.
    assert.equal(await page.getByRole("link", { name: "xxx" }).count(), 0);
    const unseen = ["\u061cmark", "soft\u00adhyphen", "\u3164", "a\u{e0041}", " two  spaces "];
    await hostileCommands(service, page, [...keys, ...unseen]);
    assert.equal(await page.locator("h1 .key").innerText(), " two  spaces ");
    await hostileValues(service, page);
    for (const key of keys) {
      await page.goto(`${service.admin}/ui/#/key/per-user/${encodeURIComponent(key)}`);
      await page.getByText("A request now: passes").waitFor();
      await page.getByRole("button", { name: "Block …", exact: true }).click();
      await page.getByRole("button", { name: "Confirm" }).click();
      await page.locator("main b.bad").waitFor();
      assert.equal(await check(service, "per-user", key), 429, key);
    }
    await page.goto(`${service.admin}/ui/#/audit`);
    await page.getByRole("cell", { name: "/block" }).first().waitFor();
    assert.equal(await page.locator("main img, main script").count(), 0);
    assert.equal(await page.evaluate(() => window.pwned), undefined);
  },

  async accessible() {
    const service = await start();
    const page = await open({ reducedMotion: "reduce" });
    await login(page, service);
    await isLive(page);
    // By keyboard from the top: past the link to the content, to the second view.
    await page.locator("body").focus();
    for (let presses = 0; presses < 3; presses += 1) await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Policies" }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    assert.equal(await page.locator("nav a[aria-current]").textContent(), "Policies");
    await page.getByRole("link", { name: "Overview" }).click();
    // Beside the canvas, the same figures as a table.
    await page.getByText("Decisions of all policies, as a table").click();
    await page.getByRole("table", { name: /Decisions of all policies, newest first/ }).waitFor();
    for (const table of await page.locator("table:not(.u-legend)").all())
      assert.notEqual(await table.locator("caption").textContent(), "");
    const contrast = () =>
      page.evaluate(() => {
        const style = getComputedStyle(document.documentElement);
        const light = (name) => {
          const [r, g, b] = style
            .getPropertyValue(name)
            .trim()
            .slice(1)
            .match(/../g)
            .map((hex) => parseInt(hex, 16) / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const pairs = ["--text", "--dim", "--accent", "--allowed", "--denied", "--warn"].flatMap((one) =>
          ["--back", "--panel"].map((other) => [light(one), light(other)]),
        );
        return Math.min(
          ...pairs.map(([one, other]) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)),
        );
      });
    const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.ok((await contrast()) >= 4.5, `light: ${await contrast()}`);
    const light = await back();
    await page.emulateMedia({ colorScheme: "dark" });
    assert.ok((await contrast()) >= 4.5, `dark: ${await contrast()}`);
    assert.notEqual(await back(), light);
    await page.getByRole("link", { name: "Resilience" }).click();
    await page.getByRole("cell", { name: "reports" }).waitFor();
    await page.getByRole("link", { name: "Explain" }).click();
    await page.getByRole("heading", { name: "Which limit would this request meet" }).waitFor();
    await page.getByLabel("Descriptor").fill("user=ann");
    await page.getByLabel("Cost").fill("21");
    await page.keyboard.press("Enter");
    await page.getByText("would be denied now").waitFor();
    await page.getByRole("cell", { name: "per-user" }).waitFor();
  },
};

const name = process.argv[2];
try {
  await scenarios[name]();
  assert.deepEqual(violations, [], "the content security policy stopped something");
  assert.deepEqual(errors, [], "a script failed");
  console.log(`${name}: ok`);
} finally {
  await close();
}

// Talks to a listener as applications do, by ioredis: client.js PORT PROTOCOL.
const assert = require("node:assert");
const Redis = require("ioredis");

const [port, protocol] = process.argv.slice(2).map(Number);
const client = new Redis({
  port,
  protocol,
  // Maps as objects, not as lists of names and values.
  ...(protocol === 3 && { replyMapping: "resp3" }),
  password: "sesame",
  connectionName: "js",
  maxRetriesPerRequest: 0,
  retryStrategy: null,
});

async function main() {
  assert.strictEqual(await client.ping(), "PONG");
  const key = `js${protocol}`;
  const throttle = (key, burst) => client.call("CL.THROTTLE", key, burst, 1, 60);
  assert.deepStrictEqual(await throttle(key, 1), [0, 2, 1, -1, 60]);
  assert.deepStrictEqual(await throttle(key, 1), [0, 2, 0, -1, 120]);
  assert.deepStrictEqual(await throttle(key, 1), [1, 2, 0, 60, 120]);
  // Without waiting for each other, on one connection.
  const replies = await Promise.all(Array.from({ length: 20 }, () => throttle(`${key}-many`, 4)));
  assert.deepStrictEqual(replies.map((reply) => reply[0]), [...Array(5).fill(0), ...Array(15).fill(1)]);
  let transaction = client.multi();
  for (let count = 0; count < 20; count++) {
    transaction = transaction.call("CL.THROTTLE", `${key}-transaction`, 4, 1, 60);
  }
  const results = await transaction.exec();
  assert.deepStrictEqual(
    results.map(([error, reply]) => [error, reply[0]]),
    [...Array(5).fill([null, 0]), ...Array(15).fill([null, 1])],
  );
  await assert.rejects(client.multi().call("PING").get("a").exec(), /EXECABORT/);
  const checked = await client.call("TG.CHECK", "per-user", key, 2);
  const map = {
    allowed: true,
    limit: 3,
    remaining: 1,
    retry_after_ms: 0,
    reset_after_ms: 40000,
    refused_by: null,
  };
  assert.deepStrictEqual(checked, protocol === 3 ? map : [1, 3, 1, 0, 40000, null]);
  await assert.rejects(client.call("TG.CHECK", "per-us", key), /did you mean/);
  const described = await client.command("INFO", "tg.check", "nonsense");
  assert.deepStrictEqual([described[0][0], described[0][1], described[1]], ["tg.check", -3, null]);
  assert.strictEqual((await client.command()).length, await client.command("COUNT"));
  const docs = await client.command("DOCS", "tg.cancel");
  const documented = protocol === 3 ? Object.keys(docs) : [docs[0]];
  assert.deepStrictEqual(documented, ["tg.cancel"]);
  assert.strictEqual(await client.del(key, "nobody"), 1);
  assert.strictEqual(await client.client("GETNAME"), "js");
  await client.quit();
  console.log("ok");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

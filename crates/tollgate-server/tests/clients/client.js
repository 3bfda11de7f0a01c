// Talks to a listener as applications do, by ioredis: client.js PORT.
const assert = require("node:assert");
const Redis = require("ioredis");

const client = new Redis({
  port: Number(process.argv[2]),
  password: "sesame",
  connectionName: "js",
  maxRetriesPerRequest: 0,
  retryStrategy: null,
});

async function main() {
  assert.strictEqual(await client.ping(), "PONG");
  const throttle = (key, burst) => client.call("CL.THROTTLE", key, burst, 1, 60);
  assert.deepStrictEqual(await throttle("js", 1), [0, 2, 1, -1, 60]);
  assert.deepStrictEqual(await throttle("js", 1), [0, 2, 0, -1, 120]);
  assert.deepStrictEqual(await throttle("js", 1), [1, 2, 0, 60, 120]);
  // Without waiting for each other, on one connection.
  const replies = await Promise.all(Array.from({ length: 20 }, () => throttle("js-many", 4)));
  assert.deepStrictEqual(replies.map((reply) => reply[0]), [...Array(5).fill(0), ...Array(15).fill(1)]);
  assert.deepStrictEqual(await client.call("TG.CHECK", "per-user", "js", 2), [1, 3, 1, 0, 40000, null]);
  await assert.rejects(client.call("TG.CHECK", "per-us", "js"), /did you mean/);
  assert.strictEqual(await client.del("js", "nobody"), 1);
  assert.strictEqual(await client.client("GETNAME"), "js");
  await client.quit();
  console.log("ok");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

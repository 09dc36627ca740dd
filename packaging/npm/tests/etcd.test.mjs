import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { acquire, check, lock, Locked, Lost, tryLock } from "onehold";
import { newDirectory, onehold, quickest, soon, startScript, until, waiters } from "./store.mjs";

let etcd;
let dir;

async function freePorts(count) {
  const servers = Array.from({ length: count }, () => createServer().listen(0, "127.0.0.1"));
  await Promise.all(servers.map((server) => once(server, "listening")));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => once(server.close(), "close")));
  return ports;
}

before(async (t) => {
  const [client, peer] = (await freePorts(2)).map((port) => `http://127.0.0.1:${port}`);
  const data = join(newDirectory({ after }), "etcd");
  const urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
    "--initial-advertise-peer-urls", peer, "--initial-cluster", `default=${peer}`];
  etcd = spawn("etcd", ["--data-dir", data, "--unsafe-no-fsync", "--log-level", "error", ...urls], { stdio: "inherit" });
  await once(etcd, "spawn");
  dir = `etcd://${new URL(client).host}/test`;
  await until(() => check("ready", { dir }).then(() => true, (error) => assert.equal(error.code, "STORE")));
});

after(() => etcd.kill("SIGKILL"));

test("8 holders of one process exclude each other on etcd", async () => {
  let number = 0;
  await Promise.all(Array.from({ length: 8 }, async () => {
    for (let round = 0; round < 5; round++) {
      const hold = await lock("n", { dir, wait: "1m" });
      const before = number;
      await new Promise(setImmediate);
      number = before + 1;
      assert.equal(hold.file, null);
      await hold.release();
    }
  }));
  assert.equal(number, 40);
});

test("a lock on etcd excludes the command line, and is broken by it", async () => {
  const hold = await lock(["a", "b"], { dir, message: "nightly" });
  assert.equal((await onehold(dir, "run", "b", "--", "true")).code, 6);
  await assert.rejects(lock("a", { dir }), (error) => error instanceof Locked && error.holder.message === "nightly");
  await onehold(dir, "break", "--yes", "a");
  assert.equal((await soon(hold.lost)).reason, "broken");
  await assert.rejects(hold.release(), Lost);
  await (await lock("b", { dir, wait: "20s" })).release(); // a loss is told before the rest is released
});

test("a lease on etcd is renewed and released", async () => {
  const lease = await acquire("lease", { dir, ttl: "10s", owner: "job" });
  const before = lease.expiresAt;
  await lease.renew({ ttl: "1m" });
  assert.ok(lease.expiresAt - before >= 49_000);
  assert.equal(await tryLock("lease", { dir }), null);
  await lease.release();
  assert.equal((await check("lease", { dir })).state, "free");
});

test("a process that is killed frees its lock on etcd", async (t) => {
  const source = 'import { lock } from "onehold"; await lock("k", { dir: process.argv.at(-1) }); console.log("held"); process.stdin.resume();';
  const took = await quickest(async () => {
    const script = startScript(t, source, { words: [dir] });
    assert.equal(await script.next(), "held");
    const next = lock("k", { dir, wait: "1m" });
    await until(async () => (await waiters("k", dir)) === 1);
    const began = performance.now();
    script.kill("SIGKILL");
    const hold = await next;
    const milliseconds = performance.now() - began;
    await hold.release();
    return milliseconds;
  });
  t.diagnostic(`free after ${took.toFixed(1)} ms`);
  assert.ok(took < 300, `free after ${took} ms`);
});

test("a lock is lost when etcd is gone, and a wait can still be aborted", async () => {
  const hold = await lock("gone", { dir, ttl: "10s" });
  etcd.kill("SIGKILL");
  await once(etcd, "exit");
  const waiting = lock("gone", { dir, wait: "1m", signal: AbortSignal.timeout(100) });
  await assert.rejects(soon(waiting), { name: "TimeoutError" });
  assert.equal((await soon(hold.lost)).reason, "lost");
  await assert.rejects(hold.release(), Lost);
});

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";
import { acquire, check, Locked, lock, Lost, programPath, TimedOut, tryLock } from "onehold";
import { newDirectory, onehold, startScript, until, waiters } from "./store.mjs";

test("a lease outlives its process, and the same owner goes on with it", async (t) => {
  const dir = newDirectory(t);
  const source = 'import { acquire } from "onehold"; const dir = process.argv.at(-1); console.log((await acquire(["a", "b"], { dir, ttl: "1m", owner: "job" })).number);';
  const script = startScript(t, source, { words: [dir] });
  const number = Number(await script.next());
  assert.equal(await script.closed, 0);
  assert.equal(await tryLock("b", { dir }), null);
  await assert.rejects(acquire("a", { dir, ttl: "1m", owner: "other" }), Locked);

  const lease = await acquire(["a", "b"], { dir, ttl: "1m", owner: "job" });
  assert.deepEqual([lease.number, lease.names, lease.owner, lease.slot], [number, ["a", "b"], "job", null]);
  assert.equal(lease.expiresAt.toISOString(), new Date((await check("a", { dir })).expires_at).toISOString());
  const before = lease.expiresAt;
  await lease.renew({ ttl: "1h" });
  assert.ok(lease.expiresAt - before >= 3_540_000);
  assert.equal((await check("b", { dir })).ttl_seconds, 3600);
  await lease.release();
  await lease.release();
  assert.equal((await check("b", { dir })).state, "free");
});

test("a lease that is gone rejects with Lost", async (t) => {
  const dir = newDirectory(t);
  const lease = await acquire("a", { dir, ttl: "1m" });
  await onehold(dir, "break", "--yes", "a");
  await assert.rejects(lease.renew(), { name: "Lost", code: "NOT_HELD" });
  const hold = await lock("a", { dir });
  await assert.rejects(lease.renew(), (error) => error instanceof Lost && error.code === "NOT_OWNER");
  await assert.rejects(lease[Symbol.asyncDispose](), (error) => error instanceof Lost && error.holder.hold === hold.number);
  assert.equal((await check("a", { dir })).hold, hold.number);
  await hold.release();
});

test("the release of a lease that has expired rejects with Lost", async (t) => {
  const dir = newDirectory(t);
  const expired = async (name) => {
    const lease = await acquire(name, { dir, ttl: 1 });
    await until(async () => (await check(name, { dir })).state !== "held");
    return lease;
  };
  const lease = await expired("a");
  await (await lock("a", { dir })).release(); // another holder, meanwhile
  await assert.rejects(lease.release(), (error) => error instanceof Lost && error.code === "NOT_HELD" && error.reason === "expired");
  await assert.rejects(lease.release(), Lost);
  await assert.rejects((await expired("b"))[Symbol.asyncDispose](), Lost);
  assert.equal((await check("b", { dir })).state, "free");
});

test("a second release of a lease does nothing, whoever has the lock", async (t) => {
  const dir = newDirectory(t);
  const lease = await acquire("a", { dir, ttl: "1m" });
  await Promise.all([lease.release(), lease.release()]);
  const hold = await lock("a", { dir });
  await lease.release();
  assert.equal((await check("a", { dir })).hold, hold.number);
  await hold.release();
});

test("a lease stays the same when the current directory changes", async (t) => {
  const source = `
    import { symlinkSync } from "node:fs";
    import { acquire, check, programPath } from "onehold";
    const begin = process.argv.at(-1);
    process.chdir(begin);
    symlinkSync(programPath(), "program");
    const options = { ttl: "1m", program: "./program" };
    const leases = [await acquire("a", { dir: "store", ...options }), await acquire("./b", options)];
    process.chdir("/");
    for (const lease of leases) {
      await lease.renew({ ttl: "1h" });
      await lease.release();
    }
    console.log((await check("a", { dir: begin + "/store" })).state, (await check(begin + "/b")).state);
  `;
  assert.equal(await startScript(t, source, { words: [newDirectory(t)] }).next(), "free free");
});

test("a lease waits, times out and is aborted", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  await assert.rejects(acquire("a", { dir, ttl: "1m", wait: 50 }), TimedOut);
  const controller = new AbortController();
  const waiting = acquire("a", { dir, ttl: "1m", wait: "1m", signal: controller.signal }).catch((error) => error);
  await until(async () => (await waiters("a", dir)) === 1);
  controller.abort();
  assert.equal(await waiting, controller.signal.reason);
  assert.equal(await waiters("a", dir), 0);
  const next = acquire("a", { dir, ttl: "1m", wait: "1m" });
  await until(async () => (await waiters("a", dir)) === 1);
  await hold.release();
  await (await next).release();
  await assert.rejects(acquire("a", { dir }), TypeError);
});

test("a process that is killed while it waits for a lease gets none", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  const source = 'import { acquire } from "onehold"; await acquire("a", { dir: process.argv.at(-1), ttl: "1m", wait: "20s" });';
  const script = startScript(t, source, { words: [dir] });
  await until(async () => (await waiters("a", dir)) === 1);
  script.kill("SIGKILL");
  await script.closed;
  await hold.release();
  await (await lock("a", { dir, wait: "20s" })).release();
  assert.equal((await check("a", { dir })).state, "free");
});

test("a lease whose signal is aborted before the program answers rejects with the reason", async (t) => {
  const dir = newDirectory(t);
  const program = join(dir, "onehold-without-answer");
  const script = `until [ -e '${dir}/aborted' ]; do sleep 0.01; done\nexec '${programPath()}' "$@"\n`;
  await writeFile(program, `#!/bin/sh\n${script}`, { mode: 0o755 });
  const controller = new AbortController();
  const acquired = acquire("a", { dir, program, ttl: "1m", signal: controller.signal }).catch((error) => error);
  const reason = new Error("enough");
  controller.abort(reason);
  await writeFile(join(dir, "aborted"), "");
  assert.equal(await acquired, reason);
  assert.equal((await check("a", { dir })).state, "free");
});

test("an extension that is aborted leaves the lease that was held before", async (t) => {
  const dir = newDirectory(t);
  const lease = await acquire("a", { dir, ttl: "1m", owner: "o" });
  const program = join(dir, "onehold-that-answers-late");
  const late = `{ until [ -e '${dir}/aborted' ]; do sleep 0.01; done; cat; }`;
  await writeFile(program, `#!/bin/sh\n'${programPath()}' "$@" | ${late}\n`, { mode: 0o755 });
  const controller = new AbortController();
  const extended = acquire("a", { dir, program, ttl: "1h", owner: "o", signal: controller.signal }).catch((error) => error);
  await until(async () => (await check("a", { dir })).ttl_seconds === 3600);
  controller.abort();
  await writeFile(join(dir, "aborted"), "");
  assert.equal(await extended, controller.signal.reason);
  assert.equal((await check("a", { dir })).hold, lease.number);
});

for (const broken of [false, true]) test(`a lease that was acquired${broken ? " and broken" : ""} as its wait is aborted is released`, async (t) => {
  const dir = newDirectory(t);
  const program = join(dir, "onehold-that-answers-late");
  const late = `{ until [ -e '${dir}/aborted' ]; do sleep 0.01; done; cat; }`;
  await writeFile(program, `#!/bin/sh\n'${programPath()}' "$@" | ${late}\n`, { mode: 0o755 });
  const controller = new AbortController();
  const acquired = acquire("a", { dir, program, ttl: "1m", signal: controller.signal }).catch((error) => error);
  await until(async () => (await check("a", { dir })).state === "held");
  if (broken) await onehold(dir, "break", "--yes", "a");
  controller.abort();
  await writeFile(join(dir, "aborted"), "");
  assert.equal(await acquired, controller.signal.reason);
  assert.equal((await check("a", { dir })).state, "free");
});

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { lock, programPath, tryLock } from "onehold";
import { newDirectory, onehold, run, until, waiters } from "./store.mjs";

const eight = (start) => Promise.all(Array.from({ length: 8 }, (_, index) => start(index)));

async function counts(t, times, start) {
  const dir = newDirectory(t);
  const file = join(dir, "number");
  await writeFile(file, "0");
  const ends = await eight((index) => start(index, { dir, file }));
  assert.deepEqual(ends.map(({ code, stderr }) => ({ code, stderr })), Array(8).fill({ code: 0, stderr: "" }));
  assert.equal(Number(await readFile(file, "utf8")), 8 * times);
}

test("8 processes increment 100 times each", (t) =>
  counts(t, 100, (_, { dir, file }) => run(process.execPath, ["programs/increment.mjs", dir, "n", file, "100"])));

test("4 processes and 4 scripts of the command line increment 50 times each", (t) => {
  const script = 'for i in $(seq 50); do "$1" --dir "$2" run -w 2m n -- sh -c \'echo $(($(cat "$1") + 1)) >"$1"\' sh "$3" || exit; done';
  return counts(t, 50, (index, { dir, file }) =>
    index % 2
      ? run("sh", ["-c", script, "sh", programPath(), dir, file])
      : run(process.execPath, ["programs/increment.mjs", dir, "n", file, "50"]));
});

test("8 holders in one process exclude each other", async (t) => {
  const dir = newDirectory(t);
  let number = 0;
  await eight(async () => {
    for (let round = 0; round < 20; round++) {
      const hold = await lock("n", { dir, wait: "1m" });
      const before = number;
      await turn();
      number = before + 1;
      await hold.release();
    }
  });
  assert.equal(number, 160);
});

test("8 worker threads exclude each other", async (t) => {
  const dir = newDirectory(t);
  const numbers = new Int32Array(new SharedArrayBuffer(12));
  await eight(() => new Promise((resolve, reject) => {
    const worker = new Worker(new URL("programs/worker.mjs", import.meta.url), { workerData: { dir, times: 10, numbers } });
    worker.once("error", reject).once("exit", resolve);
  }));
  assert.deepEqual([...numbers], [80, 0, 0]);
});

test("8 waiters get the lock in order of arrival", async (t) => {
  const dir = newDirectory(t);
  const first = await lock("n", { dir });
  const order = [];
  const done = [];
  for (let index = 0; index < 8; index++) {
    // It is told a moment after the wait has begun, when some of those before it may have left.
    const onWaiting = ({ position }) => assert.ok(position >= 1 && position <= index + 1, `position ${position}`);
    done.push(lock("n", { dir, wait: "1m", onWaiting })
      .then((hold) => order.push(index) && hold.release()));
    await until(async () => (await waiters("n", dir)) === index + 1);
  }
  await first.release();
  await Promise.all(done);
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7]);
});

test("8 contenders for 3 slots: 3 at once, each in a slot of its own", async (t) => {
  const dir = newDirectory(t);
  const inside = new Set();
  let most = 0;
  await eight(async () => {
    const hold = await lock("n", { dir, slots: 3, wait: "1m" });
    assert.deepEqual(hold.slots, [hold.slot]);
    assert.ok(!inside.has(hold.slot), `slot ${hold.slot} is held twice`);
    inside.add(hold.slot);
    most = Math.max(most, inside.size);
    // Those who hold leave when others wait, or when nobody is left who could.
    await until(() => most === 3);
    inside.delete(hold.slot);
    await hold.release();
  });
  assert.equal(most, 3);
});

test("8 readers share the lock, and exclude a writer", async (t) => {
  const dir = newDirectory(t);
  const readers = await eight(() => lock("n", { dir, shared: true }));
  assert.equal(new Set(readers.map(({ slot }) => slot)).size, 8);
  assert.equal(await tryLock("n", { dir }), null);
  for (const reader of readers) await reader.release();
  const writer = await tryLock("n", { dir });
  assert.equal(await tryLock("n", { dir, shared: true }), null);
  await writer.release();
});

test("several names are taken together or not at all", async (t) => {
  const dir = newDirectory(t);
  const both = await lock(["db", "cache"], { dir });
  assert.equal(await tryLock("db", { dir }), null);
  assert.equal(await tryLock(["other", "cache"], { dir }), null);
  assert.equal((await onehold(dir, "check", "other")).code, 0);
  assert.equal((await onehold(dir, "check", "cache")).code, 6);
  await both.release();
  await (await tryLock(["other", "cache"], { dir })).release();
});

// Programs as people write them, with one process that holds all their locks.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { acquire, check, lock, Locked, Lost, tryLock, withLock } from "onehold";
import { newDirectory, onehold, quickest, soon, startScript, until, waiters } from "./store.mjs";

/** The processes `hold --serve` of a program. */
function serversOf(pid) {
  let children = "";
  try {
    children = execFileSync("pgrep", ["-P", String(pid)], { encoding: "utf8" });
  } catch {} // none
  return children.split("\n").filter((child) => child && readFileSync(`/proc/${child}/cmdline`, "utf8").includes("--serve"));
}

test("`withLock` returns what its function returns, and releases whatever that does", async (t) => {
  const dir = newDirectory(t);
  const number = await withLock("a", { dir }, async (hold) => {
    assert.equal((await check("a", { dir })).hold, hold.number);
    return hold.number;
  });
  assert.ok(number > 0);
  await assert.rejects(withLock("a", { dir }, () => { throw new Error("mine"); }), /^Error: mine$/);
  await assert.rejects(withLock("a", { dir }, () => Promise.reject(new Error("mine"))), /^Error: mine$/);
  assert.equal((await check("a", { dir })).state, "free");
  for (const words of [["a"], ["a", { dir }], ["a", { dir }, 7]]) await assert.rejects(withLock(...words), TypeError);
});

test("a function that wraps another, called by 24 at once, is never in there twice", async (t) => {
  const dir = newDirectory(t);
  const locked = (name, work) => (...words) => withLock(name, { dir, wait: Infinity }, () => work(...words));
  let inside = 0;
  const work = locked("a", async (number) => {
    assert.equal(++inside, 1);
    await sleep(1);
    inside--;
    return number;
  });
  const numbers = Array.from({ length: 24 }, (_, number) => number);
  assert.deepEqual(await Promise.all(numbers.map(work)), numbers);
});

test("what is held around a call is refused at once, and what is held beside it is waited for", async (t) => {
  const dir = newDirectory(t);
  const forever = { dir, wait: Infinity };
  await withLock("a", forever, async () => {
    for (const again of [() => withLock("a", forever, () => {}), () => lock("a", forever), () => acquire("a", { ...forever, ttl: "1h" })]) {
      const error = await soon(again().catch((error) => error));
      assert.ok(error instanceof Locked, error);
      assert.match(error.message, /^the caller itself holds it: `a` is held by /);
    }
    // Eight at once in here wait for each other, and not for themselves.
    let count = 0;
    const once = async () => {
      const own = ++count;
      await sleep(1);
      assert.equal(count, own);
    };
    await soon(Promise.all(Array.from({ length: 8 }, () => withLock("b", forever, once))));
    assert.equal(count, 8);
    await assert.rejects(withLock("a/child", forever, () => {}), Locked);
  });
  // Nothing of it is left.
  await soon(withLock("a", forever, () => {}));
});

test("a loss is not hidden, and hides nothing that was thrown", async (t) => {
  const dir = newDirectory(t);
  const lose = async (hold) => {
    await onehold(dir, "break", "--yes", "a");
    return soon(hold.lost);
  };
  await assert.rejects(withLock("a", { dir }, lose), { name: "Lost", reason: "broken" });
  const thrown = new Error("mine");
  const error = await withLock("a", { dir }, async (hold) => {
    await lose(hold);
    throw thrown;
  }).catch((error) => error);
  assert.equal(error, thrown);
  assert.ok(error.cause instanceof Lost);
  const frozen = Object.freeze(new Error("mine"));
  await assert.rejects(withLock("a", { dir }, (hold) => lose(hold).then(() => { throw frozen; })), (error) => error === frozen);
});

test("one of 8 processes of a cluster does the work", async (t) => {
  const dir = newDirectory(t);
  const source = `
    import { tryLock } from "onehold";
    const hold = await tryLock("guard", { dir: process.argv.at(-1) });
    console.log(hold ? "works" : "does not");
    await new Promise((resolve) => process.stdin.once("data", resolve).resume());
    process.exit();
  `;
  const scripts = Array.from({ length: 8 }, () => startScript(t, source, { words: [dir] }));
  const told = await Promise.all(scripts.map((script) => script.next()));
  assert.equal(told.filter((line) => line === "works").length, 1);
});

test("a lease over the steps of a job, each a process, and no process for a request", async (t) => {
  const dir = newDirectory(t);
  const source = `
    import { acquire } from "onehold";
    console.log((await acquire("job", { dir: process.argv.at(-1), ttl: "1h", owner: "build-7" })).number);
  `;
  const numbers = [await startScript(t, source, { words: [dir] }).next(), await startScript(t, source, { words: [dir] }).next()];
  assert.equal(numbers[0], numbers[1]);
  assert.equal(await tryLock("job", { dir }), null);
  const [server] = serversOf(process.pid);
  const lease = await acquire("job", { dir, ttl: "1h", owner: "build-7" });
  await lease.renew();
  await check("job", { dir });
  await lease.release();
  assert.deepEqual(serversOf(process.pid), [server]);
});

test("an uncaught error, and Ctrl-C, free the lock", async (t) => {
  const dir = newDirectory(t);
  for (const end of ["throw new Error('no')", "setTimeout(() => process.kill(process.pid, 'SIGINT')); await sleep(1e6)"]) {
    const source = `
      import { withLock } from "onehold";
      import { setTimeout as sleep } from "node:timers/promises";
      await withLock("a", { dir: process.argv.at(-1) }, async () => { console.log("held"); ${end}; });
    `;
    const script = startScript(t, source, { words: [dir], stdio: ["pipe", "pipe", "ignore"] });
    assert.equal(await script.next(), "held");
    assert.notEqual(await script.closed, 0);
    await (await lock("a", { dir, wait: "20s" })).release();
  }
});

test("500 in a row by 8 at once have one process", async (t) => {
  const dir = newDirectory(t);
  let count = 0;
  const work = async () => {
    while (count < 500) await withLock("a", { dir, wait: Infinity }, () => { count++; });
  };
  await Promise.all(Array.from({ length: 8 }, work));
  assert.ok(count >= 500);
  assert.equal(serversOf(process.pid).length, 1);
});

test("256 descriptors are enough for 100 holds", async (t) => {
  const source = `
    import { lock } from "onehold";
    const holds = [];
    for (let n = 0; n < 100; n++) holds.push(await lock("a" + n, { dir: process.argv.at(-1) }));
    console.log(holds.length);
  `;
  const script = 'ulimit -n 256; exec "$0" --input-type=module -e "$1" -- "$2"';
  const held = execFileSync("sh", ["-c", script, process.execPath, source, newDirectory(t)], { encoding: "utf8" });
  assert.equal(held, "100\n");
});

for (const whom of ["program", "server", "both"]) test(`KILL of the ${whom} at each line of the protocol leaves nothing held`, async (t) => {
  const steps = [
    "held = await lock(['x', 'y'], { dir })",
    "console.log('held')",
    "await new Promise((resolve) => lock('z', { dir, wait: '1h', onWaiting: resolve }).catch(() => {}))",
    "acquire('z', { dir, wait: '1h', ttl: '1h' }).catch(() => {})",
    "await lock('v', { dir })",
    "await held.release()",
  ];
  for (let line = 1; line <= steps.length; line++) {
    const dir = newDirectory(t);
    const other = await lock("z", { dir });
    const source = `
      import { acquire, lock } from "onehold";
      const dir = process.argv.at(-1);
      let held;
      process.on("unhandledRejection", () => {});
      ${steps.slice(0, line).join(";\n")};
      console.log("here");
      setTimeout(() => {}, 1e6);
    `;
    const took = await quickest(async () => {
      const script = startScript(t, source, { words: [dir] });
      for (let told; told !== "here"; ) assert.ok((told = await script.next()), "the program has ended");
      const [server] = serversOf(script.pid).map(Number);
      const began = performance.now();
      if (whom !== "program") process.kill(server, "SIGKILL");
      if (whom !== "server") script.kill("SIGKILL");
      await (await lock(["x", "y", "v"], { dir, wait: "20s" })).release();
      const milliseconds = performance.now() - began;
      script.kill("SIGKILL");
      await script.closed;
      return milliseconds;
    });
    assert.ok(took < 300, `${took} ms after line ${line}`);
    await until(async () => (await waiters("z", dir)) === 0);
    await other.release();
    assert.equal((await check("z", { dir })).state, "free");
  }
});

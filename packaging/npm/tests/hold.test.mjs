import assert from "node:assert/strict";
import { readFile, rm, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { acquire, check, lock, Locked, LockError, Lost, NotFound, programPath, TimedOut, tryLock } from "onehold";
import { newDirectory, onehold, run, soon, startScript, until, waiters } from "./store.mjs";

test("a hold has a number that grows, and the path of its file", async (t) => {
  const dir = newDirectory(t);
  const first = await lock("a", { dir, owner: "job 7", message: "nightly", maxAge: "1h", ttl: 90_000 });
  const { lock: shown } = JSON.parse((await onehold(dir, "--json", "check", "a")).stdout);
  assert.equal(shown.hold, first.number);
  assert.equal(shown.path, first.file);
  assert.deepEqual([shown.owner, shown.message, shown.ttl_seconds], ["job 7", "nightly", 90]);
  assert.deepEqual([first.slot, first.slots, first.displaced], [null, [], null]);
  await soon(first.release());
  const second = await lock("-a", { dir });
  assert.ok(second.number > first.number);
  await second.release();
});

test("a lock that is held rejects with its holder", async (t) => {
  const dir = newDirectory(t);
  const began = Date.now();
  const hold = await lock("a", { dir, message: "nightly", owner: "me" });
  const error = await lock("a", { dir }).catch((error) => error);
  assert.ok(error instanceof Locked && error instanceof LockError && !(error instanceof TimedOut));
  assert.deepEqual([error.name, error.code, error.host], ["Locked", "LOCKED", hostname()]);
  assert.match(error.message, /^`a` is held by process .* of me .*"nightly"$/);
  assert.deepEqual([error.holder.message, error.holder.hold], ["nightly", hold.number]);
  assert.ok(error.since >= began && error.since <= Date.now());
  assert.match(error.stack, /hold\.test\.mjs/);
  assert.equal(await tryLock("a", { dir }), null);
  await hold.release();
});

test("a dead hold that the configuration does not take over is refused with Locked", async (t) => {
  const dir = newDirectory(t);
  await writeFile(join(dir, "config.toml"), '[defaults]\non-zombie = "fail"\n');
  const program = join(dir, "configured");
  await writeFile(program, `#!/bin/sh\nONEHOLD_CONFIG='${dir}/config.toml' exec '${programPath()}' "$@"\n`, { mode: 0o755 });
  const hold = await lock("a", { dir });
  process.kill((await check("a", { dir })).pid, "SIGKILL");
  await soon(hold.lost);
  for (const take of [() => lock("a", { dir, program }), () => acquire("a", { dir, program, ttl: "1m" })]) {
    const error = await take().catch((error) => error);
    assert.deepEqual([error.constructor, error.code, error.holder.hold], [Locked, "ZOMBIE", hold.number]);
  }
  assert.equal(await tryLock("a", { dir, program }), null);
});

test("a wait ends with TimedOut, in milliseconds and with a unit", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  for (const wait of [100, "100ms", "0.1s"]) {
    const began = performance.now();
    const error = await lock("a", { dir, wait }).catch((error) => error);
    assert.ok(error instanceof TimedOut && error instanceof Locked);
    assert.deepEqual([error.code, error.holder.hold], ["TIMEOUT", hold.number]);
    assert.ok(performance.now() - began >= 100);
  }
  await hold.release();
});

test("a queue that is full and a place that is kept are options", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  const waiting = lock("a", { dir, wait: Infinity });
  await until(async () => (await waiters("a", dir)) === 1);
  const error = await lock("a", { dir, wait: "20s", maxWaiting: 1 }).catch((error) => error);
  assert.deepEqual([error.constructor, error.code], [Locked, "QUEUE_FULL"]);
  const controller = new AbortController();
  const onWaiting = () => controller.abort();
  await assert.rejects(lock("a", { dir, wait: "20s", keepPlace: "1m", owner: "me", signal: controller.signal, onWaiting }), { name: "AbortError" });
  const { kept_places: kept } = JSON.parse((await onehold(dir, "--json", "-v", "check", "a")).stdout);
  assert.deepEqual(kept.map(({ owner }) => owner), ["me"]);
  await hold.release();
  await (await waiting).release();
});

test("`break` resolves `lost`, and `release` rejects with Lost", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  await onehold(dir, "break", "--yes", "a");
  const loss = await soon(hold.lost);
  assert.deepEqual(loss, { reason: "broken", message: "lock `a` was broken while it was held" });
  const next = await lock("a", { dir });
  for (const release of [() => hold.release(), () => hold.release(), () => hold[Symbol.asyncDispose]()]) {
    const error = await release().catch((error) => error);
    assert.ok(error instanceof Lost);
    assert.deepEqual([error.code, error.reason, error.message], ["LOST", "broken", loss.message]);
  }
  assert.equal((await check("a", { dir })).hold, next.number);
  await next.release();
});

test("a file that was removed resolves `lost`", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  await rm(hold.file);
  assert.equal((await soon(hold.lost)).reason, "lost");
});

for (const [signal, reason] of [["SIGKILL", "killed"], ["SIGTERM", "signal"]]) {
  test(`${signal} of the process that holds resolves \`lost\``, async (t) => {
    const dir = newDirectory(t);
    const hold = await lock("a", { dir });
    process.kill((await check("a", { dir })).pid, signal);
    assert.equal((await soon(hold.lost)).reason, reason);
    await assert.rejects(hold.release(), Lost);
    const next = await lock("a", { dir });
    assert.equal(next.displaced?.hold ?? null, signal === "SIGKILL" ? hold.number : null);
    await next.release();
  });
}

test("the end of stdin is a loss unless `release` was called", async (t) => {
  const dir = newDirectory(t);
  const pid = join(dir, "pid");
  const program = join(dir, "onehold-behind-another-pipe");
  const script = `#!/bin/sh\nexec 2>/dev/null\nsh -c 'echo $$ >"$1"; exec cat' sh '${pid}' | '${programPath()}' "$@"\n`;
  await writeFile(program, script, { mode: 0o755 });
  const hold = await lock("a", { dir, program });
  process.kill(Number(await readFile(pid, "utf8")), "SIGKILL");
  assert.deepEqual(await soon(hold.lost), { reason: "stdin", message: "hold `a`: the pipe to the process that held it was closed" });
  await assert.rejects(hold.release(), { name: "Lost", reason: "stdin" });
  await (await lock("a", { dir, wait: "20s" })).release();
});

test("`release` notices a loss that the event loop has not seen", async (t) => {
  const dir = newDirectory(t);
  const source = `
    import { spawnSync } from "node:child_process";
    import { check, lock } from "onehold";
    const dir = process.argv.at(-1);
    const hold = await lock("a", { dir });
    spawnSync("sh", ["-c", 'kill "$1"; while [ -e "$2" ]; do sleep 0.01; done', "sh", String((await check("a", { dir })).pid), hold.file]);
    console.log(await hold.release().then(() => "released", (error) => error.reason));
  `;
  assert.equal(await startScript(t, source, { words: [dir] }).next(), "signal");
});

test("`lost` stays pending after a release", async (t) => {
  const hold = await lock("a", { dir: newDirectory(t) });
  let lost = false;
  hold.lost.then(() => (lost = true));
  await Promise.all([hold.release(), hold.release()]);
  await hold.release();
  await new Promise(setImmediate);
  assert.equal(lost, false);
});

test("`await using` releases", async (t) => {
  const dir = newDirectory(t);
  const statement = "await using hold = await lock('a', { dir });";
  let parses = true;
  try {
    new Function(`return async () => { ${statement} }`);
  } catch {
    parses = false;
  }
  const body = parses
    ? `{ ${statement} assert.equal(await tryLock("a", { dir }), null); }`
    : `const hold = await lock("a", { dir }); assert.equal(await tryLock("a", { dir }), null); await hold[Symbol.asyncDispose]();`;
  const source = `
    import assert from "node:assert/strict";
    import { lock, tryLock } from "onehold";
    const dir = process.argv.at(-1);
    ${body}
    console.log((await tryLock("a", { dir })).number > 0);
  `;
  assert.equal(await startScript(t, source, { words: [dir] }).next(), "true");
});

test("a signal aborts the wait and leaves the queue", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  const controller = new AbortController();
  const waiting = lock("a", { dir, wait: "20s", signal: controller.signal });
  await until(async () => (await waiters("a", dir)) === 1);
  const reason = new Error("enough");
  controller.abort(reason);
  assert.equal(await waiting.catch((error) => error), reason);
  assert.equal(await waiters("a", dir), 0);
  await assert.rejects(lock("a", { dir, wait: "20s", signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  await assert.rejects(lock("b", { dir, signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal((await check("b", { dir })).exists, false);
  await hold.release();
});

test("a signal leaves a lock alone that is held already", async (t) => {
  const dir = newDirectory(t);
  const controller = new AbortController();
  const hold = await lock("a", { dir, signal: controller.signal });
  controller.abort();
  assert.equal(await tryLock("a", { dir }), null);
  await hold.release();
});

test("a wait that is aborted as it gets the lock holds it or leaves it free", async (t) => {
  const dir = newDirectory(t);
  let aborted = 0;
  let held = 0;
  for (let round = 0; round < 80; round++) {
    const controller = new AbortController();
    const locked = lock("a", { dir, signal: controller.signal });
    locked.catch(() => {});
    for (let turns = 0; turns < round % 8; turns++) await turn();
    controller.abort();
    try {
      await (await locked).release();
      held++;
    } catch (error) {
      assert.equal(error.name, "AbortError");
      aborted++;
    }
    const next = await tryLock("a", { dir });
    assert.ok(next, `round ${round}: the lock is still held`);
    await next.release();
  }
  t.diagnostic(`${aborted} aborted, ${held} held`);
  assert.ok(aborted >= 10 && aborted + held === 80);
});

test("what `onWaiting` throws ends the wait", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir, message: "long" });
  const thrown = new Error("no");
  const wait = lock("a", { dir, wait: "20s", onWaiting: ({ position, holder }) => {
    assert.deepEqual([position, holder.message], [1, "long"]);
    throw thrown;
  } });
  assert.equal(await wait.catch((error) => error), thrown);
  assert.equal(await waiters("a", dir), 0);
  await hold.release();
});

test("arguments that cannot be meant are refused", async (t) => {
  const dir = newDirectory(t);
  const refused = (promise, message) => assert.rejects(promise, (error) => error instanceof TypeError && message.test(error.message));
  await refused(lock("a", { dir, wiat: "5m" }), /^unknown option `wiat`$/);
  await refused(lock("a", { dir, wait: "30" }), /^invalid option `wait`: expected milliseconds or .* not `30`$/);
  await refused(lock("a", { dir, wait: -1 }), /^invalid option `wait`/);
  await refused(lock("a", { dir, wait: NaN }), /^invalid option `wait`/);
  await refused(lock("a", { dir, shared: 1 }), /^invalid option `shared`/);
  await refused(lock("a", { dir, slots: "2" }), /^invalid option `slots`/);
  await refused(lock("a", { dir, owner: 7 }), /^invalid option `owner`/);
  await refused(tryLock("a", { dir, wait: "5m" }), /^invalid option `wait`: tryLock does not wait$/);
  await refused(lock([], { dir }), /^expected the name/);
  await refused(lock(undefined, { dir }), /^expected the name/);
  await assert.rejects(lock("a", { dir, slots: 0 }), { name: "LockError", code: "USAGE" });
  await assert.rejects(lock("", { dir }), { name: "LockError", code: "USAGE" });
  assert.equal((await check("a", { dir, program: undefined })).exists, false);
});

test("a program that is missing, that is not onehold, and that is killed", async (t) => {
  const dir = newDirectory(t);
  const missing = await lock("a", { dir, program: "/no/onehold" }).catch((error) => error);
  assert.ok(missing instanceof NotFound);
  assert.deepEqual([missing.code, missing.cause.code], ["PROGRAM_NOT_FOUND", "ENOENT"]);
  assert.match(missing.message, /^start `\/no\/onehold`: no such program; install @onehold\//);
  await assert.rejects(check("a", { dir, program: "/no/onehold" }), NotFound);
  await assert.rejects(lock("a", { dir, program: "/etc/passwd" }), { code: "PROGRAM_NOT_STARTED" });
  await assert.rejects(lock("a", { dir, program: "/bin/true" }), { code: "PROGRAM_ENDED", message: "hold `a`: `/bin/true` exited with 0" });
  await assert.rejects(lock("a", { dir, program: "/bin/echo" }), { code: "PROGRAM_ENDED", message: "hold `a`: `/bin/echo` printed no JSON" });
  const hold = await lock("a", { dir });
  let waits;
  const told = new Promise((resolve) => (waits = resolve));
  const waiting = lock("a", { dir, wait: "20s", onWaiting: waits }).catch((error) => error);
  await told;
  process.kill((await check("a", { dir })).waiters[0].pid, "SIGKILL");
  assert.match((await waiting).message, /^hold `a`: `.*` was killed by SIGKILL$/);
  await assert.rejects(hold.release(), { name: "Lost", reason: "killed" });
});

test("no descriptors left is an error, and not the end of the program", async (t) => {
  const source = `
    import { closeSync, openSync } from "node:fs";
    import { check, lock } from "onehold";
    const dir = process.argv.at(-1);
    const open = [];
    try { for (;;) open.push(openSync("/dev/null")); } catch {}
    console.log((await lock("a", { dir }).catch((error) => error)).cause.code);
    console.log((await check("a", { dir }).catch((error) => error)).cause.code);
    open.forEach(closeSync);
    await (await lock("a", { dir })).release();
    console.log("released");
  `;
  const script = startScript(t, source, { words: [newDirectory(t)] });
  assert.deepEqual([await script.next(), await script.next(), await script.next()], ["EMFILE", "EMFILE", "released"]);
});

test("the program is named as the holder, and the store, the profile and the format are options", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { directory: dir, message: "m" });
  const error = await lock("a", { dir }).catch((error) => error);
  assert.ok(error instanceof Locked);
  assert.equal(error.pid, process.pid);
  assert.match(error.message, new RegExp(`is held by process ${process.pid} \\(.*, through onehold \\d+, since `));
  await hold.release();
  const path = join(dir, "app.pid");
  const file = await lock(path, { format: "pid" });
  assert.equal((await check(path, { format: "pid" })).format, "pid");
  await file.release();
  await assert.rejects(lock("a", { dir, profile: "none" }), { code: "USAGE" });
});

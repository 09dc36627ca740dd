// Times `lock` and `release` beside those of proper-lockfile, and prints a table, in a directory where both are
// installed: node bench.mjs [ROUNDS]     [default: 1000]
//
// Both are asked in turn, as their pages show it. The work under a lock adds one to a number in a file. A run that has
// lost an increment fails.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { lock, programPath } from "onehold";
import lockfile from "proper-lockfile";

const warmUp = 50;
const manyHolds = 500;
const kills = 20;
const [subject, library, dir, ...numbers] = process.argv.slice(2);

/** A function for each library, which takes the lock of that name, and resolves with one that releases it. */
const take = (dir) => ({
  onehold: async (name) => {
    const hold = await lock(name, { dir: join(dir, "store"), wait: Infinity });
    return () => hold.release();
  },
  "proper-lockfile": (name) =>
    lockfile.lock(join(dir, name), { realpath: false, retries: { forever: true, minTimeout: 10, maxTimeout: 100 } }),
});
const libraries = Object.keys(take("/"));

function quantile(values, part) {
  return [...values].sort((a, b) => a - b)[Math.floor(part * values.length)];
}

function addOne(dir) {
  const counter = join(dir, "counter");
  writeFileSync(counter, String(Number(readFileSync(counter, "utf8")) + 1));
}

function ensureCounted(dir, expected) {
  const counted = Number(readFileSync(join(dir, "counter"), "utf8"));
  if (counted !== expected) throw new Error(`${expected - counted} increments were lost`);
}

// Quartiles of taking a free lock and releasing it, without the work under it. Both libraries in turn in each round, so
// that what slows the machine slows each of them.
async function freeLock(dir, rounds) {
  writeFileSync(join(dir, "counter"), "0");
  const takes = Object.entries(take(dir));
  const times = Object.fromEntries(libraries.map((library) => [library, []]));
  for (let round = -warmUp; round < rounds; round++) {
    for (const [library, takeOne] of takes) {
      const began = performance.now();
      const release = await takeOne("free");
      const held = performance.now();
      addOne(dir);
      const done = performance.now();
      await release();
      if (round >= 0) times[library].push(performance.now() - done + held - began);
    }
  }
  ensureCounted(dir, takes.length * (warmUp + rounds));
  return (part) => libraries.map((library) => quantile(times[library], part));
}

// One of several processes: takes the lock that often, and prints its longest wait. Times are those of the machine.
async function contend(library, dir, turns, pause) {
  const takeOne = take(dir)[library];
  await (await takeOne(`own-${process.pid}`))();
  process.stdout.write("ready\n");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  const began = Date.now();
  let longest = 0;
  for (let turn = 0; turn < turns; turn++) {
    const asked = performance.now();
    const release = await takeOne("contended");
    longest = Math.max(longest, performance.now() - asked);
    addOne(dir);
    if (pause) await sleep(pause);
    await release();
  }
  process.stdout.write(JSON.stringify({ longest, began, ended: Date.now() }));
  process.stdin.destroy();
}

/** A process of this script: `told` resolves with what it prints until its end, `ready` once it prints something. */
function another(...words) {
  const child = spawn(process.execPath, [process.argv[1], ...words.map(String)], { stdio: ["pipe", "pipe", "inherit"] });
  let printed = "";
  child.stdout.setEncoding("utf8").on("data", (text) => (printed += text));
  const ready = new Promise((resolve) => child.stdout.once("data", () => setImmediate(() => resolve(printed))));
  const told = new Promise((resolve) => child.once("close", () => resolve(printed)));
  return { child, ready, told };
}

async function contended(library, dir, processes, turns, pause) {
  writeFileSync(join(dir, "counter"), "0");
  const started = Array.from({ length: processes }, () => another("contend", library, dir, turns, pause));
  await Promise.all(started.map(({ ready }) => ready));
  for (const { child } of started) child.stdin.write("go\n");
  const told = (await Promise.all(started.map(({ told }) => told))).map((text) => JSON.parse(text.replace("ready\n", "")));
  ensureCounted(dir, processes * turns);
  const took = Math.max(...told.map(({ ended }) => ended)) - Math.min(...told.map(({ began }) => began));
  return [took / (processes * turns), Math.max(...told.map(({ longest }) => longest))];
}

// Medians of the time of a turn and of the longest wait; the libraries take turns.
async function ofProcesses(dir, processes, turns, pause, repeats) {
  const results = Object.fromEntries(libraries.map((library) => [library, []]));
  for (let repeat = 0; repeat < repeats; repeat++) {
    for (const library of libraries) results[library].push(await contended(library, dir, processes, turns, pause));
  }
  return [0, 1].map((index) => libraries.map((library) => quantile(results[library].map((result) => result[index]), 0.5)));
}

// Descriptors, and proportional memory in KiB, of a process.
function cost(pid) {
  const memory = /^Pss: +(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"));
  return [readdirSync(`/proc/${pid}/fd`).length, Number(memory[1])];
}

function children() {
  return readFileSync(`/proc/self/task/${process.pid}/children`, "utf8").split(" ").filter(Boolean).map(Number);
}

// In a process of its own: what many holds cost it and the processes that it has started.
async function holdMany(library, dir) {
  const takeOne = take(dir)[library];
  await (await takeOne("first"))();
  const before = cost("self");
  const releases = [];
  for (let index = 0; index < manyHolds; index++) releases.push(await takeOne(`n${index}`));
  const after = cost("self");
  // The server and its memory are the cost of onehold, also without a hold.
  const others = children().map(cost);
  const sum = (index) => after[index] - before[index] + others.reduce((total, one) => total + one[index], 0);
  console.log(JSON.stringify([others.length, sum(0), sum(1) / 1024]));
  for (const release of releases) await release();
}

async function holdUntilKilled(library, dir) {
  await take(dir)[library]("killed");
  console.log(JSON.stringify(children()));
  setTimeout(() => {}, 600_000);
}

// The time from a KILL to when this process has the lock.
async function freed(library, dir, killsProgram, killsServer) {
  const { child, ready, told } = another("hold-until-killed", library, dir);
  const servers = JSON.parse(await ready);
  const began = performance.now();
  if (killsServer) servers.forEach((server) => process.kill(server, "SIGKILL"));
  if (killsProgram) child.kill("SIGKILL");
  const release = await take(dir)[library]("killed");
  const took = performance.now() - began;
  await release();
  child.kill("SIGKILL");
  await told;
  return took;
}

// The longest time until a lock is free after a KILL: of its program, of the server of that, of both. The other library
// is killed once: its lock is free once it is stale.
async function killed(dir, repeats) {
  const longest = libraries.map(() => [0, 0, 0]);
  for (let repeat = 0; repeat < repeats; repeat++) {
    for (const [index, whom] of [[true, false], [false, true], [true, true]].entries()) {
      longest[0][index] = Math.max(longest[0][index], await freed(libraries[0], dir, ...whom));
    }
  }
  longest[1] = [await freed(libraries[1], dir, true, false), null, null];
  return [0, 1, 2].map((index) => longest.map((of) => of[index]));
}

// What is measured, the values of each library, and their decimals.
async function* rows(dir, rounds) {
  const repeats = Math.max(1, Math.min(3, Math.floor(rounds / 300)));
  const free = await freeLock(dir, rounds);
  yield ["a free lock, median", free(0.5), 3];
  yield ["first quartile", free(0.25), 3];
  yield ["third quartile", free(0.75), 3];
  const few = await ofProcesses(dir, 4, Math.max(1, Math.floor(rounds / 10)), 0, repeats);
  yield ["4 processes: a turn", few[0], 3];
  yield ["4 processes: longest wait", few[1], 1];
  const many = await ofProcesses(dir, 20, Math.max(1, Math.floor(rounds / 50)), 10, repeats);
  yield ["20 processes, work of 10 ms: a turn", many[0], 3];
  yield ["20 processes, work of 10 ms: longest wait", many[1], 1];
  const holds = [];
  for (const library of libraries) holds.push(JSON.parse(await another("hold-many", library, dir).told));
  yield [`${manyHolds} holds: other processes`, holds.map((of) => of[0]), 0];
  yield [`${manyHolds} holds: descriptors`, holds.map((of) => of[1]), 0];
  yield [`${manyHolds} holds: memory, MiB`, holds.map((of) => of[2]), 1];
  const ends = await killed(dir, Math.min(kills, rounds));
  for (const [index, whom] of ["the program", "its server", "both"].entries()) {
    yield [`free after KILL of ${whom}, longest`, ends[index], 1];
  }
}

// What has to be true of a row, and is not.
function missed(what, [own, other]) {
  const most = [
    ["a free lock, median", 0.6 * other],
    [`${manyHolds} holds: other processes`, 1],
    [`${manyHolds} holds: descriptors`, 520],
    [`${manyHolds} holds: memory, MiB`, 20],
    ["free after KILL of the program, longest", 300],
    ["free after KILL of its server, longest", 300],
    ["free after KILL of both, longest", 300],
  ].find(([of]) => of === what)?.[1];
  return own > most ? [`${what}: ${own.toFixed(3)}, at most ${most.toFixed(3)}`] : [];
}

async function main(rounds) {
  const { version } = JSON.parse(readFileSync(join(import.meta.dirname ?? ".", "node_modules/proper-lockfile/package.json"), "utf8"));
  const onehold = execFileSync(programPath(), ["--version"], { encoding: "utf8" }).split("\n")[0];
  console.log(`Node ${process.versions.node}, ${onehold}, ${rounds} rounds, both in turn; in ms\n`);
  console.log(`| | onehold | proper-lockfile ${version} |\n|---|--:|--:|`);
  const dir = mkdtempSync(join(tmpdir(), "onehold-bench-"));
  const failed = [];
  try {
    for await (const [what, values, decimals] of rows(dir, rounds)) {
      console.log(`| ${what} | ${values.map((value) => value?.toFixed(decimals) ?? "").join(" | ")} |`);
      failed.push(...missed(what, values));
    }
  } finally {
    rmSync(dir, { recursive: true });
  }
  for (const line of failed) console.error(`does not hold: ${line}`);
}

if (subject === "contend") await contend(library, dir, ...numbers.map(Number));
else if (subject === "hold-many") await holdMany(library, dir);
else if (subject === "hold-until-killed") await holdUntilKilled(library, dir);
else await main(Number(subject ?? 1000));

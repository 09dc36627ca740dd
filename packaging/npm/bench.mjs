// Times of `lock` and `release` beside those of proper-lockfile, one after the other in each round, in a directory where
// both are installed: node bench.mjs [ROUNDS]
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { lock } from "onehold";
import lockfile from "proper-lockfile";

const rounds = Number(process.argv[2] ?? 1000);
const dir = mkdtempSync(join(tmpdir(), "onehold-bench-"));
const file = join(dir, "file");
writeFileSync(file, "");

const contenders = {
  onehold: async () => (await lock("bench", { dir })).release(),
  "proper-lockfile": async () => (await lockfile.lock(file))(),
};
const times = Object.fromEntries(Object.keys(contenders).map((name) => [name, []]));
for (let round = -50; round < rounds; round++) {
  for (const [name, work] of Object.entries(contenders)) {
    const began = performance.now();
    await work();
    if (round >= 0) times[name].push(performance.now() - began);
  }
}
for (const [name, values] of Object.entries(times)) {
  values.sort((a, b) => a - b);
  const [lower, median, upper] = [0.25, 0.5, 0.75].map((part) => values[Math.floor(part * values.length)].toFixed(2));
  console.log(`${name}: median ${median} ms, quartiles ${lower} and ${upper} ms`);
}
rmSync(dir, { recursive: true });

// Increments the number in FILE under the lock NAME: increment.mjs DIR NAME FILE TIMES
import { readFile, writeFile } from "node:fs/promises";
import { lock } from "onehold";

const [dir, name, file, times] = process.argv.slice(2);
for (let round = 0; round < Number(times); round++) {
  const hold = await lock(name, { dir, wait: "2m" });
  await writeFile(file, String(Number(await readFile(file, "utf8")) + 1));
  await hold.release();
}

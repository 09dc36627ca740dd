// A worker: counts under a lock in memory of the main thread, or holds the lock until it is terminated.
import { setTimeout as sleep } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { lock } from "onehold";

// How often it was held, how many hold it, and how often several did.
const { dir, times, numbers } = workerData;
for (let round = 0; round < times; round++) {
  const hold = await lock("workers", { dir, wait: "1m" });
  Atomics.add(numbers, 0, 1);
  if (Atomics.add(numbers, 1, 1) > 0) Atomics.add(numbers, 2, 1);
  await sleep(2);
  Atomics.sub(numbers, 1, 1);
  await hold.release();
}
if (times === 0) {
  await lock("workers", { dir });
  parentPort.on("message", () => {});
  parentPort.postMessage("held");
}

// A worker: increments a number of the main thread under a lock, or holds the lock until it is terminated.
import { setImmediate as turn } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { lock } from "onehold";

const { dir, times, numbers } = workerData;
for (let round = 0; round < times; round++) {
  const hold = await lock("workers", { dir, wait: "1m" });
  const number = numbers[0];
  await turn();
  numbers[0] = number + 1;
  await hold.release();
}
if (times === 0) {
  await lock("workers", { dir });
  parentPort.on("message", () => {});
  parentPort.postMessage("held");
}

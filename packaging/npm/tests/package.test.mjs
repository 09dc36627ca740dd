import assert from "node:assert/strict";
import { mkdir, readFile, realpath, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import test from "node:test";
import * as imported from "onehold";
import { check, programPath } from "onehold";
import { newDirectory, run } from "./store.mjs";

const { TARBALLS: tarballs, BUILD_TARBALLS: buildTarballs, TSC: tsc, TYPE_ROOTS: typeRoots } = process.env;
const platform = `${process.platform}-${process.arch}`;
const target = `${process.arch === "x64" ? "x86_64" : "aarch64"}-unknown-linux-musl`;
const { version } = JSON.parse(await readFile("node_modules/onehold/package.json", "utf8"));
const launcher = join(process.cwd(), "node_modules/.bin/onehold");

async function succeed(...words) {
  const end = await run(...words);
  assert.equal(end.code, 0, end.stdout + end.stderr);
  return end.stdout;
}

test("`import` and `require` give the same functions and classes", () => {
  const required = createRequire(import.meta.url)("onehold");
  const names = ["LockError", "Locked", "Lost", "NotFound", "TimedOut", "acquire", "check", "lock", "programPath", "tryLock", "withLock"];
  assert.deepEqual(Object.keys(required).sort(), names);
  for (const name of names) assert.equal(imported[name], required[name]);
});

test("the packages depend on nothing else, run no script, and have one version", async () => {
  const main = JSON.parse(await readFile("node_modules/onehold/package.json", "utf8"));
  assert.deepEqual([main.dependencies, main.scripts], [undefined, undefined]);
  assert.deepEqual(main.optionalDependencies, { "@onehold/linux-arm64": version, "@onehold/linux-x64": version });
  const [os, cpu] = platform.split("-");
  const part = JSON.parse(await readFile(`node_modules/@onehold/${platform}/package.json`, "utf8"));
  assert.deepEqual([part.version, part.os, part.cpu, part.scripts], [version, [os], [cpu], undefined]);
  assert.match(await succeed(programPath(), ["--version"]), /^onehold /);
});

test("the tarballs have the files that `npm pack` would put there, and npm corrects nothing", async (t) => {
  for (const name of [`onehold-${version}.tgz`, `onehold-${platform}-${version}.tgz`]) {
    const directory = newDirectory(t);
    await succeed("tar", ["xzf", join(tarballs, name), "-C", directory]);
    const cwd = join(directory, "package");
    const before = await readFile(join(cwd, "package.json"), "utf8");
    const [packed] = JSON.parse(await succeed("npm", ["pack", "--dry-run", "--json"], { cwd }));
    const listed = (await succeed("tar", ["tzf", join(tarballs, name)])).trim().split("\n").filter((path) => !path.endsWith("/"));
    assert.equal(packed.filename.split("/").join("-").replace("@", ""), name);
    assert.deepEqual(packed.files.map(({ path }) => `package/${path}`).sort(), listed.sort());
    await succeed("npm", ["pkg", "fix"], { cwd });
    assert.deepEqual(JSON.parse(await readFile(join(cwd, "package.json"), "utf8")), JSON.parse(before));
  }
});

test("the same input makes the same bytes", async (t) => {
  const directory = newDirectory(t);
  const TMPDIR = join(directory, "bin", "temporary");
  await mkdir(TMPDIR, { recursive: true });
  const build = (out, umask, env) =>
    succeed("bash", ["-c", `umask ${umask}; SOURCE_DATE_EPOCH=1700000000 "$@"`, "bash", buildTarballs, version, join(directory, out), `${target}=${programPath()}`], { env: { ...process.env, ...env } });
  await build("one", "022");
  await build("two", "077", { TMPDIR });
  await succeed("diff", ["-r", join(directory, "one"), join(directory, "two")]);
});

test("only a static program of its processor becomes a package", async (t) => {
  const directory = newDirectory(t);
  const build = async (target, program) => {
    const { code, stderr } = await run(buildTarballs, [version, directory, `${target}=${program}`]);
    return [code, stderr];
  };
  for (const unknown of ["riscv64gc-unknown-linux-musl", target.replace("musl", "gnu")]) {
    assert.deepEqual(await build(unknown, programPath()), [2, `build-tarballs: there is no npm package for \`${unknown}\`\n`]);
  }
  const [otherTarget, other] = target === "x86_64-unknown-linux-musl" ? ["aarch64-unknown-linux-musl", "arm64"] : ["x86_64-unknown-linux-musl", "x64"];
  assert.deepEqual(await build(otherTarget, programPath()), [1, `build-tarballs: read \`${programPath()}\`: not a program for ${other}\n`]);
  assert.deepEqual(await build(target, launcher), [1, `build-tarballs: read \`${launcher}\`: not a program for ${process.arch}\n`]);
  const dynamic = await realpath("/bin/sh");
  assert.deepEqual(await build(target, dynamic), [1, `build-tarballs: read \`${dynamic}\`: not a static program, since it names a dynamic linker\n`]);
});

test("without the platform package, the program on PATH is used, or the error says what to do", async (t) => {
  const directory = newDirectory(t);
  await writeFile(join(directory, "package.json"), '{ "private": true }');
  await succeed("npm", ["install", "--offline", join(tarballs, `onehold-${version}.tgz`)], { cwd: directory });
  await mkdir(join(directory, "path"));
  await symlink(programPath(), join(directory, "path/onehold"));
  const source = 'const { lock, programPath } = require("onehold"); lock("a", { dir: "store" }).then((hold) => hold.release()).then(() => console.log(programPath()), (error) => console.log(error.name, error.message))';
  const script = (PATH) => succeed(process.execPath, ["-e", source], { cwd: directory, env: { ...process.env, PATH } });
  assert.equal(await script(join(directory, "path")), "onehold\n");
  assert.equal(await script(join(directory, "store")),
    `NotFound start \`onehold\`: no such program; install @onehold/${platform}, put onehold on PATH, or set the option \`program\`\n`);
  const command = await run(join(directory, "node_modules/.bin/onehold"), ["list"]);
  assert.deepEqual([command.code, command.stderr], [127, `onehold: package @onehold/${platform} is not installed\n`]);
});

test("the command passes arguments, exit statuses and signals through", async (t) => {
  const dir = newDirectory(t);
  const script = (text) => run(launcher, ["--dir", dir, "run", "a b", "--", "sh", "-c", text]);
  assert.deepEqual(await script('echo "$ONEHOLD_NAME"; exit 7'), { code: 7, signal: null, stdout: "a b\n", stderr: "" });
  assert.equal((await script("kill -TERM $$")).code, 143);
  const npx = await run("npx", ["--offline", "onehold", "--dir", dir, "run", "a", "--", "sh", "-c", "exit 7"]);
  assert.equal(npx.code, 7, npx.stderr);
});

test("the command is the program itself, and `acquire` holds for the script that calls it", async (t) => {
  const dir = newDirectory(t);
  const source = '"$1" --dir "$2" acquire a >/dev/null; "$1" --dir "$2" run b -- sh -c "readlink /proc/$$/exe /proc/\\$PPID/exe; exit 3"; "$1" --dir "$2" check -q a';
  const end = await run("sh", ["-c", source, "sh", launcher, dir]);
  assert.equal(end.code, 6, "the script has lost its lock while it ran");
  assert.equal(end.stdout.split("\n")[1], programPath());
  assert.notEqual((await check("a", { dir })).state, "held");
});

const program = `
import { acquire, check, Hold, Lease, lock, Locked, LockError, LockObject, Lost, NotFound, programPath, TimedOut, tryLock, withLock } from "onehold";

export async function typed(signal: AbortSignal): Promise<void> {
  const hold: Hold = await lock(["a", "b"] as const, { wait: "5m", slots: 3, shared: false, signal, onWaiting: ({ position, holder }) => void [position?.toFixed(), holder?.pid] });
  const numbers: number[] = [hold.number, ...hold.slots];
  hold.lost.then(({ reason, message }) => reason === "broken" && message.trim());
  await hold.release();
  await using other = await lock("c", { wait: 500, ttl: "1m", maxAge: "1d", keepPlace: "1m", owner: "me", maxWaiting: 2, message: "m", dir: "/d", program: programPath() });
  const length: number = await withLock("k", { wait: Infinity }, async (held) => held.file?.length ?? 0);
  const nothing: void = await withLock("k", () => {});
  const maybe: Hold | null = await tryLock("d");
  const lease: Lease = await acquire("e", { ttl: 60_000 });
  await lease.renew({ ttl: "1h" });
  const state: LockObject["state"] = (await check("f")).state;
  try {
    await lock("g");
  } catch (error) {
    if (error instanceof Lost) error.reason satisfies string;
    if (error instanceof Locked || error instanceof TimedOut || error instanceof NotFound) error.since?.getTime();
    if (error instanceof LockError) [error.code.length, error.host?.length, error.holder?.waiters[0]?.pid];
  }
  void [numbers, other.number, maybe?.slot, state, length, nothing];
  // @ts-expect-error
  await tryLock("h", { wait: "5m" });
  // @ts-expect-error
  await acquire("i", {});
  // @ts-expect-error
  await lock("j", { wiat: "5m" });
  // @ts-expect-error
  hold.number = 1;
}
`;

test("the types hold in a strict program, as a module and as CommonJS", async () => {
  await Promise.all(["typed.mts", "typed.cts"].map((file) => writeFile(file, program)));
  await succeed(tsc, ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", typeRoots, "typed.mts", "typed.cts"]);
});

test("the examples of the page run, the first one after `npm init -y`", async (t) => {
  const page = await readFile("node_modules/onehold/README.md", "utf8");
  const examples = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map(([, source]) => source);
  assert.equal(examples.length, 5);
  const directory = newDirectory(t);
  await succeed("npm", ["init", "-y"], { cwd: directory });
  await symlink(join(process.cwd(), "node_modules"), join(directory, "node_modules"));
  await writeFile(join(directory, "index.js"), examples.shift());
  const env = { ...process.env, ONEHOLD_DIR: join(directory, "store") };
  assert.match(await succeed(process.execPath, ["index.js"], { cwd: directory, env }), /^hold \d+\n$/);
  const words = (source) => ["--input-type=module", "-e", source];
  const parses = (await run(process.execPath, words("{ await using nothing = null; }"))).code === 0;
  for (const source of examples.filter((source) => parses || !source.includes("await using"))) {
    await succeed(process.execPath, words(source), { env: { ...process.env, ONEHOLD_DIR: newDirectory(t) } });
  }
});

/// <reference lib="esnext.disposable" />

/** Milliseconds, or a string with a unit as on the command line: `"500ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`. */
export type Duration = number | string;

export interface StoreOptions {
  /** Directory of the store, or `etcd://HOSTS/PREFIX`. The default is `$ONEHOLD_DIR`, else `~/.local/state/onehold`. */
  dir?: string;
  /** The same as `dir`. */
  directory?: string;
  /** Profile of the configuration, see onehold-config(5). */
  profile?: string;
  /** Format of new lock files, see onehold-formats(5). */
  format?: string;
  /** Path of the program. The default is that of the platform package, else `onehold` on `PATH`. */
  program?: string;
}

interface HoldOptions extends StoreOptions {
  /** Hold the lock together with others that share it. */
  shared?: boolean;
  /** Let this many hold the lock at once, each in a slot of its own. */
  slots?: number;
  /** Label of the holder, such as the ID of a CI job. Holders with the same label may hold a parent and its child. */
  owner?: string;
  /** Reason to show to others, at most 1 KiB. */
  message?: string;
  /** How long the hold lasts without a renewal. */
  ttl?: Duration;
  /** Age at which the hold is shown as overdue. */
  maxAge?: Duration;
  /** Aborts the wait: it rejects with the reason of the signal once its place in the queue is given up. */
  signal?: AbortSignal;
}

interface WaitOptions {
  /**
   * How long to wait. `Infinity` and `"forever"` have no limit. Without it the configuration of onehold decides; its
   * default is not to wait.
   */
  wait?: Duration;
  /** Do not wait if this many wait already. */
  maxWaiting?: number;
  /** How long to keep the place in the queue if the wait ends without the lock. Needs `owner`. */
  keepPlace?: Duration;
}

interface WaitingCallback {
  /** Called once, when the wait begins. If it throws, the wait ends and rejects with that. */
  onWaiting?: (event: Waiting) => void;
}

export interface LockOptions extends HoldOptions, WaitOptions, WaitingCallback {}

/** On etcd, even `tryLock` waits before it takes the lock of a dead holder over. */
export interface TryLockOptions extends HoldOptions, WaitingCallback {}

export interface AcquireOptions extends HoldOptions, WaitOptions {
  ttl: Duration;
}

export interface Waiting {
  /** Position in the queue, from 1. */
  position: number | null;
  holder: LockObject | null;
}

export interface Loss {
  /**
   * `broken`, `lost` (its file was removed or replaced, or its lease could not be kept), `signal` or `killed` (somebody
   * ended the process that holds it), or `stdin` (something other than `release` closed the pipe to that process).
   */
  reason: "broken" | "lost" | "signal" | "stdin" | "killed";
  message: string;
}

export interface Hold {
  /** Hold number. Those of a lock only grow. */
  readonly number: number;
  /** Number of the slot of the first lock, from 0, or null if it is not shared. */
  readonly slot: number | null;
  /** Number of the slot of each lock, if they are shared. */
  readonly slots: number[];
  /** Path of the lock file, or null on etcd. */
  readonly file: string | null;
  /** The dead hold that this one took over. */
  readonly displaced: LockObject | null;
  /** Resolves when the lock is lost. Stays pending if it is released. Never rejects, and keeps no program running. */
  readonly lost: Promise<Loss>;
  /** Resolves when the lock is free. Rejects with `Lost` if it was lost before. Further calls do the same. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface Lease {
  readonly number: number;
  readonly slot: number | null;
  readonly names: string[];
  readonly owner: string | null;
  /** When the lease expires, by the last call of `renew`. */
  readonly expiresAt: Date;
  readonly displaced: LockObject | null;
  /** Lets the lease last for `ttl` from now, or for as long as before. Rejects with `Lost` if it is gone. */
  renew(options?: { ttl?: Duration }): Promise<void>;
  /** Resolves when the lock is free. Rejects with `Lost` if the lease had expired before. A second call does nothing. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** The lock object of the JSON output, see onehold-json(5). Later versions may add keys. */
export interface LockObject {
  name: string;
  path: string;
  store: string;
  exists: boolean;
  state: "free" | "held" | "overdue" | "zombie" | "not-a-lock";
  reason: string | null;
  proof: string | null;
  evidence: string | null;
  is_zombie: boolean;
  takeable: boolean;
  takeable_in_ms: number | null;
  kind: "run" | "hold" | "job" | "lease" | null;
  /** The program that `pid` holds the lock for. */
  program: Program | null;
  pid: number | null;
  pid_alive: boolean | null;
  wrapper_pid: number | null;
  wrapper_alive: boolean | null;
  die_with: number | null;
  format: string | null;
  hostname: string | null;
  user: string | null;
  uid: number | null;
  owner: string | null;
  session_id: string | null;
  message: string | null;
  command: string[] | null;
  acquired_at: string | null;
  renewed_at: string | null;
  age_hours: number | null;
  age_seconds: number | null;
  ttl_seconds: number | null;
  expires_at: string | null;
  ended_at: string | null;
  exit_code: number | null;
  signal: number | null;
  hold: number | null;
  mode: "exclusive" | "shared" | { slots: number } | null;
  slot: number | null;
  names: string[] | null;
  mine: boolean;
  zombie_reason: string | null;
  others: LockObject[];
  lockers: { pid: number; command: string[]; user: string | null; started_at: string | null }[];
  waiters: Waiter[];
  reserved_for: Waiter | null;
  details: unknown;
}

export interface Program {
  pid: number;
  command?: string[];
  /** Its start, in clock ticks since boot. */
  start?: number;
}

export interface Waiter {
  position: number;
  /** The program that `pid` waits for. */
  program: Program | null;
  pid: number;
  hostname: string | null;
  owner: string | null;
  command: string[];
  message: string | null;
  since: string;
}

/** An error of onehold. */
export class LockError extends Error {
  /**
   * An error code of the JSON output, such as `LOCKED`, `TIMEOUT`, `QUEUE_FULL`, `USAGE` or `STORE`. This package
   * adds `PROGRAM_NOT_FOUND`, `PROGRAM_NOT_STARTED` and `PROGRAM_ENDED`.
   */
  code: string;
  /** The lock as it was found, with its holder. */
  readonly holder: LockObject | null;
  /** PID of the program that holds the lock, on its host. */
  pid: number | null;
  /** Host of the holder. */
  host: string | null;
  /** Time at which the holder acquired the lock. */
  since: Date | null;
}

/** Somebody else holds the lock, or waits for it; or its dead holder is not to be taken over. */
export class Locked extends LockError {}

/** The time to wait is over. */
export class TimedOut extends Locked {}

/** The lock was lost before it was released. */
export class Lost extends LockError {
  reason: Loss["reason"] | "expired";
}

/** There is no program `onehold`. */
export class NotFound extends LockError {}

/**
 * Takes a lock, or several together, and holds it until `release` is called or this process ends. One process,
 * `onehold hold --serve`, holds all locks of this program, or of this worker thread.
 */
export function lock(names: string | readonly string[], options?: LockOptions): Promise<Hold>;

/** Takes a lock as `lock` does, if that can be done without waiting; otherwise resolves with null. */
export function tryLock(names: string | readonly string[], options?: TryLockOptions): Promise<Hold | null>;

/**
 * Takes a lock as `lock` does, calls `work`, and releases the lock once that has settled. Resolves with what `work` has
 * returned. Rejects with what it has thrown, else with `Lost` if the lock was lost. Inside it, a wait without limit for
 * the same lock rejects with `Locked` at once, since it would never end.
 */
export function withLock<T>(names: string | readonly string[], work: (hold: Hold) => T | PromiseLike<T>): Promise<T>;
export function withLock<T>(
  names: string | readonly string[],
  options: LockOptions,
  work: (hold: Hold) => T | PromiseLike<T>,
): Promise<T>;

/** Takes a lock for a limited time, even if this process ends first. */
export function acquire(names: string | readonly string[], options: AcquireOptions): Promise<Lease>;

/** The state of a lock. */
export function check(name: string, options?: StoreOptions): Promise<LockObject>;

/** Path of the program that the functions start unless an option says otherwise. */
export function programPath(): string;

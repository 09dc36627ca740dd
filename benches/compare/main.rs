//! Compares onehold with the tools that one would use instead: the shipped binary, which `.ci/package` makes, and what
//! the README's `cargo install` builds, with and without a target. Each section is a file of this directory: `cargo bench
//! --bench compare -- single_run contended memory many_locks many_waiters store_size` measures the named ones, and all of
//! them if none is named. With `--write` it builds all three first, and after each section writes its part of the tables
//! of README.md and onehold-flock(7) anew. A section that fails is reported at the end, as are the ratios that are above
//! what they must not exceed: then the exit code is 1.
//!
//! `ONEHOLD_SHIPPED` is the path of the shipped binary, `ONEHOLD_ROUNDS` (500) the number of rounds;
//! everyday commands are measured on tmpfs and in `TMPDIR`, with `LC_ALL=C` and with `LANG=C.UTF-8`,
//! contended ones on tmpfs, everything else in `TMPDIR`, both with `LC_ALL=C`. Absolute times depend on the machine: compare within one
//! run.
//!
//! All programs start in the same way: by posix_spawn(3), which std uses for a path with a slash only, and
//! from single pages of the page cache, as after a boot. A copy of flock(1) that is treated like onehold has
//! to take as long as flock(1) itself.
#![allow(missing_docs)]
#![allow(
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod contended;
#[path = "../../tests/harness/mod.rs"]
mod harness;
mod many_locks;
mod many_waiters;
mod memory;
mod single_run;
mod store_size;
mod tables;

use std::any::Any;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Section = fn(&Bench) -> Vec<Row>;

const SECTIONS: [(&str, Section); 6] = [
    ("single_run", single_run::measure),
    ("contended", contended::measure),
    ("memory", memory::measure),
    ("many_locks", many_locks::measure),
    ("many_waiters", many_waiters::measure),
    ("store_size", store_size::measure),
];

/// Settings of all sections.
struct Bench {
    /// The shipped binary.
    onehold: String,
    /// What `cargo install` builds, dynamically linked: with the same features and profile.
    plain: String,
    /// What it builds for musl by the line of the README; only with `--write`.
    plain_static: Option<String>,
    /// A copy of flock(1), treated like onehold.
    flock: String,
    /// The least that a wrapper can do: open, flock, vfork, exec, wait. Static.
    floor: String,
    /// A critical section that says when it begins and ends. As small, so that what is measured is not its
    /// own start.
    stamp: String,
    rounds: usize,
}

impl Bench {
    /// Copies the programs into a directory.
    fn install(rounds: usize, directory: &Path, plain_static: Option<&Path>) -> Self {
        let install = |built: &Path, name: &str| install(built, &directory.join(name));
        Self {
            onehold: install(&shipped(), "onehold"),
            plain: install(&harness::program(), "plain"),
            plain_static: plain_static.map(|built| install(built, "plain-static")),
            flock: install(Path::new(&absolute("flock")), "flock"),
            floor: compile("floor", directory),
            stamp: compile("stamp", directory),
            rounds,
        }
    }

    /// Drops the programs from the page cache: what has just been written lies there in large folios, and
    /// starts a tenth faster than what was read from a disk.
    fn evict(&self) {
        let Self {
            onehold,
            plain,
            flock,
            floor,
            stamp,
            ..
        } = self;
        let all = [onehold, plain, flock, floor, stamp];
        for program in all.into_iter().chain(&self.plain_static) {
            let file = std::fs::File::open(program).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

/// A line of the table: what onehold needs, as a part of what another tool needs.
struct Row {
    what: String,
    beside: String,
    ratios: Vec<Ratio>,
    /// What the first ratio must not exceed: that on tmpfs with `LC_ALL=C`.
    at_most: Option<f64>,
}

/// The ratio of two medians, and the quartiles of the ratios of the single rounds.
struct Ratio {
    median: f64,
    quartiles: Option<[f64; 2]>,
}

impl Ratio {
    /// Of values that were measured in turn.
    fn of(own: &[f64], other: &[f64]) -> Self {
        let each: Vec<f64> = own
            .iter()
            .zip(other)
            .map(|(own, other)| own / other)
            .collect();
        Self {
            median: median(own) / median(other),
            quartiles: Some([quantile(&each, 0.25), quantile(&each, 0.75)]),
        }
    }
}

impl Row {
    fn new(what: &str, beside: &str, ratios: Vec<Ratio>) -> Self {
        Self {
            what: what.to_owned(),
            beside: beside.to_owned(),
            ratios,
            at_most: None,
        }
    }

    fn at_most(self, at_most: f64) -> Self {
        Self {
            at_most: Some(at_most),
            ..self
        }
    }

    /// What does not hold.
    fn excess(&self) -> Option<String> {
        let (median, at_most) = (self.ratios.first()?.median, self.at_most?);
        let Self { what, beside, .. } = self;
        (median > at_most)
            .then(|| format!("{what}, beside {beside}: {median:.2}, at most {at_most:.2}"))
    }
}

/// A process in a group of its own. Dropping it kills the group if the process has not ended.
/// Processes that hold a lock end with their stdin, so that none survives a bench that is killed.
struct Group(Child);

impl Group {
    /// Its stdin stays open until it is dropped or taken.
    fn start(command: &[String], store: &Path) -> Self {
        let mut prepared = prepared(command, store);
        prepared.stdin(Stdio::piped()).process_group(0);
        Self(prepared.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends its stdin and waits for it.
    fn end(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let group = rustix::process::Pid::from_child(&self.0);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

fn main() -> ExitCode {
    // Children inherit them, so that no measured command needs a `pre_exec`.
    harness::reset_signals();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["--flock-ten", directory, number] = words[..] {
        many_locks::flock_ten(Path::new(directory), number);
        return ExitCode::SUCCESS;
    }
    // cargo passes options of its own.
    let wanted: Vec<&String> = args.iter().filter(|word| !word.starts_with("--")).collect();
    for word in &wanted {
        let known = SECTIONS.iter().any(|(name, _)| name == word);
        assert!(known, "no such section: {word}");
    }
    let writes = args.iter().any(|word| word == "--write");
    let plain_static = writes.then(|| {
        succeed(&mut Command::new(".ci/package"));
        install_static()
    });
    let rounds = std::env::var("ONEHOLD_ROUNDS").map_or(500, |rounds| rounds.parse().unwrap());
    let installed = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bench = Bench::install(rounds, installed.path(), plain_static.as_deref());
    println!("{}, {rounds} rounds", bench.onehold);
    let mut failures = Vec::new();
    for (name, measure) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|word| *word == name) {
            println!("\n## {name}\n");
            bench.evict();
            // The figures of the other sections took an hour.
            let measured = catch_unwind(AssertUnwindSafe(|| {
                let rows = measure(&bench);
                if writes {
                    tables::write(name, &rows);
                }
                rows
            }));
            match measured {
                Ok(rows) => failures.extend(rows.iter().filter_map(Row::excess)),
                Err(panic) => failures.push(format!("{name}: {}", message(&*panic))),
            }
        }
    }
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("\nWhat does not hold:\n");
    for failure in failures {
        println!("- {failure}");
    }
    ExitCode::FAILURE
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked")
}

fn succeed(command: &mut Command) {
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(status.unwrap().success(), "{command:?}");
}

/// Runs the line of the README that builds a static program. Returns the program's path.
fn install_static() -> PathBuf {
    let readme = std::fs::read_to_string("README.md").unwrap();
    let is_it = |line: &&str| line.contains("cargo install") && line.contains("--target");
    let line = readme.lines().find(is_it).unwrap();
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]);
    // It goes where cargo says, and what is compiled stays for the next time.
    shell.env("CARGO_INSTALL_ROOT", &root);
    shell.env("CARGO_TARGET_DIR", root.join("target"));
    succeed(&mut shell);
    root.join("bin/onehold")
}

/// Copies a program, as an installation does.
fn install(built: &Path, to: &Path) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(to, std::fs::read(built).unwrap()).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755)).unwrap();
    to.to_str().unwrap().to_owned()
}

/// A program in C of the benchmark, static and with musl, like onehold. The static start of glibc asks the
/// processor what it can, which takes 300 µs in a virtual machine.
fn compile(name: &str, directory: &Path) -> String {
    let program = directory.join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/compare");
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut asked = Command::new("rustc");
    let asked = asked.args(["--print", "target-libdir", "--target", &target]);
    let printed = String::from_utf8(asked.output().unwrap().stdout).unwrap();
    let musl = Path::new(printed.trim_end()).join("self-contained");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-static", "-nostdlib", "-o"])
        .arg(&program)
        .args(["crt1.o", "crti.o"].map(|object| musl.join(object)))
        .arg(sources.join(name).with_extension("c"))
        .args(["libc.a", "crtn.o"].map(|object| musl.join(object)))
        .arg("-lgcc");
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    program.to_str().unwrap().to_owned()
}

/// The static binary, where `.ci/package` puts it.
fn shipped() -> PathBuf {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let made = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/shipped")
        .join(&target)
        .join(&target)
        .join("release/onehold");
    let shipped = std::env::var("ONEHOLD_SHIPPED").map_or(made, PathBuf::from);
    assert!(
        shipped.exists(),
        "{} is missing: run .ci/package first",
        shipped.display()
    );
    shipped
}

/// The words of a command line, with paths of the programs in it.
fn words(text: &str) -> Vec<String> {
    const PROGRAMS: [&str; 7] = [
        "cat",
        "dotlockfile",
        "flock",
        "lslocks",
        "sh",
        "sleep",
        "true",
    ];
    let path = |word: &str| {
        let is_program = PROGRAMS.contains(&word);
        if is_program {
            absolute(word)
        } else {
            word.to_owned()
        }
    };
    text.split(' ').map(path).collect()
}

/// The path of a program.
fn absolute(program: &str) -> String {
    let mut directories = ["/usr/bin", "/bin"].iter();
    let found = directories.find(|directory| Path::new(directory).join(program).exists());
    let directory = found.unwrap_or_else(|| panic!("{program} is missing"));
    format!("{directory}/{program}")
}

fn prepared(command: &[String], store: &Path) -> Command {
    let mut prepared = Command::new(&command[0]);
    prepared
        .args(&command[1..])
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", store)
        .env("ONEHOLD_DIR", store)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    prepared
}

/// Runs a command; the time that it takes, and its exit code. `Command` starts it by posix_spawn(3), as
/// nothing here prevents that.
fn run(command: &[String], store: &Path) -> (Duration, i32) {
    let mut prepared = prepared(command, store);
    let started = Instant::now();
    let status = prepared.status().unwrap();
    (started.elapsed(), status.code().unwrap())
}

/// The time of a command that has to exit with `code`.
fn time(command: &[String], store: &Path, code: i32) -> Duration {
    let (time, ended) = run(command, store);
    assert_eq!(ended, code, "{command:?}");
    time
}

fn cpu(usage: &libc::rusage) -> Duration {
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn output(command: &[String], store: &Path) -> Vec<u8> {
    let mut prepared = prepared(command, store);
    prepared.stdout(Stdio::piped()).output().unwrap().stdout
}

fn is_installed(tool: &str) -> bool {
    let found = Command::new("which")
        .arg(tool)
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

/// Number of system calls of a command, counted by strace; `all`: with those of its threads and
/// children.
fn system_calls(command: &[String], store: &Path, all: bool) -> Option<usize> {
    if !is_installed("strace") {
        return None;
    }
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut traced = words("strace -c -U calls,name -o");
    traced.push(out.path().to_str().unwrap().to_owned());
    if all {
        traced.push("-f".to_owned());
    }
    traced.extend_from_slice(command);
    run(&traced, store);
    let table = std::fs::read_to_string(out).ok()?;
    let total = table.lines().rfind(|line| line.ends_with("total"))?;
    total.split_whitespace().next()?.parse().ok()
}

/// The value that the given part of all values does not exceed.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_owned();
    values.sort_by(f64::total_cmp);
    let at = (values.len() - 1) as f64 * part;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    values[at as usize]
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Copies the record of one lock under other names of the same length.
fn copy_record(store: &Path, name: &str, others: impl IntoIterator<Item = String>) {
    let file = |name: &str| store.join(format!("{}.lock", name.replace('/', ".d/")));
    let record = std::fs::read_to_string(file(name)).unwrap();
    let line = |name: &str| format!("\n  \"name\": \"{name}\",\n");
    let (before, after) = record.split_once(&line(name)).unwrap();
    for other in others {
        assert_eq!(other.len(), name.len());
        let copied = format!("{before}{}{after}", line(&other));
        std::fs::write(file(&other), copied).unwrap();
    }
}

/// Asserts that a command makes as many system calls in all sizes, but for a few.
fn assert_no_growth(command: &str, calls: &[Option<usize>], slack: usize) {
    let counted = calls.iter().copied().flatten();
    if let (Some(least), Some(most)) = (counted.clone().min(), counted.max()) {
        assert!(most - least <= slack, "{command} grows: {calls:?}");
    }
}

/// Asserts that the store has `count` locks and that all of them are held.
fn assert_held(bench: &Bench, store: &Path, count: usize) {
    let listed = output(&words(&format!("{} list --json", bench.onehold)), store);
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let locks = listed["locks"].as_array().unwrap();
    let held = locks.iter().filter(|lock| lock["state"] == "held");
    assert_eq!((locks.len(), held.count()), (count, count));
}

//! What a command does to others, as strace(1) sees it.

use std::collections::HashSet;
use std::fs;
use std::process::Output;

use crate::harness::{TestEnv, output, program};
use crate::store::Stranger;

const TRACED: &str = "trace=kill,tkill,tgkill,pidfd_send_signal,rt_sigqueueinfo,rt_tgsigqueueinfo,open,openat,openat2,\
    creat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,mkdir,mkdirat,rmdir,mknod,mknodat,\
    chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,truncate,ftruncate,utimensat,setxattr,clone,fork,vfork,clone3";

/// The lines of a trace.
pub struct Seen {
    lines: Vec<String>,
}

pub fn run(env: &TestEnv, words: &[&str]) -> (Output, Seen) {
    let mut traced = vec![program().into_os_string()];
    traced.extend(words.iter().map(Into::into));
    trace(env, &traced)
}

pub fn run_shell(env: &TestEnv, script: &str) -> (Output, Seen) {
    trace(env, &["sh".into(), "-c".into(), script.into()])
}

fn trace(env: &TestEnv, traced: &[std::ffi::OsString]) -> (Output, Seen) {
    let file = env.path("trace");
    let mut strace = env.command("timeout");
    strace.args([
        "-s",
        "KILL",
        "20",
        "strace",
        "-f",
        "-qq",
        "-yy",
        "-s",
        "4096",
        "--seccomp-bpf",
    ]);
    strace
        .args(["--signal=none", "-e", TRACED, "-o"])
        .arg(&file)
        .args(traced);
    let output = output(&mut strace);
    let text = fs::read(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(str::to_owned).collect();
    (output, Seen { lines })
}

impl Seen {
    pub fn faults(&self, stranger: &Stranger<'_>) -> Vec<String> {
        // What was traced is the command's own.
        let mut own: HashSet<i64> = HashSet::from([i64::from(stranger.process())]);
        let number = |text: &str| text.parse::<i64>().ok();
        for line in &self.lines {
            own.extend(line.split(' ').next().and_then(number));
            // One that was killed before its first call.
            let starts = ["clone", "fork"].iter().any(|call| line.contains(call));
            let started = line.rsplit_once(" = ").filter(|_| starts);
            own.extend(started.and_then(|(_, pid)| number(pid)));
        }
        let fault = |line: &String| {
            let (_, call) = line.split_once(' ')?;
            let (name, arguments) = call.trim_start().split_once('(')?;
            if name.contains("kill") || name.contains("sig") {
                return signal(name, arguments, &own, line);
            }
            let is_write = match name {
                "open" | "openat" | "openat2" => {
                    ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE"]
                        .iter()
                        .any(|flag| arguments.contains(flag))
                }
                "clone" | "clone3" | "fork" | "vfork" => false,
                _ => true,
            };
            let has_failed = line.contains(" = -1 ");
            (is_write && !has_failed && !is_inside(arguments, stranger))
                .then(|| format!("writes: {line}"))
        };
        self.lines.iter().filter_map(fault).collect()
    }
}

/// A signal to a process that is none of those.
fn signal(name: &str, arguments: &str, own: &HashSet<i64>, line: &str) -> Option<String> {
    let words: Vec<&str> = arguments.split(", ").collect();
    let at = if name.contains("tg") { 2 } else { 1 };
    if words
        .get(at)
        .is_some_and(|signal| signal.starts_with("0)") || *signal == "0")
    {
        return None;
    }
    // 7<pid:4711>
    let target = words[0];
    let target = target
        .split_once("<pid:")
        .map_or(target, |(_, pid)| pid.trim_end_matches('>'));
    let target: i64 = target.trim_end_matches(')').parse().ok()?;
    (!own.contains(&target.abs())).then(|| format!("signals process {target}: {line}"))
}

/// Whether each path of a call is in the store, or one that everybody may write to.
fn is_inside(arguments: &str, stranger: &Stranger<'_>) -> bool {
    let store = stranger.env().store();
    let store = store.to_str().unwrap();
    let allowed = |path: &str| {
        path.starts_with(store)
            || ["/dev/null", "/dev/tty", "/proc/self/"]
                .iter()
                .any(|known| path.starts_with(known))
    };
    // A name is relative to the descriptor before it, or to the working directory.
    let mut base = stranger.env().path("").display().to_string();
    let mut is_inside = true;
    for part in arguments.split(", ") {
        if let Some((_, rest)) = part.split_once('<')
            && let Some((path, _)) = rest.rsplit_once('>')
            && !part.starts_with('"')
        {
            path.trim_end_matches("(deleted)").clone_into(&mut base);
            // The call is of the descriptor alone.
            if !arguments.contains('"') {
                is_inside &= allowed(&base);
            }
        } else if let Some(name) = part.strip_prefix('"') {
            let name = name.split('"').next().unwrap_or_default();
            let path = if name.starts_with('/') {
                name.to_owned()
            } else {
                format!("{base}/{name}")
            };
            // What leads out of it again is outside.
            is_inside &= allowed(&path) && !name.split('/').any(|part| part == "..");
        }
    }
    is_inside
}

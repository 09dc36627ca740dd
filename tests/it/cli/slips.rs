//! Command lines that do not parse, and the hint for each: it is pasted into a shell, and does what was
//! meant.

use std::sync::Mutex;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use crate::harness::{TestEnv, json_object};

/// What is typed, and the line that was meant. `""`: that is not sure, and there is no hint.
const SLIPS: &[(&str, &str)] = &[
    // A command for which `run` was forgotten, or another word was used.
    (
        "onehold backup -- ./backup.sh",
        "onehold run backup -- ./backup.sh",
    ),
    ("onehold cron -- echo hi", "onehold run cron -- echo hi"),
    ("onehold clean -- echo hi", "onehold run clean -- echo hi"),
    ("onehold b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold held -- echo hi", "onehold run held -- echo hi"),
    (
        "onehold -w 0.1 held -- echo hi",
        "onehold run -w 0.1 held -- echo hi",
    ),
    ("onehold -- echo hi", "onehold run -- echo hi"),
    ("onehold -q -- echo hi", "onehold run -q -- echo hi"),
    // A path is one lock, and is in no list.
    ("onehold list --path b9", "onehold check --path b9"),
    ("onehold list --path b9 x", ""),
    (
        "onehold --dir other b9 -- echo hi",
        "onehold run --dir other b9 -- echo hi",
    ),
    ("onehold lock b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold take b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold get b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold exec b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold rnu b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold aquire b9 -- echo hi", "onehold run b9 -- echo hi"),
    ("onehold acquire b9 -- echo hi", "onehold run b9 -- echo hi"),
    (
        "onehold acquire b9 -w 5 -- echo hi",
        "onehold run b9 -w 5 -- echo hi",
    ),
    (
        "onehold acquire b9 --ttl 5m -- echo hi",
        "onehold run b9 --ttl 5m -- echo hi",
    ),
    (
        "onehold acquire db cache -- echo hi",
        "onehold run db cache -- echo hi",
    ),
    ("onehold acquire -- echo hi", "onehold run -- echo hi"),
    (
        "onehold lock b9 --ttl 5m -- echo hi",
        "onehold run b9 --ttl 5m -- echo hi",
    ),
    ("onehold lock b9 --pid 1 -- echo hi", ""),
    // The first word may be a command or a name.
    ("onehold with b9 -- echo hi", ""),
    ("onehold clean b9 -- echo hi", ""),
    ("onehold lock -- echo hi", ""),
    ("onehold exec -- echo hi", ""),
    ("onehold check b9 -- echo hi", ""),
    // `--` was forgotten.
    (
        "onehold run b9 psql -c 'select 1'",
        "onehold run b9 -- psql -c 'select 1'",
    ),
    (
        "onehold run b9 sh -c 'echo a b'",
        "onehold run b9 -- sh -c 'echo a b'",
    ),
    (
        "onehold run b9 tar -c -f x.tar d",
        "onehold run b9 -- tar -c -f x.tar d",
    ),
    (
        "onehold run b9 tar -xf x.tar",
        "onehold run b9 -- tar -xf x.tar",
    ),
    (
        "onehold run b9 ssh host -c aes 'ls -l'",
        "onehold run b9 -- ssh host -c aes 'ls -l'",
    ),
    ("onehold run b9 sort -u f", "onehold run b9 -- sort -u f"),
    ("onehold run b9 sort -n f", "onehold run b9 -- sort -n f"),
    (
        "onehold run b9 rsync -e ssh a b",
        "onehold run b9 -- rsync -e ssh a b",
    ),
    (
        "onehold run b9 wget -o log u",
        "onehold run b9 -- wget -o log u",
    ),
    (
        "onehold run b9 grep -E foo",
        "onehold run b9 -- grep -E foo",
    ),
    (
        "onehold run b9 grep -w foo",
        "onehold run b9 -- grep -w foo",
    ),
    (
        "onehold run b9 curl -sm 5 u",
        "onehold run b9 -- curl -sm 5 u",
    ),
    ("onehold run b9 make -j 2", "onehold run b9 -- make -j 2"),
    (
        "onehold run b9 make --dry-run",
        "onehold run b9 -- make --dry-run",
    ),
    ("onehold run b9 echo hi", "onehold run b9 -- echo hi"),
    (
        "onehold run b9 echo '$HOME' 'a b'",
        "onehold run b9 -- echo '$HOME' 'a b'",
    ),
    (
        "onehold run b9 ./backup.sh",
        "onehold run b9 -- ./backup.sh",
    ),
    ("onehold run -w 5 b9 make", "onehold run -w 5 b9 -- make"),
    (
        "onehold run b9 -m 'it is' make all",
        "onehold run b9 -m 'it is' -- make all",
    ),
    (
        "onehold run -m sort b9 make",
        "onehold run -m sort b9 -- make",
    ),
    ("onehold run held make", "onehold run held -- make"),
    ("onehold exec b9 make all", "onehold run b9 -- make all"),
    ("onehold lock b9 echo hi", "onehold run b9 -- echo hi"),
    // These programs are not installed; an option that is none of `run` shows the command.
    (
        "onehold run b9 absent --all x",
        "onehold run b9 -- absent --all x",
    ),
    (
        "onehold run b9 absent -e make x",
        "onehold run b9 -- absent -e make x",
    ),
    (
        "onehold run b9 absent -c 'make x'",
        "onehold run b9 -- absent -c 'make x'",
    ),
    (
        "onehold run b9 absent -n -Z make",
        "onehold run b9 -- absent -n -Z make",
    ),
    ("onehold run b9 absent", ""),
    ("onehold run db cache make", ""),
    ("onehold run b9 absent -w 5 make", ""),
    ("onehold take b9 absent hi", ""),
    ("onehold acquire b9 rsync -e ssh", ""),
    ("onehold acquire -x tar foo", ""),
    // There is no command, or the first word may be it.
    ("onehold run ./backup.sh", "onehold run -- ./backup.sh"),
    (
        "onehold run -w 1 ./backup.sh --all x",
        "onehold run -w 1 -- ./backup.sh --all x",
    ),
    ("onehold ./backup.sh", "onehold run -- ./backup.sh"),
    (
        "onehold run ./absent.sh --all",
        "onehold run -- ./absent.sh --all",
    ),
    ("onehold run ./absent.lock", ""),
    ("onehold run ./bin", ""),
    ("onehold run ./backup.sh make all", ""),
    ("onehold run", ""),
    ("onehold run b9", ""),
    ("onehold run b9 --", ""),
    ("onehold run make all", ""),
    ("onehold run psql -c 'select 1'", ""),
    ("onehold run sort -u f", ""),
    ("onehold run make", ""),
    // Options before the command.
    (
        "onehold --wait 5 run b9 -- echo hi",
        "onehold run --wait 5 b9 -- echo hi",
    ),
    (
        "onehold --wait=0.1 run held -- echo hi",
        "onehold run --wait=0.1 held -- echo hi",
    ),
    (
        "onehold -n run b9 -- echo hi",
        "onehold run -n b9 -- echo hi",
    ),
    (
        "onehold -n run held -- echo hi",
        "onehold run -n held -- echo hi",
    ),
    (
        "onehold -m why run b9 -- echo hi",
        "onehold run -m why b9 -- echo hi",
    ),
    (
        "onehold --owner me acquire b9",
        "onehold acquire --owner me b9",
    ),
    ("onehold --ttl 5m acquire b9", "onehold acquire --ttl 5m b9"),
    (
        "onehold --ttl 5m --owner me acquire b9",
        "onehold acquire --ttl 5m --owner me b9",
    ),
    (
        "onehold --owner ops release held",
        "onehold release --owner ops held",
    ),
    ("onehold -y break held", "onehold break -y held"),
    (
        "onehold --wait 5 run b9 make -w 3",
        "onehold run --wait 5 b9 -- make -w 3",
    ),
    // Commands of other tools, and mistyped ones.
    ("onehold status", "onehold list"),
    ("onehold status held", "onehold check held"),
    ("onehold show held", "onehold check held"),
    ("onehold info b9", "onehold check b9"),
    ("onehold -v status held", "onehold -v check held"),
    ("onehold ls", "onehold list"),
    ("onehold lock b9", "onehold acquire b9"),
    ("onehold lock held", "onehold acquire held"),
    ("onehold take b9 --ttl 5m", "onehold acquire b9 --ttl 5m"),
    (
        "onehold unlock held --owner ops",
        "onehold release held --owner ops",
    ),
    ("onehold free held", "onehold release held"),
    ("onehold rm held --yes", "onehold break held --yes"),
    ("onehold kill held", "onehold break held"),
    ("onehold relase held", "onehold release held"),
    ("onehold chekc held", "onehold check held"),
    ("onehold lsit", "onehold list"),
    ("onehold clean", "onehold cleanup"),
    ("onehold conf", "onehold config"),
    ("onehold hist", "onehold history"),
    ("onehold hodl b9", "onehold hold b9"),
    ("onehold lock db cache", ""),
    ("onehold check a b", ""),
    ("onehold re held", ""),
    ("onehold brook held", ""),
    // Several names where one is taken.
    (
        "onehold release b9 held",
        "onehold release b9 && onehold release held",
    ),
    (
        "onehold release held held2 --owner ops",
        "onehold release held --owner ops && onehold release held2 --owner ops",
    ),
    (
        "onehold renew held held2 --owner ops --ttl 2h",
        "onehold renew held --owner ops --ttl 2h && onehold renew held2 --owner ops --ttl 2h",
    ),
    (
        "onehold break held held2 -y",
        "onehold break held -y && onehold break held2 -y",
    ),
    ("onehold release held held2 --hold 3", ""),
    // Mistyped options.
    ("onehold list --colour never", "onehold list --color never"),
    (
        "onehold --colour=never check held",
        "onehold --color=never check held",
    ),
    (
        "onehold run --wiat 5 b9 -- echo hi",
        "onehold run --wait 5 b9 -- echo hi",
    ),
    (
        "onehold run --slot 3 b9 -- echo hi",
        "onehold run --slots 3 b9 -- echo hi",
    ),
    (
        "onehold acquire b9 --ower me",
        "onehold acquire b9 --owner me",
    ),
    // The beginning of one; or one that is another letter away from an option of another command.
    ("onehold check --avail b9", "onehold check --available b9"),
    (
        "onehold acquire b9 --own me",
        "onehold acquire b9 --owner me",
    ),
    ("onehold history --fail", "onehold history --failed"),
    ("onehold acquire b9 --tll 60", "onehold acquire b9 --ttl 60"),
    ("onehold acquire b9 --max 60", ""),
    // It may be --timeout of flock(1).
    ("onehold run --time 5 b9 -- echo hi", ""),
    ("onehold run --bogus b9 -- echo hi", ""),
    ("onehold run --sort b9 -- echo hi", ""),
    ("onehold run --json=false b9 -- echo hi", ""),
    ("onehold run -w soon b9 -- echo hi", ""),
    ("onehold run -w b9 -- echo hi", ""),
    ("onehold run -qv b9 -- echo hi", ""),
    ("onehold run -n -w 5 b9 -- echo hi", ""),
    // Lines of flock(1).
    ("onehold ./f make all", "onehold run ./f -- make all"),
    (
        "onehold ./f -c 'make a; make b'",
        "onehold run ./f -- sh -c 'make a; make b'",
    ),
    ("onehold -n ./f make all", "onehold run -n ./f -- make all"),
    ("onehold -xn ./f make all", "onehold run -n ./f -- make all"),
    (
        "onehold -s ./f sort -u x",
        "onehold run -s ./f -- sort -u x",
    ),
    ("onehold -w5 ./f make", "onehold run -w 5 ./f -- make"),
    (
        "onehold -x -w 5 -o -E 9 ./f make",
        "onehold run -w 5 --close -E 9 ./f -- make",
    ),
    ("onehold -nE 9 held make", "onehold run -nE 9 held -- make"),
    (
        "onehold run b9 -c 'make a; make b'",
        "onehold run b9 -- sh -c 'make a; make b'",
    ),
    ("onehold run -c 'make a'", "onehold run -- sh -c 'make a'"),
    ("onehold run -x b9 -- echo hi", "onehold run b9 -- echo hi"),
    (
        "onehold run --nb held -- echo hi",
        "onehold run -n held -- echo hi",
    ),
    (
        "onehold run --timeout 0.1 held -- echo hi",
        "onehold run -w 0.1 held -- echo hi",
    ),
    (
        "onehold run --timeout=5 b9 -- echo hi",
        "onehold run -w 5 b9 -- echo hi",
    ),
    (
        "onehold run -o b9 -- echo hi",
        "onehold run --close b9 -- echo hi",
    ),
    (
        "onehold run -F b9 -- echo hi",
        "onehold run --exec b9 -- echo hi",
    ),
    ("onehold acquire --exclusive b9", "onehold acquire b9"),
    ("onehold check -x held", ""),
    ("onehold run -u b9", ""),
    ("onehold -u 9", ""),
    ("onehold -n 9", ""),
    ("onehold 9", ""),
    ("onehold ./f", ""),
    ("onehold ./f -c", ""),
    ("onehold -c 'make a' ./f make", ""),
    // What a shell would not get as it was typed.
    ("onehold run b9 echo \"$(printf 'a\\nb')\"", ""),
    ("onehold run b9 echo \"$(printf '\\377')\"", ""),
];

/// Two locks that `ops` holds, and commands that record their arguments.
const SETUP: &str = r#"
exec </dev/null
mkdir bin
PATH=$PWD/bin:$PATH
cat >bin/record <<'END'
#!/bin/sh
printf '[%s]' "${0##*/}" "$@" >>"$RECORD"
echo "${0##*/} done"
END
chmod +x bin/record
for tool in psql ssh rsync tar wget curl grep sort make; do ln -s record bin/$tool; done
cp bin/record backup.sh
export RECORD="$PWD/recorded"
for name in held held2; do onehold acquire $name --ttl 30h --owner ops 2>/dev/null >&2; done
"#;

/// Everything that a line does, pasted into a shell.
#[derive(Debug, PartialEq)]
struct Effect {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    /// The names of what is held after it, and by whom.
    held: Vec<String>,
    recorded: String,
}

impl Effect {
    /// Without times, PIDs, and the width of columns with times.
    fn without_numbers(mut self) -> Self {
        for text in [&mut self.stdout, &mut self.stderr] {
            let mut last = None;
            text.retain(|letter| {
                let is_more = letter.is_ascii_digit() || letter == ' ' && last == Some(' ');
                last = Some(letter);
                !is_more
            });
        }
        self
    }
}

fn pasted(line: &str) -> Effect {
    let env = TestEnv::new();
    let script = format!("{SETUP}\n{line}\ncode=$?\nonehold list --json >locks\nexit $code");
    let output = env.command("sh").args(["-c", &script]).output().unwrap();
    let read = |name: &str| std::fs::read_to_string(env.path(name)).unwrap_or_default();
    let listing = json_object(read("locks").as_bytes());
    let held = listing["locks"].as_array().unwrap().iter();
    let held = held.map(|lock| format!("{} {} {}", lock["name"], lock["state"], lock["owner"]));
    let root = env.root.path().to_str().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(root, "ROOT");
    Effect {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        held: held.collect(),
        recorded: read("recorded"),
    }
}

/// What is wrong with the answer to a slip.
fn fault(typed: &str, meant: &str, before: &Effect) -> Option<String> {
    let refused = pasted(typed);
    let lines: Vec<&str> = refused.stderr.lines().collect();
    let did_nothing = refused.code == Some(2)
        && refused.stdout.is_empty()
        && (&refused.held, &refused.recorded) == (&before.held, &before.recorded);
    let ([error, .., help], true) = (&lines[..], did_nothing) else {
        return Some(format!("{typed}: {refused:?}"));
    };
    let hint = lines[1].strip_prefix("  did you mean `");
    let hint = hint.and_then(|hint| hint.strip_suffix("`?"));
    let is_whole = error.starts_with("onehold: ")
        && help.starts_with("  for help, run `onehold ")
        && lines.len() == if hint.is_some() { 3 } else { 2 };
    if !is_whole || hint.is_some() == meant.is_empty() {
        return Some(format!("{typed}: {lines:?}"));
    }
    let [done, wanted] = [hint?, meant].map(|line| pasted(line).without_numbers());
    (done != wanted).then(|| format!("{typed}: {hint:?} does {done:?}, not {wanted:?}"))
}

#[test]
fn pasted_hint_does_what_was_meant() {
    let before = pasted(":");
    assert_eq!(before.held.len(), 2, "{before:?}");
    let left = Mutex::new(SLIPS.iter());
    let next = || left.lock().unwrap().next();
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((typed, meant)) = next() {
                    faults.lock().unwrap().extend(fault(typed, meant, &before));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn acquire_of_a_name_that_begins_with_a_hyphen_is_no_slip() {
    let env = TestEnv::new();
    env.onehold(["acquire", "--ttl", "1h", "--", "-x"])
        .assert()
        .success();
    assert_eq!(env.left_in_store(), ["-x.lock"]);
}

#[test]
fn line_that_would_watch_is_corrected() {
    let env = TestEnv::new();
    for (typed, meant) in [
        ("watch", "onehold list --watch"),
        ("watch x", "onehold list --watch x"),
        ("list --watch 30", "onehold list --watch=30"),
        (
            "list x --watch 5m --wide",
            "onehold list --watch=5m --wide x",
        ),
        (
            "list --watch=1m --colour never",
            "onehold list --watch=1m --color never",
        ),
    ] {
        let told = contains(format!("\n  did you mean `{meant}`?\n"));
        let mut typed = env.onehold(typed.split(' '));
        typed.assert().code(2).stderr(told);
    }
}

#[cfg(unix)]
#[test]
fn line_of_shell_that_is_given_as_a_program_is_corrected() {
    let env = TestEnv::new();
    for (typed, meant) in [
        (
            "onehold run b9 -w 5 -- 'echo a; echo b'",
            "onehold run b9 -w 5 -- sh -c 'echo a; echo b'",
        ),
        ("onehold run -- 'echo a'", "onehold run -- sh -c 'echo a'"),
        ("onehold run b9 -- absent", ""),
        ("onehold run b9 -- 'absent thing'", ""),
        ("onehold run b9 -- 'echo a' b", ""),
        // It is found.
        ("onehold run b9 -- './my script'", ""),
    ] {
        env.write("my script", "no program");
        let mut typed = env.shell(typed);
        let told = String::from_utf8(typed.output().unwrap().stderr).unwrap();
        let hint = format!("\n  to run a line of shell: `{meant}`\n");
        assert_eq!(told.contains("to run a line"), !meant.is_empty(), "{told}");
        if !meant.is_empty() {
            assert!(told.contains(&hint), "{told}");
            let done = env.shell(meant).output().unwrap().stdout;
            assert!(done.starts_with(b"a\n"), "{done:?}");
        }
    }
}

#[cfg(unix)]
#[test]
fn name_of_a_lock_file_is_corrected_where_the_lock_of_that_name_is_free() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["backup"]);
    env.done(["acquire", "a/b", "--ttl", "1h"]);
    for (file, name) in [("backup.lock", "backup"), ("a.d/b.lock", "a/b")] {
        let dir = env.store();
        let check = format!("onehold --dir {} check {name}", dir.display());
        let told = format!("  `{file}` is the file of `{name}`: run `{check}`\n");
        for (verb, code) in [("check", 0), ("release", 0), ("break", 3), ("renew", 3)] {
            let output = env.output([verb, file]);
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8(said).unwrap();
            assert_eq!(output.status.code(), Some(code), "{said}");
            assert!(said.contains(&told), "{verb}: {said}");
        }
    }
    for name in ["free.lock", "backup.lock.lock"] {
        let told = env.done(["check", name]);
        assert!(!told.contains("is the file of"), "{told}");
    }
    env.end();
    holder.finish();
}

#[cfg(unix)]
#[test]
fn names_that_were_not_meant_are_said_on_a_terminal_and_nowhere_else() {
    let env = TestEnv::new();
    for (words, told) in [
        ("run -- true", "onehold: no NAME given: holding `true-"),
        (
            "run b9 echo hi -- true",
            "onehold: `echo` is the name of a lock here, and not a program; the command begins after `--`\r\n",
        ),
        (
            "acquire --ttl 1h b9 timeout=5",
            "onehold: `timeout=5` is the name of a lock here, and not an option, which would begin with `--`\r\n",
        ),
    ] {
        let on_terminal = |words: &str| env.on_a_terminal(words, &[]);
        let (code, seen) = on_terminal(words);
        assert_eq!(code, 0, "{seen}");
        assert_eq!(seen.matches(told).count(), 1, "{seen}");
        assert!(!seen.contains("`hi`"), "{seen}");
        let _ = env.output(["cleanup"]);
        let (_, seen) = on_terminal(&words.replacen(' ', " -q ", 1));
        assert!(!seen.contains("NAME") && !seen.contains("here"), "{seen}");
        let said = env.output(words.split(' ')).stderr;
        let said = String::from_utf8(said).unwrap();
        assert!(!said.contains("NAME") && !said.contains("here"), "{said}");
    }
    let (_, seen) = env.on_a_terminal("run db x=5 -- true", &[]);
    assert_eq!(seen, "");
}

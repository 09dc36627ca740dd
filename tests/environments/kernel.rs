//! What processes and system calls do that is rare: threads, emulation, seccomp filters, limits.

use std::fs;
use std::process::Command;

use crate::{Place, on_tmpfs};

#[test]
fn a_defunct_holder_is_gone_though_its_pid_is_still_there() {
    let place = Place::new();
    // The child of an exec'd sleep is never waited for.
    let script = "sh -c 'sh -c \"echo \\$\\$ > child; exec sleep 1000\" & exec sleep 1000' >/dev/null 2>&1 & parent=$!
        until test -s child; do sleep 0.01; done
        onehold acquire x --pid $(cat child) >/dev/null 2>&1
        onehold check -q x || test $? = 6
        kill -KILL $(cat child)
        until grep -q '^State:.Z' /proc/$(cat child)/status; do sleep 0.01; done
        kill -0 $(cat child)
        onehold check -q x || test $? = 5
        onehold check --json x || true
        kill -KILL $parent";
    let said = place.says("env", script);
    assert!(
        said.contains("\"reason\":\"dead\",\"proof\":\"pid-gone\""),
        "{said}"
    );
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn a_holder_whose_main_thread_has_ended_is_alive() {
    let place = Place::new();
    // State Z, and yet a thread works on.
    let python = "import ctypes, threading, time\n\
                  threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                  ctypes.CDLL(None).syscall(60, 0)\n";
    fs::write(place.path("thread.py"), python).unwrap();
    let script = "python3 thread.py >/dev/null 2>&1 & pid=$!
        until grep -q '^State:.Z' /proc/$pid/status; do test -d /proc/$pid; sleep 0.01; done
        onehold acquire x --pid $pid >/dev/null 2>&1
        onehold check --json x || test $? = 6
        kill -KILL $pid";
    let said = place.says("env", script);
    assert!(said.contains("\"reason\":\"alive\""), "{said}");
}

#[test]
#[ignore = "needs root: a filesystem with times beyond any calendar"]
fn a_time_that_no_calendar_has_is_no_panic() {
    let said = on_tmpfs(
        "size=1m",
        "onehold acquire x --ttl 1h >/dev/null 2>&1; : > store/broken.lock
        touch -d @9000000000000 store/x.lock store/broken.lock
        onehold list
        onehold check -q x || echo $?",
    );
    assert!(said.contains("broken") && said.contains("\n6\n"), "{said}");
}

/// The emulator of this machine's own architecture (Debian: qemu-user).
fn emulator() -> String {
    let name = format!("qemu-{}", std::env::consts::ARCH);
    let version = Command::new(&name).arg("--version").output();
    assert!(version.is_ok(), "{name} is missing: package qemu-user");
    name
}

#[test]
#[ignore = "needs qemu-user: apt install qemu-user"]
fn emulated_holders_exclude_others_and_dead_ones_are_taken_over() {
    let place = Place::new();
    // A process that reads its own /proc/PID/stat gets from qemu-user the start of the emulator,
    // which here is later than its fork.
    let script = "
        later() { (sleep 0.1; exec QEMU onehold \"$@\"); }
        later run --exec x -- sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1 &
        until test -s pid; do sleep 0.01; done
        for emulated in '' QEMU; do
            $emulated onehold run x -- echo never 2>/dev/null || echo exec $?
        done
        kill -KILL $(cat pid); wait
        later run x -- echo taken over from exec 2>/dev/null
        later run x -- sh -c 'echo $$ $PPID > pids; exec sleep 1000' >/dev/null 2>&1 &
        until test -s pids; do sleep 0.01; done
        for emulated in '' QEMU; do
            $emulated onehold run x -- echo never 2>/dev/null || echo run $?
        done
        kill -KILL $(cat pids); wait
        later run x -- echo taken over from run 2>/dev/null
        onehold cleanup 2>&1
        QEMU onehold run x -- ./missing 2>&1 || echo $?
        QEMU onehold run x -- /etc/passwd 2>&1 || echo $?
        QEMU onehold run x -- sh -c 'exit 127' 2>&1 || echo $?";
    let said = place.says("env", &script.replace("QEMU", &emulator()));
    assert_eq!(
        said,
        "exec 6\nexec 6\ntaken over from exec\nrun 6\nrun 6\ntaken over from run\n\
         onehold: command not found: `./missing`\n127\n\
         onehold: cannot run `/etc/passwd`: permission denied\n126\n127\n"
    );
}

#[test]
#[ignore = "needs valgrind: apt install valgrind"]
fn valgrind_finds_nothing_wrong_with_run() {
    let place = Place::new();
    // valgrind 3.19 warns of system calls that it does not know, and refuses them.
    let script = "valgrind -q --error-exitcode=99 onehold run x -- sh -c 'exit 3' || test $? = 3
        valgrind -q --error-exitcode=99 onehold run x -- sh -c 'echo > held; sleep 0.5' &
        until test -e held; do sleep 0.01; done
        valgrind -q --error-exitcode=99 onehold run -q -w 1m x -- echo waited
        wait
        valgrind -q --error-exitcode=99 onehold acquire -q x --pid $$";
    let said = place.says("env", script);
    assert!(said.contains("waited\n"), "{said}");
    assert!(!said.contains("Invalid"), "{said}");
}

/// A seccomp filter that lets the kernel answer `errno` to one system call, or to `open` with
/// `O_TMPFILE`.
fn refuse(command: &mut Command, call: libc::c_long, errno: i32) {
    use std::os::unix::process::CommandExt;

    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IF_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    // seccomp(2): struct seccomp_data has the number first, and the arguments from byte 16 on.
    const THIRD_ARGUMENT: u32 = 16 + 2 * 8 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let step = |code: u32, k, jt, jf| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let is_open = call == libc::SYS_openat;
    // Without O_DIRECTORY, which is part of O_TMPFILE.
    let unnamed = (libc::O_TMPFILE & !libc::O_DIRECTORY).cast_unsigned();
    let mut filter = vec![
        step(LOAD, 0, 0, 0),
        step(
            IF_EQUAL,
            u32::try_from(call).unwrap(),
            0,
            if is_open { 3 } else { 1 },
        ),
    ];
    if is_open {
        filter.push(step(LOAD, THIRD_ARGUMENT, 0, 0));
        filter.push(step(IF_SET, unnamed, 0, 1));
    }
    filter.push(step(
        RETURN,
        libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(),
        0,
        0,
    ));
    filter.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    let install = move || {
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len()).unwrap(),
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: the program and its filter live, and the kernel copies them.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) != 0
        };
        if failed {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: allocates nothing and makes two system calls.
    unsafe { command.pre_exec(install) };
}

#[test]
fn system_calls_that_a_seccomp_filter_refuses_are_done_without() {
    let calls = [
        ("pidfd_open", libc::SYS_pidfd_open),
        ("statx", libc::SYS_statx),
        ("O_TMPFILE", libc::SYS_openat),
        ("openat2", libc::SYS_openat2),
        ("renameat2", libc::SYS_renameat2),
        ("memfd_create", libc::SYS_memfd_create),
        ("getrandom", libc::SYS_getrandom),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ];
    // The record of another program goes by an exchange of names.
    let script = "
        onehold run x -- echo run
        number=$(onehold acquire x --ttl 1h 2>/dev/null)
        onehold check -q x || echo check $?
        onehold run x -- echo never 2>/dev/null || echo run $?
        onehold release -q x --hold $number
        onehold check -q x
        sleep 1000 >/dev/null & pid=$!
        onehold acquire -q x --pid $pid >/dev/null
        kill -KILL $pid; wait $pid 2>/dev/null || true
        onehold check -q x || echo check $?
        onehold run x -- echo took over from acquire 2>/dev/null
        onehold run x -- sh -c 'kill -KILL $PPID' || true
        until onehold check -q x; test $? = 5; do sleep 0.01; done
        onehold run x -- echo took over from run 2>/dev/null
        echo '{\"job_id\": \"x\", \"process_id\": 4194303, \"hostname\": \"HOST\", \"acquired_at\": \"2026-01-01T00:00:00Z\"}' > store/x.lock
        onehold run x -- echo took over from prodigy 2>/dev/null
        onehold run x -- sh -c 'echo > held; sleep 0.3' &
        until test -e held; do sleep 0.01; done
        onehold run -q -w 1m x -- echo waited for run
        wait
        sleep 0.3 & onehold acquire -q x --pid $! >/dev/null
        onehold run -q -w 1m x -- echo waited for acquire
        onehold run -q x -- sh -c 'echo > at-work; sleep 1000 & wait' 2>/dev/null &
        until test -e at-work; do sleep 0.01; done
        onehold break -q --yes x && onehold check -q x && echo broke
        wait
        onehold cleanup -q
        onehold list";
    let script = script.replace("HOST", hostname::get().unwrap().to_str().unwrap());
    let expected = "run\ncheck 6\nrun 6\ncheck 5\ntook over from acquire\ntook over from run\n\
        took over from prodigy\nwaited for run\nwaited for acquire\nbroke\n";
    for (name, call) in calls {
        for errno in [libc::ENOSYS, libc::EPERM] {
            let place = Place::new();
            let mut command = place.command("timeout 60", &script);
            refuse(&mut command, call, errno);
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let complaints = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.success() && said == expected,
                "{name}, errno {errno}: {:?}\n{said}{complaints}",
                output.status
            );
        }
    }
}

#[test]
fn file_size_limit_is_an_error_of_run_and_leaves_no_lock() {
    let place = Place::new();
    // A shell counts in blocks of 512 or 1024 bytes; the journal is over either limit.
    let script = "
        (ulimit -f 0; onehold run x -- echo never 2>&1 || echo $?)
        ls store/*.lock 2>/dev/null || true
        onehold run -q x -- sh -c 'kill -KILL $PPID' || true
        until onehold check -q x; test $? = 5; do sleep 0.01; done
        head -c 20000 /dev/zero >> store/.onehold/events.jsonl
        (ulimit -f 8; onehold run x -- sh -c 'ulimit -f; grep ^SigBlk /proc/self/status' 2>/dev/null || echo $?)";
    let said = place.says("timeout 60", script);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].to_lowercase().contains("file too large"), "{said}");
    let rest: Vec<&&str> = lines.iter().skip_while(|line| **line != "125").collect();
    assert_eq!(rest[..2], [&"125", &"8"], "{said}");
    // The command does not inherit the blocked signals.
    assert!(rest[2].ends_with("\t0000000000000000"), "{said}");
}

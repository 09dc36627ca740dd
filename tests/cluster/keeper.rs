use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::at_work::{assert_exclusive, run, run_below, seconds_after, sections};
use crate::cluster::{On, shared};
use crate::harness::seen::now;
use crate::harness::{Running, exit_code, json_object, run_together, wait_until};
use crate::proxy::{Fate, Proxy};
use crate::scene::{break_takes, scenes};

scenes! {
    work_and_waits_end_with_another_process,
    command_goes_on_when_its_wrapper_is_killed_and_the_next_one_waits_for_it,
    command_goes_on_when_its_wrapper_is_stopped_and_the_next_one_waits_for_it,
    command_is_killed_with_its_keeper_and_the_wrapper_gives_the_lock_back,
    #[ignore = "needs root: a set-uid program"] lock_is_not_given_back_while_a_process_runs_that_may_not_be_killed,
    lock_is_taken_over_after_wrapper_and_keeper_were_killed,
    wrapper_without_a_descriptor_kills_what_the_command_has_started_when_its_keeper_is_killed,
    job_of_a_shell_that_became_the_wrapper_is_not_killed_when_its_keeper_is,
    command_is_killed_by_the_wrapper_when_its_keeper_is_stopped,
    command_is_killed_by_its_keeper_when_wrapper_and_keeper_are_stopped,
    command_is_killed_by_its_keeper_when_the_wrapper_is_killed_and_the_keeper_stopped,
    what_a_killed_keeper_has_left_is_killed_by_a_wrapper_that_was_stopped,
    command_is_ended_in_time_when_its_machine_is_cut_off,
    command_that_ignores_term_is_killed_in_time_when_its_machine_is_cut_off,
    holder_that_is_cut_off_for_a_moment_loses_nothing,
    command_may_run_on_without_the_lock_if_it_was_asked_for,
    break_ends_the_work_on_the_other_machine_before_the_lock_is_free,
    signals_reach_the_command_through_wrapper_and_keeper,
    keeper_is_not_ended_by_a_signal_that_is_not_its_wrappers,
    canceled_waiter_leaves_the_queue_at_once,
    canceled_waiter_leaves_the_queue_of_a_server_that_drops_its_first_request,
    take_that_is_canceled_before_its_answer_came_leaves_nothing_to_wait_for,
    signal_a_second_later_ends_a_waiter_whose_keeper_is_stopped,
    wrapper_says_that_its_keeper_was_killed_while_it_waited,
    run_in_a_script_with_a_stopped_job_sends_the_script_no_hup,
    closed_terminal_is_passed_on_once_by_a_wrapper_that_leads_the_session,
    work_that_a_command_leaves_behind_holds_nothing,
    thread_that_cannot_be_started_is_started_later,
}

/// The time to live of the holds here, in seconds: the least one.
const TTL: f64 = 10.0;

/// A run that is at work, and its processes.
struct AtWork {
    on: On,
    proxies: Vec<Proxy>,
    wrapper: Running,
    keeper: u32,
}

pub fn children_of(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

pub fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// The letter that /proc shows for a process.
fn state_of(pid: u32) -> char {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit(") ").next().unwrap_or_default();
    after_name.chars().next().unwrap_or(' ')
}

/// Starts a run whose section lasts so long, behind proxies of its own.
fn at_work(milliseconds: u64, args: &[&str], deaf: bool) -> AtWork {
    start(args, deaf, |on, args| run(on, args, milliseconds))
}

/// The same with a section that is a child of the command.
fn at_work_below(milliseconds: u64) -> AtWork {
    start(&[], false, |on, args| run_below(on, args, milliseconds))
}

fn start(args: &[&str], deaf: bool, run: impl FnOnce(&On, &[&str]) -> Command) -> AtWork {
    let on = On::of_scene();
    let (proxies, url) = on.proxies();
    let args = [&["--ttl", "10", "x"], args].concat();
    let mut command = run(&on, &args);
    command.env("ONEHOLD_DIR", url);
    if deaf {
        command.arg("deaf");
    }
    command.stderr(std::process::Stdio::null());
    let wrapper = Running::spawn(command);
    wait_until("the section has begun", || !sections(&on).is_empty());
    let keeper = children_of(wrapper.pid())[0];
    AtWork {
        on,
        proxies,
        wrapper,
        keeper,
    }
}

/// What came of an event: how long after it the first section ended, and how long after it the next one began.
struct After {
    ended: f64,
    began: f64,
    code: i32,
}

/// Lets a successor wait, does something to the holder, and looks when each was at work.
fn after(mut holder: AtWork, event: impl FnOnce(&AtWork)) -> After {
    let moment = now();
    event(&holder);
    let mut successor = run(&holder.on, &["--ttl", "10", "-w", "60", "x"], 100);
    let status = successor
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(exit_code(status), 0, "the successor");
    // A stopped one is continued, so that it can end.
    let _ = Command::new("kill")
        .args(["-CONT", &holder.wrapper.pid().to_string()])
        .output();
    let code = holder.wrapper.finish();
    let all = assert_exclusive(&holder.on);
    assert_eq!(all.len(), 2, "{all:?}");
    #[allow(clippy::cast_precision_loss, reason = "of seconds")]
    let began = (all[1].from as f64 - moment as f64) / 1e9;
    After {
        ended: seconds_after(&all[0], moment),
        began,
        code,
    }
}

fn work_and_waits_end_with_another_process() {
    let on = On::of_scene();
    let (mut caller, mut other) = (Running::sleeper(), Running::sleeper());
    let start = |caller: &Running, name: &str| {
        let pid = caller.pid().to_string();
        let line = [
            "run",
            "-w",
            "60",
            "--die-with",
            &pid,
            name,
            "--",
            "sh",
            "-c",
        ];
        let mut command = on.onehold(&line);
        command.arg("echo $$ > began; exec sleep 1000");
        Running::start_with_output(command)
    };
    let mut run = start(&caller, "x");
    wait_until("the command has begun", || on.env.lines("began") == 1);
    let mut waiter = start(&other, "x");
    wait_until("it waits", || on.waiters("x") == 1);
    other.kill();
    let (code, _, told) = waiter.finish_with_output();
    assert_eq!(code, -15, "{told}");
    assert!(
        told.contains("has exited; the command was not started"),
        "{told}"
    );
    assert_eq!(on.waiters("x"), 0);
    caller.kill();
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 143, "{told}");
    assert!(told.contains("has exited; sent TERM"), "{told}");
    assert_eq!(on.code(&["check", "x"]), 0);
}

fn command_goes_on_when_its_wrapper_is_killed_and_the_next_one_waits_for_it() {
    let holder = at_work(4_000, &[], false);
    let after = after(holder, |holder| send(holder.wrapper.pid(), Signal::KILL));
    assert!(after.ended > 2.5, "ended {}", after.ended);
    assert!(after.began - after.ended < 2.0, "began {}", after.began);
    assert_eq!(after.code, -9);
}

fn command_goes_on_when_its_wrapper_is_stopped_and_the_next_one_waits_for_it() {
    // Longer than the time to live.
    let holder = at_work(12_000, &[], false);
    let after = after(holder, |holder| send(holder.wrapper.pid(), Signal::STOP));
    assert!(after.ended > 10.5, "ended {}", after.ended);
    assert!(after.began - after.ended < 2.0, "began {}", after.began);
    assert_eq!(after.code, 0);
}

fn command_is_killed_with_its_keeper_and_the_wrapper_gives_the_lock_back() {
    let holder = at_work(60_000, &[], false);
    let after = after(holder, |holder| send(holder.keeper, Signal::KILL));
    // At once, and long before the lease ends; on two busy processors it took up to 0.25 s.
    assert!(after.ended < 0.5, "ended {}", after.ended);
    assert!(after.began < 3.0, "began {}", after.began);
    assert_eq!(after.code, 8);
}

fn lock_is_not_given_back_while_a_process_runs_that_may_not_be_killed() {
    use std::os::unix::fs::PermissionsExt as _;
    let on = On::of_scene();
    let root = on.env.root.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    let set_uid = on.env.path("root-setpriv");
    // Written by another process: a descriptor for writing would be inherited by other tests' children.
    let mut copied = Command::new("cp");
    copied.arg("/usr/bin/setpriv").arg(&set_uid);
    assert!(copied.status().unwrap().success());
    fs::set_permissions(&set_uid, fs::Permissions::from_mode(0o4755)).unwrap();
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let work =
        "./root-setpriv --reuid 0 --regid 0 --clear-groups sh -c 'echo $$ > ready; exec sleep 60'";
    let script = format!(
        "exec {nobody} onehold run --ttl 10 x -- sh -c \"{}; :\"",
        work.replace('$', "\\$")
    );
    let mut command = on.env.command("sh");
    command
        .args(["-c", &script])
        .env("ONEHOLD_DIR", &on.dir)
        .env("HOME", root);
    command
        .current_dir(root)
        .stderr(fs::File::create(on.env.path("said")).unwrap());
    let mut wrapper = Running::spawn(command);
    wait_until("it is at work", || {
        fs::read_to_string(on.env.path("ready")).is_ok_and(|pid| pid.ends_with('\n'))
    });
    send(children_of(wrapper.pid())[0], Signal::KILL);
    assert_eq!(wrapper.finish(), 8);
    let said = fs::read_to_string(on.env.path("said")).unwrap();
    assert!(
        said.contains("a process of the command cannot be ended"),
        "{said}"
    );
    let pid = fs::read_to_string(on.env.path("ready")).unwrap();
    let is_running = fs::read_to_string(format!("/proc/{}/comm", pid.trim()));
    assert_eq!(is_running.unwrap(), "sleep\n");
    assert_ne!(on.state("x"), "free");
    send(pid.trim().parse().unwrap(), Signal::KILL);
}

fn lock_is_taken_over_after_wrapper_and_keeper_were_killed() {
    let holder = at_work(60_000, &[], false);
    let after = after(holder, |holder| {
        send(holder.wrapper.pid(), Signal::KILL);
        send(holder.keeper, Signal::KILL);
    });
    assert!(after.ended < 0.2, "ended {}", after.ended);
    assert!(after.began > TTL, "began {}", after.began);
    assert!(after.began < 2.0 * TTL + 3.0, "began {}", after.began);
}

fn wrapper_without_a_descriptor_kills_what_the_command_has_started_when_its_keeper_is_killed() {
    // The command is killed by the kernel, the section is not.
    let child = ["--", "sh", "-c", "shift; \"$@\" & wait", "sh"];
    let holder = at_work(60_000, &child, false);
    let after = after(holder, |holder| {
        let wrapper = holder.wrapper.pid().to_string();
        let limited = Command::new("prlimit")
            .args(["--nofile=3:3", "--pid", &wrapper])
            .status();
        assert!(limited.unwrap().success());
        send(holder.keeper, Signal::KILL);
    });
    assert!(after.ended < after.began, "ended {}", after.ended);
    assert_eq!(after.code, 8);
}

fn job_of_a_shell_that_became_the_wrapper_is_not_killed_when_its_keeper_is() {
    let on = On::of_scene();
    let inner = run(&on, &["--ttl", "10", "x"], 60_000);
    let mut shell = Command::new("sh");
    let script = "sleep 1000 >/dev/null 2>&1 & echo $! > job; exec \"$0\" \"$@\"";
    shell
        .args(["-c", script])
        .arg(inner.get_program())
        .args(inner.get_args())
        .stderr(std::process::Stdio::null())
        .current_dir(on.env.path(""));
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut wrapper = Running::start(shell);
    wait_until("the section has begun", || !sections(&on).is_empty());
    let job = on.env.pid_in("job");
    let keeper = children_of(wrapper.pid())
        .into_iter()
        .find(|pid| *pid != job);
    send(keeper.unwrap(), Signal::KILL);
    assert_eq!(wrapper.finish(), 8);
    let stat = fs::read_to_string(format!("/proc/{job}/stat")).unwrap_or_default();
    assert!(stat.contains(") S "), "{stat}");
    send(job, Signal::KILL);
}

fn command_is_killed_by_the_wrapper_when_its_keeper_is_stopped() {
    let holder = at_work(60_000, &[], false);
    let after = after(holder, |holder| send(holder.keeper, Signal::STOP));
    assert!(after.ended < 0.9 * TTL + 0.5, "ended {}", after.ended);
    assert!(after.began < TTL + 3.0, "began {}", after.began);
    assert_eq!(after.code, 8);
}

fn command_is_killed_by_its_keeper_when_wrapper_and_keeper_are_stopped() {
    let holder = at_work_below(60_000);
    let after = after(holder, |holder| {
        send(holder.wrapper.pid(), Signal::STOP);
        send(holder.keeper, Signal::STOP);
    });
    assert!(after.ended < TTL, "ended {}", after.ended);
    assert_eq!(after.code, 8);
}

fn command_is_killed_by_its_keeper_when_the_wrapper_is_killed_and_the_keeper_stopped() {
    for keeper_is_first in [false, true] {
        let holder = at_work_below(60_000);
        let after = after(holder, |holder| {
            let mut events = [
                (holder.wrapper.pid(), Signal::KILL),
                (holder.keeper, Signal::STOP),
            ];
            if keeper_is_first {
                events.reverse();
            }
            for (pid, signal) in events {
                send(pid, signal);
            }
        });
        assert!(after.ended < TTL, "ended {}", after.ended);
        assert_eq!(after.code, -9);
    }
}

fn what_a_killed_keeper_has_left_is_killed_by_a_wrapper_that_was_stopped() {
    let holder = at_work_below(60_000);
    let after = after(holder, |holder| {
        send(holder.wrapper.pid(), Signal::STOP);
        wait_until("the wrapper is stopped", || {
            state_of(holder.wrapper.pid()) == 'T'
        });
        send(holder.keeper, Signal::KILL);
    });
    assert!(after.ended < 2.0, "ended {}", after.ended);
    assert!(after.began < TTL, "began {}", after.began);
    assert_eq!(after.code, 8);
}

fn command_is_ended_in_time_when_its_machine_is_cut_off() {
    let holder = at_work(60_000, &[], false);
    let after = after(holder, |holder| {
        for proxy in &holder.proxies {
            proxy.cut();
        }
    });
    assert!(
        (0.1..0.75 * TTL).contains(&after.ended),
        "ended {}",
        after.ended
    );
    assert!(after.began < 2.0 * TTL + 3.0, "began {}", after.began);
    assert_eq!(after.code, 8);
}

fn command_that_ignores_term_is_killed_in_time_when_its_machine_is_cut_off() {
    let holder = at_work(60_000, &[], true);
    let after = after(holder, |holder| {
        for proxy in &holder.proxies {
            proxy.cut();
        }
    });
    assert!(after.ended < 0.9 * TTL + 0.3, "ended {}", after.ended);
    assert!(after.began > after.ended, "began {}", after.began);
}

fn holder_that_is_cut_off_for_a_moment_loses_nothing() {
    let mut holder = at_work(14_000, &[], false);
    for _ in 0..3 {
        for proxy in &holder.proxies {
            proxy.cut();
        }
        std::thread::sleep(Duration::from_millis(1_500));
        for proxy in &holder.proxies {
            proxy.mend();
        }
        std::thread::sleep(Duration::from_millis(2_500));
    }
    assert_eq!(holder.wrapper.finish(), 0);
    assert_eq!(holder.on.state("x"), "free");
}

fn command_may_run_on_without_the_lock_if_it_was_asked_for() {
    let mut holder = at_work(13_000, &["--on-lost", "warn"], false);
    for proxy in &holder.proxies {
        proxy.cut();
    }
    wait_until("the section is over", || {
        sections(&holder.on)[0].to > sections(&holder.on)[0].from + 12_900_000_000
    });
    assert_eq!(holder.wrapper.finish(), 0);
}

fn break_ends_the_work_on_the_other_machine_before_the_lock_is_free() {
    let mut holder = at_work(60_000, &[], false);
    let began = now();
    assert_eq!(holder.on.code(&["break", "x", "--yes"]), 0);
    let ended = seconds_after(&sections(&holder.on)[0], now());
    assert!(
        ended <= 0.0,
        "it ran {ended} s after the break had returned"
    );
    assert!(seconds_after(&sections(&holder.on)[0], began) < break_takes().as_secs_f64());
    assert_eq!(holder.wrapper.finish(), 8);
    assert_eq!(holder.on.state("x"), "free");
}

fn signals_reach_the_command_through_wrapper_and_keeper() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut holder = at_work(60_000, &[], false);
        holder.wrapper.signal(signal);
        assert_eq!(holder.wrapper.finish(), code, "{signal:?}");
        assert_eq!(holder.on.state("x"), "free");
    }
}

fn keeper_is_not_ended_by_a_signal_that_is_not_its_wrappers() {
    let mut holder = at_work(2_000, &[], false);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        send(holder.keeper, signal);
    }
    assert_eq!(holder.wrapper.finish(), 0);
}

fn canceled_waiter_leaves_the_queue_at_once() {
    let signals = [Signal::INT, Signal::TERM, Signal::KILL];
    let cases = signals
        .iter()
        .flat_map(|signal| [(*signal, false), (*signal, true)]);
    for (signal, is_late) in cases {
        let mut holder = at_work(60_000, &[], false);
        let mut command = holder.on.onehold(&["run", "-w", "60", "x", "--", "true"]);
        command.stderr(std::process::Stdio::null());
        let mut waiter = Running::spawn(command);
        wait_until("it waits", || holder.on.waiters("x") == 1);
        if is_late {
            std::thread::sleep(Duration::from_millis(700));
        }
        let moment = now();
        waiter.signal(signal);
        waiter.finish();
        let what = format!("{signal:?}, late: {is_late}: it has left the queue");
        wait_until(&what, || holder.on.waiters("x") == 0);
        let took = Duration::from_nanos(now() - moment);
        // The ticket of one that is not taken back lasts for 5 s.
        assert!(took < Duration::from_secs(3), "{signal:?}: {took:?}");
        holder.wrapper.signal(Signal::TERM);
        holder.wrapper.finish();
    }
}

fn canceled_waiter_leaves_the_queue_of_a_server_that_drops_its_first_request() {
    let on = On::of_scene();
    on.done(&["acquire", "x", "--ttl", "60"]);
    for signal in [Signal::TERM, Signal::KILL] {
        let (proxy, url) = on.behind_one();
        let mut command = on.onehold(&["run", "-w", "60", "x", "--", "true"]);
        command.env("ONEHOLD_DIR", url);
        command.stderr(std::process::Stdio::null());
        let mut waiter = Running::spawn(command);
        wait_until("it waits", || on.waiters("x") == 1);
        // What it sends after its ticket: a request that waits for the end of the hold.
        std::thread::sleep(Duration::from_millis(500));
        proxy.plan(0, Fate::Drop);
        let moment = now();
        waiter.signal(signal);
        waiter.finish();
        wait_until("it has left the queue", || on.waiters("x") == 0);
        let took = Duration::from_nanos(now() - moment);
        assert!(proxy.paths().len() > 1, "{:?}", proxy.paths());
        assert!(took < Duration::from_secs(5), "{signal:?}: {took:?}");
    }
}

fn take_that_is_canceled_before_its_answer_came_leaves_nothing_to_wait_for() {
    let on = On::of_scene();
    for verb in [
        &["acquire", "x", "-w", "60", "--ttl", "600"][..],
        &["run", "-w", "60", "x", "--", "true"],
    ] {
        let (proxy, url) = on.behind_one();
        // A second take is not refused for what was only supposed.
        on.done(&["run", "x", "--", "true"]);
        // It is granted a lease first. The take arrives, and its answer does not.
        proxy.plan(1, Fate::Delay(500));
        let mut command = on.onehold(verb);
        command.env("ONEHOLD_DIR", url);
        command.stderr(std::process::Stdio::null());
        let mut taker = Running::spawn(command);
        wait_until("it takes the lock", || proxy.paths().len() == 2);
        proxy.cut();
        wait_until("it has the lock", || on.state("x") == "held");
        taker.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
        proxy.mend();
        assert_eq!(taker.finish(), -15, "{verb:?}");
        assert_eq!(on.code(&["run", "x", "--", "true"]), 0, "{verb:?}");
    }
}

fn signal_a_second_later_ends_a_waiter_whose_keeper_is_stopped() {
    let on = On::of_scene();
    on.done(&["acquire", "x", "--ttl", "60"]);
    let mut command = on.onehold(&["run", "-w", "60", "x", "--", "true"]);
    command.stderr(std::process::Stdio::null());
    let mut waiter = Running::spawn(command);
    wait_until("it waits", || on.waiters("x") == 1);
    send(children_of(waiter.pid())[0], Signal::STOP);
    // The first two are one event, as from timeout(1).
    waiter.signal(Signal::TERM);
    waiter.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(1_100));
    assert!(!waiter.has_ended());
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.finish(), -15);
    on.end_leases("wait");
    wait_until("its place ends with its lease", || on.waiters("x") == 0);
}

fn wrapper_says_that_its_keeper_was_killed_while_it_waited() {
    let on = On::of_scene();
    on.done(&["acquire", "x", "--ttl", "60"]);
    for json in [false, true] {
        let mut command = on.onehold(&["run", "-w", "60", "x"]);
        if json {
            command.arg("--json");
        }
        command.args(["--", "true"]);
        let path = on.env.path("said");
        let said = || fs::File::create(&path).unwrap();
        command.stdout(said()).stderr(said());
        let mut waiter = Running::spawn(command);
        wait_until("it waits", || on.waiters("x") == 1);
        send(children_of(waiter.pid())[0], Signal::KILL);
        assert_eq!(waiter.finish(), -9);
        let said = fs::read_to_string(&path).unwrap();
        let expected = "the keeper was killed by signal 9, by another process or the kernel; \
                        the command was not started";
        assert!(said.contains(expected), "{said}");
        if json {
            let object = json_object(said.as_bytes());
            assert_eq!(object["message"], expected, "{said}");
        }
        on.end_leases("wait");
        wait_until("its place ends with its lease", || on.waiters("x") == 0);
    }
}

#[test]
fn what_is_canceled_while_it_is_taken_leaves_nothing() {
    let on = On::new(shared());
    let proxy = Proxy::to(&shared().endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    on.done(&["run", "x", "--", "true"]);
    for args in [
        &["run", "x", "--", "true"][..],
        &["run", "-n", "x", "--", "true"],
        &["run", "-w", "9", "x", "--", "true"],
        &["acquire", "x", "--ttl", "60"],
    ] {
        for number in [0, 1] {
            proxy.plan(number, Fate::Delay(400));
            let mut command = behind.onehold(args);
            command.stderr(std::process::Stdio::null());
            command.stdout(std::process::Stdio::null());
            let mut canceled = Running::spawn(command);
            wait_until("it has sent it", || proxy.paths().len() > number);
            canceled.signal(Signal::INT);
            assert_eq!(canceled.finish(), -2, "{args:?}, request {number}");
            proxy.unplan();
            std::thread::sleep(Duration::from_millis(500));
            let left = shared().left_below(on.prefix());
            assert!(left.is_empty(), "{args:?}, request {number}: {left:?}");
        }
    }
}

fn run_in_a_script_with_a_stopped_job_sends_the_script_no_hup() {
    let on = On::of_scene();
    let script = "sleep 60 & job=$!
        trap 'kill -KILL $job' EXIT
        kill -STOP $job
        until grep -q '^State:.T' /proc/$job/status; do sleep .01; done
        onehold run x -- true && onehold run x -- sh -c 'exit 5'
        echo $? > code
        onehold run x -- sh -c 'kill -KILL $PPID; sleep 60' 2> lost
        echo $? > code-of-lost
        grep '^State' /proc/$job/status > job";
    // A session of its own, with one process group that has no parent in the session (setpgid(2)).
    let mut command = on.env.command("setsid");
    command
        .args(["--wait", "sh", "-c", script])
        .env("ONEHOLD_DIR", &on.dir);
    command.current_dir(on.env.root.path());
    let status = command.status().unwrap();
    let read = |name: &str| fs::read_to_string(on.env.path(name)).unwrap_or_default();
    assert_eq!(exit_code(status), 0, "{}", read("lost"));
    assert_eq!(read("code"), "5\n");
    assert_eq!(read("code-of-lost"), "8\n", "{}", read("lost"));
    assert!(read("job").contains("stopped"), "{}", read("job"));
}

fn closed_terminal_is_passed_on_once_by_a_wrapper_that_leads_the_session() {
    for before in ["", "setsid "] {
        let on = On::of_scene();
        let counts = "trap 'echo >> HUP' HUP; echo > ready; until test -e end; do sleep .02; done";
        fs::write(on.env.path("counts.sh"), counts).unwrap();
        let mut terminal = on.env.command("script");
        let run = format!("exec onehold run x -- {before}sh counts.sh");
        terminal.args(["-qec", &run, "/dev/null"]);
        terminal
            .env("ONEHOLD_DIR", &on.dir)
            .env("SHELL", "/bin/sh")
            .current_dir(on.env.root.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null());
        let mut terminal = terminal.spawn().unwrap();
        wait_until("the command is ready", || on.env.path("ready").exists());
        terminal.kill().unwrap();
        terminal.wait().unwrap();
        wait_until("the hangup is noted", || on.env.path("HUP").exists());
        fs::write(on.env.path("end"), "").unwrap();
        wait_until("the lock is free", || on.state("x") == "free");
        let noted = fs::read_to_string(on.env.path("HUP")).unwrap();
        assert_eq!(noted, "\n", "{before:?}");
    }
}

fn work_that_a_command_leaves_behind_holds_nothing() {
    let on = On::of_scene();
    assert_eq!(
        on.code(&["run", "x", "--", "sh", "-c", "setsid sleep 3 & exit 5"]),
        5
    );
    assert_eq!(on.state("x"), "free");
}

/// Each of its threads in turn: that of a name server, of the guard, of the renewal, of a watch.
fn thread_that_cannot_be_started_is_started_later() {
    let on = On::of_scene();
    let url = on.dir.replace("127.0.0.1", "localhost");
    let commands = (2..=5).map(|number| {
        let mut command = on.env.command("strace");
        command
            .args(["-f", "-qq", "-o", "/dev/null", "-e"])
            // The number of those of each process. The first one forks the keeper.
            .arg(format!("inject=clone,clone3:error=EAGAIN:when={number}"))
            .arg(crate::harness::program())
            .args(["run", "--ttl", "10", &format!("x{number}")])
            .args(["--", "sleep", "8"])
            .env("ONEHOLD_DIR", &url);
        command
    });
    for output in run_together(commands.collect()) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((exit_code(output.status), &*said), (0, ""));
    }
}

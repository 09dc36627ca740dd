use std::fs;
use std::time::Duration;

use crate::at_work::{assert_exclusive, run};
use crate::cluster::{On, shared};
use crate::harness::{CONTENDERS, Running, exit_code, run_together, wait_until};

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let on = On::new(shared());
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let mut waiters = Vec::new();
    for at in 0..CONTENDERS {
        let script = format!("echo {at} >> order");
        let mut command = on.onehold(&["run", "-w", "60", "x", "--", "sh", "-c", &script]);
        command.stderr(std::process::Stdio::null());
        waiters.push(Running::spawn(command));
        wait_until("it waits", || on.waiters("x") == at + 1);
    }
    on.done(&["release", "x", "--hold", &number]);
    for mut waiter in waiters {
        assert_eq!(waiter.finish(), 0);
    }
    let order = fs::read_to_string(on.env.path("order")).unwrap();
    let expected: Vec<String> = (0..CONTENDERS).map(|at| at.to_string()).collect();
    assert_eq!(order.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn nobody_gets_ahead_of_a_waiter_that_could_take_the_lock() {
    let on = On::new(shared());
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let mut command = on.onehold(&[
        "run",
        "-w",
        "60",
        "x",
        "--",
        "sh",
        "-c",
        "echo first >> order; sleep 1",
    ]);
    command.stderr(std::process::Stdio::null());
    let mut first = Running::spawn(command);
    wait_until("it waits", || on.waiters("x") == 1);
    // It sleeps while the lock is given back, and has its turn all the same.
    first.signal(crate::harness::Signal::STOP);
    on.done(&["release", "x", "--hold", &number]);
    first.signal(crate::harness::Signal::CONT);
    let second = on.output(&[
        "run",
        "-w",
        "60",
        "x",
        "--",
        "sh",
        "-c",
        "echo second >> order",
    ]);
    assert_eq!(second.0, 0, "{}", second.2);
    assert_eq!(first.finish(), 0);
    assert_eq!(
        fs::read_to_string(on.env.path("order")).unwrap(),
        "first\nsecond\n"
    );
}

#[test]
fn waiter_that_could_not_take_the_lock_is_in_nobodys_way() {
    let on = On::new(shared());
    on.done(&["acquire", "a/1", "--ttl", "60", "--owner", "me"]);
    // A stranger waits for the parent, which the owner may take.
    let mut command = on.onehold(&["run", "-w", "60", "a", "--", "true"]);
    command.stderr(std::process::Stdio::null());
    let _stranger = Running::spawn(command);
    wait_until("it waits", || on.waiters("a") == 1);
    let started = std::time::Instant::now();
    on.done(&["run", "-w", "20", "--owner", "me", "a", "--", "true"]);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn many_sections_of_many_callers_never_overlap() {
    let on = On::new(shared());
    let rounds = 25;
    let commands = (0..CONTENDERS)
        .map(|_| {
            let script = format!(
                "for i in $(seq {rounds}); do onehold run -w 100 x -- sh -c 'read n <count; echo $((n + 1)) >count' || exit; done"
            );
            fs::write(on.env.path("count"), "0\n").unwrap();
            let mut command = on.env.shell(&script);
            command.env("ONEHOLD_DIR", &on.dir);
            command.stderr(std::process::Stdio::null());
            command
        })
        .collect();
    for output in run_together(commands) {
        assert_eq!(exit_code(output.status), 0);
    }
    let count = fs::read_to_string(on.env.path("count")).unwrap();
    assert_eq!(count.trim(), (CONTENDERS * rounds).to_string());
    assert_eq!(shared().left_below(on.prefix()), Vec::<String>::new());
}

#[test]
fn names_taken_in_opposite_orders_do_not_wait_for_each_other() {
    let on = On::new(shared());
    let commands = (0..CONTENDERS)
        .map(|at| {
            let names = if at % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
            let mut command = run(&on, &["-w", "60", names[0], names[1]], 20);
            command.stderr(std::process::Stdio::null());
            command
        })
        .collect();
    for output in run_together(commands) {
        assert_eq!(exit_code(output.status), 0);
    }
    assert_eq!(on.state("a"), "free");
}

#[test]
fn no_more_than_the_slots_are_at_work() {
    let on = On::new(shared());
    let commands = (0..CONTENDERS)
        .map(|_| {
            let mut command = run(&on, &["-w", "60", "--slots", "3", "x"], 150);
            command.stderr(std::process::Stdio::null());
            command
        })
        .collect();
    for output in run_together(commands) {
        assert_eq!(exit_code(output.status), 0);
    }
    let all = assert_exclusive(&on);
    assert_eq!(all.len(), CONTENDERS);
    for section in &all {
        let beside = all.iter().filter(|other| {
            other.hold != section.hold && (other.from..other.to).contains(&section.from)
        });
        assert!(beside.count() < 3);
    }
}

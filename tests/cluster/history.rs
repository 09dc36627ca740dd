//! What a store says of holds that have ended: the same on every machine.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::access::of_user;
use crate::cluster::{Cluster, On, shared, shared_postgres};
use crate::harness::{CONTENDERS, Running, exit_code, json_object, run_together, wait_until};
use crate::keeper::{children_of, send};
use crate::postgres::Postgres;
use crate::scene::{Engine, engine, scenes};

scenes! {
    command_of_another_machine_is_named_with_its_pid,
    ends_of_holds_are_the_same_on_every_machine,
    break_from_another_machine_is_named_to_whom_it_has_broken,
    hold_of_a_killed_keeper_is_lost_once,
    hold_that_was_broken_while_its_keeper_was_stopped_is_noted_once,
    hold_that_nobody_gave_back_is_noted_once_by_who_takes_its_lock,
    lease_that_ran_out_is_noted_once,
    lock_keeps_its_last_50_ends,
    many_dead_holds_are_noted_by_one_cleanup,
    ends_of_contenders_are_all_there,
    holds_without_a_history_leave_nothing,
    planted_lines_stop_no_change,
    names_of_planted_records_stop_no_change,
    holds_that_overlap_do_not_let_the_journal_grow,
}

/// Two machines with one store: each has a home of its own.
fn machines() -> [On; 2] {
    let here = On::of_scene();
    let there = On::at(here.dir.clone());
    [here, there]
}

/// A command whose hold leaves an end.
fn noted(on: &On, args: &[&str]) -> Command {
    let mut command = on.onehold(args);
    command.env("ONEHOLD_HISTORY", "1").stderr(Stdio::null());
    command
}

#[track_caller]
fn code(mut command: Command) -> i32 {
    exit_code(command.output().unwrap().status)
}

/// The PID of the command, which begins after the lock is taken.
pub(crate) fn command_of(run: &Running) -> u32 {
    let commands = || {
        let keepers = children_of(run.pid());
        let commands = keepers.iter().flat_map(|keeper| children_of(*keeper));
        commands.collect::<Vec<_>>()
    };
    wait_until("the command has begun", || commands().len() == 1);
    commands()[0]
}

fn command_of_another_machine_is_named_with_its_pid() {
    let [here, there] = machines();
    let mut holder = Running::spawn(here.onehold(&["run", "x", "y", "--", "sleep", "300"]));
    here.wait_until_held("x");
    let command = command_of(&holder);
    for name in ["x", "y"] {
        wait_until("its PID is on record", || {
            there.lock(name)["pid"] == command
        });
        let (_, said, _) = there.output(&["check", "-v", name]);
        assert!(said.contains(&format!("{command} (sleep)")), "{said}");
    }
    // The hold goes on as before, and ends with the command.
    there.done(&["check", "-q", "other"]);
    send(command, Signal::TERM);
    assert_eq!(holder.finish(), 143);
    assert_eq!(here.left(), Vec::<String>::new());
}

/// What a machine lists with these arguments, which is the same on the other one.
#[track_caller]
fn listed(machines: &[On; 2], args: &[&str]) -> Vec<Value> {
    let [here, there] = machines.each_ref().map(|on| {
        let (code, out, told) = on.output(&[&["history", "--json"], args].concat());
        assert_eq!(code, 0, "{told}");
        json_object(out.as_bytes())["holds"]
            .as_array()
            .unwrap()
            .clone()
    });
    assert_eq!(here, there);
    // Nothing is kept beside the store.
    for on in machines {
        assert!(!on.env.store().join(".onehold").exists());
    }
    here
}

#[track_caller]
fn results(machines: &[On; 2], args: &[&str]) -> Vec<String> {
    let text = |hold: &Value| hold["result"].as_str().unwrap().to_owned();
    listed(machines, args).iter().map(text).collect()
}

/// The events of a lock, which are the same on the other machine.
#[track_caller]
fn events(machines: &[On; 2], name: &str) -> Vec<Value> {
    let [here, there] = machines.each_ref().map(|on| {
        let (_, out, told) = on.output(&["check", "-v", "--json", name]);
        assert!(!out.is_empty(), "{told}");
        json_object(out.as_bytes())["journal"]
            .as_array()
            .unwrap()
            .clone()
    });
    assert_eq!(here, there);
    here
}

fn ends_of_holds_are_the_same_on_every_machine() {
    let machines = machines();
    let [here, there] = &machines;
    assert_eq!(
        code(noted(here, &["run", "x", "--", "sh", "-c", "exit 3"])),
        3
    );
    assert_eq!(code(noted(there, &["run", "x", "y", "--", "true"])), 0);
    let shell = ["run", "-s", "x", "--", "sh", "-c", "kill -9 $$"];
    assert_eq!(code(noted(here, &shell)), 137);
    let lease = ["acquire", "x", "--ttl", "60", "--owner", "me"];
    assert_eq!(code(noted(there, &lease)), 0);
    here.done(&["release", "x", "--owner", "me"]);
    assert_eq!(code(noted(here, &["run", "x", "--", "/no/such"])), 127);
    let expected = ["exited", "exited", "signal", "released", "not-started"];
    assert_eq!(results(&machines, &["x"]), expected);
    assert_eq!(results(&machines, &[]), expected);
    assert_eq!(results(&machines, &["y"]), ["exited"]);
    assert_eq!(results(&machines, &["x", "y"]), expected);
    assert_eq!(
        results(&machines, &["--failed"]),
        ["exited", "signal", "not-started"]
    );
    assert_eq!(results(&machines, &["--since", "1h"]).len(), 5);
    assert_eq!(results(&machines, &["--since", "1us"]).len(), 0);
    assert_eq!(results(&machines, &["z"]).len(), 0);
    let all = listed(&machines, &[]);
    assert_eq!(all[0]["exit_code"], 3);
    assert_eq!(all[1]["names"], serde_json::json!(["x", "y"]));
    assert_eq!(all[2]["signal"], 9);
    assert!(all.iter().all(|hold| !hold["host"].is_null()));
    // The name as the machine of the hold knows it.
    assert!(!all[0]["user"].is_null());
    // Another store sees nothing of it, nor does one below.
    let below = On::at(format!("{}/below", here.dir));
    assert_eq!(below.output(&["history"]).1, "");
    let (_, table, _) = there.output(&["history", "--summary", "x"]);
    assert!(table.lines().any(|line| line.starts_with("x ")), "{table}");
}

fn break_from_another_machine_is_named_to_whom_it_has_broken() {
    let machines = machines();
    let [here, there] = &machines;
    let mut run = here.onehold(&["run", "x", "--", "sleep", "600"]);
    run.env("ONEHOLD_HISTORY", "1");
    let mut run = Running::start_with_output(run);
    here.wait_until_held("x");
    let hold = here.lock("x")["hold"].to_string();
    let command = command_of(&run);
    wait_until("its PID is on record", || there.lock("x")["pid"] == command);
    let (_, shown, _) = there.output(&["check", "-v", "x"]);
    let holder = format!("`x` is held by process {command} (");
    assert!(
        shown.contains(&holder) && shown.contains("command: sleep 600\n"),
        "{shown}"
    );
    there.done(&["break", "x", "--yes"]);
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 8, "{told}");
    let events = events(&machines, "x");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["event"], "break");
    let (pid, host) = (
        &events[0]["by"]["pid"],
        events[0]["by"]["hostname"].as_str().unwrap(),
    );
    let broken =
        format!("lock `x` was broken by process {pid} on {host} while the command was running");
    assert!(told.contains(&broken), "{told}");
    assert_eq!(results(&machines, &["x"]), ["broken"]);
    for on in &machines {
        // Whoever asks for it later learns who it was.
        let (_, _, told) = on.output(&["release", "x", "--hold", &hold]);
        let by = format!("by process {pid} on {host} of user ");
        let lost = format!("hold {hold} of `x` was lost: ");
        assert!(told.contains(&lost) && told.contains(&by), "{told}");
        let (_, shown, _) = on.output(&["check", "-v", "x"]);
        assert!(
            shown.contains(&by) && shown.contains("onehold break x --yes"),
            "{shown}"
        );
    }
}

fn hold_of_a_killed_keeper_is_lost_once() {
    let machines = machines();
    let [here, there] = &machines;
    let mut run = Running::spawn(noted(here, &["run", "x", "--", "sleep", "600"]));
    here.wait_until_held("x");
    send(children_of(run.pid())[0], Signal::KILL);
    assert_eq!(run.finish(), 8);
    there.done(&["run", "x", "--", "true"]);
    there.done(&["cleanup"]);
    assert_eq!(results(&machines, &[]), ["lost"]);
}

/// Its keeper learns of it afterwards. What is listed has each hold once, so what is kept is counted.
fn hold_that_was_broken_while_its_keeper_was_stopped_is_noted_once() {
    let machines = machines();
    let [here, there] = &machines;
    let mut run = Running::spawn(noted(here, &["run", "x", "--", "sleep", "600"]));
    here.wait_until_held("x");
    let keeper = children_of(run.pid())[0];
    send(keeper, Signal::STOP);
    here.end_leases("life");
    there.done(&["break", "x", "--yes"]);
    send(keeper, Signal::CONT);
    assert_eq!(run.finish(), 8);
    assert_eq!(results(&machines, &["x"]), ["taken-over"]);
    let ends = here
        .journal()
        .lines()
        .filter(|line| line.contains(r#""event":"end""#))
        .count();
    assert_eq!(ends, 1);
    // If its record is removed by other means, nobody else notes it.
    let mut run = Running::spawn(noted(here, &["run", "y", "--", "sleep", "600"]));
    here.wait_until_held("y");
    here.delete_record("y");
    assert_eq!(run.finish(), 8);
    assert_eq!(results(&machines, &["y"]), ["lost"]);
}

/// Its keeper and its wrapper are gone.
fn hold_that_nobody_gave_back_is_noted_once_by_who_takes_its_lock() {
    let machines = machines();
    let [here, there] = &machines;
    let args = ["run", "--ttl", "10", "x", "--", "sleep", "600"];
    let mut run = Running::spawn(noted(here, &args));
    here.wait_until_held("x");
    let hold = here.lock("x")["hold"].clone();
    let keeper = children_of(run.pid())[0];
    run.kill();
    send(keeper, Signal::KILL);
    let waiters = (0..CONTENDERS).map(|_| there.onehold(&["run", "-w", "120", "x", "--", "true"]));
    let outputs = run_together(waiters.collect());
    assert!(outputs.iter().all(|output| output.status.success()));
    assert_eq!(results(&machines, &[]), ["taken-over"]);
    let events = events(&machines, "x");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["event"], "takeover");
    assert_eq!(events[0]["from"]["hold"], hold);
    assert!(events[0]["hold"].as_u64() > hold.as_u64());
}

fn lease_that_ran_out_is_noted_once() {
    let machines = machines();
    let [here, there] = &machines;
    for name in ["x", "y"] {
        let lease = ["acquire", name, "--ttl", "5", "--owner", "me"];
        assert_eq!(code(noted(here, &lease)), 0);
    }
    wait_until("they have ended", || {
        ["x", "y"].iter().all(|name| here.state(name) == "zombie")
    });
    there.done(&["run", "-w", "60", "x", "--", "true"]);
    there.done(&["cleanup", "y"]);
    here.done(&["cleanup"]);
    assert_eq!(results(&machines, &["x"]), ["expired"]);
    assert_eq!(results(&machines, &["y"]), ["expired"]);
    let of = |name| {
        events(&machines, name)
            .iter()
            .map(|event| event["event"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("x"), ["takeover"]);
    assert_eq!(of("y"), ["cleanup"]);
}

fn lock_keeps_its_last_50_ends() {
    let machines = machines();
    let [here, there] = &machines;
    assert_eq!(code(noted(here, &["run", "other", "--", "true"])), 0);
    for at in 0..60 {
        let on = if at % 2 == 0 { here } else { there };
        let exit = format!("exit {at}");
        assert_eq!(code(noted(on, &["run", "x", "--", "sh", "-c", &exit])), at);
    }
    let codes: Vec<_> = listed(&machines, &["x"])
        .iter()
        .map(|hold| hold["exit_code"].clone())
        .collect();
    assert_eq!(codes, (10..60).collect::<Vec<_>>());
    assert_eq!(results(&machines, &["other"]), ["exited"]);
    // Events count as well, and push out the oldest lines.
    here.done(&["acquire", "x", "--ttl", "60"]);
    there.done(&["break", "x", "--yes"]);
    assert_eq!(results(&machines, &["x"]).len(), 49);
    assert_eq!(events(&machines, "x").len(), 1);
}

fn many_dead_holds_are_noted_by_one_cleanup() {
    let machines = machines();
    let [here, _] = &machines;
    let record = |at: usize| {
        let name = format!("l{at:03}");
        let text = format!(
            r#"{{"onehold":1,"live":{{"pid":7}},"name":"{name}","hold":{at},"kind":"run","taken_by":7,"asked":{{"at":"2026-11-23T04:29:33Z"}},"acquired_at":"2026-11-23T04:29:33Z","ttl_ms":5000}}"#
        );
        (name, text)
    };
    let records: Vec<_> = (1..=100).map(record).collect();
    here.put_records(&records);
    here.done(&["cleanup"]);
    assert!(here.left().is_empty());
    let found = listed(&machines, &[]);
    assert_eq!(found.len(), 100);
    assert!(found.iter().all(|hold| hold["result"] == "taken-over"));
    for (name, _) in records.iter().step_by(20) {
        assert_eq!(events(&machines, name)[0]["event"], "cleanup");
    }
}

fn ends_of_contenders_are_all_there() {
    let machines = machines();
    let contender = |at: usize, on: &On| {
        let args = ["run", "-w", "120", "--slots", "3", "x", "--", "true"];
        let innocent = format!("innocent{at}");
        [
            noted(on, &args),
            noted(on, &["run", &innocent, "--", "true"]),
        ]
    };
    let commands = (0..CONTENDERS).flat_map(|at| contender(at, &machines[at % 2]));
    let outputs = run_together(commands.collect());
    assert!(outputs.iter().all(|output| output.status.success()));
    assert_eq!(results(&machines, &["x"]), vec!["exited"; CONTENDERS]);
    assert_eq!(results(&machines, &[]).len(), 2 * CONTENDERS);
    for at in 0..CONTENDERS {
        assert_eq!(results(&machines, &[&format!("innocent{at}")]), ["exited"]);
    }
}

fn holds_without_a_history_leave_nothing() {
    let machines = machines();
    let [here, there] = &machines;
    here.done(&["run", "x", "--", "true"]);
    there.done(&["acquire", "x", "--ttl", "60", "--owner", "me"]);
    here.done(&["release", "x", "--owner", "me"]);
    assert!(results(&machines, &[]).is_empty());
    assert!(events(&machines, "x").is_empty());
    let (_, _, told) = here.output(&["history"]);
    assert!(told.contains("nothing is recorded"), "{told}");
}

/// The keys of the journal, below its part of the store.
fn keys_of_journal(on: &On) -> Vec<String> {
    let part = format!("{}//past/", on.prefix());
    let keys = match engine() {
        Engine::Etcd => shared().ctl(&["get", "--prefix", "--keys-only", &part]),
        Engine::Postgres => shared_postgres().sql(&format!(
            "select key from onehold.item where starts_with(key, '{part}') order by key"
        )),
    };
    let below = keys.lines().filter_map(|key| key.strip_prefix(&part));
    below.map(str::to_owned).collect()
}

fn planted_lines_stop_no_change() {
    let machines = machines();
    let [here, there] = &machines;
    assert_eq!(code(noted(here, &["run", "x", "--", "true"])), 0);
    let key = keys_of_journal(here).remove(0);
    let (of_x, _) = key.rsplit_once("//").unwrap();
    let planted = |last: String| (format!("{of_x}//{last}"), "{}".to_owned());
    let mut all: Vec<_> = (0..60).map(|at| planted(format!("{at:016x}-0"))).collect();
    // PostgreSQL tells of no key as long as this one.
    all.push(planted(format!("{:016x}-{}", 7, "k".repeat(9_000))));
    all.push(planted(format!("{}-0", "f".repeat(16))));
    here.put_in("past", &all);
    assert_eq!(
        code(noted(there, &["run", "x", "--", "sh", "-c", "exit 3"])),
        3
    );
    assert_eq!(results(&machines, &["x"]), ["exited"; 2]);
    assert_eq!(keys_of_journal(here).len(), 50);
    here.put_in("past", &all);
    assert_eq!(code(noted(here, &["acquire", "x", "--ttl", "60"])), 0);
    there.done(&["break", "x", "--yes"]);
    here.put_in("past", &all);
    assert_eq!(code(noted(here, &["acquire", "x", "--ttl", "5"])), 0);
    wait_until("it has ended", || here.state("x") == "zombie");
    there.done(&["cleanup"]);
    assert_eq!(
        results(&machines, &["x"]),
        ["exited", "exited", "broken", "expired"]
    );
    let left = keys_of_journal(here);
    assert_eq!(left.len(), 50);
    assert!(
        left.iter()
            .all(|key| key.len() < 100 && !key.contains("//f"))
    );
    assert!(here.left().is_empty());
}

fn names_of_planted_records_stop_no_change() {
    let machines = machines();
    let [here, there] = &machines;
    let long = "n".repeat(3_000);
    let records: Vec<_> = [r"q\u0000", "", "q//x", "./q", &long]
        .iter()
        .enumerate()
        .map(|(at, other)| {
            let name = format!("p{at}");
            let text = format!(
                r#"{{"onehold":1,"live":{{"pid":7}},"name":"{name}","names":["{name}","{other}"],"hold":7{at},"kind":"run","taken_by":7,"asked":{{"at":"2026-11-23T04:29:33Z"}},"acquired_at":"2026-11-23T04:29:33Z","ttl_ms":5000}}"#
            );
            (name, text)
        })
        .collect();
    here.put_records(&records);
    there.done(&["run", "-w", "60", "p0", "--", "true"]);
    there.done(&["run", "-w", "60", "p4", "--", "true"]);
    here.done(&["cleanup"]);
    assert!(here.left().is_empty(), "{:?}", here.left());
    // Whatever is noted is about a lock that can be.
    assert!(keys_of_journal(here).iter().all(|key| key.contains("/p")));
    assert_eq!(code(noted(here, &["run", "p0", "--", "true"])), 0);
    assert_eq!(results(&machines, &["p0"]).last().unwrap(), "exited");
}

fn holds_that_overlap_do_not_let_the_journal_grow() {
    const TOGETHER: usize = 2 * CONTENDERS;
    let on = On::of_scene();
    assert_eq!(code(noted(&on, &["run", "x", "--", "true"])), 0);
    // As many lines of its group as if many holds had overlapped before.
    let group = keys_of_journal(&on).remove(0)[..2].to_owned();
    let old = |at: u32| (format!("{group}/old{at}//{at:016x}-0"), "{}".to_owned());
    on.put_in("past", &(0..400).map(old).collect::<Vec<_>>());
    for round in 1..=2 {
        // None of them ends before all have begun.
        let all = round * TOGETHER;
        let wait = format!(
            "touch b.$$.{round}; until [ $(ls b.* | wc -l) -ge {all} ]; do sleep 0.1; done"
        );
        let hold = || noted(&on, &["run", "-s", "x", "--", "sh", "-c", &wait]);
        let outputs = run_together((0..TOGETHER).map(|_| hold()).collect());
        assert!(outputs.iter().all(|output| output.status.success()));
    }
    let left = keys_of_journal(&on);
    let of_holds = left.iter().filter(|key| !key.contains("/old")).count();
    assert_eq!(of_holds, 1 + 2 * TOGETHER);
    // If all of them deleted the same ones, there would be more than before.
    assert!(left.len() < 350, "{} keys", left.len());
}

/// Every change of a lock, in a store that takes no line.
fn change_all(command: &dyn Fn(&[&str]) -> Command) {
    let done = |args: &[&str]| {
        let output = command(args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(exit_code(output.status), 0, "{args:?}: {told}");
    };
    let state = |name: &str| {
        let output = command(&["check", "--json", name]).output().unwrap();
        json_object(&output.stdout)["lock"]["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    done(&["run", "x", "y", "--", "true"]);
    done(&["acquire", "x", "--ttl", "60", "--owner", "me"]);
    done(&["release", "x", "--owner", "me"]);
    done(&["acquire", "x", "--ttl", "60"]);
    done(&["break", "x", "--yes"]);
    let mut run = Running::spawn(command(&["run", "x", "--", "sleep", "600"]));
    wait_until("it is held", || state("x") == "held");
    done(&["break", "x", "--yes"]);
    assert_eq!(run.finish(), 8);
    for name in ["x", "y"] {
        done(&["acquire", name, "--ttl", "5"]);
    }
    wait_until("they have ended", || {
        ["x", "y"].iter().all(|name| state(name) == "zombie")
    });
    done(&["run", "-w", "60", "x", "--", "true"]);
    done(&["cleanup"]);
    for name in ["x", "y"] {
        assert_eq!(state(name), "free");
    }
}

#[test]
fn user_without_rights_to_the_journal_changes_locks() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    cluster.ctl(&["user", "add", "root:top"]);
    cluster.ctl(&["role", "add", "locks"]);
    for part in ["hold/", "life/", "wait/", "keep/", "last", "epoch"] {
        let part = format!("{}//{part}", on.prefix());
        let grant = ["role", "grant-permission", "locks", "--prefix=true"];
        cluster.ctl(&[&grant[..], &["readwrite", &part]].concat());
    }
    cluster.ctl(&["user", "add", "ci:secret"]);
    cluster.ctl(&["user", "grant-role", "ci", "locks"]);
    cluster.ctl(&["auth", "enable"]);
    change_all(&|args| {
        let mut command = of_user(&on, args);
        command.env("ONEHOLD_HISTORY", "1");
        command
    });
}

#[test]
fn database_that_refuses_lines_takes_changes_of_locks() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(format!(
        "postgres://postgres@127.0.0.1:{}/postgres/x",
        postgres.port
    ));
    postgres.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin \
             raise exception 'no line'; end $$; \
         create trigger refuse before insert on onehold.item for each row \
             when (starts_with(new.key, '/x//past/')) execute function public.refuse()",
    );
    change_all(&|args| {
        let mut command = on.onehold(args);
        command.env("ONEHOLD_HISTORY", "1");
        command
    });
}

//! Ends of the program and of the server, and what they have to do without.

use super::*;

#[test]
fn all_is_free_soon_after_the_program_or_the_server_was_killed() {
    let env = TestEnv::new();
    // A child of the program keeps the pipe open.
    let script = format!(
        "mkfifo pipe; {} hold --serve < pipe > told & exec 3> pipe; sleep 1000 & \
         for id in 1 2 3 4 5 6 7 8; do echo '{{\"id\":'$id',\"command\":\"hold\",\"names\":[\"x'$id'\"]}}' >&3; done; \
         exec sleep 1000",
        program().display()
    );
    for kill_the_server in [false, true] {
        let mut times: Vec<Duration> = (0..5)
            .map(|_| {
                for file in ["pipe", "told"] {
                    let _ = std::fs::remove_file(env.path(file));
                }
                let mut program = Running::start(env.shell(&script));
                wait_until("the locks are held", || env.lines("told") == 8);
                let server = env.lock("x1")["pid"].as_u64().unwrap();
                let killed = Instant::now();
                if kill_the_server {
                    send(server.try_into().unwrap(), Signal::KILL);
                } else {
                    program.kill();
                }
                wait_until("all locks are free", || {
                    let listed = env.json(["list"]);
                    let mut locks = listed["locks"].as_array().unwrap().iter();
                    locks.all(|lock| lock["state"] != "held")
                });
                let time = killed.elapsed();
                program.kill();
                time
            })
            .collect();
        times.sort_unstable();
        // The others show how busy the machine is.
        assert!(times[0] < Duration::from_millis(300), "{times:?}");
    }
}

#[test]
fn server_that_is_killed_at_any_line_leaves_no_lock_and_no_waiter_behind() {
    let env = TestEnv::new();
    let lines = [
        json!({ "id": 1, "command": "hold", "names": ["x"] }),
        json!({ "id": 2, "command": "hold", "names": ["y", "z"] }),
        json!({ "id": 3, "command": "hold", "names": ["x"], "wait": "1h" }),
        json!({ "id": 4, "command": "hold", "names": ["y"], "wait": "1h", "owner": "o" }),
        json!({ "id": 3, "command": "cancel" }),
        json!({ "id": 1, "command": "release" }),
        json!({ "id": 2, "command": "release" }),
        json!({ "id": 4, "command": "release" }),
    ];
    for answered in [false, true] {
        for until in 1..=lines.len() {
            let mut server = serve(&env);
            for line in &lines[..until] {
                ask(&mut server, line);
                if answered && line["wait"].is_null() && line["command"] != "cancel" {
                    let id = line["id"].as_u64().unwrap();
                    // What is told of others comes before it.
                    while json_object(server.line().as_bytes())["id"] != id {}
                }
            }
            server.running.kill();
            for name in ["x", "y", "z"] {
                assert_eq!(env.code(["run", name, "--", "true"]), 0, "{until} {name}");
            }
        }
    }
    // Tickets of dead waiters are in nobody's way.
    assert_eq!(env.code(["cleanup"]), 0);
    assert!(env.left_in_store().is_empty() && env.left_in_queues().is_empty());
}

/// Starts a program of its own, which sends these lines to its server, and sleeps. Returns once what the last of them
/// asks for was answered.
fn program_with(env: &TestEnv, lines: &[Value]) -> Running {
    for file in ["pipe", "told"] {
        let _ = std::fs::remove_file(env.path(file));
    }
    let sent: Vec<String> = lines.iter().map(Value::to_string).collect();
    env.write("lines", &(sent.join("\n") + "\n"));
    let program = Running::start(env.shell(&format!(
        "mkfifo pipe; {} hold --serve < pipe > told & exec 3> pipe; cat lines >&3; exec sleep 1000",
        program().display()
    )));
    // Each is answered, and a wait before it ends: by its cancel, or by the release of its lock.
    let mut expected: Vec<u64> = lines
        .iter()
        .map(|line| line["id"].as_u64().unwrap())
        .collect();
    expected.sort_unstable();
    expected.dedup();
    wait_until("each request was answered", || {
        let told = std::fs::read_to_string(env.path("told")).unwrap_or_default();
        let told: Vec<Value> = told
            .lines()
            .map(|line| json_object(line.as_bytes()))
            .collect();
        expected.iter().all(|id| {
            let mut asked = lines.iter().filter(|line| line["id"] == *id);
            let is_ended =
                asked.any(|line| line["command"] != "hold" && line["command"] != "acquire");
            let mut of_it = told.iter().filter(|line| line["id"] == *id);
            of_it.any(|line| {
                !is_ended
                    || ["released", "failed", "result"]
                        .iter()
                        .any(|end| line["event"] == *end)
            })
        })
    });
    program
}

#[test]
fn all_is_free_within_300_ms_of_a_kill_at_each_line_of_the_protocol() {
    let env = TestEnv::new();
    let lines = [
        json!({ "id": 1, "command": "hold", "names": ["x"] }),
        json!({ "id": 2, "command": "hold", "names": ["y", "z"] }),
        json!({ "id": 3, "command": "hold", "names": ["other"], "wait": "1h" }),
        json!({ "id": 4, "command": "acquire", "names": ["other"], "wait": "1h", "ttl": "1h" }),
        json!({ "id": 5, "command": "check", "names": ["x"] }),
        json!({ "id": 3, "command": "cancel" }),
        json!({ "id": 4, "command": "cancel" }),
        json!({ "id": 1, "command": "release" }),
        json!({ "id": 2, "command": "release" }),
    ];
    let mut other = env.hold(&["other"]);
    for until in 1..=lines.len() {
        for (kills_program, kills_server) in [(true, false), (false, true), (true, true)] {
            // The others show how busy the machine is.
            let times = (0..20).map(|_| {
                let mut program = program_with(&env, &lines[..until]);
                let server = u32::try_from(child_of(program.pid())).unwrap();
                let killed = Instant::now();
                if kills_server {
                    send(server, Signal::KILL);
                }
                if kills_program {
                    program.kill();
                }
                let all = ["run", "-w", "10", "x", "y", "z", "--", "true"];
                assert_eq!(env.code(all), 0);
                let time = killed.elapsed();
                program.kill();
                time
            });
            let quick = times
                .into_iter()
                .find(|time| *time < Duration::from_millis(300));
            assert!(quick.is_some(), "{until} {kills_program} {kills_server}");
            wait_until("nobody waits", || env.number_of_waiters("other") == 0);
        }
    }
    env.end();
    other.finish();
    assert_eq!(env.code(["run", "other", "--", "true"]), 0);
    assert_eq!(env.code(["cleanup"]), 0);
    assert!(env.left_in_store().is_empty() && env.left_in_queues().is_empty());
}

#[test]
fn what_a_program_has_asked_for_before_it_was_killed_is_not_done() {
    let env = TestEnv::new();
    let first = json!({ "id": 0, "command": "hold", "names": ["x"] });
    let mut program = program_with(&env, &[first]);
    let server = u32::try_from(child_of(program.pid())).unwrap();
    send(server, Signal::STOP);
    // Until then it may see what comes now, and not the end that follows.
    wait_until("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    });
    let mut lines = Vec::new();
    for id in 1..=CONTENDERS {
        let hold = json!({ "id": id, "command": "hold", "names": [format!("a{id}")] });
        let lease = json!({ "id": 100 + id, "command": "acquire", "names": [format!("b{id}")], "ttl": "1h" });
        lines.extend([hold.to_string(), lease.to_string()]);
    }
    env.write("lines", &(lines.join("\n") + "\n"));
    // Not by this process, whose children may have copies of its descriptors.
    assert_eq!(Running::start(env.shell("cat lines > pipe")).finish(), 0);
    program.kill();
    send(server, Signal::CONT);
    wait_until("it has released all", || env.lines("told") == 2);
    let told = std::fs::read_to_string(env.path("told")).unwrap();
    assert!(
        told.lines()
            .all(|line| json_object(line.as_bytes())["id"] == 0),
        "{told}"
    );
    wait_until("nothing is left", || env.left_in_store().is_empty());
}

/// The only child of a process.
fn child_of(pid: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn signal_releases_all_and_ends_waits() {
    let env = TestEnv::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = serve(&env);
        hold(&mut server, 1, "x");
        hold(&mut server, 2, "y");
        wait(&mut server, 3, "x");
        server.running.signal(signal);
        assert_eq!(told(&mut server, 1, "released")["reason"], "signal");
        assert_eq!(told(&mut server, 2, "released")["reason"], "signal");
        assert_eq!(server.running.finish(), 0);
        assert!(env.left_in_store().is_empty());
    }
}

/// A number in a file of a process in /proc.
fn number_of(pid: u32, file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn five_hundred_holds_need_one_process_and_one_descriptor_each() {
    const HOLDS: u64 = 500;
    let env = TestEnv::new();
    let mut server = serve(&env);
    for id in 0..HOLDS {
        hold(&mut server, id, &format!("x{id}"));
    }
    let pid = server.running.pid();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    assert!(descriptors <= 520, "{descriptors} descriptors");
    assert!(number_of(pid, "status", "Threads:") <= 4);
    let own = number_of(pid, "smaps_rollup", "Private_Dirty:");
    assert!(own <= 20 * 1024, "{own} KiB");
    for id in 0..HOLDS {
        release(&mut server, id);
    }
    assert_eq!(server.end(), 0);
    assert!(env.left_in_store().is_empty());
}

#[test]
fn program_that_reads_no_answer_delays_no_release() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    // More answers than a pipe takes.
    for id in 0..1000 {
        ask(
            &mut server,
            &json!({ "id": id, "command": "check", "names": ["x"] }),
        );
    }
    ask(
        &mut server,
        &json!({ "id": 1000, "command": "hold", "names": ["y"] }),
    );
    wait_until("it holds the lock", || env.check("y") == 6);
    ask(&mut server, &json!({ "id": 1000, "command": "release" }));
    wait_until("it has released the lock", || env.check("y") == 0);
    for id in 0..1000 {
        told(&mut server, id, "result");
    }
    told(&mut server, 1000, "held");
    told(&mut server, 1000, "released");
    assert_eq!(server.end(), 0);
}

#[test]
fn server_holds_as_many_locks_as_it_may_have_descriptors_and_releases_them_without_one_left() {
    let env = TestEnv::new();
    let mut limited = env.command("sh");
    let script = "ulimit -n 256; exec \"$0\" hold --serve";
    limited.args(["-c", script]).arg(program());
    let mut server = Hold::start(limited);
    let ask_for = |id: u64| json!({ "id": id, "command": "hold", "names": [format!("n{id}")] });
    for id in 0..240 {
        ask(&mut server, &ask_for(id));
        told(&mut server, id, "held");
    }
    // Some are its own: pipes, and what it is woken by.
    let refused = (240..256).find(|id| {
        ask(&mut server, &ask_for(*id));
        let line: Value = serde_json::from_str(&server.line()).unwrap();
        line["event"] == "failed"
    });
    for id in 0..refused.unwrap() {
        let released = release(&mut server, id);
        assert_eq!(released["errors"], json!([]));
    }
    hold(&mut server, 300, "n0");
    assert_eq!(server.end(), 0);
    assert!(env.left_in_store().is_empty());
}

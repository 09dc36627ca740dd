//! Requests that hold nothing in the server: leases, and locks by their names.

use super::*;

#[test]
fn locks_are_checked_and_leases_renewed_and_released_by_requests() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let number = env.done(["acquire", "x", "--ttl", "1h", "--owner", "o"]);
    let number: u64 = number.trim().parse().unwrap();
    let mut answer = |id: u64, command: &str, more: &Value| {
        let mut request = json!({ "id": id, "command": command, "names": ["x"] });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        ask(&mut server, &request);
        told(&mut server, id, "result")
    };
    let checked = answer(1, "check", &json!({}));
    assert_eq!(
        (&checked["lock"]["hold"], &checked["command"]),
        (&json!(number), &json!("check"))
    );
    let renewed = answer(2, "renew", &json!({ "hold": number, "ttl": "2h" }));
    assert_eq!(
        (&renewed["status"], &renewed["lock"]["ttl_seconds"]),
        (&json!("renewed"), &json!(7200.0))
    );
    assert_eq!(
        answer(3, "release", &json!({ "owner": "else" }))["error"]["code"],
        "NOT_OWNER"
    );
    assert_eq!(
        answer(4, "release", &json!({ "hold": number }))["success"],
        true
    );
    assert_eq!(env.check("x"), 0);
    assert_eq!(server.end(), 0);
}

#[test]
fn leases_are_acquired_by_requests_and_stay_when_the_server_ends() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let acquire = |id: u64, more: Value| {
        let mut request = json!({ "id": id, "command": "acquire", "ttl": "1h" });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        request
    };
    ask(
        &mut server,
        &acquire(
            1,
            json!({ "names": ["x", "y"], "owner": "o", "message": "m" }),
        ),
    );
    let acquired = told(&mut server, 1, "result");
    assert_eq!(
        (&acquired["status"], &acquired["lock"]["names"]),
        (&json!("acquired"), &json!(["x", "y"]))
    );
    assert_eq!(acquired["lock"]["ttl_seconds"], 3600.0);
    let lock = env.lock("y");
    assert_eq!(
        (&lock["kind"], &lock["hold"], &lock["message"]),
        (&json!("lease"), &acquired["hold"], &json!("m"))
    );
    // Its owner goes on with it; another is refused, also after a wait.
    ask(
        &mut server,
        &acquire(2, json!({ "names": ["x", "y"], "owner": "o", "ttl": "2h" })),
    );
    let repeated = told(&mut server, 2, "result");
    assert_eq!(repeated["hold"], acquired["hold"]);
    assert_eq!(
        (&acquired["repeated"], &repeated["repeated"]),
        (&Value::Null, &json!(true))
    );
    for (id, wait, code) in [(3, "0", "LOCKED"), (4, "0.1", "TIMEOUT")] {
        ask(
            &mut server,
            &acquire(id, json!({ "names": ["x"], "wait": wait })),
        );
        let mut line = next(&mut server, id);
        if line["event"] == "waiting" {
            assert_eq!(line["position"], 1);
            line = next(&mut server, id);
        }
        assert_eq!(
            (&line["event"], &line["error"]["code"]),
            (&json!("result"), &json!(code)),
            "{line}"
        );
    }
    assert_eq!(server.end(), 0);
    assert_eq!(env.check("x"), 6);
    let number = acquired["hold"].to_string();
    env.done(["release", "x", "--hold", &number]);
    assert_eq!(env.check("y"), 0);
}

#[test]
fn request_acquires_a_lease_or_for_a_process_that_it_names() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    // In a format without leases a hold needs a process, as it does without a time: by default the program.
    let own = std::process::id();
    for (names, more, code, warnings) in [
        (json!(["x"]), json!({ "ttl": null }), Value::Null, 0),
        (
            json!([]),
            json!({ "profile": "memory", "ttl": "20s" }),
            Value::Null,
            1,
        ),
        (
            json!(["z"]),
            json!({ "pid": own, "ttl": null }),
            Value::Null,
            0,
        ),
        (json!(["x"]), json!({ "ttl": null }), json!("LOCKED"), 1),
    ] {
        let mut request = json!({ "id": 5, "command": "acquire", "names": names, "ttl": "1h" });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        ask(&mut server, &request);
        let answer = told(&mut server, 5, "result");
        assert_eq!(answer["error"]["code"], code, "{request}");
        let errors = answer["errors"].as_array().unwrap();
        assert_eq!(errors.len(), warnings, "{answer}");
    }
    for name in ["x", "z"] {
        assert_eq!(env.lock(name)["pid"], own);
    }
    assert_eq!(server.end(), 0);
    assert_eq!(env.check("z"), 6);
    let mut server = Hold::start(env.onehold(["hold", "--serve", "--die-with", "none"]));
    ask(
        &mut server,
        &json!({ "id": 6, "command": "acquire", "names": ["w"] }),
    );
    assert_eq!(told(&mut server, 6, "result")["error"]["code"], "USAGE");
    assert_eq!(server.end(), 0);
}

#[test]
fn wait_for_a_lease_is_canceled_and_the_next_of_eight_waiters_acquires_it() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut server = serve(&env);
    for id in 0..CONTENDERS as u64 {
        let request =
            json!({ "id": id, "command": "acquire", "names": ["x"], "ttl": "1h", "wait": "1h" });
        ask(&mut server, &request);
        let line = told(&mut server, id, "waiting");
        assert_eq!(line["position"], id + 1);
    }
    for (id, command) in [(0, "cancel"), (1, "release")] {
        ask(&mut server, &json!({ "id": id, "command": command }));
        let failed = told(&mut server, id, "result");
        assert_eq!(failed["error"]["code"], "INTERRUPTED");
    }
    env.end();
    holder.finish();
    let acquired = told(&mut server, 2, "result");
    assert_eq!(acquired["lock"]["kind"], "lease");
    assert_eq!(env.lock("x")["hold"], acquired["hold"]);
    // The others end with the server, and the lease stays.
    assert_eq!(server.end(), 0);
    wait_until("nobody waits", || env.number_of_waiters("x") == 0);
    assert_eq!(env.lock("x")["hold"], acquired["hold"]);
}

#[test]
fn hold_that_is_released_by_its_name_has_ended_by_a_request() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let held = hold(&mut server, 1, "x");
    env.onehold(["renew", "x", "--hold", &held["hold"].to_string()])
        .assert()
        .code(4)
        .stderr(contains("`hold` keeps its own hold alive"));
    ask(
        &mut server,
        &json!({ "id": 2, "command": "hold", "names": ["y", "z"], "owner": "o" }),
    );
    told(&mut server, 2, "held");
    for id in 10..10 + CONTENDERS as u64 {
        hold(&mut server, id, &format!("other{id}"));
    }
    for (id, request) in [
        (1, json!({ "names": ["x"], "hold": held["hold"] })),
        (2, json!({ "names": ["z"], "owner": "o" })),
    ] {
        let mut request = request;
        request["id"] = 3.into();
        request["command"] = "release".into();
        ask(&mut server, &request);
        assert_eq!(told(&mut server, 3, "result")["success"], true);
        assert_eq!(told(&mut server, id, "released")["reason"], "request");
        // It is free, and so is the id.
        hold(&mut server, id, "x");
        release(&mut server, id);
    }
    for id in 10..10 + CONTENDERS as u64 {
        release(&mut server, id);
    }
    assert_eq!(server.end(), 0);
    assert_eq!(server.line(), "");
    assert!(env.left_in_store().is_empty());
}

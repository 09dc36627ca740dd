//! What a request says: its store, its caller, and what is wrong with it.

use super::*;

#[test]
fn each_request_has_its_own_store_profile_format_and_directory() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    for directory in ["one", "two"] {
        std::fs::create_dir(env.path(directory)).unwrap();
    }
    let (one, two) = (env.path("one"), env.path("two"));
    let other = env.path("other");
    let cases = [
        (json!({ "names": ["x"] }), "store/x.lock"),
        (json!({ "names": ["x"], "dir": other }), "other/x.lock"),
        (
            json!({ "names": ["x"], "dir": "sub", "cwd": one }),
            "one/sub/x.lock",
        ),
        (json!({ "names": ["./p"], "cwd": one }), "one/p"),
        (
            json!({ "names": ["./p"], "cwd": two, "format": "pid" }),
            "two/p",
        ),
        (
            json!({ "profile": "sprint", "owner": "o", "message": "m", "cwd": one }),
            "one/.sprint-running",
        ),
        (
            json!({ "names": ["-x"], "message": "-m", "max_age": 5, "shared": false }),
            "store/-x.lock",
        ),
    ];
    for (id, (mut request, file)) in cases.into_iter().enumerate() {
        request["id"] = id.into();
        request["command"] = "hold".into();
        ask(&mut server, &request);
        let held = told(&mut server, id as u64, "held");
        let found = std::path::Path::new(held["file"].as_str().unwrap());
        let components: std::path::PathBuf = found.components().collect();
        assert_eq!(components, env.path(file), "{request}");
        assert!(env.path(file).exists());
    }
    let record = std::fs::read_to_string(env.path("store/-x.lock")).unwrap();
    assert!(record.contains(r#""message": "-m""#), "{record}");
    assert_eq!(server.end(), 0);
    assert!(!env.path("two/p").exists() && !env.path("one/.sprint-running").exists());
}

#[test]
fn wait_of_a_caller_for_what_it_holds_itself_is_refused_at_once() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let request = |id: u64, caller: u64| json!({ "id": id, "command": "hold", "names": ["x"], "wait": "forever", "caller": caller });
    ask(&mut server, &request(1, 7));
    told(&mut server, 1, "held");
    ask(&mut server, &request(2, 7));
    let failed = told(&mut server, 2, "failed");
    assert_eq!(failed["error"]["code"], "LOCKED");
    let message = failed["message"].as_str().unwrap();
    assert!(
        message.starts_with("the caller itself holds it: `x` is held by "),
        "{message}"
    );
    ask(&mut server, &request(3, 8));
    told(&mut server, 3, "waiting");
    release(&mut server, 1);
    told(&mut server, 3, "held");
    assert_eq!(server.end(), 0);
}

#[test]
fn callers_that_run_in_others_are_refused_what_these_hold() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let request = |id: u64, command: &str, callers: Value| {
        json!({
            "id": id, "command": command, "names": ["x"], "wait": "forever", "ttl": "1h", "caller": callers,
        })
    };
    ask(&mut server, &request(1, "hold", json!([1, 2])));
    told(&mut server, 1, "held");
    for (id, command, event, callers) in [
        (2, "hold", "failed", json!(2)),
        (3, "hold", "failed", json!([1, 2, 3])),
        (4, "acquire", "result", json!([2, 4])),
    ] {
        ask(&mut server, &request(id, command, callers));
        let failed = told(&mut server, id, event);
        assert_eq!(failed["error"]["code"], "LOCKED");
        let message = failed["message"].as_str().unwrap();
        assert!(
            message.starts_with("the caller itself holds it: "),
            "{message}"
        );
    }
    // What only runs in the same one waits.
    for (id, callers) in [(5, json!([1, 5])), (6, json!(1)), (7, json!([]))] {
        ask(&mut server, &request(id, "hold", callers));
        told(&mut server, id, "waiting");
    }
    assert_eq!(server.end(), 0);
}

#[test]
fn lease_that_goes_beside_what_the_caller_holds_is_acquired() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let cases = [
        ("x", "x", json!({ "shared": true }), Value::Null),
        ("s", "s", json!({ "slots": 2 }), Value::Null),
        ("p", "p/child", json!({ "owner": "o" }), Value::Null),
        ("q", "q/child", json!({}), json!("LOCKED")),
    ];
    for (id, (held, wanted, more, code)) in (0..).zip(cases) {
        let mut request = json!({ "id": 2 * id, "command": "hold", "names": [held], "wait": "forever", "caller": 7 });
        let more = more.as_object().unwrap();
        request.as_object_mut().unwrap().extend(more.clone());
        ask(&mut server, &request);
        told(&mut server, 2 * id, "held");
        request["id"] = (2 * id + 1).into();
        request["command"] = "acquire".into();
        request["names"] = json!([wanted]);
        request["ttl"] = "1h".into();
        ask(&mut server, &request);
        let answer = told(&mut server, 2 * id + 1, "result");
        assert_eq!(answer["error"]["code"], code, "{request}");
    }
    assert_eq!(server.end(), 0);
}

#[test]
fn line_that_is_too_long_is_discarded_and_ends_no_hold() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    hold(&mut server, 1, "x");
    for length in [(1 << 20) + 1, 3 << 20] {
        let stdin = server.stdin.as_mut().unwrap();
        writeln!(stdin, "{}", "a".repeat(length)).unwrap();
        let failed = server.event("failed");
        assert_eq!(failed["id"], Value::Null);
        assert_eq!(failed["message"], "a request has at most 1 MiB");
        hold(&mut server, 2, "y");
        release(&mut server, 2);
    }
    assert_eq!(env.check("x"), 6);
    release(&mut server, 1);
    assert_eq!(server.end(), 0);
    assert_eq!(server.line(), "");
}

#[test]
fn option_that_may_be_repeated_has_an_array() {
    let env = TestEnv::new();
    std::fs::create_dir_all(env.path("repo/.git/objects")).unwrap();
    std::fs::create_dir_all(env.path("repo/.git/refs")).unwrap();
    env.write("repo/.git/HEAD", "ref: refs/heads/main");
    let mut command = env.onehold(["hold", "--serve"]);
    command
        .current_dir(env.path("repo"))
        .env_remove("ONEHOLD_DIR");
    let mut server = Hold::start(command);
    ask(
        &mut server,
        &json!({ "id": 1, "command": "hold", "path": ["a", "b/c"] }),
    );
    told(&mut server, 1, "held");
    for name in ["files.d/a.lock", "files.d/b.d/c.lock"] {
        assert!(env.path(&format!("repo/.git/onehold/{name}")).exists());
    }
    assert_eq!(server.end(), 0);
}

#[test]
fn what_is_no_request_is_answered_and_the_next_one_is_served() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    for (line, id, says) in [
        ("", Value::Null, "a request is one JSON object"),
        ("[1]", Value::Null, "a request is one JSON object"),
        ("\u{fffd}{", Value::Null, "a request is one JSON object"),
        (r#"{"id":1}"#, json!(1), "command is missing"),
        (
            r#"{"id":1,"command":"hold","names":"x"}"#,
            json!(1),
            "names must be an array of strings",
        ),
        (
            r#"{"id":1,"command":"hold","names":["x"],"wait":["1s"]}"#,
            json!(1),
            "invalid value for `wait`",
        ),
        (
            r#"{"id":1,"command":"hold","names":["x"],"path":["y"]}"#,
            json!(1),
            "`path` cannot be used with `names`",
        ),
        (
            r#"{"id":1,"command":"hold","names":["x"],"max_age":"soon"}"#,
            json!(1),
            "invalid value 'soon' for `max_age`",
        ),
        (
            r#"{"id":-1,"command":"hold"}"#,
            Value::Null,
            "id must be a whole number from 0",
        ),
        (
            r#"{"id":1,"command":"list"}"#,
            json!(1),
            "unknown command `list`",
        ),
        (
            r#"{"id":1,"command":"run","names":["x"]}"#,
            json!(1),
            "unknown command `run`",
        ),
        (
            r#"{"id":1,"command":"hold","force":true}"#,
            json!(1),
            "unknown option `force`",
        ),
        (
            r#"{"id":1,"command":"hold","names":["x"],"wait":[]}"#,
            json!(1),
            "invalid value for `wait`",
        ),
        (
            r#"{"id":1,"command":"hold","names":["x"],"wait":"soon"}"#,
            json!(1),
            "invalid value 'soon' for `wait`",
        ),
        (
            r#"{"id":1,"command":"hold","names":["a//b"]}"#,
            json!(1),
            "invalid value 'a//b' for `names`",
        ),
        (r#"{"id":1,"command":"hold"}"#, json!(1), "missing NAME"),
        (
            r#"{"id":1,"command":"hold","names":["x"],"cwd":"/none"}"#,
            json!(1),
            "cannot enter `/none`",
        ),
        (
            r#"{"id":1,"command":"release"}"#,
            json!(1),
            "request 1 holds nothing",
        ),
    ] {
        writeln!(server.stdin.as_mut().unwrap(), "{line}").unwrap();
        let failed = server.event("failed");
        assert_eq!(failed["id"], id, "{line}");
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains(says), "{line}: {message}");
    }
    hold(&mut server, 1, "x");
    ask(
        &mut server,
        &json!({ "id": 1, "command": "hold", "names": ["y"] }),
    );
    assert_eq!(server.event("failed")["message"], "id 1 is in use");
    assert_eq!(server.end(), 0);
    for line in [&["x"][..], &["-w", "1"], &["--reentrant"]] {
        assert_eq!(
            env.code([&["hold", "--serve"], line].concat()),
            2,
            "{line:?}"
        );
    }
}

#[test]
fn line_that_cannot_be_read_is_answered_with_its_id() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    for (line, id, says) in [
        (r#"{"id":1,"id":2}"#, json!(2), "command is missing"),
        // Half of a character, and a number that no computer has.
        (
            r#"{"id":1,"command":"hold","names":["\ud800"]}"#,
            json!(1),
            "a request is one JSON object: ",
        ),
        (
            r#"{"command":"hold","names":[],"x":{"y":"\udc00z"},"id":1}"#,
            json!(1),
            "a request is one JSON object: ",
        ),
        (
            r#"{"id":1,"command":"hold","wait":1e999}"#,
            json!(1),
            "a request is one JSON object: ",
        ),
        (
            r#"{"id":1,"names":["\ud800"]"#,
            Value::Null,
            "a request is one JSON object",
        ),
    ] {
        writeln!(server.stdin.as_mut().unwrap(), "{line}").unwrap();
        let failed = server.event("failed");
        assert_eq!(failed["id"], id, "{line}");
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains(says), "{line}: {message}");
    }
    hold(&mut server, 1, "x");
    assert_eq!(server.end(), 0);
}

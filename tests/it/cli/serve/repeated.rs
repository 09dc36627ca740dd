//! Requests that are the same as the one before, as the clients write them: what has changed meanwhile is seen.

use super::*;

/// The same request of a caller. Not by `json!`, which sorts the keys.
fn again(server: &mut Hold, id: u64, caller: u64) {
    let stdin = server.stdin.as_mut().unwrap();
    let rest = r#""command":"hold","names":["x"],"wait":"forever""#;
    writeln!(stdin, r#"{{"id":{id},"caller":{caller},{rest}}}"#).unwrap();
}

#[test]
fn changed_configuration_and_replaced_store_are_those_of_the_next_request() {
    let env = TestEnv::new();
    let config = env.path("config.toml");
    std::fs::write(&config, "").unwrap();
    let mut command = env.onehold(["hold", "--serve"]);
    command.env("ONEHOLD_CONFIG", &config);
    let mut server = Hold::start(command);
    let mut number = 0;
    let mut ids = 0..;
    let mut taken = |server: &mut Hold| {
        let id = ids.next().unwrap();
        again(server, id, 7);
        let line = next(server, id);
        if line["event"] == "held" {
            let held = line["hold"].as_u64().unwrap();
            assert!(held > number, "{line}");
            number = held;
            assert!(env.path("store/x.lock").exists());
            release(server, id);
            assert!(!env.path("store/x.lock").exists());
        }
        line
    };
    for _ in 0..3 {
        assert_eq!(taken(&mut server)["event"], "held");
        for (text, expected) in [("wait = 5\n", "failed"), ("[defaults]\n", "held")] {
            std::fs::write(&config, text).unwrap();
            assert_eq!(taken(&mut server)["event"], expected, "{text}");
        }
        std::fs::rename(&config, env.path("aside")).unwrap();
        assert_eq!(taken(&mut server)["event"], "failed");
        std::fs::rename(env.path("aside"), &config).unwrap();
        assert_eq!(taken(&mut server)["event"], "held");
    }
    let (store, aside) = (env.path("store"), env.path("other"));
    std::fs::rename(&store, &aside).unwrap();
    std::fs::create_dir(&store).unwrap();
    again(&mut server, 1000, 7);
    told(&mut server, 1000, "held");
    assert!(env.path("store/x.lock").exists() && !env.path("other/x.lock").exists());
    assert_eq!(env.check("x"), 6);
    assert_eq!(server.end(), 0);
}

#[test]
fn caller_and_id_are_those_of_the_line() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    for id in 1..4 {
        again(&mut server, id, id);
        told(&mut server, id, "held");
        release(&mut server, id);
    }
    again(&mut server, 4, 7);
    told(&mut server, 4, "held");
    again(&mut server, 5, 7);
    let failed = told(&mut server, 5, "failed");
    let message = failed["message"].as_str().unwrap();
    assert!(
        message.starts_with("the caller itself holds it: "),
        "{message}"
    );
    again(&mut server, 6, 8);
    told(&mut server, 6, "waiting");
    again(&mut server, 6, 9);
    let failed = told(&mut server, 6, "failed");
    assert_eq!(failed["message"], "id 6 is in use");
    release(&mut server, 4);
    told(&mut server, 6, "held");
    release(&mut server, 6);
    // The last one of a key counts.
    for _ in 0..2 {
        let line = r#"{"id":10,"caller":7,"command":"hold","names":["x"],"\u0069d":11,"caller":8}"#;
        writeln!(server.stdin.as_mut().unwrap(), "{line}").unwrap();
        told(&mut server, 11, "held");
        release(&mut server, 11);
    }
    assert_eq!(server.end(), 0);
}

//! Clients in other languages.

use super::*;

/// Eight processes of a client in another language increment a number.
fn increment_by(words: &[&str]) {
    let env = TestEnv::new();
    std::fs::write(env.path("number"), "0").unwrap();
    let (program, number) = (program(), env.path("number"));
    let mut clients: Vec<Running> = (0..CONTENDERS)
        .map(|_| {
            let (first, rest) = words.split_first().unwrap();
            let mut client = env.command(first);
            client.args(rest).arg(&program).arg(&number).arg("20");
            Running::start(client)
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.finish(), 0);
    }
    assert_eq!(env.count_in("number"), CONTENDERS * 20);
    assert!(env.left_in_store().is_empty());
}

fn client(file: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/examples/serve/");
    format!("{directory}{file}")
}

#[test]
fn clients_in_other_languages_have_at_most_40_lines() {
    for file in ["lock.pl", "lock.rb", "lock.go"] {
        let lines = std::fs::read_to_string(client(file))
            .unwrap()
            .lines()
            .count();
        assert!((20..=40).contains(&lines), "{file}: {lines}");
    }
}

#[test]
fn client_in_perl_increments_a_number() {
    increment_by(&["perl", &client("lock.pl")]);
}

#[test]
#[ignore = "needs ruby: apt install ruby"]
fn client_in_ruby_increments_a_number() {
    increment_by(&["ruby", "-w", &client("lock.rb")]);
}

#[test]
#[ignore = "needs go: apt install golang-go"]
fn client_in_go_increments_a_number() {
    let directory = tempfile::tempdir().unwrap();
    let built = directory.path().join("lock");
    let mut compiler = std::process::Command::new("go");
    compiler.args(["build", "-o"]).arg(&built);
    compiler.args([client("lock.go"), client("increment.go")]);
    compiler.env("GOCACHE", directory.path().join("cache"));
    assert!(compiler.status().unwrap().success());
    increment_by(&[built.to_str().unwrap()]);
}

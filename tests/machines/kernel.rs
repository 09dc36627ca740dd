//! The oldest kernel that Debian's archive has.

use std::path::PathBuf;

use crate::harness::machine::{Kernel, Plan};
use crate::harness::{example, program};

/// Contenders, and increments of each.
const CONTENDERS: usize = 8;
const INCREMENTS: usize = 200;

/// The tests of `tests/it`, as cargo has built them last.
fn tests() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = std::fs::read_dir(own.parent().unwrap()).unwrap();
    let built = built.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("it-") && path.extension().is_none()
    });
    let newest = built.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("run `cargo test --no-run --test it`")
}

#[test]
#[ignore = "starts a machine, for minutes"]
fn oldest_kernel_passes_the_portable_tests_and_loses_no_increment() {
    let programs = [("it", tests()), ("examples/programs", example("programs"))];
    let mut machine = Plan::with(Kernel::Oldest, &programs).start("oldest");
    let kernel = machine.output("uname -r");
    assert!(kernel.starts_with("5.10."), "{kernel}");

    // Where the tests were built, they look for the program.
    let place = program().parent().unwrap().display().to_string();
    machine.output(&format!(
        "mkdir -p {place}; ln -s /run/program/onehold /run/program/examples {place}"
    ));
    let tested =
        machine.run("cd /tmp && RUST_BACKTRACE=0 /run/program/it portable:: --test-threads 2");
    assert_eq!(tested.code, 0, "{}", tested.output);

    let count = "n=$(cat count); echo $((n + 1)) > count";
    machine.begin(&format!(
        "cd /tmp; mkdir store; echo 0 > count; for i in $(seq {CONTENDERS}); do (for j in $(seq {INCREMENTS}); do \
            onehold run -q -w forever x -- sh -c '{count}' || echo failed; echo; done) & done; wait"
    ));
    let code = loop {
        match machine.next() {
            Ok(line) => assert_eq!(line, ""),
            Err(code) => break code,
        }
    };
    assert_eq!(code, 0);
    let counted = machine.output("cat /tmp/count");
    assert_eq!(counted.trim(), (CONTENDERS * INCREMENTS).to_string());
    let result = tested
        .output
        .lines()
        .find(|line| line.starts_with("test result"));
    println!(
        "Linux {}: {}, {} increments",
        kernel.trim(),
        result.unwrap(),
        counted.trim()
    );
}

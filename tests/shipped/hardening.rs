//! What a security review of the shipped binary looks for.

use std::process::Stdio;

use super::map;
use super::order::directory_of;
use super::{harness, installed, onehold, shipped, used_store};

/// Type and flags of the program headers, and their addresses.
fn segments() -> Vec<(u32, u32, std::ops::Range<u64>)> {
    let program = std::fs::read(shipped()).unwrap();
    let number = |at: usize, length: usize| {
        let bytes = program[at..at + length].iter().rev();
        bytes.fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    // elf(5): e_phoff, e_phnum; p_type, p_flags, p_vaddr, p_memsz.
    let (table, count) = (number(32, 8), number(56, 2));
    let header = |index: u64| {
        let at = usize::try_from(table + 56 * index).unwrap();
        let [kind, flags] = [at, at + 4].map(|at| u32::try_from(number(at, 4)).unwrap());
        let begin = number(at + 16, 8);
        (kind, flags, begin..begin + number(at + 40, 8))
    };
    (0..count).map(header).collect()
}

#[test]
#[ignore = "needs the shipped binary, which takes minutes to build: ONEHOLD_SHIPPED"]
fn shipped_binary_executes_its_code_alone_and_writes_nothing_else_than_its_data() {
    const WRITABLE: u32 = 2;
    const EXECUTABLE: u32 = 1;
    let segments = segments();
    for (kind, flags, range) in &segments {
        let both = WRITABLE | EXECUTABLE;
        assert_ne!(flags & both, both, "{kind:x} {range:x?}");
    }
    // The stack says so in a header of its own.
    let stack = segments
        .iter()
        .find(|(kind, ..)| *kind == libc::PT_GNU_STACK);
    assert_eq!(stack.map(|(_, flags, _)| flags & EXECUTABLE), Some(0));
    let apart = segments
        .iter()
        .find(|(kind, ..)| *kind == libc::PT_GNU_RELRO);
    let (.., apart) = apart.expect("RELRO");

    let (env, _held) = used_store();
    let mut waiting = onehold(&env, "run x -- cat");
    let mut running = waiting.stdin(Stdio::piped()).spawn().unwrap();
    let maps = format!("/proc/{}/maps", running.id());
    harness::wait_until("the lock is held", || {
        onehold(&env, "check -q x").status().unwrap().code() == Some(6)
    });
    let maps = std::fs::read_to_string(maps).unwrap();
    drop(running.stdin.take());
    running.wait().unwrap();
    let is_of_program = |line: &&str| line.ends_with(installed().to_str().unwrap());
    let mut code = 0;
    for line in maps.lines().filter(is_of_program) {
        let (range, rest) = line.split_once(' ').unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|digits| u64::from_str_radix(digits, 16).unwrap());
        let is_apart = begin < apart.end && apart.start < end;
        assert!(
            !is_apart || rest.starts_with("r--p"),
            "not read-only: {line}"
        );
        if rest.starts_with("r-xp") {
            code += end - begin;
        }
    }
    // With the constants it would be a quarter more.
    let functions = map::read(&directory_of("x86_64-unknown-linux-musl"));
    let functions: u64 = functions.iter().map(|placed| placed.size).sum();
    assert!(
        code < functions + functions / 16,
        "{code} bytes are executable, {functions} are code\n{maps}"
    );
}

#[test]
#[ignore = "needs the shipped binary, which takes minutes to build: ONEHOLD_SHIPPED"]
fn c_code_of_dependencies_has_a_stack_protector() {
    let functions = map::read(&directory_of("x86_64-unknown-linux-musl"));
    let has = |name: &str| functions.iter().any(|placed| placed.input.contains(name));
    assert!(has("__stack_chk_fail"));
}

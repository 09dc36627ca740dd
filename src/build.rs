//! What makes the released program start fast, for every way of building it: the linker puts the functions of everyday
//! calls side by side, and on Linux the program has a fixed address, so that it need not correct its own pointers first.
//! `hot-functions.ld` is written by `tests/shipped/order.rs`. The library is compiled as always.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    println!("cargo::rerun-if-changed=src/hot-functions.ld");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|found| found == value);
    // A target for development is linked as fast as possible.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        link();
    }
}

fn link() {
    let of = |variable: &str| env::var(variable).unwrap_or_default();
    let flags = of("CARGO_ENCODED_RUSTFLAGS");
    let flags: Vec<&str> = flags.split('\x1f').collect();
    let of_flags = |name| {
        flags
            .iter()
            .filter_map(move |flag| flag.trim_start_matches("-C").strip_prefix(name))
    };
    let (configured, out) = (of("RUSTC_LINKER"), PathBuf::from(of("OUT_DIR")));
    let linker = of_flags("linker=")
        .next_back()
        .or(Some(&configured))
        .filter(|linker| !linker.is_empty());
    let order = format!("-T{}/src/hot-functions.ld", of("CARGO_MANIFEST_DIR"));
    // What comes with Rust: it compiles nothing, so it cannot be tried, and it understands the order.
    if linker.is_some_and(|linker| linker.contains("rust-lld")) {
        pass_on(&order);
        return;
    }
    let compiler = Compiler {
        program: linker.unwrap_or("cc"),
        arguments: of_flags("link-arg=")
            .chain(of_flags("link-args=").flat_map(str::split_whitespace))
            .collect(),
        out: &out,
    };
    if !compiler.links(&[&order]) {
        return;
    }
    pass_on(&order);
    // What is static is begun as rustc chooses it.
    if of("CARGO_CFG_TARGET_FEATURE")
        .split(',')
        .any(|feature| feature == "crt-static")
    {
        return;
    }
    if !flags.iter().any(|flag| flag.contains("relocation-model")) {
        pass_on("-no-pie");
    }
    if compiler.links(&["-lgcc_eh", "-lgcc"]) {
        // A shared library less to load: rustc names the shared one, and the linker takes the first of that name.
        if std::fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").is_ok() {
            pass_on(&format!("-L{}", out.display()));
        }
    }
}

/// What rustc has link the program.
struct Compiler<'a> {
    program: &'a str,
    arguments: Vec<&'a str>,
    out: &'a Path,
}

impl Compiler<'_> {
    /// Whether it links a library of nothing with these arguments: not each linker has each of them.
    fn links(&self, arguments: &[&str]) -> bool {
        let tried = Command::new(self.program)
            .args(&self.arguments)
            .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"])
            .arg(self.out.join("tried"))
            .args(arguments)
            .output();
        tried.is_ok_and(|tried| tried.status.success())
    }
}

fn pass_on(argument: &str) {
    println!("cargo::rustc-link-arg-bin=onehold={argument}");
}

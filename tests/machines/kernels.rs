//! Kernels of other releases, and another processor: the portable tests, and increments beside innocents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::machine::{Kernel, Machine, Package, Plan};

const DEBIAN: &[&str] = &[
    "http://deb.debian.org/debian",
    "http://archive.debian.org/debian",
];
const UBUNTU: &[&str] = &[
    "http://archive.ubuntu.com/ubuntu",
    "http://old-releases.ubuntu.com/ubuntu",
];

const BUSYBOX: Package = Package {
    servers: DEBIAN,
    path: "pool/main/b/busybox/busybox-static_1.30.1-6+b3_amd64.deb",
    sha256: "8ce5bf3d1c6dbb964325e99f319e40cd8e0e995323481942080bd17d5d5acf89",
};

static LINUX_4_4: Kernel = Kernel {
    version: "4.4.",
    processor: "x86_64",
    packages: &[Package {
        servers: UBUNTU,
        path: "pool/main/l/linux/linux-image-4.4.0-21-generic_4.4.0-21.37_amd64.deb",
        sha256: "be0b48760d001839a8625e8de33011700a495255e3b258511ec4ffdab43c06ff",
    }],
    busybox: BUSYBOX,
};

static LINUX_4_15: Kernel = Kernel {
    version: "4.15.",
    processor: "x86_64",
    packages: &[
        Package {
            servers: UBUNTU,
            path: "pool/main/l/linux-signed/linux-image-4.15.0-20-generic_4.15.0-20.21_amd64.deb",
            sha256: "b92991dc7c21f0212978f17e043d32a7551fc12dd1d9365434f803a25cd1adf8",
        },
        Package {
            servers: UBUNTU,
            path: "pool/main/l/linux/linux-modules-4.15.0-20-generic_4.15.0-20.21_amd64.deb",
            sha256: "c829da8d8fc3f4941ee7f2972b5c932bf728279c49cad0836a48238cb2875217",
        },
    ],
    busybox: BUSYBOX,
};

static LINUX_5_10: Kernel = Kernel {
    version: "5.10.",
    processor: "x86_64",
    packages: &[Package {
        servers: DEBIAN,
        path: "pool/main/l/linux-signed-amd64/linux-image-5.10.0-32-cloud-amd64_5.10.223-1_amd64.deb",
        sha256: "fb4a1229952d892138532c1d9f40a7fd0bd408e4dcf969c12e4524b6a89fdcb8",
    }],
    busybox: BUSYBOX,
};

static LINUX_5_10_ON_AARCH64: Kernel = Kernel {
    version: "5.10.",
    processor: "aarch64",
    packages: &[Package {
        servers: DEBIAN,
        path: "pool/main/l/linux-signed-arm64/linux-image-5.10.0-32-cloud-arm64_5.10.223-1_arm64.deb",
        sha256: "1b79a526115ffed1262a3bcb127e9596a6849ad4acc31aacbef93db0c9cf7352",
    }],
    busybox: Package {
        servers: DEBIAN,
        path: "pool/main/b/busybox/busybox-static_1.30.1-6+b3_arm64.deb",
        sha256: "2b27ce9bb8e88f5e30a884397b193420f633dcba1c263e820a0e8f8865bd576c",
    },
};

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn portable_tests_pass_on_linux_4_4() {
    pass_portable_tests(&LINUX_4_4);
}

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn portable_tests_pass_on_linux_4_15() {
    pass_portable_tests(&LINUX_4_15);
}

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn no_increment_is_lost_on_linux_4_15() {
    lose_no_increment(&LINUX_4_15);
}

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn portable_tests_pass_on_linux_5_10() {
    pass_portable_tests(&LINUX_5_10);
}

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn no_increment_is_lost_on_linux_5_10() {
    lose_no_increment(&LINUX_5_10);
}

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn portable_tests_pass_on_aarch64() {
    pass_portable_tests(&LINUX_5_10_ON_AARCH64);
}

#[test]
#[ignore = "builds static programs and starts a machine, for minutes"]
fn no_increment_is_lost_on_aarch64() {
    lose_no_increment(&LINUX_5_10_ON_AARCH64);
}

/// A static program and the tests of it, with what they start, as they are in a directory of cargo.
struct Programs {
    /// Where the tests look for the others.
    built_in: PathBuf,
    copies: TempDir,
}

impl Programs {
    fn build(processor: &str) -> Self {
        let target = format!("{processor}-unknown-linux-musl");
        cargo(&target, &["build", "--bins", "--example", "programs"]);
        let messages = cargo(&target, &["test", "--no-run", "--test", "it"]);
        let tests = messages.lines().find_map(|line| {
            let message: Value = serde_json::from_str(line).unwrap();
            let is_tests = message["target"]["name"] == "it";
            is_tests.then(|| PathBuf::from(message["executable"].as_str().unwrap()))
        });
        let tests = tests.unwrap();
        let built_in = tests.ancestors().nth(2).unwrap().to_owned();
        let copies = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(copies.path().join("examples")).unwrap();
        let copy = |from: &Path, to: &str| fs::copy(from, copies.path().join(to)).unwrap();
        copy(&tests, "it");
        copy(&built_in.join("examples/programs"), "examples/programs");
        let shipped = std::env::var_os("MACHINES_SHIPPED").map(|directory| {
            let build = format!("{target}/{target}/release/onehold");
            Path::new(&directory).join(build)
        });
        copy(
            &shipped.unwrap_or_else(|| built_in.join("onehold")),
            "onehold",
        );
        Self { built_in, copies }
    }
}

/// Returns what cargo says of each thing that it has built.
fn cargo(target: &str, arguments: &[&str]) -> String {
    // The cryptography of TLS is assembled: by the compiler of the processor, for whatever C library.
    let compiler = match target.split('-').next().unwrap() {
        std::env::consts::ARCH => "cc".to_owned(),
        processor => format!("{processor}-linux-gnu-gcc"),
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo
        .args(arguments)
        .args(["--quiet", "--locked", "--features", "etcd,postgres"])
        .args(["--message-format", "json", "--target", target])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env(format!("CC_{}", target.replace('-', "_")), compiler);
    let output = cargo.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command to its end, for as long as it prints something now and then.
fn print(machine: &mut Machine, command: &str) -> i32 {
    machine.begin(&format!("{{ {command}; }} 2>&1"));
    loop {
        match machine.next() {
            Ok(line) => println!("{line}"),
            Err(code) => return code,
        }
    }
}

/// A machine of two processors, with an ext4 on /tmp.
fn machine(kernel: &'static Kernel, programs: &Programs) -> Machine {
    let mut plan = Plan::of(kernel, programs.copies.path());
    plan.options
        .extend(["-smp", "2", "-m", "512"].map(str::to_owned));
    plan.add_disk("disk");
    let mut machine = plan.start("kernel");
    let release = machine.output("uname -rm");
    println!("{release}");
    assert!(release.starts_with(kernel.version), "{release}");
    machine.output("mke2fs -F /dev/vdb && mount -t ext4 /dev/vdb /tmp && mkdir /tmp/store");
    machine
}

fn pass_portable_tests(kernel: &'static Kernel) {
    let programs = Programs::build(kernel.processor);
    let mut machine = machine(kernel, &programs);
    let directory = programs.built_in.display();
    machine.output(&format!(
        "mkdir -p {directory} && mount --bind /run/program {directory}"
    ));
    // One at a time: some say what a command has to do within a second.
    let tests = format!("{directory}/it portable:: --test-threads 1");
    assert_eq!(print(&mut machine, &tests), 0);
}

/// Eight shells increment a number 200 times each, beside a command and a lease that hold other locks.
fn lose_no_increment(kernel: &'static Kernel) {
    let machine = &mut machine(kernel, &Programs::build(kernel.processor));
    machine.output(
        "onehold run innocent -- sh -c 'while :; do echo beat >> /tmp/beats; sleep 0.2; done' >/dev/null 2>&1 & \
         while ! [ -s /tmp/beats ]; do sleep 0.1; done",
    );
    machine.output("onehold acquire --ttl 1h --owner me lease");
    let innocents = |machine: &mut Machine| {
        ["innocent", "lease"].map(|name| {
            let checked = machine.run(&format!("onehold check --json {name}"));
            let answer: Value = serde_json::from_str(&checked.output).expect(&checked.output);
            let lock = &answer["lock"];
            [lock["state"].clone(), lock["hold"].clone()]
        })
    };
    let before = innocents(machine);
    assert!(
        before.iter().all(|[state, _]| state == "held"),
        "{before:?}"
    );
    machine.output("cd /tmp && echo 0 > count");
    let work = "cd /tmp; for i in $(seq 8); do (for j in $(seq 200); do \
            onehold run -q -w forever x -- sh -c 'read n <count; echo $((n + 1)) >count' || echo failed; \
            [ $((j % 50)) != 0 ] || echo $i: $j; \
        done) & done; wait";
    let began = Instant::now();
    assert_eq!(print(machine, work), 0);
    println!("1,600 increments in {:?}", began.elapsed());
    assert_eq!(machine.output("cat /tmp/count").trim(), "1600");
    assert_eq!(innocents(machine), before);
    let beats = machine.output("wc -l < /tmp/beats");
    machine.output("sleep 1");
    assert_ne!(machine.output("wc -l < /tmp/beats"), beats);
    assert_eq!(machine.run("onehold check -q x").code, 0);
}

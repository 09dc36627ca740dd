//! A machine of its own kernel: Debian's, on a small root that debootstrap makes once, or another one with busybox.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// What the machines need beside Debian's smallest system.
const PACKAGES: &str = "linux-image-cloud-amd64,initramfs-tools,busybox,kmod,nfs-kernel-server,nfs-common,xfsprogs,\
    btrfs-progs,e2fsprogs,iproute2,procps";

/// The first process of each machine. It runs the lines that it reads, and ends each answer with the exit code. The
/// kernel passes `program` and `agent` on, as words of its command line.
const AGENT: &str = r#"#!/bin/sh
if [ -e /bin/busybox ] && ! [ -e /bin/mount ]; then /bin/busybox --install -s /bin; fi
for module in /modules/*; do if [ -e "$module" ]; then insmod "$module"; fi; done
mount -t proc proc /proc
mount -t sysfs sys /sys 2>/dev/null
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for directory in /run /tmp /dev/shm; do mount -t tmpfs tmpfs $directory; done
mkdir /run/program
mount -t ext4 -o ro "/dev/$program" /run/program
export PATH=/run/program:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ONEHOLD_DIR=/tmp/store
exec <"/dev/$agent" >"/dev/$agent" 2>&1
stty raw -echo
echo ready
while IFS= read -r line; do
    (eval "$line") </dev/null
    printf '\004%s\n' "$?"
done
"#;

/// Ends the answer to a command.
const END: u8 = 4;

/// How long an emulated machine may take for what takes a real one a moment.
const PATIENCE: Duration = Duration::from_mins(3);

/// A package of a distribution: the servers that may have it, its path there, and its SHA-256.
#[derive(Debug)]
pub struct Package {
    pub servers: &'static [&'static str],
    pub path: &'static str,
    pub sha256: &'static str,
}

impl Package {
    /// Adds its files to a directory.
    fn unpack(&self, root: &Path) {
        let file = root.with_extension("deb");
        let fetched = self.servers.iter().any(|server| {
            let mut curl = Command::new("curl");
            curl.args([
                "--silent",
                "--show-error",
                "--fail",
                "--location",
                "--output",
            ])
            .arg(&file)
            .arg(format!("{server}/{}", self.path));
            curl.status().expect("curl").success()
        });
        assert!(fetched, "{self:?}");
        let sum = Command::new("sha256sum").arg(&file).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        assert!(sum.starts_with(self.sha256), "{self:?}: {sum}");
        succeed(Command::new("dpkg").arg("-x").arg(&file).arg(root));
        fs::remove_file(file).unwrap();
    }
}

/// A kernel of another release or for another processor. Its machines have no system but busybox, in memory.
#[derive(Debug)]
pub struct Kernel {
    /// What its release begins with.
    pub version: &'static str,
    pub processor: &'static str,
    /// The kernel, and its modules where they are in another package.
    pub packages: &'static [Package],
    pub busybox: Package,
}

impl Kernel {
    /// What the kernel needs before it sees a disk, in this order, unless it is built in.
    const MODULES: [&str; 4] = [
        "virtio/virtio.ko",
        "virtio/virtio_ring.ko",
        "virtio/virtio_pci.ko",
        "block/virtio_blk.ko",
    ];
}

/// What machines start from.
struct Image {
    kernel: PathBuf,
    initrd: PathBuf,
    root: PathBuf,
}

impl Image {
    fn of(kernel: Option<&Kernel>) -> Self {
        static MAKING: Mutex<()> = Mutex::new(());
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let name = kernel.map_or("debian", |kernel| &kernel.packages[0].sha256[..16]);
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("machines")
            .join(name);
        let image = Self {
            kernel: place.join("vmlinuz"),
            initrd: place.join("initrd"),
            root: place.join("root.img"),
        };
        // What it was made from is there to be compared.
        let recipe = format!("{PACKAGES}\n{AGENT}{kernel:?}");
        let made_from = place.join("recipe");
        if !fs::read_to_string(&made_from).is_ok_and(|made| made == recipe) {
            let _ = fs::remove_dir_all(&place);
            fs::create_dir_all(&place).unwrap();
            let root = place.join("root");
            match kernel {
                Some(kernel) => image.make_of(kernel, &root),
                None => image.make(&root),
            }
            fs::write(made_from, recipe).unwrap();
        }
        image
    }

    fn make(&self, root: &Path) {
        // The release of this system: the program that is tested finds its C library.
        succeed(
            Command::new("debootstrap")
                .arg("--variant=minbase")
                .arg(format!("--include={PACKAGES}"))
                .arg(codename())
                .arg(root),
        );
        add_agent(root);
        fs::copy(only_boot_file(root, "vmlinuz-"), &self.kernel).unwrap();
        fs::copy(only_boot_file(root, "initrd.img-"), &self.initrd).unwrap();
        disk_with(root, &self.root, 1 << 30);
        fs::remove_dir_all(root).unwrap();
    }

    fn make_of(&self, kernel: &Kernel, root: &Path) {
        for directory in ["bin", "dev", "modules", "proc", "root", "run", "sys", "tmp"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        kernel.busybox.unpack(root);
        symlink("busybox", root.join("bin/sh")).unwrap();
        add_agent(root);
        let unpacked = root.with_file_name("unpacked");
        for package in kernel.packages {
            package.unpack(&unpacked);
        }
        let image = only_boot_file(&unpacked, "vmlinuz-");
        let version = image.file_name().unwrap().to_str().unwrap();
        let version = version.trim_start_matches("vmlinuz-");
        let drivers = unpacked.join(format!("lib/modules/{version}/kernel/drivers"));
        for (order, module) in Kernel::MODULES.iter().enumerate() {
            let to = root.join(format!("modules/{order}.ko"));
            if drivers.join(module).exists() {
                fs::copy(drivers.join(module), to).unwrap();
            }
        }
        fs::copy(image, &self.kernel).unwrap();
        succeed(
            Command::new("sh")
                .args(["-c", "find . | cpio --quiet -o -H newc >\"$0\""])
                .arg(&self.initrd)
                .current_dir(root),
        );
        fs::remove_dir_all(unpacked).unwrap();
        fs::remove_dir_all(root).unwrap();
    }
}

fn add_agent(root: &Path) {
    let agent = root.join("agent");
    fs::write(&agent, AGENT).unwrap();
    succeed(Command::new("chmod").arg("755").arg(agent));
}

/// The file below `boot` whose name begins so.
fn only_boot_file(root: &Path, beginning: &str) -> PathBuf {
    let names = fs::read_dir(root.join("boot")).unwrap();
    let mut paths = names.map(|entry| entry.unwrap().path());
    let path = paths.find(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(beginning)
    });
    path.unwrap_or_else(|| panic!("no {beginning} in {}", root.display()))
}

fn codename() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap();
    let line = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    line.expect("Debian").to_owned()
}

/// A disk with these files.
fn disk_with(directory: &Path, disk: &Path, bytes: u64) {
    fs::File::create(disk).unwrap().set_len(bytes).unwrap();
    succeed(
        Command::new("mkfs.ext4")
            .args(["-q", "-O", "^has_journal", "-d"])
            .arg(directory)
            .arg(disk),
    );
}

/// Runs a command that must not fail.
pub fn succeed(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What is needed to start a machine, again and again.
pub struct Plan {
    room: Rc<TempDir>,
    /// Not that of Debian.
    kernel: Option<&'static Kernel>,
    /// Options of qemu beside those of every machine.
    pub options: Vec<String>,
}

impl Plan {
    pub fn new() -> Self {
        let program = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // Without what a debugger reads, which would be most of the disk.
        succeed(
            Command::new("strip")
                .arg("-o")
                .arg(program.path().join("onehold"))
                .arg(super::program()),
        );
        Self::with(None, program.path(), 64 << 20)
    }

    /// A machine with another kernel, and with the files of a directory where the program is. They take at most 256 MiB.
    pub fn of(kernel: &'static Kernel, programs: &Path) -> Self {
        Self::with(Some(kernel), programs, 256 << 20)
    }

    fn with(kernel: Option<&'static Kernel>, programs: &Path, bytes: u64) -> Self {
        let room = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        disk_with(programs, &room.path().join("program.img"), bytes);
        Self {
            room: Rc::new(room),
            kernel,
            options: Vec::new(),
        }
    }

    /// A new disk, the next one of the machine, that loses what was not flushed when the power is cut: the table that
    /// says where a block is stays in the memory of qemu until then.
    pub fn add_disk(&mut self, name: &str) {
        let disk = self.room.path().join(name);
        succeed(
            Command::new("qemu-img")
                .args(["create", "-q", "-f", "qcow2"])
                .arg(&disk)
                .arg("2G"),
        );
        let disk = disk.to_str().unwrap();
        let drive = format!("file={disk},format=qcow2,if=virtio,cache=writeback,l2-cache-size=1M");
        self.options.extend(["-drive".to_owned(), drive]);
    }

    /// A network with this machine alone: 10.0.2.2 is the loopback of the host. See [`Machine::join_host`].
    pub fn add_host(&mut self) {
        self.options.extend(
            [
                "-netdev",
                "user,id=host",
                "-device",
                "virtio-net-pci,netdev=host",
            ]
            .map(str::to_owned),
        );
    }

    /// A network of all machines that were given the same port. See [`Machine::join`].
    pub fn add_segment(&mut self, port: u16, number: u8) {
        let device = format!("virtio-net-pci,netdev=segment,mac=52:54:00:00:00:{number:02x}");
        let segment = format!("socket,id=segment,mcast=230.0.0.1:{port},localaddr=127.0.0.1");
        self.options
            .extend(["-netdev".to_owned(), segment, "-device".to_owned(), device]);
    }

    /// As it is switched on. A name has one machine at a time.
    pub fn start(&self, name: &str) -> Machine {
        let image = Image::of(self.kernel);
        let path = |ending: &str| self.room.path().join(format!("{name}.{ending}"));
        let (socket, monitor, console) = (path("socket"), path("monitor"), path("console"));
        let drive = |file: &Path, more: &str| {
            let file = file.to_str().unwrap();
            [
                "-drive".to_owned(),
                format!("file={file},format=raw,if=virtio,{more}"),
            ]
        };
        let processor = self.kernel.map_or("x86_64", |kernel| kernel.processor);
        let (lines, options) = match processor {
            "x86_64" => ("console=ttyS0 agent=ttyS1", "-serial chardev:agent"),
            // It has one line of its own.
            _ => (
                "console=ttyAMA0 agent=ttyS0",
                "-M virt -cpu cortex-a57 -device pci-serial,chardev=agent",
            ),
        };
        let start = match self.kernel {
            Some(_) => "rdinit=/agent program=vda",
            None => "root=/dev/vda rw init=/agent program=vdb",
        };
        let mut qemu = Command::new(format!("qemu-system-{processor}"));
        qemu.args("-accel tcg -m 256 -nodefaults -display none -no-reboot".split(' '))
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initrd)
            .arg("-append")
            .arg(format!(
                "{start} {lines} quiet panic=-1 net.ifnames=0 no_timer_check"
            ));
        if self.kernel.is_none() {
            qemu.args(drive(&image.root, "snapshot=on"));
        }
        qemu.args(drive(&self.room.path().join("program.img"), "readonly=on"))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-chardev")
            .arg(format!(
                "socket,id=agent,path={},server=on,wait=off",
                socket.display()
            ))
            .args(options.split(' '))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()))
            .args(&self.options)
            .stdin(Stdio::null());
        for stale in [&socket, &monitor] {
            let _ = fs::remove_file(stale);
        }
        let process = qemu.spawn().unwrap();
        let stream = connect(&socket);
        let mut machine = Machine {
            process,
            lines: BufReader::new(stream.try_clone().unwrap()),
            stream,
            monitor,
            console,
            _room: Rc::clone(&self.room),
        };
        while machine.line() != b"ready" {}
        machine
    }
}

fn connect(socket: &Path) -> UnixStream {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert!(began.elapsed() < PATIENCE, "{}: {error}", socket.display()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a command printed, and its exit code.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub output: String,
}

/// A machine that runs. Its power is cut when it is dropped.
pub struct Machine {
    process: Child,
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    monitor: PathBuf,
    console: PathBuf,
    /// Its disks and sockets.
    _room: Rc<TempDir>,
}

impl Machine {
    /// Sends a command; [`next`](Self::next) has its lines.
    pub fn begin(&mut self, command: &str) {
        assert!(!command.contains('\n'), "{command}");
        self.stream
            .write_all(format!("{command}\n").as_bytes())
            .unwrap();
    }

    /// The next line of output, or the exit code.
    pub fn next(&mut self) -> Result<String, i32> {
        let line = self.line();
        match line.iter().position(|byte| *byte == END) {
            Some(0) => Err(String::from_utf8_lossy(&line[1..]).parse().unwrap()),
            // A command that did not end its last line.
            Some(_) => panic!("no line: {}", String::from_utf8_lossy(&line)),
            None => Ok(String::from_utf8_lossy(&line).into_owned()),
        }
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        let read = self.lines.read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            let console = fs::read(&self.console).unwrap_or_default();
            panic!(
                "the machine is silent ({read:?}): {}",
                String::from_utf8_lossy(&console)
            );
        }
        while line.last().is_some_and(u8::is_ascii_whitespace) {
            line.pop();
        }
        line
    }

    /// Runs a command to its end.
    pub fn run(&mut self, command: &str) -> Ran {
        self.begin(&format!("{{ {command}; }} 2>&1"));
        let mut output = String::new();
        loop {
            match self.next() {
                Ok(line) => {
                    output.push_str(&line);
                    output.push('\n');
                }
                Err(code) => return Ran { code, output },
            }
        }
    }

    /// What a command prints that must succeed.
    pub fn output(&mut self, command: &str) -> String {
        let ran = self.run(command);
        assert_eq!(ran.code, 0, "{command}: {}", ran.output);
        ran.output
    }

    /// Gives the machine its address on the network with the host.
    pub fn join_host(&mut self) {
        self.join("10.0.2.15");
    }

    /// Gives the machine an address on its network.
    pub fn join(&mut self, address: &str) {
        self.output(&format!(
            "modprobe virtio_net; ip link set lo up; ip link set eth0 up; ip addr add {address}/24 dev eth0"
        ));
    }

    /// Tells qemu itself something, by QMP, and returns its answer.
    pub fn command_qemu(&self, command: &str) -> String {
        let mut monitor = connect(&self.monitor);
        let mut answers = BufReader::new(monitor.try_clone().unwrap());
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        for command in ["qmp_capabilities", command] {
            writeln!(monitor, r#"{{ "execute": "{command}" }}"#).unwrap();
            answer.clear();
            while !answer.starts_with(r#"{"return""#) {
                answer.clear();
                answers.read_line(&mut answer).unwrap();
                assert!(!answer.starts_with(r#"{"error""#), "{command}: {answer}");
            }
        }
        answer
    }

    /// Returns once the machine sleeps, so that it can be woken.
    pub fn wait_until_suspended(&self) {
        super::wait_until("the machine sleeps", || {
            self.command_qemu("query-status").contains("suspended")
        });
    }

    /// As if the plug were pulled.
    pub fn cut_power(self) {
        drop(self);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

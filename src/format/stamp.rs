//! What onehold adds to a foreign record: a text of fixed length, `key=value` separated by spaces,
//! that holds what a native record says beyond the foreign keys. Its last part are the three lines
//! of a native record, as slots of fixed width that are filled in place.

use chrono::{DateTime, Utc};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::identity::{BootId, Origin, Pid, ProcessId};
use crate::record::{
    CommandSlot, Job, Kind, Line, MAX_HOLD, Record, SignOfLife, Slot, Swap, VERSION,
    has_four_digits,
};

/// The key of a JSON record that holds the stamp.
pub(super) const KEY: &str = "onehold";

/// Widths of the slots. Each ends with a space at least.
const COMMAND_WIDTH: usize = 40;
const JOB_WIDTH: usize = 40;
const LIFE_WIDTH: usize = 120;

/// What is kept of a command line, encoded.
const MOST_COMMAND: usize = 512;

/// What would end a word, a JSON string or a line, or is a separator of ours.
const RESERVED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'\\')
    .add(b'%')
    .add(b'=')
    .add(b',')
    .add(b':');

/// What a stamp makes of a record.
pub(super) enum Stamp {
    Ours(Box<Record>),
    UnknownVersion(u64),
    /// It is not that of this record, or cannot be read.
    None,
}

pub(super) fn write(record: &Record) -> String {
    let mut words = Words(format!("v={VERSION}"));
    words.add("hold", record.hold);
    words.add("kind", kind(record.kind));
    let origin = record.origin.as_ref();
    words.add("by", process(record.writer()));
    words.add("shown", super::shown_pid(record));
    words.add("since", record.acquired_at.timestamp_micros());
    if let Some(origin) = origin {
        if let Some(boot) = &origin.boot {
            let key = if boot.masked { "maskedboot" } else { "boot" };
            words.add(key, encode(&boot.id));
        }
        words.add_some("ns", origin.pid_namespace);
        words.add("at", origin.acquired_boottime_ms);
        let (device, inode) = (origin.store_device, origin.store_inode);
        words.add("store", format_args!("{device}:{inode}"));
    }
    let flags = [
        ("close", record.close),
        ("exec", record.exec),
        ("lock", record.kernel_lock),
    ];
    for (flag, _) in flags.iter().filter(|(_, set)| *set) {
        words.add(flag, 1);
    }
    words.add_some("ttl", record.ttl_ms);
    words.add_some("expires", record.expires_at.map(|at| at.timestamp_micros()));
    words.add_some("maxage", record.max_age_ms);
    words.add("name", encode(&record.name));
    words.add_some("owner", record.owner.as_ref().map(|text| encode(text)));
    words.add_some("why", record.message.as_ref().map(|text| encode(text)));
    if let Some(swap) = &record.swap {
        let name = encode(&swap.name);
        let (inode, size, modified) = (swap.inode, swap.size, swap.modified_ns);
        let digest = swap.digest;
        words.add(
            "swap",
            format_args!("{name}:{inode}:{size}:{modified}:{digest}"),
        );
    }
    words.add_some("cmd", command(&record.command));
    let mut text = words.0;
    text.push(' ');
    for line in [Line::Command, Line::Job, Line::SignOfLife] {
        text.push_str(&slot_text(record, line));
    }
    text
}

/// Where the slot of a line begins in a file of `size` bytes that ends `after` bytes behind the
/// stamp.
pub(super) fn offset(line: Line, size: u64, after: usize) -> u64 {
    let from_end = match line {
        Line::Command => COMMAND_WIDTH + JOB_WIDTH + LIFE_WIDTH,
        Line::Job => JOB_WIDTH + LIFE_WIDTH,
        Line::SignOfLife => LIFE_WIDTH,
    };
    size.saturating_sub((from_end + after) as u64)
}

pub(super) fn slot(record: &Record, line: Line) -> Vec<u8> {
    slot_text(record, line).into_bytes()
}

pub(super) fn command_slot(size: u64, after: usize) -> CommandSlot {
    const BEFORE: &[u8] = b"c=";
    let mut bytes = BEFORE.to_vec();
    bytes.resize(COMMAND_WIDTH, b' ');
    CommandSlot {
        slot: Slot {
            at: offset(Line::Command, size, after),
            bytes,
        },
        digits_at: BEFORE.len(),
        before_start: b":",
        after: b"",
    }
}

fn slot_text(record: &Record, line: Line) -> String {
    let (text, width) = match line {
        Line::Command => (
            record
                .command_process
                .map(|command| format!("c={}", process(command))),
            COMMAND_WIDTH,
        ),
        Line::Job => (
            record.job.map(|job| match job {
                Job::Process(job) => format!("j={}", process(job)),
                Job::Lease => "j=lease".to_owned(),
            }),
            JOB_WIDTH,
        ),
        Line::SignOfLife => (record.sign_of_life.as_ref().map(life), LIFE_WIDTH),
    };
    // What does not fit would spoil the file; without it the record only says less.
    let text = text.filter(|text| text.len() < width).unwrap_or_default();
    format!("{text:<width$}")
}

fn life(life: &SignOfLife) -> String {
    let mut text = format!(
        "l={}:{}",
        life.renewed_at.timestamp_micros(),
        life.renewed_boottime_ms
    );
    for part in [
        life.ttl_ms.map(|ttl| ttl.to_string()),
        life.renewed_boot_id.as_deref().map(encode),
    ] {
        text.push(':');
        text.push_str(&part.unwrap_or_default());
    }
    text
}

struct Words(String);

impl Words {
    fn add(&mut self, key: &str, value: impl std::fmt::Display) {
        use std::fmt::Write as _;
        let _ = write!(self.0, " {key}={value}");
    }

    fn add_some(&mut self, key: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

fn decode(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

fn process(process: ProcessId) -> String {
    match process.start {
        Some(start) => format!("{}:{start}", process.pid),
        None => process.pid.to_string(),
    }
}

/// Whole arguments, as many as there is room for.
fn command(command: &[String]) -> Option<String> {
    let mut text = String::new();
    for argument in command {
        let argument = encode(argument);
        if text.len() + argument.len() >= MOST_COMMAND {
            break;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&argument);
    }
    (!text.is_empty()).then_some(text)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Run => "run",
        Kind::Job => "job",
        Kind::Lease => "lease",
    }
}

/// Completes a record by its stamp.
pub(super) fn read(text: &str, record: Record) -> Stamp {
    let words: Vec<(&str, &str)> = text
        .split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect();
    let words = Found(words);
    match words.number("v") {
        Some(VERSION) => {}
        Some(version) => return Stamp::UnknownVersion(version),
        None => return Stamp::None,
    }
    words.complete(record).map_or(Stamp::None, Stamp::Ours)
}

struct Found<'a>(Vec<(&'a str, &'a str)>);

impl Found<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(found, _)| *found == key)
            .map(|(_, value)| *value)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }

    fn decoded(&self, key: &str) -> Option<String> {
        self.text(key).and_then(decode)
    }

    fn process(&self, key: &str) -> Option<ProcessId> {
        let text = self.text(key)?;
        let (pid, start) = match text.split_once(':') {
            Some((pid, start)) => (pid, Some(start.parse().ok()?)),
            None => (text, None),
        };
        Some(ProcessId {
            pid: Pid::new(pid.parse().ok()?)?,
            start,
        })
    }

    /// `None`: what must be there is not, or is another record's.
    fn complete(&self, mut record: Record) -> Option<Box<Record>> {
        let shown = Pid::new(self.text("shown")?.parse().ok()?)?;
        if shown != record.pid {
            return None;
        }
        let writer = self.process("by")?;
        record.shown_pid = (shown != writer.pid).then_some(shown);
        record.pid = writer.pid;
        record.hold = self
            .number("hold")
            .filter(|hold| (1..=MAX_HOLD).contains(hold))?;
        record.kind = match self.text("kind")? {
            "run" => Kind::Run,
            "job" => Kind::Job,
            "lease" => Kind::Lease,
            _ => return None,
        };
        record.acquired_at = time(self.text("since")?)?;
        record.origin = Some(self.origin(writer)?);
        record.close = self.text("close").is_some();
        record.exec = self.text("exec").is_some();
        record.kernel_lock = self.text("lock").is_some();
        record.ttl_ms = self.number("ttl");
        record.expires_at = self.text("expires").and_then(time);
        record.max_age_ms = self.number("maxage");
        record.name = self.decoded("name").unwrap_or(record.name);
        record.owner = self.decoded("owner");
        record.message = self.decoded("why");
        record.command = self
            .text("cmd")
            .into_iter()
            .flat_map(|text| text.split(','))
            .filter_map(decode)
            .collect();
        record.swap = self.swap();
        record.command_process = self.process("c");
        record.job = match self.text("j") {
            Some("lease") => Some(Job::Lease),
            _ => self.process("j").map(Job::Process),
        };
        record.sign_of_life = self.life();
        Some(Box::new(record))
    }

    fn origin(&self, writer: ProcessId) -> Option<Origin> {
        let boot = |key, masked| self.decoded(key).map(|id| BootId { id, masked });
        let (device, inode) = self.text("store")?.split_once(':')?;
        Some(Origin {
            start: writer.start,
            boot: boot("boot", false).or_else(|| boot("maskedboot", true)),
            pid_namespace: self.number("ns"),
            acquired_boottime_ms: self.number("at")?,
            store_device: device.parse().ok()?,
            store_inode: inode.parse().ok()?,
        })
    }

    fn swap(&self) -> Option<Swap> {
        let mut parts = self.text("swap")?.split(':');
        Some(Swap {
            name: decode(parts.next()?)?,
            inode: parts.next()?.parse().ok()?,
            size: parts.next()?.parse().ok()?,
            modified_ns: parts.next()?.parse().ok()?,
            digest: parts.next()?.parse().ok()?,
        })
    }

    fn life(&self) -> Option<SignOfLife> {
        let mut parts = self.text("l")?.split(':');
        Some(SignOfLife {
            renewed_at: time(parts.next()?)?,
            renewed_boottime_ms: parts.next()?.parse().ok()?,
            ttl_ms: match parts.next()? {
                "" => None,
                ttl => Some(ttl.parse().ok()?),
            },
            renewed_boot_id: match parts.next()? {
                "" => None,
                id => Some(decode(id)?),
            },
        })
    }
}

fn time(microseconds: &str) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(microseconds.parse().ok()?)
        .filter(|time| has_four_digits(*time))
}

//! Signals to the wrappers, keepers and commands of calls, by chance.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::driver::Driver;
use crate::harness::Rng;
use crate::history::Id;

/// Which process of a call got which signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub to: Part,
    pub signal: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The process that was started.
    Caller,
    Keeper,
    Work,
}

/// The calls that have not returned: their processes, and what these got.
#[derive(Default)]
pub struct Signals {
    running: Mutex<HashMap<Id, (u32, Vec<Sent>)>>,
}

impl Signals {
    pub fn begin(&self, id: Id, pid: u32) {
        self.running.lock().unwrap().insert(id, (pid, Vec::new()));
    }

    pub fn end(&self, id: Id) -> Vec<Sent> {
        self.running.lock().unwrap().remove(&id).unwrap().1
    }

    fn choose(&self, rng: &mut Rng) -> Option<(Id, u32)> {
        let running = self.running.lock().unwrap();
        let mut ids: Vec<(Id, u32)> = running.iter().map(|(id, (pid, _))| (*id, *pid)).collect();
        ids.sort_unstable();
        // Often the latest one, which is at work, while most of the others wait.
        match rng.below(2) {
            0 => ids.last().copied(),
            _ => (!ids.is_empty()).then(|| ids[rng.below(ids.len())]),
        }
    }

    /// Sends it while the call is known to run, so that what it does is known, too.
    fn send(&self, id: Id, to: Part, process: &OwnedFd, signal: Signal) -> bool {
        let mut running = self.running.lock().unwrap();
        let Some((_, sent)) = running.get_mut(&id) else {
            return false;
        };
        sent.push(Sent {
            to,
            signal: signal.as_raw(),
        });
        pidfd_send_signal(process, signal).is_ok()
    }
}

impl Driver {
    /// Sends signals until it is over. How many.
    pub fn send_signals(&self, seed: u64) -> usize {
        let mut rng = Rng(seed);
        let mut count = 0;
        while !self.is_over() {
            let pause = self.between_signals.0 + rng.below(self.between_signals.1) as u64;
            std::thread::sleep(Duration::from_millis(pause));
            if self.send_one(&mut rng).is_some() {
                count += 1;
            }
        }
        count
    }

    fn send_one(&self, rng: &mut Rng) -> Option<()> {
        let (id, caller) = self.signals.choose(rng)?;
        let processes = self.processes_of(id);
        if processes.is_empty() {
            return None;
        }
        let pid = processes[rng.below(processes.len())];
        let process = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        // It is open; so if it is one of the call now, it was none of another.
        if !self.processes_of(id).contains(&pid) {
            return None;
        }
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let part = match name.trim() {
            _ if pid == caller => Part::Caller,
            "onehold-keeper" => Part::Keeper,
            _ => Part::Work,
        };
        let signal = match rng.below(10) {
            0..3 => Signal::KILL,
            3..6 => Signal::STOP,
            6 | 7 => Signal::TERM,
            8 => Signal::INT,
            _ => Signal::HUP,
        };
        // A keeper obeys only its wrapper, and KILL and STOP.
        let signal = match signal {
            Signal::KILL | Signal::STOP => signal,
            _ if part == Part::Keeper => return None,
            other => other,
        };
        if !self.signals.send(id, part, &process, signal) {
            return None;
        }
        if signal == Signal::STOP {
            let longest = if rng.below(8) == 0 { 2_000 } else { 60 };
            std::thread::sleep(Duration::from_millis(rng.below(longest) as u64));
            // Also if the call has returned meanwhile.
            let _ = pidfd_send_signal(&process, Signal::CONT);
        }
        Some(())
    }
}

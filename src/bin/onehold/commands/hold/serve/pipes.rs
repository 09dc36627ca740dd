//! The pipes of a server: requests from stdin, lines to stdout, and what its threads have to say.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A longer line is not a request.
pub(super) const MAX_LINE: usize = 1 << 20;

/// What a pipe takes at once if it is writable (pipe(7)).
const PIPE_BUF: usize = 4096;

/// The lines of stdin.
#[derive(Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// How many of them have been returned.
    used: usize,
    /// What has come of a line that is too long was discarded.
    discards: bool,
    pub(super) has_ended: bool,
}

/// A line of stdin, without its end.
pub(super) enum Line {
    Whole(Vec<u8>),
    TooLong,
}

impl Input {
    /// Reads what is there.
    pub(super) fn read(&mut self) {
        self.bytes.drain(..self.used);
        self.used = 0;
        let mut part = [0; 1 << 13];
        match rustix::io::read(std::io::stdin(), &mut part) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => self.has_ended = true,
            Ok(read) => self.bytes.extend(part.get(..read).unwrap_or_default()),
        }
    }

    pub(super) fn next_line(&mut self) -> Option<Line> {
        let rest = self.bytes.get(self.used..)?;
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            if rest.len() > MAX_LINE {
                self.discards = true;
                self.used = self.bytes.len();
            }
            return None;
        };
        let line = rest.get(..end)?;
        let is_too_long = std::mem::take(&mut self.discards) || line.len() > MAX_LINE;
        let line = if is_too_long {
            Line::TooLong
        } else {
            Line::Whole(line.to_vec())
        };
        self.used += end + 1;
        Some(line)
    }
}

/// The lines that stdout has not taken yet. A program that does not read them delays no release.
#[derive(Default)]
pub(super) struct Output {
    left: Vec<u8>,
    pub(super) is_closed: bool,
}

impl Output {
    pub(super) fn add(&mut self, line: &str) {
        if !self.is_closed {
            self.left.extend(line.as_bytes());
            self.left.push(b'\n');
        }
    }

    /// Writes as much as stdout takes now.
    pub(super) fn write(&mut self) {
        let stdout = std::io::stdout();
        while !self.left.is_empty() {
            let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
            let at_once = Timespec::default();
            if !matches!(poll(&mut ready, Some(&at_once)), Ok(1)) {
                return;
            }
            let part = self.left.get(..PIPE_BUF).unwrap_or(&self.left);
            match rustix::io::write(&stdout, part) {
                Ok(written) => drop(self.left.drain(..written)),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => {
                    self.is_closed = true;
                    self.left.clear();
                }
            }
        }
    }
}

/// Sends events of a thread, and wakes the server.
pub(super) struct Notifier<T> {
    events: Sender<T>,
    bell: PipeWriter,
}

impl<T> Notifier<T> {
    pub(super) fn send(&self, event: T) {
        // The server ends before its threads do.
        let _ = self.events.send(event);
        let _ = (&self.bell).write(&[0]);
    }
}

/// What the threads of a server have sent.
pub(super) struct Events<T> {
    events: Receiver<T>,
    bell: PipeReader,
}

pub(super) fn events<T>() -> std::io::Result<(Arc<Notifier<T>>, Events<T>)> {
    let (reader, writer) = pipe()?;
    let (sender, receiver) = mpsc::channel();
    let notifier = Notifier {
        events: sender,
        bell: writer,
    };
    let events = Events {
        events: receiver,
        bell: reader,
    };
    Ok((Arc::new(notifier), events))
}

/// What a server can go on with.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) input: bool,
    /// Nothing more will come on stdin than what is there.
    pub(super) input_ends: bool,
    pub(super) events: bool,
}

impl<T> Events<T> {
    /// Sleeps until a request or an event has come, or stdout takes more of what is left. `at_most`: `None` for any time.
    pub(super) fn sleep(&self, output: &Output, at_most: Option<Duration>) -> Ready {
        let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
        let mut ready = vec![
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        if !output.left.is_empty() {
            ready.push(PollFd::new(&stdout, PollFlags::OUT));
        }
        let at_most = at_most.and_then(|at_most| Timespec::try_from(at_most).ok());
        if poll(&mut ready, at_most.as_ref()).is_err() {
            return Ready::default();
        }
        let mut came = ready.iter().map(PollFd::revents);
        let events = came.next().unwrap_or(PollFlags::empty());
        let input = came.next().unwrap_or(PollFlags::empty());
        Ready {
            events: !events.is_empty(),
            input: !input.is_empty(),
            input_ends: input.contains(PollFlags::HUP),
        }
    }

    /// The events that have come.
    pub(super) fn take(&mut self) -> Vec<T> {
        let _ = self.bell.read(&mut [0; 256]);
        self.events.try_iter().collect()
    }

    /// The next event, if it comes within this time.
    pub(super) fn next(&self, within: Duration) -> Option<T> {
        self.events.recv_timeout(within).ok()
    }
}

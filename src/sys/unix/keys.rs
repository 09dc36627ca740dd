//! Keys of the terminal, each as it is pressed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::signal::without_signals;

/// The terminal in a mode in which it passes on each key, signals too, and shows none. Dropping it sets the
/// mode that was there before.
#[derive(Debug)]
pub struct Keys {
    terminal: File,
    before: Termios,
}

impl Keys {
    /// Calls `on_key` in a thread for each byte that a key sends, until it returns `false` or the terminal is
    /// gone.
    ///
    /// # Errors
    /// There is no terminal, or those of tcsetattr(3) and of threads.
    pub fn read(mut on_key: impl FnMut(u8) -> bool + Send + 'static) -> io::Result<Self> {
        let terminal = OpenOptions::new().read(true).open("/dev/tty")?;
        let before = tcgetattr(&terminal)?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let mut typed = terminal.try_clone()?;
        let read = move || {
            let mut byte = [0];
            while typed.read_exact(&mut byte).is_ok() && on_key(u8::from_le_bytes(byte)) {}
        };
        tcsetattr(&terminal, OptionalActions::Now, &modes)?;
        let keys = Self { terminal, before };
        without_signals(|| std::thread::Builder::new().spawn(read))??;
        Ok(keys)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

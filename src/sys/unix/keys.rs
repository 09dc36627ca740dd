//! Keys of the terminal, each as it is pressed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal in a mode in which it passes on each key, signals too, and shows none.
#[derive(Debug)]
pub struct Keys {
    terminal: File,
    before: Termios,
}

impl Keys {
    /// # Errors
    /// There is no terminal, or those of tcsetattr(3).
    pub fn open() -> io::Result<Self> {
        let terminal = OpenOptions::new().read(true).open("/dev/tty")?;
        let before = tcgetattr(&terminal)?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(&terminal, OptionalActions::Now, &modes)?;
        Ok(Self { terminal, before })
    }

    /// The next byte that a key sends.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn next(&self) -> io::Result<u8> {
        let mut byte = [0];
        (&self.terminal).read_exact(&mut byte)?;
        Ok(u8::from_le_bytes(byte))
    }

    /// Sets the mode that was there before.
    pub fn restore(&self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

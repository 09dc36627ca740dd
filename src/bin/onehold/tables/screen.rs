//! The alternate screen of a terminal, and its keys.

use std::io::{self, Write};

#[cfg(unix)]
use onehold::command_line::signal;

use crate::output;
use crate::tables::table::cut;

/// Another screen, without a cursor, that does not wrap lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Dropping it leaves the terminal as it was.
pub(crate) struct Screen {
    /// `None`: there is no terminal to read them from.
    #[cfg(unix)]
    _keys: Option<signal::Keys>,
}

impl Screen {
    /// `on_key`: called for each key, until it returns `false`.
    pub(crate) fn enter(on_key: impl FnMut(u8) -> bool + Send + 'static) -> io::Result<Self> {
        #[cfg(not(unix))]
        drop(on_key);
        let screen = Self {
            #[cfg(unix)]
            _keys: signal::Keys::read(on_key).ok(),
        };
        write(ENTER)?;
        Ok(screen)
    }
}

/// Draws over what is there, in one write: a screen that is cleared first flickers.
pub(crate) fn draw(mut lines: Vec<String>, width: usize, height: usize) -> io::Result<()> {
    if lines.len() > height {
        let left = lines.len() - height + 1;
        lines.truncate(height.saturating_sub(1));
        lines.push(cut(&format!("… {left} more lines"), width));
    }
    // To the end of each line, and of the screen.
    let lines = lines.iter().map(|line| output::painted(line) + "\x1b[K");
    let text = lines.collect::<Vec<_>>().join("\n");
    write(&format!("\x1b[H{text}\x1b[J"))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write(LEAVE);
    }
}

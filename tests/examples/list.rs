//! Lists the locks of a store that need attention.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use onehold::{State, Store};

fn main() -> onehold::Result<()> {
    let listing = Store::of_user()?.list(None)?;
    for lock in &listing.locks {
        match lock.verdict.state {
            State::Zombie | State::Overdue => {
                println!("{}: {}", lock.name, lock.verdict.reason.name());
            }
            _ => {}
        }
    }
    for error in &listing.errors {
        eprintln!("{error}");
    }
    Ok(())
}

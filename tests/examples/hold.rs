//! One import at a time: the lock is held while a function runs, whatever way it ends.
#![allow(clippy::print_stdout)]

use onehold::{Attempt, Options, Wait};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lock = onehold::lock("import")?;
    match lock.hold(&Options::new().message("nightly"), Wait::no())? {
        Attempt::Held(_hold) => import(),
        // Says who holds it, since when and why.
        Attempt::Blocked(blocked) => return Err(blocked.to_string().into()),
    }
    Ok(())
}

fn import() {
    println!("importing");
}

//! Waits up to five seconds for a lock, and says for whom.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use onehold::{Options, ReleaseOutcome, Wait};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wait = Wait::at_most(Duration::from_secs(5)).on_wait(Duration::ZERO, |status| {
        println!("waiting: position {}", status.waiters.len());
    });
    match onehold::lock("import")?
        .hold(&Options::new(), wait)?
        .into_result()
    {
        Ok(hold) => {
            println!("held under number {}", hold.number());
            // A hold that is only dropped is released, too, but says nothing.
            if hold.release()? == ReleaseOutcome::Lost {
                println!("it was lost meanwhile");
            }
        }
        Err(blocked) => println!("timed out: {blocked}"),
    }
    Ok(())
}

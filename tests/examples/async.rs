//! Holds a lock in an async program, and waits up to a minute for it.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use onehold::ReleaseOutcome;
use tokio::task::{spawn_blocking, yield_now};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let minute = Duration::from_mins(1);
    let hold = spawn_blocking(move || onehold::lock("import")?.hold_within(minute)).await??;
    import().await;
    // Removes a file, so it may block, too.
    if spawn_blocking(move || hold.release()).await?? == ReleaseOutcome::Lost {
        println!("the lock was lost meanwhile");
    }
    Ok(())
}

async fn import() {
    yield_now().await;
    println!("importing");
}

//! Holds a lock in an async program, and waits up to a minute for it.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use tokio::task::{spawn_blocking, yield_now};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let minute = Duration::from_mins(1);
    let hold = spawn_blocking(move || onehold::lock("import")?.hold_within(minute)).await??;
    import().await;
    // Removes a file, so it may block, too.
    spawn_blocking(move || hold.release()).await??;
    Ok(())
}

async fn import() {
    yield_now().await;
    println!("importing");
}

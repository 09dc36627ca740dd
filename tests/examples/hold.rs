//! One import at a time: the lock is held while a function runs, whatever way it ends.
#![allow(clippy::print_stdout)]

use onehold::{Options, Wait};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::new().message("nightly");
    let attempt = onehold::lock("import")?.hold(&options, Wait::no())?;
    // The text says who holds it, since when and why.
    let _hold = attempt
        .into_result()
        .map_err(|blocked| blocked.to_string())?;
    import();
    Ok(())
}

fn import() {
    println!("importing");
}

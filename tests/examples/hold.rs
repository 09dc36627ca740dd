//! One import at a time: the lock is held while a function runs, whatever way it ends.
#![allow(clippy::print_stdout)]

fn main() -> onehold::Result<()> {
    // If another process holds it, the error says who, since when and why.
    let _hold = onehold::lock("import")?.try_hold()?;
    import();
    Ok(())
}

fn import() {
    println!("importing");
}

//! Runs a command under a lock that the command keeps if this program is killed.

use std::process::{Command, ExitCode};

use onehold::{Attempt, Options, ReleaseOutcome, RunOptions, Wait};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let options = Options::new().command(vec!["sort".to_owned(), "--version".to_owned()]);
    let lock = onehold::lock("report")?;
    let attempt = lock.hold_for_command(&options, RunOptions::new(), Wait::no())?;
    let Attempt::Held(mut hold) = attempt else {
        return Ok(ExitCode::from(75));
    };
    let mut command = Command::new("sort");
    command.arg("--version");
    let mut child = hold.spawn(&mut command)?;
    let status = child.wait()?;
    if hold.release()? == ReleaseOutcome::Lost {
        return Err("the lock was lost while the command was running".into());
    }
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

//! The commands of the portable tests.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use crate::seen::append_line;

/// `task TASK FILE [LINE]`.
pub fn task(words: &[String]) {
    let (task, file) = (words[0].as_str(), Path::new(&words[1]));
    match task {
        "increment" => {
            let count: u64 = fs::read_to_string(file).map_or(0, |text| text.parse().unwrap());
            fs::write(file, (count + 1).to_string()).unwrap();
        }
        // Writes a line, and stays until the file `end` is there or the directory is removed.
        "stay" => {
            append_line(file, "in");
            let directory = file.parent().unwrap();
            while directory.exists() && !directory.join("end").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Starts a process that stays, writes both PIDs, and stays itself, or leaves the other one behind.
        "tree" | "leave" => {
            let mut child = another("stay", &file.with_file_name("in"));
            child
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            #[allow(clippy::zombie_processes, reason = "it outlives this process")]
            let child = child.spawn().unwrap();
            fs::write(file.with_extension("new"), child.id().to_string()).unwrap();
            fs::rename(file.with_extension("new"), file).unwrap();
            let end = file.with_file_name("end");
            while task == "tree" && !end.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Starts a copy that acquires a lock and ends, and stays.
        "shell" => {
            assert!(another("copy", file).status().unwrap().success());
            append_line(file, "done");
            std::thread::sleep(Duration::from_secs(1000));
        }
        "copy" => {
            let name = file.file_name().unwrap();
            let acquired = Command::new("onehold").arg("acquire").arg(name).status();
            assert!(acquired.unwrap().success());
        }
        "line" => append_line(file, &words[2]),
        "read" => {
            let record = fs::read_to_string(env::var("ONEHOLD_FILE").unwrap()).unwrap();
            fs::write(file, record).unwrap();
        }
        code => std::process::exit(code.parse().unwrap()),
    }
}

/// This program with another task.
fn another(task: &str, file: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["task", task]).arg(file);
    command
}

//! The few programs that tests run as commands, for systems that have none of them by these names.
//! It does what its file is called.
#![allow(
    missing_docs,
    clippy::exit,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::path::Path;
use std::time::Duration;
use std::{env, fs, io};

fn main() {
    let program = env::current_exe().unwrap();
    let words: Vec<String> = env::args().skip(1).collect();
    match program.file_stem().unwrap().to_str().unwrap() {
        "true" => {}
        "false" => std::process::exit(1),
        "echo" => println!("{}", words.join(" ")),
        "printf" => {
            for word in &words[1..] {
                print!("{}", words[0].replace("%s", word));
            }
        }
        "cat" => {
            for file in &words {
                let mut file = fs::File::open(file).unwrap();
                io::copy(&mut file, &mut io::stdout()).unwrap();
            }
        }
        "touch" => {
            for file in &words {
                fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(file)
                    .unwrap();
            }
        }
        // Writes its PID, and stays until the file `end` is there or the first one is removed.
        "hold" => {
            fs::write("new", format!("{}\n", std::process::id())).unwrap();
            fs::rename("new", "began").unwrap();
            while Path::new("began").exists() && !Path::new("end").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Until the time has passed, or the directory that it was started in is removed.
        "sleep" => {
            let seconds: f64 = words.concat().parse().unwrap();
            let end = std::time::Instant::now() + Duration::from_secs_f64(seconds);
            while std::time::Instant::now() < end && Path::new(".").exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        name => panic!("{name} is not known here"),
    }
}

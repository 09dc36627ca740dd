//! The few programs that every system has, but some not by these names.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Does what the program of this name does; `false`: it is none of these.
pub fn do_as(name: &str, words: &[String]) -> bool {
    match name {
        "true" => {}
        "false" => std::process::exit(1),
        "echo" => println!("{}", words.join(" ")),
        "printf" => {
            for word in &words[1..] {
                print!("{}", words[0].replace("%s", word));
            }
        }
        "cat" => {
            for file in words {
                let mut file = fs::File::open(file).unwrap();
                io::copy(&mut file, &mut io::stdout()).unwrap();
            }
        }
        "touch" => {
            for file in words {
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
            let end = Instant::now() + Duration::from_secs_f64(seconds);
            while Instant::now() < end && Path::new(".").exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        _ => return false,
    }
    true
}

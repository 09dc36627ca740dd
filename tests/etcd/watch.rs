use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::cluster::{On, shared};

#[test]
fn table_is_printed_again_when_something_changes() {
    let on = On::new(shared());
    let mut list = on.onehold(&["list", "--watch=1h"]);
    let mut child = list.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut until = |is_wanted: &dyn Fn(&str) -> bool| {
        let mut line = String::new();
        while !is_wanted(&line) {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
        }
    };
    until(&|line| line.starts_with("0 locks in "));
    assert_eq!(on.output(&["acquire", "x", "--ttl", "5s"]).0, 0);
    until(&|line| line.starts_with("x ") && line.contains(" held "));
    // Its lease ends by itself.
    until(&|line| line.starts_with("x ") && line.contains(" zombie "));
    assert_eq!(on.output(&["break", "x", "--yes"]).0, 0);
    until(&|line| line.starts_with("0 locks in "));
    child.kill().unwrap();
    child.wait().unwrap();
}

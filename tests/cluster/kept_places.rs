use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::On;
use crate::harness::{Running, json_object, wait_until};
use crate::scene::scenes;

scenes! {
    waiter_that_was_cut_off_stands_where_it_stood,
    place_that_is_kept_delays_nobody_and_ends_with_a_hold_of_its_owner,
    place_is_used_once_also_by_a_call_that_keeps_none,
    places_are_kept_for_each_request_of_an_owner_and_for_one_of_its_waiters,
    place_of_several_locks_is_kept_in_whatever_order_they_are_named,
    each_kept_place_has_a_position_of_its_own,
}

/// A run that waits for `x` with a place that is kept for this owner.
fn call(on: &On, owner: &str, wait: &str) -> Running {
    call_for(on, owner, wait, &["x"])
}

fn call_for(on: &On, owner: &str, wait: &str, names: &[&str]) -> Running {
    let words = ["run", "-w", wait, "--owner", owner, "--keep-place", "10m"];
    let mut command = on.onehold(&[&words, names].concat());
    command.args(["--", "sh", "-c", &format!("echo {owner} >> served")]);
    Running::start_with_output(command)
}

fn waiting(on: &On) -> Vec<String> {
    let lock = on.lock("x");
    let waiters = lock["waiters"].as_array().unwrap();
    let owner = |waiter: &Value| waiter["owner"].as_str().unwrap_or_default().to_owned();
    waiters.iter().map(owner).collect()
}

#[track_caller]
fn wait_until_waiting(on: &On, owners: &[&str]) {
    wait_until("they wait in this order", || waiting(on) == owners);
}

/// The owners that a place is kept for.
fn kept_for(on: &On) -> Vec<String> {
    let (_, out, _) = on.output(&["check", "-v", "--json", "x"]);
    let object = json_object(out.as_bytes());
    let places = object["kept_places"].as_array().unwrap();
    let owner = |place: &Value| place["owner"].as_str().unwrap().to_owned();
    places.iter().map(owner).collect()
}

fn hold(on: &On) -> Running {
    let script = "echo > held; until test -e end; do sleep 0.01; done";
    let mut command = on.onehold(&["run", "x", "--", "sh", "-c"]);
    command.arg(script);
    let holder = Running::start(command);
    wait_until("the lock is held", || on.env.path("held").exists());
    holder
}

fn waiter_that_was_cut_off_stands_where_it_stood() {
    let on = On::of_scene();
    let mut holder = hold(&on);
    let mut first = call(&on, "a", "60");
    wait_until_waiting(&on, &["a"]);
    let mut second = call(&on, "b", "1");
    let (code, _, told) = second.finish_with_output();
    assert_eq!(code, 7);
    assert!(
        told.contains("; your place (2nd) is kept for 10m\n"),
        "{told}"
    );
    let mut last = call(&on, "c", "60");
    wait_until_waiting(&on, &["a", "c"]);
    assert_eq!(kept_for(&on), ["b"]);
    let mut second = call(&on, "b", "60");
    wait_until_waiting(&on, &["a", "b", "c"]);
    assert!(kept_for(&on).is_empty());
    // Killed with its keeper, as by the kernel. Its ticket would stay for 5 s.
    for child in crate::keeper::children_of(second.pid()) {
        crate::keeper::send(child, Signal::KILL);
    }
    second.kill();
    let mut second = call(&on, "b", "60");
    wait_until("the new call has the place of the killed one", || {
        on.lock("x")["waiters"][1]["pid"] == second.pid()
    });
    wait_until_waiting(&on, &["a", "b", "c"]);
    // A living one of the same owner has its place already.
    let mut other = call(&on, "b", "60");
    wait_until_waiting(&on, &["a", "b", "c", "b"]);
    fs::write(on.env.path("end"), "").unwrap();
    assert_eq!(holder.finish(), 0);
    for waiter in [&mut first, &mut second, &mut last, &mut other] {
        assert_eq!(waiter.finish(), 0);
    }
    let served = fs::read_to_string(on.env.path("served")).unwrap();
    assert_eq!(served, "a\nb\nc\nb\n");
    assert!(kept_for(&on).is_empty());
}

fn place_that_is_kept_delays_nobody_and_ends_with_a_hold_of_its_owner() {
    let on = On::of_scene();
    let mut holder = hold(&on);
    let mut cut_off = call(&on, "a", "1");
    assert_eq!(cut_off.finish(), 7);
    let mut next = call(&on, "b", "60");
    wait_until_waiting(&on, &["b"]);
    fs::write(on.env.path("end"), "").unwrap();
    assert_eq!((holder.finish(), next.finish()), (0, 0));
    assert_eq!(kept_for(&on), ["a"]);
    assert_eq!(call(&on, "a", "60").finish(), 0);
    assert!(kept_for(&on).is_empty());
    assert_eq!(on.state("x"), "free");
}

fn place_is_used_once_also_by_a_call_that_keeps_none() {
    let on = On::of_scene();
    let mut holder = hold(&on);
    let plain = |wait: &str| {
        let mut command = on.onehold(&["run", "-w", wait, "--owner", "a", "x", "--"]);
        command.args(["sh", "-c", "echo a >> served"]);
        Running::start_with_output(command)
    };
    assert_eq!(call(&on, "a", "1").finish(), 7);
    let mut again = plain("60");
    wait_until_waiting(&on, &["a"]);
    fs::write(on.env.path("end"), "").unwrap();
    holder.finish();
    assert_eq!(again.finish(), 0);
    assert!(kept_for(&on).is_empty());
    // Who need not wait has its turn, too.
    for file in ["end", "held"] {
        fs::remove_file(on.env.path(file)).unwrap();
    }
    let mut holder = hold(&on);
    assert_eq!(call(&on, "a", "1").finish(), 7);
    assert_eq!(kept_for(&on), ["a"]);
    fs::write(on.env.path("end"), "").unwrap();
    holder.finish();
    assert_eq!(plain("0").finish(), 0);
    assert!(kept_for(&on).is_empty());
}

fn places_are_kept_for_each_request_of_an_owner_and_for_one_of_its_waiters() {
    let on = On::of_scene();
    let mut holder = hold(&on);
    let call = |wait: &str, more: &[&str]| {
        let words = ["run", "-w", wait, "--owner", "a", "--keep-place", "10m"];
        let mut command = on.onehold(&words);
        command.args(more).args(["--", "true"]);
        Running::start_with_output(command)
    };
    let has_kept = |mut run: Running| {
        let (code, _, told) = run.finish_with_output();
        assert_eq!(code, 7, "{told}");
        told.contains("is kept for 10m")
    };
    for more in [&["x"][..], &["-s", "x"], &["x", "y"]] {
        assert!(has_kept(call("1", more)));
    }
    assert_eq!(kept_for(&on), ["a", "a", "a"]);
    let mut other = on.onehold(&["run", "-w", "60", "--owner", "b", "x", "--", "true"]);
    other.stdin(std::process::Stdio::null());
    let mut other = Running::start_with_output(other);
    wait_until_waiting(&on, &["b"]);
    let mut first = call("60", &["x"]);
    wait_until_waiting(&on, &["a", "b"]);
    // Beside a waiter with the same request, the second one has no place to keep, and says so.
    assert!(!has_kept(call("1", &["x"])));
    fs::write(on.env.path("end"), "").unwrap();
    holder.finish();
    assert_eq!((first.finish(), other.finish()), (0, 0));
    assert!(kept_for(&on).is_empty());
}

fn place_of_several_locks_is_kept_in_whatever_order_they_are_named() {
    let on = On::of_scene();
    let mut holder = hold(&on);
    assert_eq!(call_for(&on, "a", "1", &["x", "y"]).finish(), 7);
    let mut behind = call(&on, "b", "60");
    wait_until_waiting(&on, &["b"]);
    let mut again = call_for(&on, "a", "60", &["y", "x"]);
    wait_until_waiting(&on, &["a", "b"]);
    fs::write(on.env.path("end"), "").unwrap();
    for ended in [&mut holder, &mut again, &mut behind] {
        assert_eq!(ended.finish(), 0);
    }
    let served = fs::read_to_string(on.env.path("served")).unwrap();
    assert_eq!(served, "a\nb\n");
    assert!(kept_for(&on).is_empty());
}

fn each_kept_place_has_a_position_of_its_own() {
    let on = On::of_scene();
    let mut holder = hold(&on);
    for (owner, place) in [("a", "1st"), ("b", "2nd"), ("a", "1st")] {
        let (_, _, told) = call(&on, owner, "1").finish_with_output();
        let told_place = format!("; your place ({place}) is kept for 10m\n");
        assert!(told.contains(&told_place), "{owner}: {told}");
    }
    fs::write(on.env.path("end"), "").unwrap();
    assert_eq!(holder.finish(), 0);
}

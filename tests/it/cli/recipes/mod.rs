//! Runs the recipes of the README and of onehold-recipes(7).

mod jobs;
mod languages;
mod machines;
mod other_programs;
mod pipelines;
mod resume;
mod scripts;

use crate::harness::{TestEnv, write_program};

const README: &str = include_str!("../../../../README.md");

/// The shell block of the README that contains this line.
fn recipe(line: &str) -> String {
    README
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains(line))
        .expect(line)
        .to_owned()
}

const RECIPES: &str = include_str!("../../../../man/onehold-recipes.7");
const FLOCK: &str = include_str!("../../../../man/onehold-flock.7");

/// The examples of a man page.
fn examples(page: &str) -> Vec<String> {
    let plain = page
        .replace("\\&", "")
        .replace("\\-", "-")
        .replace("\\(dq", "\"")
        .replace("\\(aq", "'")
        .replace("\\e", "\\");
    plain
        .split(".EX\n")
        .skip(1)
        .filter_map(|rest| rest.split(".EE").next().map(str::to_owned))
        .collect()
}

/// The example of onehold-recipes(7) that contains this text.
fn example(text: &str) -> String {
    let mut all = examples(RECIPES).into_iter();
    all.find(|block| block.contains(text)).expect(text)
}

fn executable(env: &TestEnv, name: &str, text: &str) {
    write_program(&env.path(name), text, 0o755);
}

fn path_of(command: &std::process::Command) -> String {
    let (_, path) = command
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .unwrap();
    path.unwrap().to_str().unwrap().to_owned()
}

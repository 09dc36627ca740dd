use std::cell::Cell;
use std::time::Duration;

/// What keeps the store of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Etcd,
    Postgres,
}

thread_local! {
    static ENGINE: Cell<Option<Engine>> = const { Cell::new(None) };
}

/// The engine of the scene that this thread plays.
pub fn engine() -> Engine {
    ENGINE
        .get()
        .expect("a scene, or a thread that was told the engine")
}

/// How soon after a break the work ends: at once if the hold is watched, else with the next look at it.
pub fn break_takes() -> Duration {
    match engine() {
        Engine::Etcd => Duration::from_secs(5),
        Engine::Postgres => Duration::from_secs(12),
    }
}

pub fn play(engine: Engine, scene: fn()) {
    println!("on {engine:?}");
    ENGINE.set(Some(engine));
    scene();
}

/// Tests of functions that are played on each engine.
macro_rules! scenes {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        $(mod $name {
            use crate::scene::{Engine, play};

            #[test]
            $(#[$attribute])*
            fn on_etcd() {
                play(Engine::Etcd, super::$name);
            }

            #[test]
            $(#[$attribute])*
            fn on_postgres() {
                play(Engine::Postgres, super::$name);
            }
        })*
    };
}
pub(crate) use scenes;

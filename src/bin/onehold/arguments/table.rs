//! The table of options. Each is defined once, for clap, for the parser of common lines, and for hints.

use std::iter::Peekable;
use std::str::SplitInclusive;

use onehold::LockName;

/// An option.
#[derive(Debug)]
pub(crate) struct Row {
    /// That of its field, with `_` for `-`.
    pub(crate) name: &'static str,
    pub(crate) short: Option<char>,
    /// What its value is called. `None`: it has none.
    pub(crate) value: Option<&'static str>,
    /// Its value if none is given. One that is given follows `=`.
    pub(crate) missing: Option<&'static str>,
    pub(crate) repeats: bool,
    /// The options that it cannot be used with.
    pub(crate) excludes: &'static [&'static str],
}

/// Options that each command has, and that clap answers.
pub(crate) const ANSWERED: [Row; 2] = [flag("help", 'h'), flag("version", 'V')];

const fn flag(name: &'static str, short: char) -> Row {
    Row {
        name,
        short: Some(short),
        value: None,
        missing: None,
        repeats: false,
        excludes: &[],
    }
}

impl Row {
    /// Whether it has this name, long or short, without hyphens before it.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let letters = self.name.bytes();
        let letters = letters.map(|letter| if letter == b'_' { b'-' } else { letter });
        let is_short = |short| name.chars().eq([short]);
        letters.eq(name.bytes()) || self.short.is_some_and(is_short)
    }

    /// Without hyphens before it.
    pub(crate) fn long(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// The names of options in one word: a long one, or short ones.
pub(crate) type OptionNames<'a> = Peekable<SplitInclusive<'a, fn(char) -> bool>>;

fn option_names(names: &str, is_long: bool) -> OptionNames<'_> {
    let each: fn(char) -> bool = if is_long { |_| false } else { |_| true };
    names.split_inclusive(each).peekable()
}

/// The names of the options in a word, without hyphens before them, and the value in the word. Allocates nothing.
pub(crate) fn split(
    word: &str,
    takes_value: impl Fn(&str) -> bool,
) -> (OptionNames<'_>, Option<&str>) {
    if let Some(long) = word.strip_prefix("--") {
        let parts = long.split_once('=');
        let name = parts.map_or(long, |(name, _)| name);
        return (option_names(name, true), parts.map(|(_, value)| value));
    }
    let letters = word.strip_prefix('-').unwrap_or(word);
    let mut end = 0;
    for name in option_names(letters, false) {
        end += name.len();
        let (names, rest) = letters.split_at_checked(end).unwrap_or((letters, ""));
        if !rest.is_empty() && takes_value(name) {
            return (
                option_names(names, false),
                Some(rest.strip_prefix('=').unwrap_or(rest)),
            );
        }
    }
    (option_names(letters, false), None)
}

/// Arguments of a command, or options of several.
pub(crate) trait Arguments {
    /// Its own options.
    fn rows(&self) -> &'static [Row];

    /// Those of its options that other commands have, too.
    fn shared(&self) -> Option<&dyn Arguments> {
        None
    }

    /// Sets the option of this name. `None`: it has none, or not with this value.
    fn set(&mut self, name: &str, value: &str) -> Option<()>;

    /// Adds the name of a lock. `None`: it takes no more, or is not one.
    fn add(&mut self, _name: &str) -> Option<()> {
        None
    }

    /// The name of a lock, the first one of several.
    fn name(&self) -> Option<&LockName> {
        None
    }

    fn row(&self, name: &str) -> Option<&'static Row> {
        let own = self.rows().iter().find(|row| row.is_called(name));
        own.or_else(|| self.shared()?.row(name))
    }
}

/// The value of an option.
pub(crate) trait Field {
    type Value;
    const REPEATS: bool = false;

    fn put(&mut self, value: Self::Value);
}

impl Field for bool {
    type Value = ();

    fn put(&mut self, (): ()) {
        *self = true;
    }
}

impl<T> Field for Option<T> {
    type Value = T;

    fn put(&mut self, value: T) {
        *self = Some(value);
    }
}

impl<T> Field for Vec<T> {
    type Value = T;
    const REPEATS: bool = true;

    fn put(&mut self, value: T) {
        self.push(value);
    }
}

/// One of a few words, with a default.
pub(crate) trait Choice: Default {}

impl<T: Choice> Field for T {
    type Value = T;

    fn put(&mut self, value: T) {
        *self = value;
    }
}

/// Defines the arguments of a command: `NAME (names) with shared: SHARED { options } -- command`. An option is a row
/// of `['s'] name: TYPE = "VALUE" by parser or "DEFAULT", not with others, clap(more);`. `as parser`: clap has one of
/// its own.
macro_rules! arguments {
    (
        $(#[$of_all:meta])*
        $Name:ident
        $(($(#[$of_names:meta])* $names:ident: $Names:ty = $name:literal $(by $check:ident)? $(as $plain:ident)?))?
        $(with $shared:ident: $Shared:ty)?
        {$(
            $(#[$doc:meta])*
            $([$short:literal])? $option:ident: $Type:ty
            $(= $value:literal $(by $parse:ident)? $(as $read:ident)? $(or $missing:literal)?)?
            $(, not with $($other:ident)+)?
            $(, clap($($clap:tt)*))?;
        )*}
        $(-- {$(#[$of_command:meta])* $command:ident})?
        $(also {$(#[$of_more:meta])* $more:ident})?
    ) => {
        #[derive(Clone, Debug, Default, clap::Args)]
        $(#[$of_all])*
        pub(crate) struct $Name {
            $(
                $(#[$of_names])*
                #[arg(value_name = $name $(, value_parser = $check)?)]
                pub(crate) $names: $Names,
            )?
            $(#[command(flatten)] pub(crate) $shared: $Shared,)?
            $(
                $(#[$doc])*
                #[arg(
                    long
                    $(, short = $short)?
                    $(, value_name = $value $(, value_parser = $parse)?)?
                    $($(, num_args = 0..=1, require_equals = true, default_missing_value = $missing)?)?
                    $(, conflicts_with_all = [$(stringify!($other)),+])?
                    $(, $($clap)*)?
                )]
                pub(crate) $option: $Type,
            )*
            $(
                $(#[$of_command])*
                #[arg(last = true, required = true, value_name = "CMD")]
                pub(crate) $command: Vec<std::ffi::OsString>,
            )?
            $($(#[$of_more])* #[arg(skip)] pub(crate) $more: bool,)?
        }

        impl $crate::arguments::table::Arguments for $Name {
            fn rows(&self) -> &'static [$crate::arguments::table::Row] {
                const { &[$($crate::arguments::table::Row {
                    name: stringify!($option),
                    short: $crate::arguments::table::arguments!(@maybe $($short)?),
                    value: $crate::arguments::table::arguments!(@maybe $($value)?),
                    missing: $crate::arguments::table::arguments!(@maybe $($($missing)?)?),
                    repeats: <$Type as $crate::arguments::table::Field>::REPEATS,
                    excludes: &[$($(stringify!($other)),+)?],
                }),*] }
            }

            fn set(&mut self, name: &str, value: &str) -> Option<()> {
                match name {
                    $(stringify!($option) => {
                        let value = $crate::arguments::table::arguments!(@read value $($($parse)? $($read)?)?);
                        $crate::arguments::table::Field::put(&mut self.$option, value);
                        Some(())
                    })*
                    _ => $crate::arguments::table::arguments!(@shared self name value $($shared)?),
                }
            }

            $(
                fn shared(&self) -> Option<&dyn $crate::arguments::table::Arguments> {
                    Some(&self.$shared)
                }
            )?

            $(
                fn add(&mut self, name: &str) -> Option<()> {
                    let is_full = !<$Names as $crate::arguments::table::Field>::REPEATS && self.$names.iter().next().is_some();
                    let name = $crate::arguments::table::arguments!(@read name $($check)? $($plain)?);
                    $crate::arguments::table::Field::put(&mut self.$names, name);
                    (!is_full).then_some(())
                }

                $(
                    fn name(&self) -> Option<&onehold::LockName> {
                        const { let _ = $check; }
                        self.$names.iter().next()
                    }
                )?
            )?
        }
    };
    (@maybe) => { None };
    (@maybe $some:literal) => { Some($some) };
    (@read $value:ident) => { () };
    (@read $value:ident $parse:ident) => { $parse($value).ok()? };
    (@shared $self:ident $name:ident $value:ident) => {{ let _ = $value; None }};
    (@shared $self:ident $name:ident $value:ident $shared:ident) => { $self.$shared.set($name, $value) };
}

/// Defines the commands by their words.
macro_rules! verbs {
    ($($(#[$doc:meta])* $word:literal $Verb:ident($Arguments:ty);)*) => {
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $(#[command(name = $word)] $(#[$doc])* $Verb($Arguments),)*
        }

        impl Verb {
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),*];

            /// Without arguments.
            pub(crate) fn named(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$Verb(Default::default())),)*
                    _ => None,
                }
            }

            pub(crate) fn word(&self) -> &'static str {
                match self {
                    $(Self::$Verb(_) => $word,)*
                }
            }

            pub(crate) fn arguments(&self) -> &dyn $crate::arguments::table::Arguments {
                match self {
                    $(Self::$Verb(arguments) => arguments,)*
                }
            }

            pub(crate) fn arguments_mut(&mut self) -> &mut dyn $crate::arguments::table::Arguments {
                match self {
                    $(Self::$Verb(arguments) => arguments,)*
                }
            }
        }
    };
}

pub(crate) use {arguments, verbs};

//! Profiles: what everything costs, number by number, with source and confidence.
//!
//! A profile is a TOML file with a table per part of the machine and a table per number in it:
//!
//! ```toml
//! based_on = "ideal"            # take every number that is not here from this profile
//! about = "One line about it."
//!
//! [node.dispatch]
//! value = 4
//! unit = "cycles"
//! confidence = "M"
//! source = "ISCA'93, from memory"
//! fitted = "to Fig. 4.2b"       # only if it was fitted
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `numbers.rs` | which numbers there are, and in which unit |
//! | `card.rs` | the model card: all of them, as a person reads them |

mod card;
mod numbers;

use serde::Deserialize;

pub use numbers::{BusNumbers, DiskNodeNumbers, DiskNumbers, FileNumbers, HostNumbers};
pub use numbers::{NetworkNumbers, NodeNumbers, Numbers, ProgramNumbers};

/// The profiles that come with the program: their names and texts.
const SHIPPED: [(&str, &str); 2] = [
    ("ideal", include_str!("../../../profiles/ideal.toml")),
    ("as-measured", include_str!("../../../profiles/as-measured.toml")),
];

/// Length of a chain of profiles that are based on one another, at most.
const BASES_MAX: usize = 4;

/// How far a number may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Confidence {
    /// In the text of the thesis.
    T,
    /// Found word for word in another source.
    V,
    /// From a later reconstruction, or quoted by one.
    S,
    /// From memory of the literature, not found in any source.
    M,
    /// Inferred or computed.
    I,
}

impl Confidence {
    /// All of them, best first.
    pub const ALL: [Self; 5] = [Self::T, Self::V, Self::S, Self::M, Self::I];

    /// What the letter means.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::T => "in the text of the thesis",
            Self::V => "found word for word in another source",
            Self::S => "from a later reconstruction, or quoted by one",
            Self::M => "from memory of the literature, not found in any source",
            Self::I => "inferred or computed",
        }
    }
}

/// One number of a profile.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
    /// How far it may be trusted.
    pub confidence: Confidence,
    /// Where it comes from.
    pub source: String,
    /// To what it was fitted, if it was: it explains that, and predicts it no more.
    pub fitted: Option<String>,
}

/// A profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It is no TOML, or has an entry that no profile has.
    #[error("{profile}, line {line}: {cause}")]
    Text {
        /// Its file or name.
        profile: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        cause: String,
    },
    /// No profile has this name.
    #[error("there is no profile {name:?}: take ideal or as-measured, or name a file")]
    Unknown {
        /// As asked for.
        name: String,
    },
    /// Profiles are based on each other in a circle, or nearly.
    #[error("{profile} is based on more than {BASES_MAX} profiles, one upon the other")]
    Bases {
        /// The one that was asked for.
        profile: String,
    },
    /// A number is nowhere.
    #[error(
        "{profile} has no {number}: write its table, or name a profile in based_on that has it"
    )]
    Missing {
        /// Its file or name.
        profile: String,
        /// Table and name.
        number: String,
    },
    /// A number is in another unit than the model takes it.
    #[error("{profile}: {number} is in {found}; the model takes it in {expected}")]
    Unit {
        /// Its file or name.
        profile: String,
        /// Table and name.
        number: String,
        /// The unit that was found.
        found: String,
        /// The unit that belongs here.
        expected: &'static str,
    },
    /// A number makes no sense.
    #[error("{profile}: {number} is {found}; it must be {expected}")]
    Range {
        /// Its file or name.
        profile: String,
        /// Table and name.
        number: String,
        /// The value that was found.
        found: String,
        /// Which values are possible.
        expected: &'static str,
    },
}

/// All numbers of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: String,
    about: String,
    numbers: Numbers,
}

impl Profile {
    /// One that comes with the program: `ideal` or `as-measured`.
    pub fn shipped(name: &str) -> Result<Self, ProfileError> {
        let text = text_of(name)?;
        Self::parse(text, name)
    }

    /// The machine with software that is as good as the hardware lets it be.
    pub fn ideal() -> Self {
        Self::shipped("ideal").expect("the shipped profile is good")
    }

    /// The machine with the software that was measured in 1996.
    pub fn as_measured() -> Self {
        Self::shipped("as-measured").expect("the shipped profile is good")
    }

    /// Takes `text`, the content of the file `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self, ProfileError> {
        let mut file = read(text, name)?;
        for _ in 0..BASES_MAX {
            let Some(base) = file.based_on.take() else {
                let about = std::mem::take(&mut file.about);
                let numbers = file.complete(name)?;
                return Ok(Self { name: name.to_owned(), about, numbers });
            };
            file = file.or(read(text_of(&base)?, &base)?);
        }
        Err(ProfileError::Bases { profile: name.to_owned() })
    }

    /// Its file or name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is about, in a line.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// The numbers.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Stripes that one node of the cache holds.
    pub fn lines(&self) -> usize {
        self.numbers.node.lines.value as usize
    }

    /// The numbers that were fitted to what was measured, by table and name.
    pub fn fitted(&self) -> Vec<(String, &Number)> {
        self.numbers.all().into_iter().filter(|(_, number)| number.fitted.is_some()).collect()
    }

    /// The same with another value for one number, as `disk_node.copy`; `None` if there is no such
    /// number.
    #[must_use]
    pub fn with(&self, number: &str, value: f64) -> Option<Self> {
        let mut changed = self.clone();
        changed.numbers.get_mut(number)?.value = value;
        Some(changed)
    }
}

fn read(text: &str, name: &str) -> Result<numbers::Patch, ProfileError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or_default();
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        let cause = error.message().replace('\n', " ");
        ProfileError::Text { profile: name.to_owned(), line, cause }
    })
}

fn text_of(name: &str) -> Result<&'static str, ProfileError> {
    let found = SHIPPED.iter().find(|(shipped, _)| *shipped == name);
    let unknown = || ProfileError::Unknown { name: name.to_owned() };
    found.map(|(_, text)| *text).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "about = 'mine'\nbased_on = 'ideal'\n\n[node.dispatch]\nvalue = 7\n\
                       unit = 'cycles'\nconfidence = 'I'\nsource = 'me'\n";

    #[test]
    fn the_shipped_profiles_are_good_and_the_ideal_one_has_nothing_fitted() {
        assert_eq!(Profile::ideal().fitted(), []);
        let fitted: Vec<_> = Profile::as_measured().fitted().into_iter().map(|(n, _)| n).collect();
        let expected = [
            "node.receive_word",
            "disk_node.copy",
            "disk_node.buffers",
            "file.exclusive",
            "program.serial",
        ];
        assert_eq!(fitted, expected);
    }

    #[test]
    fn a_profile_takes_from_its_base_what_it_does_not_say() {
        let mine = Profile::parse(ONE, "mine.toml").unwrap();
        assert_eq!(mine.numbers().node.dispatch.value.to_string(), "7");
        assert_eq!(mine.numbers().node.clock, Profile::ideal().numbers().node.clock);
        assert_eq!((mine.name(), mine.about()), ("mine.toml", "mine"));
    }

    #[test]
    fn an_error_names_the_file_the_line_and_what_would_be_right() {
        let bad = [
            (ONE.replace("value = 7", "value = 'x'"), "mine.toml, line 5: "),
            (ONE.replace("dispatch", "despatch"), "unknown field `despatch`"),
            (ONE.replace("confidence = 'I'", "confidence = 'X'"), "unknown variant `X`"),
            (ONE.replace("source = 'me'", ""), "missing field `source`"),
            (
                ONE.replace("'cycles'", "'us'"),
                "node.dispatch is in us; the model takes it in cycles",
            ),
            (ONE.replace("value = 7", "value = -7"), "node.dispatch is -7; it must be"),
            (ONE.replace("value = 7", "value = nan"), "node.dispatch is NaN; it must be"),
            (ONE.replace("'ideal'", "'idle'"), "there is no profile \"idle\""),
            (ONE.replace("based_on = 'ideal'", ""), "mine.toml has no node."),
            (format!("{ONE}\n[nodes]\n"), "unknown field `nodes`"),
        ];
        for (text, expected) in bad {
            let error = Profile::parse(&text, "mine.toml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}, not {expected}");
        }
    }

    #[test]
    fn a_number_can_be_changed_by_its_name() {
        let changed = Profile::ideal().with("disk_node.copy", 99.0).unwrap();
        assert_eq!(changed.numbers().disk_node.copy.value.to_string(), "99");
        assert_eq!(Profile::ideal().with("disk_node.cop", 99.0), None);
    }
}

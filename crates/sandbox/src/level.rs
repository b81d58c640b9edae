//! The levels of confinement.

pub(crate) use toolpost_egress::shorten;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The level of confinement. The crate documentation lists the guarantees of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Level {
    /// No confinement: only limits, and everything dies with the program.
    ///
    /// For programs as trusted as the host program ([`crate::Sandbox::unconfined`]). It cannot be parsed from
    /// text.
    #[serde(skip_deserializing)]
    Unconfined,
    /// Limits, no capabilities, no new privileges, a clean environment and a short seccomp denylist.
    ///
    /// Not a boundary: the program has the files and the network of the host's user.
    Minimal,
    /// Landlock, seccomp, scopes and limits, plus namespaces where the host has them. Host paths stay the
    /// same.
    Standard,
    /// Required namespaces and a private root: only system directories and the workspace exist; no network.
    Strict,
    /// Like strict, with a seccomp allowlist that ends the program on other calls, and small limits.
    ///
    /// It has no second kernel, as the report notes.
    Maximum,
}

impl Level {
    /// Every level with a name, weakest first.
    pub const ALL: [Self; 4] = [Self::Minimal, Self::Standard, Self::Strict, Self::Maximum];
    /// Their names, in the same order.
    pub(crate) const NAMES: [&str; 4] = ["minimal", "standard", "strict", "maximum"];

    /// The name on a command line and in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unconfined => "unconfined",
            Self::Minimal => "minimal",
            Self::Standard => "standard",
            Self::Strict => "strict",
            Self::Maximum => "maximum",
        }
    }

    /// Whether the level guarantees that the program reaches only what it was given.
    pub fn is_boundary(self) -> bool {
        self >= Self::Standard
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| Error::UnknownLevel {
            name: shorten(name),
            suggestion: nearest(name, &Self::NAMES),
        })
    }
}

/// Returns the candidate nearest to a misspelled name, if one is near enough.
pub(crate) fn nearest(name: &str, candidates: &[&'static str]) -> Option<&'static str> {
    if name.len() > 32 {
        return None;
    }
    let (distance, candidate) = candidates
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .min_by_key(|pair| pair.0)?;
    (distance <= candidate.len().max(3) / 3).then_some(candidate)
}

/// The Levenshtein distance between two short names.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_gets_the_nearest_level() {
        let error = "strickt".parse::<Level>().unwrap_err().to_string();
        assert!(error.contains("`strict`"), "{error}");
    }

    #[test]
    fn names_round_trip() {
        for (level, name) in Level::ALL.into_iter().zip(Level::NAMES) {
            assert_eq!(level.to_string(), name);
            assert_eq!(name.parse::<Level>().unwrap(), level);
        }
        assert!(Level::ALL.is_sorted());
        assert!("unconfined".parse::<Level>().is_err(), "only code can ask for it");
    }
}

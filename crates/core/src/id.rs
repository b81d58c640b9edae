//! Identifiers: 48 bits of milliseconds since 1970 and 80 random bits.
//!
//! Ids sort by creation time. Ids of one process sort strictly in creation order, whatever the clock does. Ids of
//! several processes from the same millisecond have an arbitrary but stable order. Ids are not secrets.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Crockford's base 32: no I, L, O or U, so that an id can be read aloud.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TEXT_LENGTH: usize = 26;

/// A 64-bit step of `xorshift*`, seeded for each thread from the standard library's keyed hasher.
pub(crate) fn random() -> u64 {
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish() | 1));
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}

fn new_bits() -> u128 {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis());
    let tail = (u128::from(random()) << 16) | u128::from(random() >> 48);
    let bits = ((millis & 0xFFFF_FFFF_FFFF) << 80) | tail;
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    *latest = after(*latest, bits);
    *latest
}

/// The latest id of this process.
static LATEST: Mutex<u128> = Mutex::new(0);

/// These bits if they sort after the latest id, else the next ones.
fn after(latest: u128, bits: u128) -> u128 {
    if bits > latest { bits } else { latest.wrapping_add(1) }
}

fn key_bits(key: &str) -> u128 {
    let digest: [u8; 32] = Sha256::digest(key).into();
    digest.iter().take(16).fold(0, |bits, byte| (bits << 8) | u128::from(*byte))
}

fn write_text(bits: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = [0_u8; TEXT_LENGTH];
    for (index, slot) in text.iter_mut().enumerate() {
        let shift = 5 * (TEXT_LENGTH - 1 - index);
        *slot = ALPHABET[((bits >> shift) & 31) as usize];
    }
    f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

fn read_text(text: &str) -> Option<u128> {
    if text.len() != TEXT_LENGTH {
        return None;
    }
    text.bytes().try_fold(0_u128, |bits, byte| {
        let digit = ALPHABET.iter().position(|&letter| letter == byte.to_ascii_lowercase())?;
        // 26 digits of 5 bits are 130: the first may only use 3.
        (bits >> 123 == 0).then_some((bits << 5) | digit as u128)
    })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// A new unique id.
            #[expect(clippy::new_without_default, reason = "a default that differs each time would surprise")]
            pub fn new() -> Self {
                Self(new_bits())
            }

            /// The id of a key, always the same: the first bytes of its SHA-256. It does not sort by time.
            pub fn of_key(key: &str) -> Self {
                Self(key_bits(key))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_text(self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                read_text(text).map(Self).ok_or_else(|| {
                    format!(concat!("`{}` is not a ", $what, " id: expected {} letters and digits"), text, TEXT_LENGTH)
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// The id of a tool call.
    CallId,
    "call"
);
id!(
    /// The id of a run of an agent or a workflow.
    RunId,
    "run"
);
id!(
    /// The id of a scope: a run or a conversation.
    ScopeId,
    "scope"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_sorts_by_time() {
        let first = CallId::new();
        let text = first.to_string();
        assert_eq!(text.len(), TEXT_LENGTH);
        assert_eq!(text.parse::<CallId>().unwrap(), first);
        assert!(CallId::new().to_string() > text);
    }

    #[test]
    fn ids_of_one_process_sort_by_creation_when_the_clock_stands_or_goes_back() {
        let ids: Vec<_> = (0..10_000).map(|_| CallId::new()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b && a.to_string() < b.to_string()));
        for (latest, bits, next) in [(7, 9, 9), (7, 7, 8), (7, 3, 8)] {
            assert_eq!(after(latest, bits), next);
        }
    }

    #[test]
    fn invalid_text_is_rejected() {
        for text in ["", "abc", "zzzzzzzzzzzzzzzzzzzzzzzzzz", "0000000000000000000000000u"] {
            assert!(text.parse::<CallId>().is_err(), "{text}");
        }
    }

    #[test]
    fn ten_thousand_ids_differ() {
        let ids: std::collections::HashSet<_> = (0..10_000).map(|_| CallId::new()).collect();
        assert_eq!(ids.len(), 10_000);
    }
}

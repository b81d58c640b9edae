//! Calendar dates.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toolpost_core::Timestamp;

/// A calendar date in UTC, written `2026-11-21`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

impl From<Timestamp> for Date {
    fn from(time: Timestamp) -> Self {
        // A timestamp's text starts with its date. Years after 9999 count as the last representable date.
        let last = Self { year: 9999, month: 12, day: 31 };
        time.to_string().split_once('T').and_then(|(day, _)| day.parse().ok()).unwrap_or(last)
    }
}

impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |at: std::ops::Range<usize>| {
            let digits = text.get(at).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
            digits.parse::<u16>().ok()
        };
        let is_day = text.len() == 10 && text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-';
        match (number(0..4), number(5..7), number(8..10)) {
            (Some(year), Some(month @ 1..=12), Some(day @ 1..=31)) if is_day => {
                Ok(Self { year, month: month as u8, day: day as u8 })
            }
            _ => Err(format!("invalid date `{text}`: expected the form 2026-11-21")),
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed_written_and_compared() {
        let day: Date = "2026-11-21".parse().unwrap();
        assert_eq!(day.to_string(), "2026-11-21");
        assert!(day < "2026-12-01".parse().unwrap());
        assert_eq!(Date::from(Timestamp::from_micros(1_795_219_200_000_000)).to_string(), "2026-11-21");
        assert_eq!(Date::from(Timestamp::from_micros(u64::MAX)).to_string(), "9999-12-31");
        for wrong in ["", "2026-11-2", "2026-13-01", "2026/11/21", "2026-11-00", "+026-11-21", "ä026-11-2"] {
            assert!(wrong.parse::<Date>().is_err(), "{wrong}");
        }
    }
}

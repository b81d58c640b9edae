//! Durations as text: `250ms`, `10s`, `1m30s`, `2h`.

use std::time::Duration;

const UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Parses `250ms`, `10s`, `1.5s`, `1m30s`, `2h`; units are us, ms, s, m, h and d.
///
/// # Errors
/// A message with the text, the expected format and an example.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("`{text}` is not a duration; write a number and a unit, such as 250ms, 10s or 1m30s");
    let mut rest = text.trim();
    let mut micros = 0_u64;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        let value: f64 = number.parse().map_err(|_| invalid())?;
        let part = value * *scale as f64;
        // The bound prevents overflow when a duration is added to an instant.
        if !(0.0..=3.2e15).contains(&part) {
            return Err(format!("`{text}` is too long; the maximum duration is 100 years"));
        }
        micros = micros.saturating_add(part as u64);
        rest = tail;
    }
    Ok(Duration::from_micros(micros))
}

/// Formats a duration for people: `850 µs`, `12 ms`, `3.2 s`, `2 min 5 s`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 0.001 {
        format!("{} µs", duration.as_micros())
    } else if seconds < 1.0 {
        format!("{} ms", duration.as_millis())
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60)
    }
}

/// The shortest text that [`parse_duration`] parses to the same duration: `10s`, `250ms`, `1500us`.
pub fn exact_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0 => "0s".to_owned(),
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1000) => format!("{}ms", micros / 1000),
        _ => format!("{micros}us"),
    }
}

/// Serializes a duration as text, such as `10s`.
pub(crate) mod text {
    use super::{Duration, exact_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&exact_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Serializes an optional duration as text.
pub(crate) mod optional_text {
    use super::{Duration, exact_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(crate) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(exact_duration).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "10", "s", "10 s", "-1s", "1y", "1e9s", "99999999999d", "..s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn formats_durations_for_people() {
        assert_eq!(format_duration(Duration::from_micros(850)), "850 µs");
        assert_eq!(format_duration(Duration::from_millis(12)), "12 ms");
        assert_eq!(format_duration(Duration::from_millis(3210)), "3.2 s");
        assert_eq!(format_duration(Duration::from_secs(125)), "2 min 5 s");
    }
}

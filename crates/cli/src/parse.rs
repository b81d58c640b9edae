//! Parsers for values of options and settings.

use std::time::Duration;

use toolpost_core::parse_duration;
use toolpost_llm::{CacheLifetime, Effort, PromptCaching, Thinking, ToolChoice};

use crate::failure::Failure;

/// The values of the setting `prompt_caching`.
pub(crate) const PROMPT_CACHING: &[&str] = &["off", "automatic", "5m", "1h", "marks-5m", "marks-1h"];

/// Parses a `KEY=VALUE` pair of an option.
pub(crate) fn pair<'a>(option: &str, text: &'a str) -> Result<(&'a str, &'a str), Failure> {
    text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        Failure::usage(format!("`{option} {text}`: expected KEY=VALUE"))
            .hint(format!("Write for example `{option} NAME=value`."))
    })
}

/// Parses a duration above zero.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => {
            Err(format!("`{text}` is zero: expected a duration above 0, such as 250ms, 10s or 1m30s"))
        }
        time => Ok(time),
    }
}

/// Parses `512M`, `1G`, `4096`; K, M and G are powers of 1,024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size: expected bytes, or a number with K, M or G, such as 512M");
    let letters = text.trim_end_matches("iB").trim_end_matches('B');
    let (number, factor) = match letters.char_indices().last() {
        Some((at, 'k' | 'K')) => (letters.get(..at), 1 << 10),
        Some((at, 'm' | 'M')) => (letters.get(..at), 1 << 20),
        Some((at, 'g' | 'G')) => (letters.get(..at), 1 << 30),
        _ => (Some(letters), 1),
    };
    let number: u64 = number.unwrap_or_default().trim().parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Parses a sampling temperature.
pub(crate) fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 2".to_owned())
}

/// Parses an amount of US dollars.
pub(crate) fn dollars(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0, such as 0.50".to_owned())
}

/// Parses a reasoning effort.
pub(crate) fn effort(text: &str) -> Result<Effort, String> {
    let all = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::Xhigh, Effort::Max];
    all.into_iter().find(|effort| effort.as_str() == text).ok_or_else(|| {
        let names = all.map(Effort::as_str);
        let hint =
            toolpost_core::did_you_mean(text, names).map(|hint| format!(". {hint}")).unwrap_or_default();
        format!("expected one of {}{hint}", names.join(", "))
    })
}

/// Parses the setting `thinking`.
pub(crate) fn thinking(text: &str) -> Result<Thinking, String> {
    match text {
        "off" => Ok(Thinking::Off),
        "adaptive" => Ok(Thinking::Adaptive),
        _ => match text.parse() {
            Ok(tokens) if tokens > 0 => Ok(Thinking::Budget(tokens)),
            _ => Err("expected `off`, `adaptive` or a number of tokens from 1".to_owned()),
        },
    }
}

/// Parses the setting `prompt_caching`.
pub(crate) fn prompt_caching(text: &str) -> Result<PromptCaching, String> {
    Ok(match text {
        "off" => PromptCaching::Off,
        "automatic" => PromptCaching::Automatic,
        "5m" => PromptCaching::AutomaticFor(CacheLifetime::FiveMinutes),
        "1h" => PromptCaching::AutomaticFor(CacheLifetime::OneHour),
        "marks-5m" => PromptCaching::Breakpoints(CacheLifetime::FiveMinutes),
        "marks-1h" => PromptCaching::Breakpoints(CacheLifetime::OneHour),
        _ => return Err(format!("expected one of {}", PROMPT_CACHING.join(", "))),
    })
}

/// Parses the setting `tool_choice`; any other word is the name of a tool.
pub(crate) fn tool_choice(text: &str) -> Result<ToolChoice, String> {
    Ok(match text.trim() {
        "" => return Err("expected `auto`, `any`, `none` or the name of a tool".to_owned()),
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Any,
        "none" => ToolChoice::None,
        name => ToolChoice::Tool(name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_suffixes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        for text in ["", "M", "-1", "1.5G", "99999999999G", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}

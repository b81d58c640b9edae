//! The log of a tool program: on standard error, as `TOOLPOST_LOG` or else `RUST_LOG` asks.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use toolpost_core::{LogLevel, harmless};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The longest line, in bytes.
const MAX_LINE: usize = 64 << 10;
/// Libraries that log whole messages, with every secret that is in them: only their warnings are logged.
const QUIET: [&str; 3] = ["rmcp", "tungstenite", "tokio_tungstenite"];

/// Starts the log, unless the program has one already. `usual` counts where neither variable asks for anything.
pub(crate) fn start(asked: Option<&str>, usual: LevelFilter) {
    let filter = asked.map_or_else(|| Filter { usual, targets: Vec::new() }, Filter::parse);
    if filter.highest() > LevelFilter::OFF {
        // A program that brings a log of its own keeps it.
        let _ = tracing::subscriber::set_global_default(Log(filter));
    }
}

/// Which levels are logged, as in `toolpost::call=debug,warn`.
#[derive(Debug, PartialEq)]
struct Filter {
    usual: LevelFilter,
    targets: Vec<(String, LevelFilter)>,
}

impl Filter {
    /// A part that is not a level logs that target; what else cannot be parsed is ignored, as other readers of `RUST_LOG`
    /// know more forms.
    fn parse(text: &str) -> Self {
        let mut filter = Self { usual: LevelFilter::OFF, targets: Vec::new() };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((target, level)) => {
                    if let Some(level) = level_of(level) {
                        filter.targets.push((target.to_owned(), level));
                    }
                }
                None => match level_of(part) {
                    Some(level) => filter.usual = level,
                    None => filter.targets.push((part.to_owned(), LevelFilter::TRACE)),
                },
            }
        }
        // The most exact target counts.
        filter.targets.sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        filter
    }

    fn highest(&self) -> LevelFilter {
        self.targets.iter().map(|(_, level)| *level).fold(self.usual, LevelFilter::max)
    }

    fn enables(&self, target: &str, level: Level) -> bool {
        let crate_name = target.split("::").next().unwrap_or_default();
        if level > Level::WARN && QUIET.contains(&crate_name) {
            return false;
        }
        let is_below = |own: &str| {
            target.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let own = self.targets.iter().find(|(own, _)| is_below(own));
        level <= own.map_or(self.usual, |(_, level)| *level)
    }
}

/// The level of a name, also of Python's names.
fn level_of(name: &str) -> Option<LevelFilter> {
    let known = LogLevel::from_name(name).map(|level| match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    });
    known.or_else(|| name.parse().ok())
}

struct Log(Filter);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.enables(metadata.target(), *metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.highest())
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(format!("{:5} {}:", metadata.level().as_str(), metadata.target()));
        event.record(&mut line);
        let Line(mut text) = line;
        if text.len() > MAX_LINE {
            text.truncate(text.floor_char_boundary(MAX_LINE));
        }
        // One piece, so that lines of threads do not mix. A failed write has no other place to be reported.
        let _ = std::io::stderr()
            .write_all(format!("{}\n", harmless(&text).replace(['\n', '\t'], " ")).as_bytes());
    }

    // Spans are not logged.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_they_are_written() {
        for (text, target, level, expected) in [
            ("debug", "any", Level::DEBUG, true),
            ("debug", "any", Level::TRACE, false),
            ("WARN", "any", Level::INFO, false),
            ("toolpost::call=debug,warn", "toolpost::call", Level::DEBUG, true),
            ("toolpost::call=debug,warn", "toolpost::call::deep", Level::DEBUG, true),
            ("toolpost::call=debug,warn", "toolpost::caller", Level::DEBUG, false),
            ("toolpost::call=debug,warn", "other", Level::WARN, true),
            ("a=trace,a::b=error", "a::b", Level::WARN, false),
            ("mine", "mine", Level::TRACE, true),
            ("mine", "other", Level::ERROR, false),
            ("off", "any", Level::ERROR, false),
            ("trace", "rmcp::service", Level::DEBUG, false),
            ("[span{field=1}]=x,a=b=c", "any", Level::ERROR, false),
        ] {
            assert_eq!(Filter::parse(text).enables(target, level), expected, "{text}: {target} {level}");
        }
    }
}

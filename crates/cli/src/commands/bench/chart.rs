//! Charts as SVG: horizontal bars with error whiskers.

use std::fmt::Write as _;

use super::figures::{Comparison, Figure, Row};
use super::report::{number, ratio_text};

const WIDTH: f64 = 800.0;
const BAR: f64 = 18.0;
const STEP: f64 = 32.0;
const TOP: f64 = 66.0;
const BOTTOM: f64 = 34.0;
const MARGIN: f64 = 16.0;
/// The width of a character at 13 px: wider than the average of common sans-serif fonts.
const CHARACTER: f64 = 7.4;
/// The ratio of the largest to the smallest figure from which the scale is logarithmic.
const LOG_FROM: f64 = 20.0;
/// The number of steps of a linear axis.
const TICKS: f64 = 5.0;

/// Colors of light pages, then of dark pages. Not every viewer knows variables of CSS.
const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2328}\
.title{font-size:16px;font-weight:600}.soft{fill:#59636e;font-size:12px}.own{fill:#0b6e4f}.peer{fill:#8c959f}\
.grid{stroke:#d8dee4}.error{stroke:#1f2328;stroke-width:1.5;fill:none}.back{fill:#ffffff}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}.own{fill:#3fb68b}.peer{fill:#6e7681}\
.grid{stroke:#30363d}.error{stroke:#f0f6fc}.back{fill:#0d1117}}";

/// Positions on the axis.
struct Scale {
    left: f64,
    right: f64,
    low: f64,
    high: f64,
    is_log: bool,
}

impl Scale {
    fn new(figures: &[(&Row, Figure)], left: f64, right: f64) -> Self {
        let values =
            || figures.iter().flat_map(|(_, figure)| [figure.low, figure.value]).filter(|value| *value > 0.0);
        let top = figures.iter().map(|(_, figure)| figure.high).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let (smallest, largest) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        if smallest.is_finite() && largest / smallest > LOG_FROM {
            // The smallest interval is on the axis too.
            let low = 10_f64.powf((smallest * 0.8).log10().floor());
            return Self { left, right, low, high: top * 1.1, is_log: true };
        }
        let step = nice(top / TICKS);
        Self { left, right, low: 0.0, high: (top / step).ceil() * step, is_log: false }
    }

    fn x(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        self.left + part.clamp(0.0, 1.0) * (self.right - self.left)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            std::iter::successors(Some(self.low), |tick| Some(tick * 10.0))
                .take_while(|tick| *tick <= self.high)
                .collect()
        } else {
            let step = nice(self.high / TICKS);
            (0..=(self.high / step).round() as u32).map(|number| f64::from(number) * step).collect()
        }
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn nice(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|nice| *nice >= step).unwrap_or(step)
}

/// Escapes text for XML. Control characters, which XML forbids, become spaces.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            character if character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(' ');
            }
            character => escaped.push(character),
        }
    }
    escaped
}

fn width(text: &str) -> f64 {
    unicode_width::UnicodeWidthStr::width(text) as f64 * CHARACTER
}

/// Draws a comparison; none without figures.
pub(super) fn draw(comparison: &Comparison) -> Option<String> {
    let figures: Vec<(&Row, Figure)> = comparison.measured().collect();
    let label = |row: &Row| row.name.replace('`', "");
    let value = |row: &Row, figure: Figure| {
        let ratio = row.ratio.map(|ratio| format!("  ({})", ratio_text(ratio.value)));
        format!("{} {}{}", number(figure.value), comparison.unit, ratio.unwrap_or_default())
    };
    let widest = |widths: &mut dyn Iterator<Item = f64>| widths.fold(0.0, f64::max);
    let left = MARGIN + widest(&mut figures.iter().map(|(row, _)| width(&label(row)))) + 10.0;
    let values = widest(&mut figures.iter().map(|(row, figure)| width(&value(row, *figure))));
    // Long names widen the chart, so that no text is clipped.
    let right = (WIDTH - MARGIN - values - 12.0).max(left + 160.0);
    let whole = right + 12.0 + values + MARGIN;
    let scale = Scale::new(&figures, left, right);
    let height = TOP + STEP * figures.len() as f64 + BOTTOM;
    let bottom = height - BOTTOM;
    let direction = if comparison.higher_is_better { "higher is better" } else { "lower is better" };
    let axis = if scale.is_log { ", logarithmic scale" } else { "" };
    let note = format!(
        "{}, {direction}{axis}; lines: 95 % intervals; brackets: advantage of Toolpost",
        comparison.unit
    );
    let whole = whole.max(2.0 * MARGIN + width(&note)).max(2.0 * MARGIN + width(&comparison.title) * 1.25);
    let facts: Vec<String> =
        figures.iter().map(|(row, figure)| format!("{}: {}", label(row), value(row, *figure))).collect();
    let mut svg = String::new();
    let first = figures.first()?;
    debug_assert!(!first.0.name.is_empty());
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {whole:.0} {height:.0}\" width=\"{whole:.0}\" \
         height=\"{height:.0}\" role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">{}</title>\n\
         <desc id=\"desc\">{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"28\">{}</text>\n\
         <text class=\"soft\" x=\"{MARGIN}\" y=\"48\">{}</text>\n",
        escape(&comparison.title),
        escape(&format!("{direction}. {}", facts.join("; "))),
        escape(&comparison.title),
        escape(&note),
    );
    for tick in scale.ticks() {
        let x = scale.x(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"soft\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            TOP - 4.0,
            bottom + 18.0,
            number(tick)
        );
    }
    for (place, (row, figure)) in figures.iter().enumerate() {
        let y = TOP + STEP * place as f64 + (STEP - BAR) / 2.0;
        let (middle, end) = (y + BAR / 2.0, scale.x(figure.value));
        let (low, high) = (scale.x(figure.low), scale.x(figure.high));
        let class = if row.toolpost { "own" } else { "peer" };
        let _ = writeln!(
            svg,
            "<text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>\
             <path class=\"error\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 10.0,
            middle + 4.5,
            escape(&label(row)),
            (end - left).max(1.0),
            middle - 4.0,
            middle - 4.0,
            end.max(high) + 8.0,
            middle + 4.5,
            escape(&value(row, *figure)),
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

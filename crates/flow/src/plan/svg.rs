//! Plans as SVG drawings: steps are boxes in layers, blocks are frames, lines show the order.

mod layout;

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{ToolError, exact_duration};

use self::layout::{Layout, Line};
use super::types::{Action, Block, FailurePolicy, OnError, Plan, Step};
use crate::template::Template;

/// The maximum number of steps in a drawing.
const MAX_STEPS: usize = 2_000;
/// The maximum width of a text in a box.
const MAX_TEXT: f64 = 210.0;
/// The maximum number of characters in the text that a pointer shows.
const MAX_TITLE: usize = 400;
/// The free space around the drawing, and within a frame.
const MARGIN: f64 = 24.0;
const PADDING: f64 = 16.0;
/// The height of the title of the drawing, and of a frame.
const HEADER: f64 = 40.0;
const FRAME_HEADER: f64 = 34.0;
/// The space between the left side of a box and its texts.
const INDENT: f64 = 22.0;

const STYLE: &str = "
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#0f172a}
.page{fill:#fff}.name{font-size:16px;font-weight:600}.id{font-size:13px;font-weight:600}
.kind{font-size:11px;fill:#64748b}.badge text{font-size:10px;fill:#475569}
.badge rect{fill:#f1f5f9;stroke:#cbd5e1}.when rect{fill:#fef3c7;stroke:#fcd34d}.when text{fill:#92400e}
.card{fill:#fff;stroke:#cbd5e1}.frame{fill:#64748b;fill-opacity:.055}.frame,.sheet{stroke:#94a3b8;stroke-opacity:.7}
.sheet,.line{fill:none}.line{stroke:#94a3b8;stroke-width:1.5}.maybe{stroke-dasharray:5 4}.head{fill:#94a3b8}
.tool{fill:#2563eb}.code{fill:#7c3aed}.ask{fill:#d97706}.wait{fill:#0d9488}.block{fill:#64748b}
@media (prefers-color-scheme:dark){
text{fill:#e2e8f0}.page{fill:#0f172a}.kind{fill:#94a3b8}.badge text{fill:#cbd5e1}
.badge rect{fill:#334155;stroke:#475569}.when rect{fill:#451a03;stroke:#92400e}.when text{fill:#fcd34d}
.card{fill:#1e293b;stroke:#475569}.frame{fill:#94a3b8}.frame,.sheet{stroke:#64748b}
.line{stroke:#64748b}.head{fill:#64748b}
.tool{fill:#60a5fa}.code{fill:#a78bfa}.ask{fill:#fbbf24}.wait{fill:#2dd4bf}}
";

/// The drawing of a plan.
pub(super) fn draw(plan: &Plan) -> Result<String, ToolError> {
    let count = plan.step_count();
    if count > MAX_STEPS {
        return Err(too_large(format!("a drawing has at most {MAX_STEPS} steps, and this plan has {count}")));
    }
    let body = picture(&plan.body)?;
    let name = clipped(&plan.name, 400.0, 16.0);
    let facts = format!("{count} {}", if count == 1 { "step" } else { "steps" });
    let title = text_width(&name, 16.0) + 12.0 + text_width(&facts, 11.0);
    let (width, height) =
        (body.layout.width.max(title) + 2.0 * MARGIN, body.layout.height + HEADER + 2.0 * MARGIN);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n\
         <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"head\" d=\"M0 .5 8 4 0 7.5z\"/></marker></defs>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n",
        escaped(&name)
    );
    write_heading(&mut text, "name", (MARGIN, MARGIN + 14.0), &name, &facts);
    let left = MARGIN.midpoint(width - MARGIN - body.layout.width);
    let _ = writeln!(text, "<g transform=\"translate({left:.1} {:.1})\">", MARGIN + HEADER);
    body.write(&mut text);
    text.push_str("</g>\n</svg>\n");
    Ok(text)
}

fn too_large(message: String) -> ToolError {
    ToolError::limit(message).suggest("Draw it with Mermaid, or print it as text.")
}

/// A block in its place.
struct Picture<'a> {
    layout: Layout,
    boxes: Vec<Drawn<'a>>,
}

/// A step: a card, or a frame around a block.
struct Drawn<'a> {
    step: &'a Step,
    /// The ids of the steps that it needs.
    needs: String,
    id: String,
    kind: String,
    /// The badges, each with its width.
    badges: Vec<(&'static str, String, f64)>,
    size: (f64, f64),
    inner: Option<Picture<'a>>,
}

fn picture(block: &Block) -> Result<Picture<'_>, ToolError> {
    let boxes: Vec<Drawn<'_>> =
        block.steps.iter().map(|step| Drawn::new(step, block)).collect::<Result<_, _>>()?;
    let sizes: Vec<(f64, f64)> = boxes.iter().map(|drawn| drawn.size).collect();
    let needs: Vec<&[usize]> = block.steps.iter().map(|step| &*step.needs).collect();
    let layout = layout::place(&sizes, &needs)
        .ok_or_else(|| too_large(format!("a drawing has at most {} lines", layout::MAX_LINES)))?;
    Ok(Picture { layout, boxes })
}

impl<'a> Drawn<'a> {
    fn new(step: &'a Step, block: &'a Block) -> Result<Self, ToolError> {
        let needs: Vec<&str> =
            step.needs.iter().filter_map(|need| Some(&*block.steps.get(*need)?.id)).collect();
        let (id, kind) = (clipped(&step.id, MAX_TEXT, 13.0), clipped(&kind(step), MAX_TEXT, 11.0));
        let badges: Vec<_> = badges(step)
            .into_iter()
            .map(|(class, text)| {
                let text = clipped(&text, MAX_TEXT / 2.0, 10.0);
                let width = text_width(&text, 10.0) + 12.0;
                (class, text, width)
            })
            .collect();
        let badge_width: f64 = badges.iter().map(|(.., width)| width + 4.0).sum();
        let (id_width, kind_width) = (text_width(&id, 13.0), text_width(&kind, 11.0));
        let inner = match &step.action {
            Action::Group(body) | Action::Map { body, .. } | Action::Loop { body, .. } => {
                Some(picture(body)?)
            }
            Action::Flow { plan, .. } => Some(picture(&plan.body)?),
            _ => None,
        };
        let size = match &inner {
            Some(Picture { layout, .. }) => {
                let title = id_width + 10.0 + kind_width + 10.0 + badge_width;
                let width = layout.width.max(title) + 2.0 * PADDING;
                (width, layout.height + FRAME_HEADER + PADDING)
            }
            None => {
                let width = id_width.max(kind_width).max(badge_width).max(90.0) + INDENT + PADDING;
                (width, if badges.is_empty() { 46.0 } else { 68.0 })
            }
        };
        Ok(Self { step, needs: needs.join(", "), id, kind, badges, size, inner })
    }

    fn write(&self, (x, y): (f64, f64), text: &mut String) {
        let (width, height) = self.size;
        let _ = writeln!(text, "<g transform=\"translate({x:.1} {y:.1})\">");
        self.write_title(text);
        let Some(inner) = &self.inner else {
            let _ = writeln!(
                text,
                "<rect class=\"card\" width=\"{width:.1}\" height=\"{height}\" rx=\"7\"/>\
                 <rect class=\"{}\" x=\"9\" y=\"10\" width=\"4\" height=\"{}\" rx=\"2\"/>",
                class(self.step),
                height - 20.0
            );
            write_text(text, "id", INDENT, 20.0, &self.id);
            write_text(text, "kind", INDENT, 36.0, &self.kind);
            self.write_badges(INDENT, 45.0, text);
            text.push_str("</g>\n");
            return;
        };
        if matches!(self.step.action, Action::Map { .. }) {
            // A second sheet behind the first one: it has many items.
            let _ = writeln!(
                text,
                "<path class=\"sheet\" d=\"M{0:.1} 8V{1:.1}q0 10-10 10H8\"/>",
                width + 5.0,
                height - 5.0
            );
        }
        let _ =
            writeln!(text, "<rect class=\"frame\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"10\"/>");
        write_heading(text, "id", (PADDING, 21.0), &self.id, &self.kind);
        let badges: f64 = self.badges.iter().map(|(.., width)| width + 4.0).sum();
        self.write_badges(width - PADDING + 4.0 - badges, 10.0, text);
        let left = (width - inner.layout.width) / 2.0;
        let _ = writeln!(text, "<g transform=\"translate({left:.1} {FRAME_HEADER})\">");
        inner.write(text);
        text.push_str("</g>\n</g>\n");
    }

    /// The text that a pointer over the step shows.
    fn write_title(&self, text: &mut String) {
        let step = self.step;
        let mut lines = vec![format!("{}: {}", step.id, kind(step))];
        lines.extend(step.description.clone());
        lines.extend((!self.needs.is_empty()).then(|| format!("after {}", self.needs)));
        lines.extend(step.when.as_ref().map(|when| format!("when {when:?}")));
        let title = lines.iter().map(|line| shortened(line, MAX_TITLE)).collect::<Vec<_>>().join("\n");
        let _ = writeln!(text, "<title>{}</title>", escaped(&title));
    }

    fn write_badges(&self, mut x: f64, y: f64, text: &mut String) {
        for (class, label, width) in &self.badges {
            let _ = writeln!(
                text,
                "<g class=\"badge {class}\"><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"15\" rx=\"7.5\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>",
                x + width / 2.0,
                y + 11.0,
                escaped(label)
            );
            x += width + 4.0;
        }
    }
}

impl Picture<'_> {
    fn write(&self, text: &mut String) {
        for Line { to, pieces } in &self.layout.lines {
            let is_optional = self.boxes.get(*to).is_some_and(|drawn| drawn.step.when.is_some());
            let _ = write!(text, "<path class=\"line{}\" d=\"", if is_optional { " maybe" } else { "" });
            let mut before: Option<(f64, f64)> = None;
            for (x, top, bottom) in pieces {
                match before {
                    None => _ = write!(text, "M{x:.1} {top:.1}"),
                    Some((from, end)) => {
                        let middle = end.midpoint(*top);
                        let _ = write!(text, "C{from:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {top:.1}");
                    }
                }
                if bottom > top {
                    let _ = write!(text, "V{bottom:.1}");
                }
                before = Some((*x, *bottom));
            }
            text.push_str("\" marker-end=\"url(#head)\"/>\n");
        }
        for (drawn, corner) in self.boxes.iter().zip(&self.layout.corners) {
            drawn.write(*corner, text);
        }
    }
}

/// The action of a step, below its id.
fn kind(step: &Step) -> String {
    match &step.action {
        Action::Tool { tool, .. } => tool.to_string(),
        Action::Wait(Template::Constant(time)) => format!("wait {}", plain(time)),
        Action::Wait(_) => "wait".to_owned(),
        Action::Signal(Template::Constant(name)) => format!("signal {}", plain(name)),
        Action::Signal(_) => "signal".to_owned(),
        Action::Approve(_) => "approval".to_owned(),
        Action::Group(body) => match body.failure {
            FailurePolicy::Quorum(1) => "race".to_owned(),
            FailurePolicy::Quorum(count) => format!("parallel, needs {count}"),
            _ if body.is_pipeline => "pipeline".to_owned(),
            _ if is_listed(body) => "sequential".to_owned(),
            _ if body.max_parallel < body.steps.len() => format!("parallel, {} at once", body.max_parallel),
            _ => "parallel".to_owned(),
        },
        Action::Map { item, max_parallel, failure, .. } => {
            let quorum = match failure {
                FailurePolicy::Quorum(count) => format!(", needs {count}"),
                _ => String::new(),
            };
            format!("map, each {item}, {max_parallel} at once{quorum}")
        }
        Action::Loop { max, until: Some(_), .. } => format!("loop until true, at most {max} times"),
        Action::Loop { max, .. } => format!("loop, {max} times"),
        Action::Flow { plan, .. } => format!("flow {}", plan.name),
    }
}

/// Whether each step of a block needs the one before.
fn is_listed(block: &Block) -> bool {
    block.steps.len() > 1
        && block
            .steps
            .windows(2)
            .enumerate()
            .all(|(at, pair)| matches!(pair, [_, next] if next.needs.contains(&at)))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The style of a step's mark.
fn class(step: &Step) -> &'static str {
    match &step.action {
        Action::Tool { is_program: true, .. } => "code",
        Action::Tool { .. } => "tool",
        Action::Approve(_) => "ask",
        Action::Wait(_) | Action::Signal(_) => "wait",
        _ => "block",
    }
}

/// Further facts of a step, each with its style.
fn badges(step: &Step) -> Vec<(&'static str, String)> {
    let mut badges = Vec::new();
    if step.when.is_some() {
        badges.push(("when", "when".to_owned()));
    }
    if step.evaluate {
        badges.push(("", "evaluate".to_owned()));
    }
    if step.retry.max > 0 {
        badges.push(("", format!("retry {}", step.retry.max)));
    }
    if let Some(timeout) = step.timeout {
        badges.push(("", format!("timeout {}", brief(timeout))));
    }
    if let Some(pool) = step.call.as_ref().and_then(|call| call.pool.as_ref()) {
        badges.push(("", format!("pool {pool}")));
    }
    if step.call.as_ref().is_some_and(|call| call.cache.is_some()) {
        badges.push(("", "cache".to_owned()));
    }
    match &step.on_error {
        OnError::Fail => {}
        OnError::Continue => badges.push(("", "may fail".to_owned())),
        OnError::Handle(_) => badges.push(("", "on error".to_owned())),
    }
    if step.undo.is_some() {
        badges.push(("", "compensate".to_owned()));
    }
    badges
}

fn write_text(text: &mut String, class: &str, x: f64, y: f64, content: &str) {
    let _ = writeln!(text, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\">{}</text>", escaped(content));
}

/// Writes a name and what is after it, whatever the width of the reader's font.
fn write_heading(text: &mut String, class: &str, (x, y): (f64, f64), name: &str, more: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y}\"><tspan class=\"{class}\">{}</tspan><tspan class=\"kind\" dx=\"9\">{}</tspan></text>",
        escaped(name),
        escaped(more)
    );
}

/// A duration in its largest whole unit.
fn brief(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if duration.subsec_nanos() > 0 || seconds == 0 || seconds % 60 > 0 => {
            exact_duration(duration)
        }
        seconds if seconds % 86_400 == 0 => format!("{}d", seconds / 86_400),
        seconds if seconds % 3_600 == 0 => format!("{}h", seconds / 3_600),
        seconds => format!("{}m", seconds / 60),
    }
}

/// The estimated width of a text: the reader's font is unknown.
fn text_width(text: &str, size: f64) -> f64 {
    let wide = |character: char| match character {
        'i' | 'l' | 'j' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | 'I' | 'f' | 't' | 'r' | '('
        | ')' => 0.36,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.92,
        'A'..='Z' => 0.7,
        other if other.is_ascii() => 0.62,
        // Many scripts are as wide as high.
        '\u{1100}'.. => 1.05,
        _ => 0.65,
    };
    text.chars().map(wide).sum::<f64>() * size
}

/// A text in one line of a maximum width.
fn clipped(text: &str, width: f64, size: f64) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TITLE).collect();
    if text_width(&line, size) <= width {
        return line;
    }
    let mut used = size;
    let within = |character: &char| {
        used += text_width(character.encode_utf8(&mut [0; 4]), size);
        used <= width
    };
    line.chars().take_while(within).chain(['…']).collect()
}

fn shortened(text: &str, count: usize) -> String {
    if text.chars().count() <= count {
        return text.to_owned();
    }
    text.chars().take(count).chain(['…']).collect()
}

/// A text within XML, which has no control characters but line feeds and tabs.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

//! The actions of chat commands.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use serde_json::Value;
use toolpost_agent::ConversationSummary;
use toolpost_core::{Cancellation, RunRecord, SourceStatus, Usage, did_you_mean};
use toolpost_llm::{ItemView, Part, Turn};
use toolpost_sandbox::{Host, Layer, Level};

use super::{Chat, Next, UPLOAD, slash};
use crate::agent_options::AgentOptions;
use crate::failure::Failure;
use crate::interrupt::unless;
use crate::model::open_model;
use crate::outcome::{count, evidence, hosted_code, usd};
use crate::progress::lines::{NAME, finished, scrubbed_line, started};
use crate::style::{FAINT, HINT, STRONG, WARN, harmless, label, one_line, paint};

impl Chat<'_> {
    /// Runs a chat command; cancellation stops slow ones.
    pub(super) fn command(&mut self, line: &str, stop: &Cancellation) -> Result<Next, Failure> {
        let (name, rest) = slash::parse(line.trim()).map_err(|wrong| Failure::usage(harmless(&wrong)))?;
        match name {
            "/help" => self.help(),
            "/model" => self.change_model(rest, stop)?,
            "/tools" => self.list_tools(rest),
            "/mcp" => self.list_sources(),
            "/approve" => self.approve(rest)?,
            "/usage" => self.note(&self.used()),
            "/cost" => self.note(&self.costs()),
            "/trace" => self.trace(),
            "/sandbox" => self.sandbox(),
            "/compact" => self.compact(stop)?,
            "/undo" => self.undo()?,
            "/resume" => self.resume(rest)?,
            "/clear" => self.clear(),
            "/save" => self.save(Path::new(rest))?,
            _ => return Ok(Next::Ends),
        }
        Ok(Next::Goes)
    }

    fn help(&self) {
        let mut text = String::new();
        for command in slash::COMMANDS {
            let usage = format!("{} {}", command.name, command.takes);
            let _ =
                writeln!(text, "  {}  {}", paint(HINT, format!("{:<17}", usage.trim_end())), command.meaning);
        }
        text.push_str(
            "\nEnter sends. A line continues after `\\` and with Alt-Enter; a paste preserves its lines.\n",
        );
        text.push_str("Ctrl-C stops the answer and stores its beginning. Tab completes commands.");
        self.note(&text);
    }

    fn change_model(&mut self, name: &str, stop: &Cancellation) -> Result<(), Failure> {
        if name.is_empty() {
            self.note(&harmless(&self.session.model.id().to_string()));
            return Ok(());
        }
        if self.session.tape.is_recording() {
            return Err(Failure::usage("a recorded conversation cannot change its model")
                .hint("Start a new conversation without `--record`."));
        }
        let model = open_model(name, &self.session.options.config)?;
        let agent = self.session.parts.agent(std::sync::Arc::clone(&model), &self.session.tape)?;
        let place = self.session.parts.code_place(&*model)?;
        let (provider, before) = (&model.id().provider, self.session.model.id().provider.clone());
        if *provider != before {
            // Uploads belong to one provider.
            let given = match self.given_to.remove(provider) {
                Some(given) => given,
                None => {
                    let given = self.session.upload(&*model, place.as_ref());
                    self.handle.block_on(unless(stop, UPLOAD, given))?
                }
            };
            self.given_to.insert(before, std::mem::replace(&mut self.session.given, given));
        }
        (self.session.agent, self.session.place, self.session.model) = (agent, place, model);
        self.note(&format!(
            "{} answers from now on",
            paint(STRONG, harmless(&self.session.model.id().to_string()))
        ));
        self.session.stored = self.session.stored.with_model(name);
        self.session.note_place();
        Ok(())
    }

    fn list_tools(&self, text: &str) {
        let text = text.to_lowercase();
        let specs = self.session.parts.toolbox.specs();
        let fits = |name: &str, summary: &str| {
            name.to_lowercase().contains(&text) || summary.to_lowercase().contains(&text)
        };
        let lines: Vec<String> = specs
            .iter()
            .filter(|spec| fits(&spec.name, spec.summary()))
            .map(|spec| {
                format!(
                    "  {}  {}",
                    paint(STRONG, one_line(&spec.name, 64)),
                    paint(FAINT, one_line(spec.summary(), 100))
                )
            })
            .collect();
        if lines.is_empty() {
            self.note("no tool matches");
        } else {
            self.note(&lines.join("\n"));
        }
    }

    fn list_sources(&self) {
        let sources = &self.session.parts.sources;
        if sources.is_empty() {
            self.note("all tools are built in; `--mcp-server` and `--tools` add servers and programs");
        }
        for source in sources {
            let status = source.status();
            if status.is_empty() {
                // Programs start for each call.
                let tools = self.handle.block_on(source.list()).map_or(0, |tools| tools.len());
                self.note(&format!(
                    "  {}  {}",
                    paint(STRONG, one_line(source.name(), 64)),
                    count(tools, "tool")
                ));
            }
            for status in status {
                self.note(&standing(&status));
            }
        }
    }

    fn approve(&self, tool: &str) -> Result<(), Failure> {
        if tool.is_empty() {
            let approved = self.session.port.approved();
            let text = match approved.as_slice() {
                [] => "no tool was approved in this chat".to_owned(),
                some => format!("approved: {}", some.join(", ")),
            };
            self.note(&harmless(&text));
            return Ok(());
        }
        let specs = self.session.parts.toolbox.specs();
        if !specs.iter().any(|spec| spec.name == tool) {
            let failure = Failure::usage(format!("unknown tool `{}`", one_line(tool, 64)));
            let near = did_you_mean(tool, specs.iter().map(|spec| spec.name.as_str()));
            return Err(failure.hint(near.unwrap_or_else(|| "`/tools` lists them.".to_owned())));
        }
        self.session.port.approve(tool);
        self.note(&format!("{} is approved for this conversation", paint(STRONG, tool)));
        Ok(())
    }

    fn used(&self) -> String {
        let usage = &self.usage;
        let mut text = format!("{} tokens in, {} out", usage.input_tokens, usage.output_tokens);
        let mut parts = Vec::new();
        if usage.cache_read_tokens > 0 {
            parts.push(format!("{} cache reads", usage.cache_read_tokens));
        }
        if usage.cache_write_tokens > 0 {
            parts.push(format!("{} cache writes", usage.cache_write_tokens));
        }
        if let Some(reasoning) = usage.reasoning_tokens {
            parts.push(format!("{reasoning} of reasoning"));
        }
        parts.extend(hosted_code(usage));
        if !parts.is_empty() {
            let _ = write!(text, " ({})", parts.join(", "));
        }
        text
    }

    fn costs(&self) -> String {
        match self.cost {
            Some(cost) => usd(cost),
            None => "unknown: a model has no known price".to_owned(),
        }
    }

    /// Prints the calls of the latest turn, including those of called agents.
    fn trace(&self) {
        let Some(record) = &self.latest else {
            self.note("no answer yet");
            return;
        };
        let mut lines = Vec::new();
        trace_of(record, "", &mut lines);
        if lines.is_empty() {
            let what = if self.is_lost {
                "no tool was called before the question failed"
            } else {
                "no tool was called"
            };
            lines.push(what.to_owned());
        }
        self.note(&lines.join("\n"));
    }

    fn sandbox(&self) {
        let host = Host::probe();
        let level = match (self.level(), host.best()) {
            (Some(level), _) => format!("level {}, as requested", paint(STRONG, level)),
            (None, Some(level)) => {
                format!("level {}, the best of this host", paint(STRONG, level))
            }
            (None, None) => paint(WARN, "no level is available; `toolpost doctor` says why"),
        };
        self.note(&level);
        let calls = self.latest.iter().flat_map(|record| &record.tool_calls);
        let mut reports = calls.filter_map(|call| Some((call, evidence(call)?.report?)));
        let Some((call, report)) = reports.next_back() else {
            self.note(&paint(FAINT, "no code ran in the latest turn"));
            return;
        };
        let name = |layer: &Layer| Some(serde_json::to_value(layer).ok()?.as_str()?.to_owned());
        let layers: Vec<String> = report.layers.iter().filter_map(name).collect();
        self.note(&format!(
            "{} ran at level {} with the layers {}",
            paint(STRONG, one_line(&call.tool, 64)),
            report.effective,
            layers.join(", ")
        ));
    }

    /// The sandbox level of the option or the setting.
    fn level(&self) -> Option<Level> {
        let AgentOptions { args, config, .. } = self.session.options;
        args.permission.level.or(config.settings.level)
    }

    /// Compacts the conversation; Ctrl-C cancels.
    fn compact(&mut self, stop: &Cancellation) -> Result<(), Failure> {
        let before = self.session.conversation.summary();
        let compacted = self.handle.block_on(async {
            tokio::select! {
                biased;
                () = stop.cancelled() => None,
                compacted = self.session.conversation.compact(&self.session.agent) => Some(compacted),
            }
        });
        let Some(Ok(done)) = compacted else {
            // A cancelled or failed summary still costs.
            self.count_since(&before);
            if let Some(failed) = compacted {
                failed?;
            }
            self.handle.block_on(self.session.conversation.flush())?;
            let is_shorter = self.session.conversation.summary().turns < before.turns;
            self.note(if is_shorter {
                "stopped, but the summary was already stored"
            } else {
                "stopped; the conversation is unchanged"
            });
            return Ok(());
        };
        let Some(compacted) = done else {
            self.note("the conversation is too short for a summary");
            return Ok(());
        };
        self.count(&compacted.usage, compacted.cost_usd);
        self.note(&format!(
            "a summary replaced {} ({} tokens in, {} out)",
            count(compacted.turns, "message"),
            compacted.usage.input_tokens,
            compacted.usage.output_tokens
        ));
        Ok(())
    }

    /// Counts the usage since an earlier summary of the conversation.
    fn count_since(&mut self, before: &ConversationSummary) {
        let now = self.session.conversation.summary();
        if (&now.usage, now.cost_usd) == (&before.usage, before.cost_usd) {
            return;
        }
        let (old, new) = (&before.usage, &now.usage);
        let reasoning = new.reasoning_tokens.map(|new| new.saturating_sub(old.reasoning_tokens.unwrap_or(0)));
        let usage = Usage {
            input_tokens: new.input_tokens.saturating_sub(old.input_tokens),
            output_tokens: new.output_tokens.saturating_sub(old.output_tokens),
            cache_read_tokens: new.cache_read_tokens.saturating_sub(old.cache_read_tokens),
            cache_write_tokens: new.cache_write_tokens.saturating_sub(old.cache_write_tokens),
            reasoning_tokens: reasoning.filter(|tokens| *tokens > 0),
            hosted_code_seconds: new.hosted_code_seconds.saturating_sub(old.hosted_code_seconds),
        };
        self.count(&usage, now.cost_usd.zip(before.cost_usd).map(|(now, before)| now - before));
    }

    fn undo(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.is_lost) {
            self.note("the last question failed and was discarded: nothing to undo");
            return Ok(());
        }
        let Some(left) = self.session.conversation.exchanges().len().checked_sub(1) else {
            self.note("nothing to undo");
            return Ok(());
        };
        self.rewind(left)?;
        self.latest = None;
        let stays = match left {
            0 => "no question remains".to_owned(),
            1 => "1 question remains".to_owned(),
            more => format!("{more} questions remain"),
        };
        self.note(&format!("undone; {stays}. Effects of tools remain."));
        Ok(())
    }

    fn clear(&mut self) {
        self.session.conversation = self.session.options.memory.create();
        self.is_ours = true;
        self.is_lost = false;
        self.latest = None;
        self.note("new conversation");
    }

    fn resume(&mut self, id: &str) -> Result<(), Failure> {
        if !id.is_empty() {
            self.session.conversation = self.handle.block_on(self.session.options.memory.find(id))?;
            self.is_ours = false;
            self.is_lost = false;
            self.latest = None;
            self.note_resumed();
            return Ok(());
        }
        let all = self.handle.block_on(self.session.options.memory.last())?;
        if all.is_empty() {
            self.note("this directory has no other conversations");
        }
        for summary in all {
            self.note(&format!(
                "  {}  {} {}",
                paint(HINT, summary.id),
                one_line(&summary.title, 60),
                paint(FAINT, format!("({}, {})", count(summary.prompts, "question"), summary.updated))
            ));
        }
        Ok(())
    }

    /// Writes the conversation to a new file.
    fn save(&self, path: &Path) -> Result<(), Failure> {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let text = if is_json {
            let text = serde_json::to_string_pretty(&self.session.conversation.turns()).map_err(|error| {
                Failure::new(crate::exit::Exit::Failed, "INTERNAL", format!("the conversation: {error}"))
            })?;
            text + "\n"
        } else {
            transcript(&self.session.conversation.turns())
        };
        let wrong = |error: &std::io::Error| Failure::file("the conversation", path, error);
        let mut file =
            OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| wrong(&error))?;
        file.write_all(text.as_bytes()).map_err(|error| wrong(&error))?;
        self.note(&format!("written to {}", paint(HINT, label(&path.display().to_string()))));
        Ok(())
    }
}

/// Adds the calls of a run and of its children with their results.
fn trace_of(record: &RunRecord, indent: &str, lines: &mut Vec<String>) {
    for call in &record.tool_calls {
        let arguments = call.arguments.as_deref().unwrap_or(&Value::Null);
        let name = scrubbed_line(&call.tool, NAME);
        lines.push(format!("{indent}{}", started(&name, arguments)));
        lines.push(format!("{indent}  {}", finished(&name, call)));
    }
    for child in &record.children {
        lines.push(format!("{indent}{}", paint(FAINT, one_line(&child.model, 64))));
        trace_of(child, &format!("{indent}  "), lines);
    }
}

/// The state of a source as text.
fn standing(source: &SourceStatus) -> String {
    let name = paint(STRONG, one_line(&source.name, 64));
    let mut line = format!("  {name}  {}, {}", source.state.words(), count(source.tools, "tool"));
    if let Some(reason) = &source.reason {
        line.push_str(&paint(WARN, format!(": {}", one_line(reason, 200))));
    }
    for tool in &source.quarantined {
        let (name, reason) = (one_line(&tool.name, 64), one_line(&tool.reason, 200));
        line.push_str(&paint(WARN, format!("\n    {name} is in quarantine: {reason}")));
    }
    line
}

/// Renders a conversation as Markdown, escaped for terminals.
fn transcript(turns: &[Turn]) -> String {
    let mut text = String::new();
    for turn in turns {
        match turn {
            Turn::User(parts) | Turn::System(parts) => {
                let said: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| match part {
                        Part::Text(text) => Some(text.as_str()),
                        _ => None,
                    })
                    .collect();
                let _ = write!(text, "## You\n\n{}\n\n", harmless(&said.join("\n\n")));
            }
            Turn::Assistant(turn) => {
                let _ = write!(text, "## {}\n\n", one_line(&turn.origin.to_string(), 200));
                for item in &turn.items {
                    match item.view() {
                        ItemView::Text { text: said, .. } => {
                            let _ = write!(text, "{}\n\n", harmless(said.trim_end()));
                        }
                        ItemView::ToolCall { name, arguments, .. } => {
                            let arguments = arguments.as_ref().map_or_else(Clone::clone, ToString::to_string);
                            let (name, arguments) = (one_line(name, 64), one_line(&arguments, 400));
                            let _ = write!(text, "- `{name}` with `{arguments}`\n\n");
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    text
}

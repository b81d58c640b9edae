//! Prints the outcome of a run, and maps it to an exit code.

use std::sync::Arc;

use serde_json::json;
use toolpost_agent::{RunOutput, RunStopReason};
use toolpost_core::{Artifact, CallRecord, Event, RunRecord, Timestamp, Truncation, Usage, format_duration};
use toolpost_llm::ModelError;
use toolpost_sandbox::RunEvidence;

use crate::args::Format;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::progress::has_final_text;
use crate::style::{FAINT, GOOD, HINT, harmless, label, paint};

/// The exit code of an outcome, or its failure.
pub(crate) fn exit_of(outcome: &RunOutput) -> Result<Exit, Failure> {
    let exit = match &outcome.error {
        Some(error) => Failure::from(error.clone()).exit,
        None => (&outcome.stop).into(),
    };
    if exit == Exit::Ok {
        return Ok(Exit::Ok);
    }
    Err(match &outcome.error {
        Some(error) if outcome.stop == RunStopReason::UnknownCost => unpriced(error),
        Some(error) => error.clone().into(),
        None => stopped(outcome, exit),
    })
}

/// The evidence of a call's sandbox.
pub(crate) fn evidence(record: &CallRecord) -> Option<RunEvidence> {
    RunEvidence::read(record.sandbox.as_ref()?)
}

/// The failure of a model without a price.
fn unpriced(error: &ModelError) -> Failure {
    let model = error.details.model.as_ref().map_or_else(|| "PROVIDER/NAME".to_owned(), ToString::to_string);
    let row = json!({"models": [{"id": model, "prices": [{"input": 3.0, "output": 15.0}]}]});
    let mut failure = Failure::from(error.clone());
    failure.hints = vec![
        format!(
            "The setting `models.file` names a file with prices in US dollars per million tokens, such as {row}. `toolpost models show {model}` shows the result."
        ),
        "`--max-tokens` limits a run without prices.".to_owned(),
    ];
    failure
}

/// The exit of a command that printed an output. A truncated part is a failure for a program, which reads the output as
/// data, and a warning for a person, who reads its mark.
pub(crate) fn check_whole(
    truncated: &[Truncation],
    is_data: bool,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match truncated.first().filter(|_| is_data) {
        Some(part) => Err(part.to_error().into()),
        None => {
            for part in truncated {
                printer.warn(&part.to_string());
            }
            Ok(Exit::Ok)
        }
    }
}

/// Prints the names of new files.
pub(crate) fn print_artifacts(files: &[Artifact], printer: &Printer) {
    for file in files {
        let name = paint(HINT, label(&file.name));
        let size = count(file.size as usize, "byte");
        printer.note(&format!("{} {name} ({size})", paint(GOOD, "made")));
    }
}

/// Prints the result of a run: the parts of the answer that were not yet shown, and a summary.
pub(crate) fn print_record(
    record: RunRecord,
    is_result: bool,
    shown: Option<&str>,
    window: Option<String>,
    printer: &Printer,
) -> Result<(), Failure> {
    match printer.format {
        Format::Json => printer.foreign_json(&record)?,
        Format::Jsonl => printer.event(&Event::RunFinished { record: Arc::new(record) })?,
        Format::Text => {
            let answer = env::scrubber().scrub(record.response.clone());
            let was_shown = shown.is_some_and(|shown| shown.contains(answer.trim()));
            if !was_shown && is_result {
                printer.foreign_result(&answer)?;
            } else if !was_shown && has_final_text(&record) {
                printer.note(&harmless(answer.trim()));
            }
            printer.note(&paint(FAINT, summary(&record, window)));
        }
    }
    Ok(())
}

fn stopped(outcome: &RunOutput, exit: Exit) -> Failure {
    let stop = &outcome.stop;
    let option = match stop.as_str() {
        "max_iterations" => Some("--max-iterations"),
        "max_tool_calls" => Some("--max-tool-calls"),
        "max_tokens" => Some("--max-tokens"),
        "max_time" => Some("--max-time"),
        "max_cost" => Some("--max-cost"),
        "output_tokens" => Some("--config max_output_tokens=N"),
        _ => None,
    };
    let failure =
        Failure::new(exit, &stop.as_str().to_uppercase(), format!("the run ended without an answer: {stop}"));
    match option {
        Some(option) => failure.hint(format!("Allow more with `{option}`, or split the task.")),
        None => failure,
    }
}

fn summary(record: &RunRecord, window: Option<String>) -> String {
    let mut facts = vec![
        record.model.clone(),
        count(record.iterations as usize, "turn"),
        count(record.tool_calls.len(), "tool call"),
    ];
    if record.usage.total_tokens() > 0 {
        let usage = &record.usage;
        let cached = match usage.cache_read_tokens {
            0 => String::new(),
            cached => format!(" ({cached} cached)"),
        };
        facts.push(format!("{} tokens in{cached}, {} out", usage.input_tokens, usage.output_tokens));
    }
    facts.extend(hosted_code(&record.usage));
    facts.extend(record.cost_usd.filter(|cost| *cost > 0.0 || record.success).map(usd));
    facts.push(format_duration(std::time::Duration::from_secs_f64(record.execution_time)));
    facts.extend(window);
    crate::style::one_line(&facts.join(" · "), 200)
}

/// The billed time of hosted code, if any.
pub(crate) fn hosted_code(usage: &Usage) -> Option<String> {
    let time = std::time::Duration::from_secs(usage.hosted_code_seconds);
    (!time.is_zero()).then(|| format!("{} of hosted code", format_duration(time)))
}

/// An amount in US dollars.
pub(crate) fn usd(amount: f64) -> String {
    if amount > 0.0 && amount < 0.0001 { "<0.0001 USD".to_owned() } else { format!("{amount:.4} USD") }
}

/// A time without the fraction of its second.
pub(crate) fn whole_seconds(time: Timestamp) -> String {
    let text = time.to_string();
    text.split_once('.').map_or(text.clone(), |(second, _)| format!("{second}Z"))
}

pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

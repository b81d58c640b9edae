//! `toolpost schema`

use toolpost_core::did_you_mean;
use toolpost_exec::command::COMMAND_SCHEMA;

use crate::args::SchemaArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::{Printer, raw};
use crate::style::{HINT, paint};

/// Name, meaning and text of each schema. Fields are only added, never removed.
pub(crate) const SCHEMAS: [(&str, &str, &str); 17] = [
    ("agent", "a file with `kind = \"agent\"`", include_str!("../../schemas/agent.json")),
    ("bench", "`results.json` of `bench`", include_str!("../../schemas/bench.json")),
    ("call-record", "the stored record of a call", include_str!("../../schemas/call-record.json")),
    ("command", "a file with `kind = \"command\"`", COMMAND_SCHEMA),
    ("doctor", "the output of `doctor --format json`", include_str!("../../schemas/doctor.json")),
    (
        "egress",
        "a file for the setting `egress_policy` and `exec --egress-policy`",
        include_str!("../../schemas/egress.json"),
    ),
    ("envelope", "the output of `call --format json`", include_str!("../../schemas/envelope.json")),
    ("error", "the line on standard error of a failed command", include_str!("../../schemas/error.json")),
    ("event", "one line of `run --format jsonl`", include_str!("../../schemas/event.json")),
    ("exec-event", "one line of `exec --format jsonl`", include_str!("../../schemas/exec-event.json")),
    ("files", "the output of `files … --format json`", include_str!("../../schemas/files.json")),
    ("flow", "a file with `kind = \"flow\"`", include_str!("../../schemas/flow.json")),
    ("gateway", "a file with `kind = \"gateway\"`", include_str!("../../schemas/gateway.json")),
    ("outcome", "the output of `exec --format json`", include_str!("../../schemas/outcome.json")),
    ("run-record", "the output of `run --format json`", include_str!("../../schemas/run-record.json")),
    ("script", "a file for `--model script:FILE`", include_str!("../../schemas/script.json")),
    ("version", "the output of `--version --json`", include_str!("../../schemas/version.json")),
];

pub(crate) fn run(args: &SchemaArgs, printer: &Printer) -> Result<Exit, Failure> {
    let Some(name) = &args.name else {
        let lines: Vec<String> = SCHEMAS
            .iter()
            .map(|(name, meaning, _)| {
                format!("{}{}{meaning}", paint(HINT, name), " ".repeat(14 - name.len()))
            })
            .collect();
        printer.result(&lines.join("\n"))?;
        return Ok(Exit::Ok);
    };
    let (.., text) = SCHEMAS.iter().find(|(known, ..)| known == name).ok_or_else(|| {
        let known = SCHEMAS.map(|(name, ..)| name);
        let hint = did_you_mean(name, known).unwrap_or_else(|| format!("There are: {}.", known.join(", ")));
        Failure::usage(format!("there is no schema `{name}`")).hint(hint)
    })?;
    raw(text.as_bytes(), true)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use toolpost_gateway::{GatewaySettings, UpstreamSettings};
    use toolpost_sandbox::EgressPolicy;

    use super::*;

    /// The fields of a schema at a pointer.
    fn fields(name: &str, place: &str) -> BTreeSet<String> {
        let (.., text) = SCHEMAS.iter().find(|(known, ..)| *known == name).unwrap();
        let schema: Value = serde_json::from_str(text).unwrap();
        let properties = schema.pointer(&format!("{place}/properties")).unwrap().as_object().unwrap();
        properties.keys().cloned().collect()
    }

    fn keys(value: &impl serde::Serialize) -> BTreeSet<String> {
        serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn the_schemas_have_the_parsed_fields() {
        let agent: BTreeSet<String> = crate::agent_file::fields().map(str::to_owned).collect();
        assert_eq!(fields("agent", ""), agent);
        let policy = EgressPolicy::default();
        assert_eq!(fields("egress", ""), keys(&policy));
        assert_eq!(fields("egress", "/$defs/limits"), keys(&policy.limits));
        let mut gateway = keys(&GatewaySettings::default());
        gateway.insert("kind".to_owned());
        assert_eq!(fields("gateway", ""), gateway);
        let mut upstream = UpstreamSettings::new("a", "./b");
        upstream.start_timeout = Some("1m".into());
        assert_eq!(fields("gateway", "/$defs/upstream"), keys(&upstream));
    }
}

//! The keys of description files, in TOML, YAML or JSON.

use std::path::Path;

use serde_json::Value;
use toolpost_flow::PlanMember;

use crate::failure::Failure;
use crate::toml_text::toml_entries;

/// One key of a description.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) value: Value,
    /// The line, from 1.
    pub(crate) line: usize,
}

/// The keys of a description.
pub(crate) fn entries(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let wrong = |form: &str, error: &str| {
        Failure::usage(format!(
            "the description `{}` is invalid {form}: {}",
            path.display(),
            error.trim_end()
        ))
    };
    if is_toml {
        let entries = toml_entries(text).map_err(|error| wrong("TOML", &error))?;
        return Ok(entries.into_iter().map(|(name, value, line)| Entry { name, value, line }).collect());
    }
    // YAML includes JSON.
    let members = toolpost_flow::parse_members(text).map_err(|(at, problem)| {
        wrong("YAML or JSON with names and values", &format!("line {}: {problem}", at.line))
    })?;
    let entry = |member: PlanMember| Entry { name: member.key, value: member.value, line: member.at.line };
    Ok(members.into_iter().map(entry).collect())
}

/// The kind of a description, if it parses and has one.
pub(crate) fn kind(path: &Path, text: &str) -> Option<String> {
    let entries = entries(path, text).ok()?;
    let kind = entries.into_iter().find(|entry| entry.name == "kind")?;
    kind.value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digits_with_a_leading_zero_are_text_as_in_plans() {
        let yaml = "a: 08\nb: [0777, -07, {c: 01234}]\nd:\n  e: 00 # x\nf: [0, 0.5, 10, 1e3]\ng: on\n";
        let of = |path: &str, text: &str| -> Vec<(String, Value, usize)> {
            let entries = entries(Path::new(path), text).unwrap_or_else(|failure| panic!("{failure:?}"));
            entries.into_iter().map(|entry| (entry.name, entry.value, entry.line)).collect()
        };
        let expected = [
            ("a", json!("08"), 1),
            ("b", json!(["0777", "-07", { "c": "01234" }]), 2),
            ("d", json!({ "e": "00" }), 4),
            ("f", json!([0, 0.5, 10, 1000.0]), 5),
            ("g", json!("on"), 6),
        ];
        assert_eq!(of("a.yaml", yaml), expected.map(|(name, value, line)| (name.to_owned(), value, line)));
        assert_eq!(of("a.json", "{\"a\": 1.5}"), [("a".to_owned(), json!(1.5), 1)]);
        for (text, line) in [("a: 1\na: 2\n", "line 2: "), ("a: [1,\n", "line "), ("[1]", "found a list")] {
            let failure = entries(Path::new("a.yaml"), text).err().unwrap();
            assert!(failure.message.contains(line), "{}", failure.message);
        }
    }
}

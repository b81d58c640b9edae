//! The JSON Schema for editors matches the reader.

use std::collections::BTreeSet;

use serde_json::Value;
use toolpost_core::Schema;
use toolpost_exec::command::{COMMAND_SCHEMA, CommandTools, SHIPPED};

use crate::command::support::description;

fn schema() -> Value {
    serde_json::from_str(COMMAND_SCHEMA).unwrap()
}

fn json(text: &str) -> Value {
    toml::from_str(text).unwrap()
}

#[test]
fn the_shipped_descriptions_fit_and_mistakes_do_not() {
    let schema = Schema::new(schema());
    for (name, text) in SHIPPED {
        let problems = schema.problems(&json(text)).unwrap();
        assert!(problems.is_empty(), "{name}: {problems:?}");
    }
    for wrong in [
        description("p", "progam = 1", ""),
        description("./p", "", ""),
        description("p", "", "args = [1]"),
        description("p", "", "[tool.output]\nformat = \"xml\""),
        description("p", "", "[tool.parameters.x]\ntype = \"strng\"\ndescription = \"X.\""),
        description("p", "", "[[tool.exit]]\ncode = 1\nmeans = \"nothing\""),
    ] {
        assert!(!schema.is_valid(&json(&wrong)).unwrap(), "{wrong}");
    }
}

/// The keys that the reader names as known where it finds one that is not.
fn known_keys(text: &str) -> BTreeSet<String> {
    let error = CommandTools::from_toml(text, "x").unwrap_err().to_string();
    if let Some((_, names)) = error.split_once("expected one of ") {
        return names.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect();
    }
    let keys = error.rsplit_once("(known keys: ").unwrap_or_else(|| panic!("{error}")).1;
    keys.trim_end_matches(')').split(", ").map(ToOwned::to_owned).collect()
}

#[test]
fn the_schema_has_the_keys_of_the_reader() {
    let schema = schema();
    let with = |file: &str, tool: &str| description("p", file, tool);
    let x = "args = [\"{x}\"]\n[tool.parameters.x]\ntype = \"array\"\ndescription = \"X.\"\n";
    let rows = [
        ("/properties", with("zzz = 1", "")),
        ("/properties/version/properties", with("[version]\nminimum = \"1\"\npattern = '(a)'\nzzz = 1", "")),
        ("/properties/sandbox/properties", with("[sandbox]\nzzz = 1", "")),
        ("/properties/grants/properties", with("[grants]\nzzz = 1", "")),
        ("/$defs/policy/properties", with("[policy]\nzzz = 1", "")),
        ("/$defs/exit/properties", with("[[exit]]\ncode = 1\nmeans = \"empty\"\nzzz = 1", "")),
        ("/$defs/tool/properties", with("", "zzz = 1")),
        ("/$defs/parameter/properties", with("", &format!("{x}zzz = 1"))),
        ("/$defs/items/properties", with("", &format!("{x}items = {{ type = \"string\", zzz = 1 }}"))),
        ("/$defs/output/properties", with("", "[tool.output]\nformat = \"text\"\nzzz = 1")),
        ("/$defs/example/properties", with("", "[[tool.example]]\nargs = {}\nzzz = 1")),
        (
            "/$defs/argument/oneOf/1/properties",
            with(
                "",
                "args = [{ when = \"x\", args = [\"a\"], zzz = 1 }]\n[tool.parameters.x]\ntype = \"any\"\ndescription = \"X.\"",
            ),
        ),
    ];
    for (pointer, text) in rows {
        let properties = schema.pointer(pointer).unwrap_or_else(|| panic!("{pointer}")).as_object().unwrap();
        let keys: BTreeSet<String> = properties.keys().cloned().collect();
        assert_eq!(keys, known_keys(&text), "{pointer}");
    }
}

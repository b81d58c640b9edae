//! Tests of the definitions that a model reads before it calls tools.

use serde_json::json;
use toolpost_core::{Annotations, Tool as _};
use toolpost_tools::{BUILTIN_NAMES, builtin, read_file};

#[test]
fn every_tool_and_every_parameter_is_described() {
    let specs: Vec<_> = builtin().iter().map(|tool| tool.spec()).collect();
    assert_eq!(specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), BUILTIN_NAMES);
    for spec in specs {
        spec.check().unwrap();
        assert!(spec.output_schema.is_some(), "{}", spec.name);
        assert!(!spec.examples.is_empty(), "{}", spec.name);
        for example in &spec.examples {
            spec.input_schema.check(&example.args).unwrap();
        }
        let properties = spec.input_schema.as_value()["properties"].as_object().unwrap().clone();
        for (name, schema) in properties {
            let description = schema["description"].as_str().unwrap_or_default();
            assert!(description.len() > 15, "{}.{name}: {description:?}", spec.name);
        }
    }
}

#[test]
fn the_schema_of_read_file_has_its_defaults() {
    let schema = read_file().spec().input_schema.as_value().clone();
    assert_eq!(schema["required"], json!(["path"]));
    assert_eq!(schema["properties"]["encoding"]["default"], "auto");
    assert_eq!(schema["properties"]["max_size_mb"]["default"], 10);
    assert_eq!(schema["properties"]["offset"]["default"], 1);
}

#[test]
fn annotations_say_what_a_tool_may_do() {
    let reading = Annotations { read_only: true, idempotent: true, ..Annotations::default() };
    let changing = Annotations { destructive: true, ..Annotations::default() };
    #[cfg(feature = "http")]
    let outside = [
        Annotations { destructive: true, open_world: true, ..Annotations::default() },
        Annotations { read_only: true, idempotent: true, open_world: true, ..Annotations::default() },
    ];
    #[cfg(not(feature = "http"))]
    let outside: [Annotations; 0] = [];
    let expected = [reading, changing, reading, reading, changing, changing, reading, reading];
    let expected: Vec<Annotations> = expected.into_iter().chain(outside).collect();
    let found: Vec<Annotations> = builtin().iter().map(|tool| tool.spec().annotations).collect();
    assert_eq!(found, expected);
}

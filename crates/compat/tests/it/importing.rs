//! Imported tools, calls and contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolpost_compat::{ImportedTool, ResourceLimits, SecurityLevel, call_of_context};
use toolpost_core::{Call, Code, Output, Placement, Timeout, Tool};
use toolpost_toolbox::Toolbox;

/// A complete description with changed fields; `null` removes one.
fn described(changes: &Value) -> Value {
    let mut value = json!({ "name": "lookup", "description": "Look something up.", "category": "custom", "type": "custom" });
    for (name, change) in changes.as_object().unwrap() {
        value[name] = change.clone();
    }
    value
}

fn parameter(changes: &Value) -> Value {
    let mut value = json!({ "name": "x", "type": "string", "description": "The x." });
    for (name, change) in changes.as_object().unwrap() {
        value[name] = change.clone();
    }
    described(&json!({ "parameters": [value] }))
}

/// The schema of the parameter `x`.
fn schema_of(changes: &Value) -> Value {
    let imported =
        ImportedTool::from_json(&parameter(changes)).unwrap_or_else(|error| panic!("{changes}: {error}"));
    imported.spec.input_schema.as_value()["properties"]["x"].clone()
}

fn echo(imported: ImportedTool) -> impl Tool {
    imported.into_tool(async |args, _| Ok(Output::json(args.as_value().clone())))
}

#[test]
fn the_example_of_the_other_framework_is_imported() {
    let imported = ImportedTool::from_json(&json!({
        "name": "calculator",
        "description": "Perform basic arithmetic operations",
        "parameters": [
            { "name": "operation", "type": "string", "description": "Arithmetic operation",
              "enum": ["add", "subtract", "multiply", "divide"], "required": true },
            { "name": "a", "type": "number", "description": "First number", "required": true },
            { "name": "b", "type": "number", "description": "Second number", "required": true },
        ],
    }))
    .unwrap();
    assert_eq!(
        imported.spec.input_schema.as_value(),
        &json!({
            "type": "object",
            "properties": {
                "operation": { "type": "string", "enum": ["add", "subtract", "multiply", "divide"], "description": "Arithmetic operation" },
                "a": { "type": "number", "description": "First number" },
                "b": { "type": "number", "description": "Second number" },
            },
            "required": ["operation", "a", "b"],
            "additionalProperties": false,
        })
    );
    assert_eq!(imported.spec.category.as_deref(), Some("custom"));
    assert_eq!(imported.spec.policy.timeout, Some(Timeout::After(Duration::from_secs(30))));
}

#[test]
fn every_field_of_a_parameter_is_in_its_schema() {
    for (changes, expected) in [
        (json!({ "type": "url" }), json!({ "type": "string", "format": "uri" })),
        (json!({ "type": "any" }), json!({})),
        (json!({ "type": "email", "format": "email" }), json!({ "type": "string", "format": "email" })),
        (json!({ "format": "date" }), json!({ "type": "string", "format": "date" })),
        (
            json!({ "type": "integer", "minimum": 1, "maximum": 5 }),
            json!({ "type": "integer", "minimum": 1, "maximum": 5 }),
        ),
        (
            json!({ "min_length": 1, "max_length": 5 }),
            json!({ "type": "string", "minLength": 1, "maxLength": 5 }),
        ),
        (
            json!({ "type": "array", "min_length": 1, "max_length": 5 }),
            json!({ "type": "array", "minItems": 1, "maxItems": 5 }),
        ),
        (json!({ "type": "object", "max_length": 5 }), json!({ "type": "object", "maxProperties": 5 })),
        (json!({ "pattern": "a+" }), json!({ "type": "string", "pattern": "^(?:a+)" })),
        (
            json!({ "enum": ["a", "b"], "examples": ["a"] }),
            json!({ "type": "string", "enum": ["a", "b"], "examples": ["a"] }),
        ),
        (json!({ "default": "a" }), json!({ "type": "string", "default": "a" })),
        (
            json!({ "type": "integer", "validation_rules": [{ "type": "range", "constraint": "-5-10", "message": "From -5 to 10." }] }),
            json!({ "type": "integer", "allOf": [{ "minimum": -5, "maximum": 10 }], "description": "The x.\nFrom -5 to 10." }),
        ),
        (
            json!({ "validation_rules": [{ "type": "regex", "constraint": "^a", "message": "" }, { "type": "length", "constraint": "2-3", "message": "" }] }),
            json!({ "type": "string", "allOf": [{ "pattern": "^a" }, { "minLength": 2, "maxLength": 3 }] }),
        ),
        (
            json!({ "type": "array", "validation_rules": [{ "type": "length", "constraint": "2", "message": "" }] }),
            json!({ "type": "array", "allOf": [{ "minItems": 2, "maxItems": 2 }] }),
        ),
    ] {
        let mut found = schema_of(&changes);
        if expected.get("description").is_none() {
            assert_eq!(
                found.as_object_mut().unwrap().remove("description"),
                Some(json!("The x.")),
                "{changes}"
            );
        }
        assert_eq!(found, expected, "{changes}");
    }
}

#[test]
fn every_field_of_a_tool_is_imported() {
    let imported = ImportedTool::from_json(&described(&json!({
        "display_name": "Look up", "long_description": "More of it.", "category": "database", "type": "composite",
        "deprecated": true, "deprecation_message": "Use find.", "async_capable": false, "stateful": true,
        "idempotent": true, "cacheable": false,
        "parameters": [{ "name": "key", "type": "string", "description": "K", "sensitive": true, "required": false }],
        "returns": { "type": "object", "description": "What was found.", "examples": [{ "n": 1 }],
            "properties": { "n": { "name": "n", "type": "integer", "description": "How many." } } },
        "resource_limits": { "max_execution_time_seconds": 7 },
        "metadata": { "version": "1.2.3", "author": "A", "license": "MIT", "homepage": "h", "repository": "r",
            "documentation": "d", "created_at": "2026-01-01T00:00:00Z", "updated_at": null, "tags": ["a"],
            "keywords": ["a", "b"], "dependencies": ["numpy"] },
        "examples": [{ "name": "one", "description": "d", "parameters": { "key": "k" }, "expected_result": { "n": 1 }, "notes": "n" }],
    })))
    .unwrap();
    let spec = imported.spec;
    assert_eq!(spec.title.as_deref(), Some("Look up"));
    assert_eq!(spec.description, "Look something up.\n\nMore of it.\n\nDeprecated: Use find.");
    assert_eq!((spec.category.as_deref(), spec.policy.placement), (Some("database"), Placement::Blocking));
    assert!(spec.annotations.idempotent);
    assert_eq!((spec.sensitive, spec.tags), (vec!["key".to_owned()], vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(spec.policy.timeout, Some(Timeout::After(Duration::from_secs(7))));
    assert_eq!(
        spec.output_schema.unwrap().as_value(),
        &json!({ "type": "object", "properties": { "n": { "type": "integer", "description": "How many." } },
            "required": ["n"], "description": "What was found.", "examples": [{ "n": 1 }] })
    );
    assert_eq!(
        (&spec.examples[0].args, &spec.examples[0].output),
        (&json!({ "key": "k" }), &Some(json!({ "n": 1 })))
    );
    assert_eq!(
        Value::Object(spec.meta),
        json!({ "type": "composite", "examples": [{ "name": "one", "description": "d", "notes": "n" }], "stateful": true,
            "version": "1.2.3", "author": "A", "license": "MIT", "homepage": "h", "repository": "r",
            "documentation": "d", "created_at": "2026-01-01T00:00:00Z", "dependencies": ["numpy"] })
    );
}

#[test]
fn invalid_descriptions_are_rejected_with_a_pointer() {
    let rule = |kind: &str, sort: &str, constraint: &str| {
        parameter(
            &json!({ "type": kind, "validation_rules": [{ "type": sort, "constraint": constraint, "message": "m" }] }),
        )
    };
    for (value, pointer) in [
        (json!([]), ""),
        (json!({}), "/name"),
        (described(&json!({ "name": "ab" })), "/name"),
        (described(&json!({ "name": "9abc" })), "/name"),
        (described(&json!({ "name": "a".repeat(65) })), "/name"),
        (described(&json!({ "description": "Too short" })), "/description"),
        (described(&json!({ "description": "x".repeat(501) })), "/description"),
        (described(&json!({ "descripton": "x" })), "/descripton"),
        (described(&json!({ "category": "cooking" })), "/category"),
        (described(&json!({ "type": "plugin" })), "/type"),
        (described(&json!({ "deprecated": true })), "/deprecation_message"),
        (described(&json!({ "deprecation_message": "x" })), "/deprecation_message"),
        (described(&json!({ "idempotent": "yes" })), "/idempotent"),
        (described(&json!({ "cache_ttl": 5 })), "/cache_ttl"),
        (described(&json!({ "cache_ttl": 5, "idempotent": true, "cacheable": false })), "/cache_ttl"),
        (described(&json!({ "cache_ttl": 5, "idempotent": true, "stateful": true })), "/cache_ttl"),
        (described(&json!({ "cache_ttl": -5 })), "/cache_ttl"),
        (described(&json!({ "parameters": {} })), "/parameters"),
        (described(&json!({ "parameters": [5] })), "/parameters/0"),
        (described(&json!({ "security": { "level": "extreme" } })), "/security/level"),
        (described(&json!({ "security": {} })), "/security/level"),
        (
            described(&json!({ "security": { "level": "strict", "network_access": true } })),
            "/security/network_access",
        ),
        (
            described(&json!({ "security": { "level": "strict", "file_system_access": true } })),
            "/security/file_system_access",
        ),
        (
            described(&json!({ "security": { "level": "strict", "process_isolation": false } })),
            "/security/process_isolation",
        ),
        (
            described(&json!({ "security": { "level": "strict", "resource_limits": { "max_memory": 1 } } })),
            "/security/resource_limits/max_memory",
        ),
        (described(&json!({ "resource_limits": { "max_memory_mb": -1 } })), "/resource_limits/max_memory_mb"),
        (described(&json!({ "resource_limits": { "max_memory_mb": 0 } })), "/resource_limits/max_memory_mb"),
        (
            described(&json!({ "resource_limits": { "max_cpu_percent": 0 } })),
            "/resource_limits/max_cpu_percent",
        ),
        (
            described(&json!({ "resource_limits": { "max_execution_time_seconds": 1e300 } })),
            "/resource_limits/max_execution_time_seconds",
        ),
        (described(&json!({ "metadata": { "tag": [] } })), "/metadata/tag"),
        (described(&json!({ "metadata": { "tags": [1] } })), "/metadata/tags/0"),
        (described(&json!({ "examples": [{ "name": "a" }] })), "/examples/0/description"),
        (described(&json!({ "returns": { "type": "thing", "description": "d" } })), "/returns/type"),
        (
            described(&json!({ "returns": { "type": "string", "description": "d", "properties": {} } })),
            "/returns/properties",
        ),
        (
            described(
                &json!({ "returns": { "type": "object", "description": "d", "properties": { "a": { "name": "b", "type": "any", "description": "d" } } } }),
            ),
            "/returns/properties/a/name",
        ),
        (parameter(&json!({ "type": "text" })), "/parameters/0/type"),
        (parameter(&json!({ "name": " " })), "/parameters/0/name"),
        (parameter(&json!({ "minimum": 1 })), "/parameters/0/minimum"),
        (parameter(&json!({ "type": "integer", "max_length": 1 })), "/parameters/0/max_length"),
        (parameter(&json!({ "type": "integer", "pattern": "a" })), "/parameters/0/pattern"),
        (parameter(&json!({ "type": "integer", "format": "date" })), "/parameters/0/format"),
        (parameter(&json!({ "type": "email", "format": "uuid" })), "/parameters/0/format"),
        (parameter(&json!({ "min_lenght": 1 })), "/parameters/0/min_lenght"),
        (rule("string", "custom", "x"), "/parameters/0/validation_rules/0/type"),
        (rule("string", "regexp", "x"), "/parameters/0/validation_rules/0/type"),
        (rule("string", "range", "0-1"), "/parameters/0/validation_rules/0/type"),
        (rule("integer", "regex", "a"), "/parameters/0/validation_rules/0/type"),
        (rule("boolean", "length", "1"), "/parameters/0/validation_rules/0/type"),
        (rule("integer", "range", "9-1"), "/parameters/0/validation_rules/0/constraint"),
        (rule("string", "length", "9-1"), "/parameters/0/validation_rules/0/constraint"),
    ] {
        let error = ImportedTool::from_json(&value).unwrap_err();
        assert_eq!(error.context()["pointer"], pointer, "{value}: {error}");
    }
    let twice = json!([{ "name": "x", "type": "any", "description": "d" }, { "name": "x", "type": "any", "description": "d" }]);
    let error = ImportedTool::from_json(&described(&json!({ "parameters": twice }))).unwrap_err();
    assert_eq!(error.context()["pointer"], "/parameters/1/name");
    let error = ImportedTool::from_json(&described(&json!({ "idempotant": true }))).unwrap_err();
    assert_eq!(error.suggestion(), Some("Did you mean `idempotent`?"));
    // An invalid pattern and an invalid default fail the check of the spec.
    assert!(ImportedTool::from_json(&parameter(&json!({ "pattern": "(" }))).is_err());
    assert!(ImportedTool::from_json(&parameter(&json!({ "default": 5 }))).is_err());
}

#[tokio::test]
async fn an_imported_tool_applies_its_description() {
    let imported = ImportedTool::from_json(&described(&json!({
        "parameters": [
            { "name": "key", "type": "string", "description": "K", "sensitive": true },
            { "name": "count", "type": "integer", "description": "C", "default": 3, "validation_rules": [{ "type": "range", "constraint": "1-5", "message": "" }] },
        ],
        "examples": [{ "name": "e", "description": "d", "parameters": { "key": "k" }, "expected_result": { "mock": 1 } }],
    })))
    .unwrap();
    let toolbox = Toolbox::builder().tool(echo(imported)).build().unwrap();
    let reply = toolbox.call(Call::new("lookup", json!({ "key": "hunter2" }))).await;
    assert_eq!(reply.result.unwrap().structured, Some(json!({ "key": "hunter2", "count": 3 })));
    assert!(!serde_json::to_string(&*reply.record).unwrap().contains("hunter2"));
    let output = toolbox.run("lookup", json!({ "key": "k", "count": 5 })).await.unwrap();
    assert_eq!(output.structured, Some(json!({ "key": "k", "count": 5 })));
    for (arguments, code) in [
        (json!({}), Code::MissingParam),
        (json!({ "key": "k", "count": 6 }), Code::InvalidInput),
        (json!({ "key": "k", "count": true }), Code::InvalidInput),
        (json!({ "key": "k", "other": 1 }), Code::InvalidInput),
    ] {
        assert_eq!(toolbox.run("lookup", arguments.clone()).await.unwrap_err().code(), code, "{arguments}");
    }
    let mut call = Call::new("lookup", json!({ "key": "k" }));
    call.options.mock = true;
    assert_eq!(toolbox.call(call).await.result.unwrap().structured, Some(json!({ "mock": 1 })));
}

#[tokio::test]
async fn timeout_and_cache_of_an_imported_tool_apply() {
    let imported = ImportedTool::from_json(&described(
        &json!({ "resource_limits": { "max_execution_time_seconds": 0.05 } }),
    ))
    .unwrap();
    let slow = imported.into_tool(async |_, _| {
        std::future::pending::<()>().await;
        Ok(Output::default())
    });
    let toolbox = Toolbox::builder().tool(slow).build().unwrap();
    assert_eq!(toolbox.run("lookup", json!({})).await.unwrap_err().code(), Code::Timeout);

    for (ttl, cache_enabled, expected) in
        [(json!(60), true, 1), (json!(60), false, 2), (Value::Null, true, 2)]
    {
        let imported =
            ImportedTool::from_json(&described(&json!({ "idempotent": true, "cache_ttl": ttl }))).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let tool = imported.into_tool(move |_, _| {
            let run = counted.fetch_add(1, Ordering::Relaxed);
            async move { Ok(Output::json(json!(run))) }
        });
        let toolbox = Toolbox::builder().tool(tool).build().unwrap();
        for _ in 0..2 {
            let context = json!({ "cache_enabled": cache_enabled });
            toolbox.call(call_of_context("lookup", json!({}), &context).unwrap()).await.result.unwrap();
        }
        assert_eq!(runs.load(Ordering::Relaxed), expected, "{ttl} {cache_enabled}");
    }
}

#[tokio::test]
async fn every_field_of_a_context_is_applied() {
    let call = call_of_context("lookup", json!({}), &json!({})).unwrap();
    assert_eq!((call.options.retries, call.options.level.as_deref()), (Some(3), Some("standard")));
    assert!(!call.options.no_cache && call.options.timeout.is_none());
    let context = json!({
        "execution_id": "e-1", "agent_id": "a-1", "session_id": "s-1", "user_id": "ada", "timestamp": "2026-01-01T00:00:00Z",
        "timeout": 2.5, "retry_count": 1, "max_retries": 5, "cache_enabled": false, "sandbox_mode": true,
        "security_level": "strict", "metadata": { "source": "api" },
    });
    let call = call_of_context("lookup", json!({}), &context).unwrap();
    assert_eq!(call.options.timeout, Some(Duration::from_millis(2500)));
    assert_eq!((call.options.retries, call.options.no_cache), (Some(4), true));
    assert_eq!(call.options.level.as_deref(), Some("strict"));
    assert_eq!(call.caller.identity.as_deref(), Some("ada"));
    let toolbox = Toolbox::builder()
        .tool(echo(ImportedTool::from_json(&described(&Value::Object(Map::new()))).unwrap()))
        .build()
        .unwrap();
    let record = toolbox.call(call).await.record;
    let expected = json!({ "source": "api", "execution_id": "e-1", "agent_id": "a-1", "session_id": "s-1", "timestamp": "2026-01-01T00:00:00Z" });
    assert_eq!(Value::Object(record.metadata.clone()), expected);
    let unconfined = call_of_context("lookup", json!({}), &json!({ "sandbox_mode": false })).unwrap();
    assert_eq!(unconfined.options.level, None);
    for (context, pointer) in [
        (json!("x"), ""),
        (json!({ "timeout": 0 }), "/timeout"),
        (json!({ "timeout": 1e300 }), "/timeout"),
        (json!({ "retry_count": -1 }), "/retry_count"),
        (json!({ "security_level": "hard" }), "/security_level"),
        (json!({ "metadata": [] }), "/metadata"),
        (json!({ "metadata": { "agent_id": 1 }, "agent_id": "a" }), "/metadata/agent_id"),
        (json!({ "user": "ada" }), "/user"),
    ] {
        let error = call_of_context("lookup", json!({}), &context).unwrap_err();
        assert_eq!(error.context()["pointer"], pointer, "{context}: {error}");
    }
}

#[test]
fn limits_have_defaults_and_null_disables_them() {
    let limits = ResourceLimits::from_json(&json!({})).unwrap();
    assert_eq!(
        (limits.memory, limits.cpu, limits.time),
        (Some(512 << 20), Some(0.5), Some(Duration::from_secs(30)))
    );
    assert_eq!(
        (limits.file_size, limits.network_requests, limits.subprocesses),
        (Some(100 << 20), Some(10), Some(1))
    );
    let names = [
        "max_memory_mb",
        "max_cpu_percent",
        "max_execution_time_seconds",
        "max_file_size_mb",
        "max_network_requests",
        "max_subprocess_count",
    ];
    let none: Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    let limits = ResourceLimits::from_json(&none.into()).unwrap();
    assert_eq!((limits.memory, limits.cpu, limits.time), (None, None, None));
    assert_eq!((limits.file_size, limits.network_requests, limits.subprocesses), (None, None, None));
    let security = SecurityLevel::from_json(
        &json!({ "level": "strict", "sandbox_required": false, "process_isolation": false }),
    );
    assert_eq!(security.unwrap().level, None);
}

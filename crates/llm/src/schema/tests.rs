use serde_json::{Value, json};

use super::*;

const ALL: [SchemaTarget; 3] =
    [SchemaTarget::OpenAiStrict, SchemaTarget::AnthropicStrict, SchemaTarget::Gemini];

/// An object with one optional property.
fn property(schema: impl Into<Value>) -> Value {
    json!({"type": "object", "properties": {"p": schema.into()}})
}

#[test]
fn each_provider_gets_its_dialect() {
    // The schema of a property, lowered for OpenAI, Anthropic and Gemini.
    let rows = [
        (
            json!({"type": "string", "minLength": 3, "description": "A name."}),
            json!({"type": ["string", "null"], "description": "A name. (minLength: 3)"}),
            json!({"type": "string", "description": "A name. (minLength: 3)"}),
            json!({"type": "string", "minLength": 3, "description": "A name."}),
        ),
        (
            json!({"type": "string", "enum": ["a", "b"], "default": "a"}),
            json!({
                "anyOf": [{"type": "string", "enum": ["a", "b"], "default": "a"}, {"type": "null"}]
            }),
            json!({"type": "string", "enum": ["a", "b"], "default": "a"}),
            json!({"type": "string", "enum": ["a", "b"], "default": "a"}),
        ),
        (
            json!({"const": 3}),
            json!({"anyOf": [{"type": "integer", "const": 3}, {"type": "null"}]}),
            json!({"type": "integer", "const": 3}),
            json!({"type": "integer", "enum": [3]}),
        ),
        (
            json!({"type": ["integer", "null"], "minimum": 1, "exclusiveMaximum": 9, "format": "uint32"}),
            json!({"type": ["integer", "null"], "minimum": 1, "exclusiveMaximum": 9, "format": "uint32"}),
            json!({"type": ["integer", "null"], "description": "(minimum: 1, exclusiveMaximum: 9)"}),
            json!({
                "type": ["integer", "null"],
                "minimum": 1,
                "format": "uint32",
                "description": "(exclusiveMaximum: 9)"
            }),
        ),
        (
            json!({"type": ["string", "integer"], "maximum": 5, "pattern": "^a"}),
            json!({"type": ["string", "integer", "null"], "maximum": 5, "pattern": "^a"}),
            json!({"type": ["string", "integer"], "description": "(maximum: 5, pattern: \"^a\")"}),
            json!({"type": ["string", "integer"], "maximum": 5, "pattern": "^a"}),
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}, "minItems": 2}),
            json!({
                "type": ["array", "null"],
                "minItems": 2,
                "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false}
            }),
            json!({
                "type": "array",
                "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false},
                "description": "(minItems: 2)"
            }),
            json!({
                "type": "array",
                "minItems": 2,
                "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
            }),
        ),
        (
            json!({"oneOf": [{"type": "string"}, {"type": "null"}], "title": "T"}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "T"}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "T"}),
            json!({"oneOf": [{"type": "string"}, {"type": "null"}], "title": "T"}),
        ),
        (
            json!({"allOf": [{"type": "string"}, {"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}),
            json!({"anyOf": [{"type": "string", "enum": ["b"]}, {"type": "null"}]}),
            json!({"type": "string", "enum": ["b"]}),
            json!({"type": "string", "enum": ["b"]}),
        ),
        (
            json!({"type": "string", "format": "date", "contentEncoding": "x"}),
            json!({"type": ["string", "null"], "format": "date"}),
            json!({"type": "string", "format": "date"}),
            json!({"type": "string", "format": "date"}),
        ),
        (
            json!({"type": "number", "format": "double", "nullable": true}),
            json!({"type": ["number", "null"], "format": "double"}),
            json!({"type": "number"}),
            json!({"type": "number", "format": "double", "nullable": true}),
        ),
        (
            json!({"type": "OBJECT", "properties": {"x": {"type": "STRING"}}, "required": ["x"]}),
            json!({"type": ["object", "null"], "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": false}),
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": false}),
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}),
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}),
            json!({"type": ["array", "null"], "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}),
            json!({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}),
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}),
        ),
    ];
    for (original, openai, anthropic, gemini) in rows {
        let schema = property(original);
        let before = schema.clone();
        for (target, expected) in ALL.into_iter().zip([openai, anthropic, gemini]) {
            let lowered = lower(&schema, target);
            assert_eq!(lowered.unsupported, None, "{target:?} {schema}");
            assert_eq!(lowered.schema["properties"]["p"], expected, "{target:?} {schema}");
            if target == SchemaTarget::OpenAiStrict {
                assert_eq!(lowered.schema["required"], json!(["p"]));
            } else {
                assert_eq!(lowered.schema.get("required"), None);
            }
        }
        assert_eq!(schema, before);
    }
}

#[test]
fn a_reference_at_the_root_stays_for_gemini() {
    let schema = json!({
        "$ref": "#/$defs/Tree",
        "title": "T",
        "$defs": {"Tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Tree"}}}}
    });
    assert_eq!(lower(&schema, SchemaTarget::Gemini).schema, schema);
    assert_eq!(lower(&schema, SchemaTarget::OpenAiStrict).schema["type"], json!("object"));
}

/// Seed 004 changed `required` of the registered schema, left nested objects open, and required optional parameters.
#[test]
fn strict_schemas_are_closed_copies_with_optional_parameters() {
    let inner = json!({"type": "object", "properties": {"deep": {"type": "integer"}}});
    let schema = json!({
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "default": 10},
            "list": {"type": "array", "items": inner},
            "either": {"anyOf": [inner, {"type": "string"}]},
            "named": {"$ref": "#/$defs/Inner"}
        },
        "required": ["list"],
        "additionalProperties": false,
        "$defs": {"Inner": inner}
    });
    let before = schema.to_string();
    let lowered = lower(&schema, SchemaTarget::OpenAiStrict);
    assert_eq!(schema.to_string(), before);
    let closed = json!({
        "type": "object",
        "properties": {"deep": {"type": ["integer", "null"]}},
        "required": ["deep"],
        "additionalProperties": false
    });
    assert_eq!(
        lowered.schema,
        json!({
            "type": "object",
            "properties": {
                "limit": {"type": ["integer", "null"], "default": 10},
                "list": {"type": "array", "items": closed},
                "either": {"anyOf": [closed, {"type": "string"}, {"type": "null"}]},
                "named": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}]}
            },
            "required": ["limit", "list", "either", "named"],
            "additionalProperties": false,
            "$defs": {"Inner": closed}
        })
    );
    assert_eq!(lowered.unchecked, Vec::<String>::new());
    // Lowering is idempotent.
    assert_eq!(lower(&lowered.schema, SchemaTarget::OpenAiStrict).schema, lowered.schema);
    // The caller's schema accepts the answer without its nulls.
    let answer = json!({"limit": null, "list": [{"deep": null}, {"deep": 1}], "either": {"deep": null}, "named": null});
    assert_eq!(without_nulls(answer, &schema), json!({"list": [{}, {"deep": 1}], "either": {}}));
}

#[test]
fn unsupported_strict_schemas_have_a_reason() {
    for (schema, reason) in [
        (property(json!({"type": "object", "additionalProperties": {"type": "string"}})), "any name"),
        (property(json!({"type": "object"})), "any name"),
        (
            property(
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": true}),
            ),
            "any name",
        ),
        (property(json!({"patternProperties": {"^x": {}}})), "`patternProperties`"),
        (property(json!(true)), "any value"),
        (property(json!({})), "any value"),
        (property(json!({"type": "array"})), "any value"),
        (property(json!({"$ref": "https://example.com/a.json"})), "does not point into the schema"),
        (property(json!({"$ref": "#/$defs/Gone"})), "does not point into the schema"),
        (json!({"anyOf": [{"type": "object"}]}), "expected an object, found `anyOf`"),
        (json!({"type": "string"}), "expected `type` to be `object`"),
        (json!({"$ref": "#"}), "does not lead to an object"),
        (json!({"type": "object", "properties": {}, "required": ["a"]}), "not among the properties"),
        (json!([]), "expected an object"),
        (property(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})), "has all the types"),
    ] {
        for target in [SchemaTarget::OpenAiStrict, SchemaTarget::AnthropicStrict] {
            let lowered = lower(&schema, target);
            let obstacle = lowered.unsupported.unwrap_or_else(|| panic!("{target:?} {schema}"));
            assert!(obstacle.contains(reason), "{obstacle}");
            assert_eq!(lowered.schema, schema, "the original schema, for a request without `strict`");
        }
        assert_eq!(lower(&schema, SchemaTarget::Gemini).unsupported, None);
    }
    // A tool without parameters is closed, not rejected.
    for schema in [json!({}), json!({"type": "object"}), json!(true), json!({"properties": {}})] {
        let lowered = lower(&schema, SchemaTarget::OpenAiStrict);
        assert_eq!(
            lowered.schema,
            json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false})
        );
    }
}

#[test]
fn references_become_definitions() {
    let schema = json!({
        "$ref": "#/definitions/Tree~1Node",
        "definitions": {
            "Tree/Node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "next": {"description": "The rest.", "$ref": "#/definitions/Tree~1Node"},
                    "side": {"$ref": "#/definitions/Side"}
                },
                "required": ["name", "next", "side"]
            },
            "Side": {"type": "string", "enum": ["l", "r"]}
        }
    });
    let node = |side: Value, next: Value| json!({"type": "object", "properties": {"name": {"type": "string"}, "next": next, "side": side}, "required": ["name", "next", "side"], "additionalProperties": false});
    let side = json!({"$ref": "#/$defs/Side"});
    let next = json!({"description": "The rest.", "anyOf": [{"$ref": "#/$defs/Tree_1Node"}]});
    let mut expected = node(side.clone(), next.clone());
    expected["$defs"] =
        json!({"Tree_1Node": node(side, next), "Side": {"type": "string", "enum": ["l", "r"]}});
    assert_eq!(lower(&schema, SchemaTarget::OpenAiStrict).schema, expected);
    assert!(lower(&schema, SchemaTarget::AnthropicStrict).unsupported.unwrap().contains("is recursive"));
}

#[test]
fn two_references_never_share_a_name() {
    let of = |kind: &str| json!({"type": kind});
    let schema = json!({
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/X"}, "b": {"$ref": "#/definitions/X"}, "c": {"$ref": "#/$defs/X_1"}, "d": {"$ref": "#/$defs/X%5F1"}
        },
        "required": ["a", "b", "c", "d"],
        "$defs": {"X": of("string"), "X_1": of("boolean")},
        "definitions": {"X": of("integer")}
    });
    let lowered = lower(&schema, SchemaTarget::OpenAiStrict).schema;
    for (name, kind) in [("a", "string"), ("b", "integer"), ("c", "boolean"), ("d", "boolean")] {
        let reference = lowered["properties"][name]["$ref"].as_str().unwrap();
        assert_eq!(toolpost_schema::resolve(&lowered, reference), Some(&of(kind)), "{name}");
    }
}

#[test]
fn unchecked_keywords_are_listed_with_their_place() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 1, "x-ours": 1}},
        "required": ["a"],
        "if": {"required": ["a"]},
        "not": {}
    });
    let lowered = lower(&schema, SchemaTarget::OpenAiStrict);
    assert_eq!(
        lowered.unchecked,
        [
            "`if` at the root",
            "`not` at the root",
            "`minLength` at `/properties/a`",
            "`x-ours` at `/properties/a`"
        ]
    );
    // Branches that differ in a constant are exclusive; others lose `oneOf`.
    let kind = |name: &str| json!({"properties": {"kind": {"const": name}}, "required": ["kind"]});
    let exclusive = property(json!({"oneOf": [kind("a"), kind("b")]}));
    assert_eq!(lower(&exclusive, SchemaTarget::OpenAiStrict).unchecked, Vec::<String>::new());
    let overlapping = property(json!({"oneOf": [kind("a"), kind("a")]}));
    assert_eq!(lower(&overlapping, SchemaTarget::OpenAiStrict).unchecked, ["`oneOf` at `/properties/p`"]);
}

#[test]
fn hostile_schemas_end_early() {
    // Each level has the next one twice: inlined, that is 2^60.
    let mut definitions = serde_json::Map::new();
    for level in 0..60 {
        let next = json!({"$ref": format!("#/$defs/L{}", level + 1), "description": "x"});
        definitions
            .insert(format!("L{level}"), json!({"type": "object", "properties": {"a": next, "b": next}}));
        let both = json!({"$ref": format!("#/$defs/M{}", level + 1), "properties": {}});
        definitions.insert(format!("M{level}"), json!({"allOf": [both, both]}));
    }
    // The same for schemas that only refer to others.
    for level in 0..30 {
        let next = json!({"$ref": format!("#/$defs/N{}", level + 1)});
        definitions.insert(format!("N{level}"), json!({"allOf": vec![next; 10]}));
    }
    definitions.insert("N30".to_owned(), json!({}));
    definitions.insert("L60".to_owned(), json!({"type": "string"}));
    definitions.insert("M60".to_owned(), json!({"type": "object"}));
    let long = |name: &str| json!({"type": "object", "properties": {"p": {"$ref": format!("#/$defs/{name}"), "minLength": 1}}, "$defs": definitions});
    let mut deep = json!({"type": "string"});
    for _ in 0..120 {
        deep = json!({"type": "array", "items": deep});
    }
    let same: Vec<Value> =
        (0..20_000).map(|number| json!({"properties": {"a": {"minLength": number}}})).collect();
    let wide: serde_json::Map<String, Value> =
        (0..60_000).map(|number| (number.to_string(), json!({"not": 1}))).collect();
    // Quadratic comparisons, and long texts that references copy to many places.
    let listed: Vec<Value> = (0..12_000).map(|number| json!({"const": number})).collect();
    let many = |count: usize, schema: &Value| -> Value {
        (0..count)
            .map(|number| (format!("p{number}"), schema.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let text = json!({"type": "string", "description": "x".repeat(50_000), "default": "y".repeat(50_000)});
    let texts = json!({
        "type": "object",
        "properties": many(8_000, &json!({"$ref": "#/$defs/text"})),
        "$defs": {"text": text},
    });
    let nested_names = json!({
        "type": "object",
        "properties": many(2_000, &json!({"allOf": [{"$ref": "#/$defs/named"}]})),
        "$defs": {"named": {"allOf": [{"$ref": "#/$defs/text"}], "$defs": many(8_000, &json!({}))}, "text": text},
    });
    let required: Vec<Value> = (0..8_000).map(|number| json!({"required": [number.to_string()]})).collect();
    let names: Vec<String> = (0..12_000).map(|number| number.to_string()).collect();
    for schema in [
        property(json!({"anyOf": listed})),
        property(json!({"oneOf": listed})),
        property(json!({"type": "array", "prefixItems": listed})),
        property(
            json!({"oneOf": [{"properties": many(8_000, &json!({"const": 1}))}, {"properties": many(8_000, &json!({"const": 1}))}]}),
        ),
        property(json!({"allOf": required})),
        property(json!({"allOf": [{"type": names}, {"type": names}]})),
        texts,
        nested_names,
        long("L0"),
        long("M0"),
        long("N0"),
        property(deep),
        property(json!({"allOf": same})),
        property(json!({"allOf": [{"$ref": "#/properties/p"}, {"$ref": "#"}]})),
        property(json!({"type": "object", "properties": wide})),
        property(json!({"type": vec!["string"; 100_000]})),
        property(json!({"anyOf": vec![json!({"anyOf": []}); 100]})),
    ] {
        for target in ALL {
            let began = std::time::Instant::now();
            let lowered = lower(&schema, target);
            assert!(lowered.unchecked.len() <= 50);
            assert!(lowered.unchecked.iter().chain(&lowered.unsupported).all(|entry| entry.len() < 1_000));
            let took = began.elapsed();
            assert!(took.as_secs() < 10, "{target:?} took {took:?}");
        }
    }
}

#[test]
fn provider_limits_are_enforced() {
    let many = |count: usize, schema: Value| {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|number| (format!("p{number}"), schema.clone())).collect();
        let names: Vec<String> = properties.keys().cloned().collect();
        json!({"type": "object", "properties": properties, "required": names})
    };
    let nullable = json!({"type": ["string", "null"]});
    let text = json!({"type": "string"});
    assert_eq!(lower(&many(16, nullable.clone()), SchemaTarget::AnthropicStrict).unsupported, None);
    assert!(
        lower(&many(17, nullable), SchemaTarget::AnthropicStrict)
            .unsupported
            .unwrap()
            .contains("17 parameters with several types")
    );
    assert_eq!(lower(&many(5_000, text.clone()), SchemaTarget::OpenAiStrict).unsupported, None);
    assert!(
        lower(&many(5_001, text.clone()), SchemaTarget::OpenAiStrict)
            .unsupported
            .unwrap()
            .contains("5001 properties")
    );
    let mut nested = text;
    for _ in 0..10 {
        nested = json!({"type": "object", "properties": {"p": nested}});
    }
    assert_eq!(lower(&nested, SchemaTarget::OpenAiStrict).unsupported, None);
    assert!(
        lower(&property(nested), SchemaTarget::OpenAiStrict).unsupported.unwrap().contains("deeper than 10")
    );

    let mut budget = StrictBudget::anthropic();
    let simple = lower(
        &json!({"type": "object", "properties": {"p": {"type": ["string", "null"]}}}),
        SchemaTarget::AnthropicStrict,
    );
    assert_eq!((simple.optional, simple.unions), (1, 1));
    for _ in 0..16 {
        budget.reserve_tool(&simple).unwrap();
    }
    assert!(budget.reserve_tool(&simple).unwrap_err().contains("16 parameters with several types"));
    let free = lower(&json!({}), SchemaTarget::AnthropicStrict);
    for _ in 16..20 {
        budget.reserve_tool(&free).unwrap();
    }
    assert!(budget.reserve_tool(&free).unwrap_err().contains("at most 20 strict tools"));
    budget.reserve_answer(&free).unwrap();
}

#[test]
fn texts_that_references_multiply_are_bounded() {
    let text = json!({"type": "string", "description": "x".repeat(100_000)});
    let property = |number: usize| (format!("p{number}"), json!({"$ref": "#/$defs/text", "title": "T"}));
    let properties: serde_json::Map<String, Value> = (0..100).map(property).collect();
    let schema = json!({"type": "object", "properties": properties, "$defs": {"text": text}});
    let lowered = lower(&schema, SchemaTarget::AnthropicStrict);
    let reason = "the schema has more than 8 MiB of text with all its references";
    assert_eq!(lowered.unsupported.as_deref(), Some(reason));
    // A reference that stays a reference copies nothing.
    assert_eq!(lower(&schema, SchemaTarget::OpenAiStrict).unsupported, None);
}

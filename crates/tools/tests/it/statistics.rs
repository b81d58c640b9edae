//! `analyze_data` against the values that numpy gives.

use serde_json::{Value, json};
use toolpost_core::Code;

use crate::support::Bench;

fn near(found: &Value, expected: f64) {
    let number = found.as_f64().unwrap_or(f64::NAN);
    assert!(
        (number - expected).abs() <= 1e-12 * expected.abs().max(1.0),
        "found {found}, expected {expected}"
    );
}

fn sample() -> Value {
    json!([2, 4, 4, 4, 5, 5, 7, 9.5])
}

#[tokio::test]
async fn the_basic_statistics_are_those_of_numpy() {
    let bench = Bench::new();
    let value = bench.value("analyze_data", json!({ "data": sample() })).await;
    for (name, expected) in [
        ("count", 8.0),
        ("missing", 0.0),
        ("non_numeric", 0.0),
        ("sum", 40.5),
        ("min", 2.0),
        ("max", 9.5),
        ("mean", 5.0625),
        ("median", 4.5),
        ("variance", 5.174_107_142_857_143),
        ("standard_deviation", 2.274_666_380_561_585),
    ] {
        near(&value[name], expected);
    }
    assert_eq!(value["column"], "data");
    for name in ["population_variance", "population_standard_deviation", "correlation"] {
        assert_eq!(value[name], Value::Null, "{name}");
    }
    assert_eq!((&value["quantiles"], &value["histogram"]), (&json!([]), &json!([])));
}

#[tokio::test]
async fn descriptive_statistics_match_numpy() {
    let bench = Bench::new();
    let value = bench.value("analyze_data", json!({ "data": sample(), "analysis": "descriptive" })).await;
    near(&value["population_variance"], 4.527_343_75);
    near(&value["population_standard_deviation"], 2.127_755_566_318_650_3);
    let expected =
        [(0.05, 2.7), (0.1, 3.4), (0.25, 4.0), (0.5, 4.5), (0.75, 5.5), (0.9, 7.75), (0.95, 8.625)];
    for (quantile, (probability, expected)) in value["quantiles"].as_array().unwrap().iter().zip(expected) {
        near(&quantile["probability"], probability);
        near(&quantile["value"], expected);
    }
    let counts: Vec<&Value> =
        value["histogram"].as_array().unwrap().iter().map(|bin| &bin["count"]).collect();
    assert_eq!(counts, [1, 0, 3, 0, 2, 0, 1, 0, 0, 1]);
}

#[tokio::test]
async fn quantiles_bins_and_other_data_apply_to_every_analysis() {
    let bench = Bench::new();
    let arguments =
        json!({ "data": sample(), "quantiles": [0.5, 0], "bins": 3, "other_data": [1, 3, 2, 5, 4, 6, 8, 7] });
    let value = bench.value("analyze_data", arguments).await;
    assert_eq!(
        value["quantiles"],
        json!([{ "probability": 0.5, "value": 4.5 }, { "probability": 0.0, "value": 2.0 }])
    );
    assert_eq!(
        value["histogram"],
        json!([{ "from": 2.0, "to": 4.5, "count": 4 }, { "from": 4.5, "to": 7.0, "count": 2 }, { "from": 7.0, "to": 9.5, "count": 2 }])
    );
    assert_eq!(
        (&value["correlation"]["with"], &value["correlation"]["pairs"]),
        (&json!("other_data"), &json!(8))
    );
    near(&value["correlation"]["pearson"], 0.826_872_112_510_411_2);
}

const SALES: &str =
    "region;amount;units\nnorth;10.5;1\nsouth;;2\neast;n/a;3\nwest;12 EUR;4\nnorth;20;5\n\"a;b\";30;6\n";

#[tokio::test]
async fn a_column_of_a_file_is_read_by_name_and_by_number() {
    let bench = Bench::new();
    bench.put("sales.csv", SALES);
    let by_name = bench.value("analyze_data", json!({ "path": "sales.csv", "column": "amount" })).await;
    assert_eq!(
        (
            &by_name["column"],
            &by_name["count"],
            &by_name["missing"],
            &by_name["non_numeric"],
            &by_name["sum"]
        ),
        (&json!("amount"), &json!(3), &json!(2), &json!(1), &json!(60.5))
    );
    assert_eq!(by_name["non_numeric_examples"], json!([{ "position": 4, "value": "12 EUR" }]));
    let by_number = bench.value("analyze_data", json!({ "path": "sales.csv", "column": "2" })).await;
    assert_eq!(by_name, by_number);
    let both = json!({ "path": "sales.csv", "column": "amount", "other_column": "units" });
    let correlation = bench.value("analyze_data", both).await["correlation"].clone();
    assert_eq!((&correlation["with"], &correlation["pairs"]), (&json!("units"), &json!(3)));
    near(&correlation["pearson"], 0.939_962_491_493_037);
}

#[tokio::test]
async fn header_and_delimiter_are_heeded() {
    let bench = Bench::new();
    bench.put("plain.txt", "1 5\n2 6\n3 7\n");
    let arguments =
        |header: bool| json!({ "path": "plain.txt", "column": "2", "delimiter": " ", "header": header });
    assert_eq!(bench.value("analyze_data", arguments(false)).await["sum"], 18.0);
    assert_eq!(bench.value("analyze_data", arguments(true)).await["sum"], 13.0);
    let undetected =
        bench.error("analyze_data", json!({ "path": "plain.txt", "column": "2", "header": false })).await;
    assert_eq!(undetected.context()["pointer"], "/column");
    bench.put("single.csv", "x\n1\n2\n");
    assert_eq!(bench.value("analyze_data", json!({ "path": "single.csv" })).await["sum"], 3.0);
}

#[tokio::test]
async fn non_numbers_are_counted() {
    let bench = Bench::new();
    let value = bench.value("analyze_data", json!({ "data": [1, null, "2", true, [3], 4] })).await;
    assert_eq!(
        (&value["count"], &value["missing"], &value["non_numeric"]),
        (&json!(2), &json!(1), &json!(3))
    );
    let examples = json!([{ "position": 3, "value": "2" }, { "position": 4, "value": "true" }, { "position": 5, "value": "[3]" }]);
    assert_eq!(value["non_numeric_examples"], examples);
    let empty = bench.value("analyze_data", json!({ "data": [], "analysis": "descriptive" })).await;
    assert_eq!((&empty["count"], &empty["mean"], &empty["histogram"]), (&json!(0), &Value::Null, &json!([])));
    let one = bench.value("analyze_data", json!({ "data": [3] })).await;
    assert_eq!((&one["mean"], &one["variance"]), (&json!(3.0), &Value::Null));
}

#[tokio::test]
async fn invalid_data_is_reported_with_its_position() {
    let bench = Bench::new();
    bench.put("sales.csv", SALES);
    bench.put("empty.csv", "");
    bench.put("picture.csv", b"\x89PNG\r\n\x1a\n\0\0");
    let many = "x,".repeat(200_000);
    bench.put("wide.csv", &many);
    for (arguments, code, pointer) in [
        (json!({}), Code::MissingParam, "/data"),
        (json!({ "data": [1], "path": "sales.csv" }), Code::InvalidInput, "/path"),
        (json!({ "data": [1], "column": "x" }), Code::InvalidInput, "/column"),
        (json!({ "data": [1], "other_column": "x" }), Code::InvalidInput, "/other_column"),
        (json!({ "data": [1], "other_data": [1, 2] }), Code::InvalidInput, "/other_data"),
        (
            json!({ "path": "sales.csv", "column": "units", "other_data": [1] }),
            Code::InvalidInput,
            "/other_data",
        ),
        (json!({ "data": [1], "quantiles": [0.5, 1.5] }), Code::InvalidInput, "/quantiles/1"),
        (json!({ "data": [1], "bins": 0 }), Code::InvalidInput, "/bins"),
        (json!({ "data": [1], "bins": 1001 }), Code::InvalidInput, "/bins"),
        (json!({ "data": [1], "analysis": "deep" }), Code::InvalidInput, "/analysis"),
        (json!({ "path": "sales.csv" }), Code::MissingParam, "/column"),
        (json!({ "path": "sales.csv", "column": "amuont" }), Code::InvalidInput, "/column"),
        (json!({ "path": "sales.csv", "column": "4" }), Code::InvalidInput, "/column"),
        (
            json!({ "path": "sales.csv", "column": "1", "other_column": "x" }),
            Code::InvalidInput,
            "/other_column",
        ),
        (json!({ "path": "sales.csv", "column": "1", "delimiter": "€" }), Code::InvalidInput, "/delimiter"),
        (json!({ "path": "empty.csv", "column": "1" }), Code::InvalidInput, "/path"),
        (json!({ "path": "picture.csv", "column": "1" }), Code::InvalidPath, "/path"),
        (json!({ "path": "../sales.csv", "column": "1" }), Code::InvalidPath, "/path"),
        (json!({ "path": "wide.csv", "column": "y" }), Code::InvalidInput, "/column"),
    ] {
        let error = bench.error("analyze_data", arguments.clone()).await;
        assert_eq!(
            (error.code(), &error.context()["pointer"]),
            (code, &json!(pointer)),
            "{arguments}: {error}"
        );
        assert!(error.to_string().len() < 2000, "{}", error.to_string().len());
    }
    let error = bench.error("analyze_data", json!({ "path": "sales.csv", "column": "amuont" })).await;
    assert!(error.suggestion().unwrap().contains("Did you mean `amount`?"), "{error}");
}

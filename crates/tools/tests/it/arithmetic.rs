//! `calculate`: a table of values, a table of errors, and no panic.

use proptest::prelude::*;
use serde_json::{Value, json};
use toolpost_core::Code;

use crate::support::Bench;

#[tokio::test]
async fn exact_values() {
    let bench = Bench::new();
    for (expression, text) in [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("2**100", "1267650600228229401496703205376"),
        ("2^10", "1024"),
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("(-2)**2", "4"),
        ("2**-1", "0.5"),
        ("2 - 3 - 4", "-5"),
        ("100 / 10 / 2", "5"),
        ("7 / 2", "3.5"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 % 3", "1"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("5.5 % 2", "1.5"),
        ("1/3*3", "1"),
        ("0xff + 0b101 + 0o17", "275"),
        ("1_000 * 3", "3000"),
        ("1.5e3 + .5", "1500.5"),
        ("1e-3", "0.001"),
        ("--3", "3"),
        ("- -3 + +2", "5"),
        ("2 × 3 ÷ 4 − 1", "0.5"),
        ("sqrt(144) + abs(-3)", "15"),
        ("sqrt(0.25)", "0.5"),
        ("round(2.675, 2)", "2.68"),
        ("round(2.5)", "2"),
        ("round(3.5)", "4"),
        ("round(-2.5)", "-2"),
        ("round(1234, -2)", "1200"),
        ("round(-170141183460469231731687303715884105727/3)", "-56713727820156410577229101238628035242"),
        ("floor(-1.5) + ceil(1.2) + trunc(-1.9)", "-1"),
        ("min(3, 1, 2) + max(3, 1, 2)", "4"),
        ("sum(1, 2, 3.5) + mean(1, 2) + median(5, 1, 3, 2)", "10.5"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("factorial(20)", "2432902008176640000"),
        ("factorial(0)", "1"),
        ("comb(52, 5)", "2598960"),
        ("hypot(3, 4)", "5"),
        ("sign(-3) + pow(2, 3) + mod(7, 4)", "10"),
        ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
    ] {
        let value = bench.value("calculate", json!({ "expression": expression })).await;
        assert_eq!((&value["text"], &value["exact"]), (&json!(text), &json!(true)), "{expression}");
        let nearest = text.parse::<f64>().unwrap();
        assert!((value["value"].as_f64().unwrap() - nearest).abs() <= nearest.abs() * 1e-15, "{expression}");
    }
}

#[tokio::test]
async fn rounded_values_say_so() {
    let bench = Bench::new();
    for (expression, expected) in [
        ("1/3", 1.0 / 3.0),
        ("sqrt(2)", std::f64::consts::SQRT_2),
        ("pi", std::f64::consts::PI),
        ("tau / 2 - π", 0.0),
        ("ln(e)", 1.0),
        ("log(8, 2) + log10(1000) + log2(4) + log(e)", 9.0),
        ("sin(pi / 2) + cos(0) + tan(0)", 2.0),
        ("asin(1) + acos(1) + atan(0) + atan2(0, 1)", std::f64::consts::FRAC_PI_2),
        ("sinh(0) + cosh(0) + tanh(0)", 1.0),
        ("exp(1)", std::f64::consts::E),
        ("degrees(pi) - radians(180)", 180.0 - std::f64::consts::PI),
        ("cbrt(27)", 3.0),
        ("2**200", 2_f64.powi(200)),
        ("2**0.5", std::f64::consts::SQRT_2),
        ("factorial(100)", 9.332_621_544_394_41e157),
        ("1e300 * 1e-300", 1.0),
        ("1e-99999999999999999999", 0.0),
    ] {
        let value = bench.value("calculate", json!({ "expression": expression })).await;
        let found = value["value"].as_f64().unwrap();
        assert!((found - expected).abs() <= expected.abs() * 1e-12, "{expression}: {found}");
        assert_eq!(value["exact"], false, "{expression}");
    }
    let third = bench.value("calculate", json!({"expression": "1/3"})).await;
    assert_eq!(third["fraction"], "1/3");
    let output = bench.run("calculate", json!({"expression": "1/3"})).await.unwrap();
    assert_eq!(output.to_text(), "0.3333333333333333 (exactly 1/3)");
}

#[tokio::test]
async fn variables_have_values() {
    let bench = Bench::new();
    let arguments =
        json!({"expression": "p * (1 + rate)**2 + e", "variables": {"p": 1000, "rate": 0.1, "e": 1}});
    assert_eq!(bench.value("calculate", arguments).await["text"], "1211");
    for variables in [json!({"1a": 1}), json!({"a b": 1}), json!({"": 1}), json!({"a": "1"})] {
        let error = bench.error("calculate", json!({"expression": "1", "variables": variables})).await;
        assert_eq!(error.code(), Code::InvalidInput);
    }
}

#[tokio::test]
async fn errors_name_the_place() {
    let bench = Bench::new();
    let deep = "(".repeat(100) + "1" + &")".repeat(100);
    for (expression, code, character, message) in [
        ("1 / 0", Code::InvalidInput, 3, "division by zero"),
        ("1 + 2 % 0", Code::InvalidInput, 7, "division by zero"),
        ("5 // (1 - 1)", Code::InvalidInput, 3, "division by zero"),
        ("0 ** -1", Code::InvalidInput, 3, "division by zero"),
        ("(-8) ** 0.5", Code::InvalidInput, 6, "not a real number"),
        ("2 + sqrt(-1)", Code::InvalidInput, 5, "not a real number"),
        ("ln(0)", Code::InvalidInput, 1, "above 0"),
        ("log(5, 1)", Code::InvalidInput, 1, "base"),
        ("asin(2)", Code::InvalidInput, 1, "-1 to 1"),
        ("factorial(-1)", Code::InvalidInput, 1, "an integer"),
        ("factorial(1.5)", Code::InvalidInput, 1, "an integer"),
        ("gcd(1.5, 2)", Code::InvalidInput, 1, "integers"),
        ("round(1, 0.5)", Code::InvalidInput, 1, "digits"),
        ("9**9**9", Code::Limit, 2, "1.8e308"),
        ("factorial(171)", Code::Limit, 1, "1.8e308"),
        ("1e400", Code::Limit, 1, "1.8e308"),
        ("1e99999999999999999999", Code::Limit, 1, "1.8e308"),
        ("exp(1000)", Code::Limit, 1, "1.8e308"),
        ("1 +", Code::InvalidInput, 4, "expected a number at the end"),
        ("  ", Code::InvalidInput, 3, "expected a number at the end"),
        ("(1 + 2", Code::InvalidInput, 1, "no `)`"),
        ("min(1, 2", Code::InvalidInput, 1, "no closing `)`"),
        ("1 + 2)", Code::InvalidInput, 6, "without `(`"),
        ("2 pi", Code::InvalidInput, 3, "operator"),
        ("1 < 2", Code::InvalidInput, 3, "unexpected `<`"),
        ("1.2.3", Code::InvalidInput, 4, "unexpected `.`"),
        ("0x", Code::InvalidInput, 1, "base 16"),
        ("@", Code::InvalidInput, 1, "unexpected `@`"),
        ("sqr(4)", Code::InvalidInput, 1, "unknown function"),
        ("rat * 2", Code::InvalidInput, 1, "unknown name"),
        ("sin", Code::InvalidInput, 1, "is a function"),
        ("sqrt(1, 2)", Code::InvalidInput, 1, "takes 1 arguments"),
        ("max()", Code::InvalidInput, 1, "takes 1 to"),
        (&deep, Code::InvalidInput, 65, "nesting"),
    ] {
        let error =
            bench.error("calculate", json!({"expression": expression, "variables": {"rate": 1}})).await;
        let found = (error.code(), error.context()["character"].as_u64().unwrap());
        assert_eq!(found, (code, character), "{expression}: {error}");
        assert!(error.message().contains(message), "{expression}: {error}");
        assert_eq!(error.context()["pointer"], "/expression");
    }
    let error = bench.error("calculate", json!({"expression": "sqr(4)"})).await;
    assert!(error.suggestion().unwrap().contains("`sqrt`"), "{error}");
    let error = bench.error("calculate", json!({"expression": "rat", "variables": {"rate": 1}})).await;
    assert!(error.suggestion().unwrap().contains("`rate`"), "{error}");
}

#[tokio::test]
async fn the_place_is_marked() {
    let bench = Bench::new();
    let error = bench.error("calculate", json!({"expression": "1 + 4/0"})).await;
    assert_eq!(error.message(), "division by zero at character 6 of the expression:\n  1 + 4/0\n       ^");
    let long = format!("{}4/0 + 2", "1 + ".repeat(500));
    let error = bench.error("calculate", json!({ "expression": long })).await;
    let lines: Vec<&str> = error.message().lines().collect();
    assert_eq!(lines[1].chars().nth(lines[2].chars().count() - 1), Some('/'), "{error}");
    assert!(lines[1].chars().count() < 70);
}

#[tokio::test]
async fn a_long_expression_is_rejected_and_a_wide_one_is_not_deep() {
    let bench = Bench::new();
    let wide = "1+".repeat(2000) + "1";
    assert_eq!(bench.value("calculate", json!({ "expression": wide })).await["text"], "2001");
    let error = bench.error("calculate", json!({"expression": "1+".repeat(3000) + "1"})).await;
    assert_eq!(error.code(), Code::InvalidInput);
}

/// Pieces of expressions, so that many of them are valid.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "1",
        "0",
        "2.5",
        "1e9",
        "1e308",
        "0xff",
        "x",
        "pi",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "^",
        "(",
        ")",
        ",",
        " ",
        "sqrt(",
        "round(",
        "factorial(",
        "gcd(",
        "comb(",
        "log(",
        "max(",
        "lcm(",
        "median(",
        "hypot(",
        "mod(",
        "170141183460469231731687303715884105727",
        "99999999999999999999",
        "0.000000000000000000000000000001",
        "é",
        ".",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_expression_panics(expression in prop_oneof![pieces(), "\\PC{0,60}"]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bench = Bench::new();
        let arguments: Value = json!({"expression": expression, "variables": {"x": -0.1}});
        // A panic would be `INTERNAL`.
        if let Err(error) = runtime.block_on(bench.run("calculate", arguments)) {
            prop_assert_ne!(error.code(), Code::Internal, "{}", error);
        }
    }

    #[test]
    fn whole_numbers_are_exact(a in -1_000_000_000_i64..1_000_000_000, b in 1_i64..1_000_000_000, c in -1_000_000_i64..1_000_000) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bench = Bench::new();
        let calculated = |expression: String| runtime.block_on(bench.value("calculate", json!({"expression": expression})))["text"].clone();
        prop_assert_eq!(calculated(format!("({a}) * {b} + ({c})")), (i128::from(a) * i128::from(b) + i128::from(c)).to_string());
        prop_assert_eq!(calculated(format!("({a} // {b}) * {b} + {a} % {b}")), a.to_string());
        prop_assert_eq!(calculated(format!("(({a}) / {b}) * {b}")), a.to_string());
        prop_assert_eq!(calculated(format!("({a}) % {b}")), a.rem_euclid(b).to_string());
    }
}

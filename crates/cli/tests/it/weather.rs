//! The demo of README: a real table, a real sandbox, a scripted model.

use std::os::unix::fs::MetadataExt as _;

use crate::support::{TestEnv, repository};

const TABLE: &str = "examples/weather/seattle-weather.csv";
const SCRIPT: &str = "examples/weather/weather.yaml";
const WORDS: [&str; 7] = [
    "run",
    "--attach",
    "seattle-weather.csv",
    "--model",
    "script:weather.yaml",
    "-p",
    "Which year was the wettest?",
];

fn with_files(env: TestEnv) -> TestEnv {
    env.write("seattle-weather.csv", std::fs::read(repository(TABLE)).unwrap());
    env.write("weather.yaml", std::fs::read(repository(SCRIPT)).unwrap());
    env
}

#[track_caller]
fn answers(env: &TestEnv) {
    let finished = env.run(WORDS).ok();
    for part in ["2014", "1232.8", "August", "1461 days"] {
        assert!(finished.out.contains(part), "{part}: {finished}");
    }
    // The output says what is scripted.
    assert!(finished.err.contains("the answers are scripted"), "{finished}");
    assert!(finished.err.contains("✓ run_code") && finished.err.contains("sandbox "), "{finished}");
    let record = env.run(WORDS.iter().chain(&["--json"])).ok().json();
    assert!(record["notices"].to_string().contains("scripted"), "{record}");
}

#[test]
fn the_answer_is_right() {
    answers(&with_files(TestEnv::new()));
}

#[test]
fn the_command_in_the_scripts_comment_works() {
    let env = TestEnv::new();
    let table = repository(TABLE);
    let model = format!("script:{}", repository(SCRIPT).display());
    let words =
        ["run", "--attach", table.to_str().unwrap(), "--model", &model, "-p", "Which year was the wettest?"];
    assert!(env.run(words).ok().out.contains("2014"));
}

#[test]
fn another_table_changes_the_answer() {
    let env = with_files(TestEnv::new());
    let table = env.read("seattle-weather.csv");
    // One day of 2012 gets the rain of a year.
    let changed = table.replacen("2012-01-02,10.9,", "2012-01-02,910.9,", 1);
    assert_ne!(table, changed);
    env.write("seattle-weather.csv", changed);
    let finished = env.run(WORDS).ok();
    assert!(finished.out.contains("2012 was the wettest") && finished.out.contains("unknown"), "{finished}");
    assert!(!finished.out.contains("1232.8"), "{finished}");
}

#[test]
fn as_an_ordinary_user() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIP as_an_ordinary_user: this is an ordinary user already");
        return;
    }
    let env = with_files(TestEnv::new()).of_user(65_534).unwrap();
    let probe = env.run(["doctor", "--json"]);
    if probe.status.code() != Some(0) {
        println!("SKIP as_an_ordinary_user: no sandbox level for user 65534: {probe}");
        return;
    }
    if probe.json()["languages"][0]["available"] != true {
        println!("SKIP as_an_ordinary_user: no Python for user 65534: {}", probe.json()["languages"][0]);
        return;
    }
    answers(&env);
}

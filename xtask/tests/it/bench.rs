use xtask::bench::{BENCHES, Bench, Row, date, named, render, rows};

#[test]
fn dates_follow_the_calendar() {
    let table = [
        (0, "1970-01-01"),
        (59, "1970-03-01"),
        (789, "1972-02-29"),
        (11_016, "2000-02-29"),
        (20_778, "2026-11-21"),
        (47_540, "2100-02-28"),
        (47_541, "2100-03-01"),
    ];
    for (day, expected) in table {
        assert_eq!(date(day), expected, "of day {day}");
    }
}

#[test]
fn rows_are_read_and_promises_are_held_against_them() {
    let text = "warming up\n\
        {\"rows\":[{\"name\":\"call\",\"value\":1.5,\"unit\":\"µs\",\"promise\":\"≤ 2 µs\",\"promise_max\":2},\
        {\"name\":\"fold\",\"value\":400000,\"unit\":\"events/s\",\"promise_min\":500000},\
        {\"name\":\"peer\",\"value\":7,\"unit\":\"µs\"}]}\n";
    let rows = rows(text).unwrap();
    let holds: Vec<Option<bool>> = rows.iter().map(Row::holds).collect();
    assert_eq!(holds, [Some(true), Some(false), None]);
    let expected = "\
what         measured  promised                  holds
call           1.5 µs  ≤ 2 µs                    yes
fold  400000 events/s  at least 500000 events/s  NO
peer             7 µs  none                      -
";
    assert_eq!(render(&rows), expected);
}

#[test]
fn a_bench_that_measured_nothing_is_an_error() {
    let table = [
        ("", "no JSON object"),
        ("{\"rows\":[]}", "measured nothing"),
        ("{\"rows\":[{\"name\":\"call\",\"unit\":\"µs\"}]}", "without `value`"),
    ];
    for (text, expected) in table {
        let error = rows(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn programs_are_chosen_by_words_of_their_names() {
    let chosen = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        named(&words).map(|found| found.into_iter().map(Bench::name).collect::<Vec<_>>())
    };
    assert_eq!(chosen(&[]).unwrap().len(), BENCHES.len());
    assert_eq!(
        chosen(&["fold", "agent/"]).unwrap(),
        ["toolpost-agent/loop_cost", "toolpost-agent/loop_peers", "toolpost-llm/fold_speed"]
    );
    let error = chosen(&["lopo"]).unwrap_err();
    assert!(
        error.contains("no program has lopo in its name") && error.contains("toolpost-agent/loop_cost"),
        "{error}"
    );
}

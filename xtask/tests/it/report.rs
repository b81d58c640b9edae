use xtask::suite::report::Tally;

const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="toolpost" tests="4" failures="1" errors="0">
    <testsuite name="toolpost-sandbox::it" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="levels::strict" classname="toolpost-sandbox::it" time="0.1">
            <system-out>
running 1 test
SKIP cgroup v2: the host has &quot;cgroup v1&quot; only
test levels::strict ... ok
</system-out>
        </testcase>
        <testcase name="levels::minimal" classname="toolpost-sandbox::it" time="0.1"/>
        <testcase name="levels::says_no &lt;T&gt;" classname="toolpost-sandbox::it" time="0.1">
            <failure message="thread panicked" type="test failure">the SKIP x: y in a panic &lt;testcase

  as user 7</failure>
        </testcase>
        <testcase name="again" classname="toolpost-sandbox::it" time="0.1">
            <system-err>SKIP cgroup v2: another reason
not a SKIP line: here</system-err>
        </testcase>
        <testcase name="busy" classname="toolpost-sandbox::it" time="0.1"/>
    </testsuite>
</testsuites>
"#;

#[test]
fn a_junit_report_is_counted() {
    let mut tally = Tally::default();
    tally.add_junit(JUNIT);
    let expected = "SKIP cgroup v2: the host has \"cgroup v1\" only\n\
        FAIL toolpost-sandbox::it levels::says_no <T>: the SKIP x: y in a panic <testcase | as user 7\n\
        2 passed, 1 failed, 1 skipped\n";
    assert_eq!(tally.to_string(), expected);
}

#[test]
fn the_output_of_a_test_program_is_counted() {
    let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... SKIP docker: no daemon\n\
        test d - x (line 3) ... ignored\n\
        test result: FAILED. 12 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n\
        test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let mut tally = Tally::default();
    tally.add_libtest(text);
    let expected = "SKIP d - x (line 3): marked as ignored\n\
        SKIP docker: no daemon\n\
        FAIL b\n\
        15 passed, 1 failed, 2 skipped\n";
    assert_eq!(tally.to_string(), expected);
}

#[test]
fn a_program_that_failed_or_ran_nothing_is_a_failure() {
    let run = |passed, failed: &[&str]| Tally {
        passed,
        failed: failed.iter().map(|name| (*name).to_owned()).collect(),
        ..Tally::default()
    };
    let rows = [
        (run(3, &[]), true, vec![]),
        (run(3, &["a"]), false, vec!["a"]),
        (run(3, &[]), false, vec!["tests"]),
        (run(0, &[]), true, vec!["tests: not one was run"]),
    ];
    for (found, good, expected) in rows {
        let mut tally = Tally::default();
        tally.add_run("tests", found.clone(), good);
        assert_eq!(
            (tally.passed, tally.failed),
            (found.passed, expected.iter().map(ToString::to_string).collect())
        );
    }
}

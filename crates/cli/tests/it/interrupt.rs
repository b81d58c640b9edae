//! Ctrl-C: the first stops the work with a complete record, the second ends at once.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{TestEnv, eventually, fits, processes};

/// A duration that no other program sleeps for.
fn unique(number: u32) -> String {
    format!("{number}.{}", std::process::id())
}

#[test]
fn once_stops_a_run_and_its_programs() {
    let seconds = unique(301);
    let env = TestEnv::new();
    let call = json!({ "tool": "run_command", "args": { "argv": ["sleep", seconds] } });
    let script = json!({ "turns": [{ "text": "I sleep.", "calls": [call] }, { "text": "never said" }] });
    env.write("script.yaml", script.to_string());
    let words = ["run", "-p", "x", "--model", "script:script.yaml", "--tools", "run_command", "--json"];
    let running = env.start(words);
    eventually("the program sleeps", || !processes(&seconds).is_empty());
    running.signal(Signal::INT);
    let finished = running.finish().exit(130);
    assert_eq!(processes(&seconds), Vec::<u32>::new());
    let record = finished.json();
    fits("run-record", &record);
    assert_eq!((&record["stop_reason"], &record["response"]), (&json!("cancelled"), &json!("I sleep.")));
    assert_eq!(record["tool_calls"][0]["tool"], "run_command");
    assert_eq!(finished.error()["code"], "CANCELLED");
}

#[test]
fn once_stops_a_call_and_its_program() {
    let seconds = unique(302);
    let env = TestEnv::new();
    let arguments = json!({ "argv": ["sleep", seconds] }).to_string();
    let running = env.start(["call", "run_command", &arguments, "--json"]);
    eventually("the program sleeps", || !processes(&seconds).is_empty());
    running.signal(Signal::INT);
    let finished = running.finish().exit(130);
    assert_eq!(processes(&seconds), Vec::<u32>::new());
    fits("envelope", &finished.json());
    assert_eq!(finished.error()["code"], "CANCELLED");
}

#[test]
fn once_stops_a_program() {
    let seconds = unique(303);
    let env = TestEnv::new();
    let running = env.start(["exec", "--json", "--timeout", "10m", "--", "sleep", &seconds]);
    eventually("the program sleeps", || !processes(&seconds).is_empty());
    running.signal(Signal::INT);
    let finished = running.finish().exit(130);
    assert_eq!(processes(&seconds), Vec::<u32>::new());
    fits("outcome", &finished.json());
    assert_eq!(finished.json()["verdict"]["kind"], "cancelled");
}

#[test]
fn once_stops_waiting_for_a_provider() {
    use toolpost_testkit::provider::{LoopbackProvider, Reply};
    let server = LoopbackProvider::start(vec![Reply::never()]).unwrap();
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", "key").with("ANTHROPIC_BASE_URL", server.base_url());
    let running = env.start(["run", "-p", "hi", "--json"]);
    eventually("the provider is asked", || server.connections() > 0);
    running.signal(Signal::INT);
    let finished = running.finish().exit(130);
    assert_eq!(finished.json()["stop_reason"], "cancelled");
}

#[test]
fn once_stops_waiting_for_a_person() {
    let env = TestEnv::new();
    let (screen, running) = env.start_on_terminal("", ["call", "calculate", "expression=1", "--ask"]);
    eventually("the question is asked", || screen.text().contains("yes / session / no?"));
    running.signal(Signal::INT);
    running.finish().exit(130);
    eventually("the end is told", || screen.text().contains("error: "));
}

#[test]
fn other_termination_signals_act_alike() {
    for (number, signal) in [(305, Signal::TERM), (306, Signal::HUP)] {
        let seconds = unique(number);
        let env = TestEnv::new();
        let arguments = json!({ "argv": ["sleep", seconds] }).to_string();
        let running = env.start(["call", "run_command", &arguments, "--json"]);
        eventually("the program sleeps", || !processes(&seconds).is_empty());
        running.signal(signal);
        let finished = running.finish().exit(130);
        assert_eq!(processes(&seconds), Vec::<u32>::new());
        fits("envelope", &finished.json());
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let words = unique(304);
    let env = TestEnv::new();
    // A full pipe blocks the command, so one Ctrl-C cannot help.
    let (reader, running) = env.start_unread(["exec", "--timeout", "10m", "--", "yes", &words]);
    eventually("the program runs", || !processes(&words).is_empty());
    // The pipe is full soon after.
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.signal(Signal::INT);
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.signal(Signal::INT);
    running.finish().exit(130);
    eventually("the program is dead", || processes(&words).is_empty());
    drop(reader);
}

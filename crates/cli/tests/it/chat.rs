//! `toolpost chat` on a terminal and through a pipe.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::{Value, json};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

use crate::support::{Anthropic, Finished, Running, Screen, calls, eventually, hesitates, says, says_whole};

/// A conversation on a terminal.
struct Talk {
    model: Anthropic,
    screen: Screen,
    running: Running,
    prompts: usize,
}

impl Talk {
    fn start(replies: Vec<Reply>, words: &[&str]) -> Self {
        let mut model = Anthropic::start(replies);
        model.env = model.env.with("TERM", "xterm");
        Self::begin(model, words)
    }

    fn begin(model: Anthropic, words: &[&str]) -> Self {
        let (screen, running) = model.env.start_on_terminal("", ["chat"].iter().chain(words));
        let mut talk = Self { model, screen, running, prompts: 0 };
        talk.ready();
        talk
    }

    /// Waits for the line editor, which enables bracketed paste at each line.
    fn ready(&mut self) {
        self.prompts += 1;
        self.screen.wait_for("\u{1b}[?2004h", self.prompts);
    }

    /// Types a line and waits for the next prompt.
    fn say(&mut self, line: &str) -> &mut Self {
        self.screen.press(&format!("{line}\r"));
        self.ready();
        self
    }

    /// The output of the terminal.
    fn text(&self) -> String {
        self.screen.text()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        assert!(self.text().contains(text), "{text:?} is not in {}", self.text());
    }

    /// The messages of each request, oldest first.
    fn asked(&self) -> Vec<Value> {
        self.model.bodies().iter().map(|body| body["messages"].clone()).collect()
    }

    /// Leaves the chat.
    fn leave(self) -> (Anthropic, Finished) {
        self.screen.press("\u{4}");
        (self.model, self.running.finish().exit(0))
    }
}

fn text(messages: &Value, at: usize) -> &str {
    messages[at]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn each_turn_continues_the_conversation() {
    let mut talk =
        Talk::start(vec![says("Hello."), says("Your name is Ada.")], &["--system-prompt", "Be brief."]);
    talk.say("I am Ada.").say("Who am I?");
    talk.shows("Your name is Ada.");
    talk.shows("7 tokens in");
    // The rest of the window, for a model of the catalog.
    talk.shows("% of the context left");
    let bodies = talk.model.bodies();
    assert_eq!(bodies[1]["system"], "Be brief.");
    let messages = &talk.asked()[1];
    assert_eq!(
        [text(messages, 0), text(messages, 1), text(messages, 2)],
        ["I am Ada.", "Hello.", "Who am I?"]
    );
    talk.leave();
}

#[test]
pub(crate) fn interactive() {
    for option in ["-i", "--interactive"] {
        let mut model = Anthropic::start(vec![says("One."), says("Two.")]);
        model.env = model.env.with("TERM", "xterm");
        let (screen, running) = model.env.start_on_terminal("", ["run", option, "-p", "first"]);
        screen.wait_for("\u{1b}[?2004h", 1);
        assert!(screen.text().contains("One."), "{}", screen.text());
        screen.press("second\r");
        screen.wait_for("\u{1b}[?2004h", 2);
        screen.press("\u{4}");
        running.finish().exit(0);
        assert_eq!(model.bodies()[1]["messages"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn without_a_terminal_each_line_is_a_message() {
    let model = Anthropic::start(vec![says("One."), says("Two.")]);
    let finished = model.env.run_with("first\n\n/usage\nsecond\n", ["chat"]).ok();
    assert_eq!(finished.out, "One.\nTwo.\n", "{finished}");
    assert!(finished.err.contains("7 tokens in, 5 out"), "{finished}");
    let model = Anthropic::start(vec![says("One."), says("Two.")]);
    let lines = model.env.run_with("first\nsecond\n", ["chat", "--json"]).ok().lines();
    assert_eq!([&lines[0]["response"], &lines[1]["response"]], ["One.", "Two."]);
}

#[test]
fn a_failed_turn_does_not_end_the_chat() {
    let refused = || {
        Reply::json(
            400,
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}).to_string(),
        )
    };
    let mut talk = Talk::start(vec![refused(), says("Fine.")], &[]);
    talk.say("first").say("second");
    talk.shows("error:");
    talk.shows("Fine.");
    // A rejected question is not sent again.
    assert_eq!(talk.asked()[1].as_array().unwrap().len(), 1);
    talk.leave();
    let model = Anthropic::start(vec![refused()]);
    model.env.run_with("first\n", ["chat"]).exit(2);
}

#[test]
fn ctrl_c_stops_an_answer_and_stores_its_beginning() {
    let mut talk = Talk::start(vec![hesitates("The first half"), says("Done.")], &[]);
    talk.screen.press("tell me\r");
    talk.screen.wait_for("The first half", 1);
    talk.running.signal(Signal::INT);
    talk.ready();
    talk.shows("stopped; the beginning of the answer is stored");
    talk.say("continue");
    let messages = &talk.asked()[1];
    assert_eq!(
        [text(messages, 0), text(messages, 1), text(messages, 2)],
        ["tell me", "The first half", "continue"]
    );
    talk.leave();
}

#[test]
fn ctrl_c_clears_a_line_and_twice_on_an_empty_one_leaves() {
    let mut talk = Talk::start(vec![], &[]);
    talk.screen.press("half a line\u{3}");
    talk.ready();
    talk.screen.press("\u{3}");
    talk.ready();
    talk.shows("Press Ctrl-C again");
    talk.screen.press("\u{3}");
    talk.running.finish().exit(0);
    assert_eq!(talk.model.server.connections(), 0);
}

#[test]
fn a_termination_signal_ends_the_chat_at_the_prompt_and_in_a_turn() {
    let talk = Talk::start(vec![], &[]);
    talk.running.signal(Signal::TERM);
    talk.running.finish().exit(130);
    let talk = Talk::start(vec![hesitates("Begun")], &[]);
    talk.screen.press("go\r");
    talk.screen.wait_for("Begun", 1);
    talk.running.signal(Signal::TERM);
    talk.running.finish().exit(130);
}

#[test]
fn a_line_continues_after_a_backslash_with_alt_enter_and_when_pasted() {
    let mut talk = Talk::start(vec![says("1"), says("2"), says("3")], &[]);
    talk.say("first \\\rsecond");
    talk.say("third\u{1b}\rfourth");
    talk.say("\u{1b}[200~fifth\rsixth\u{1b}[201~");
    let messages = &talk.asked()[2];
    assert_eq!(
        [text(messages, 0), text(messages, 2), text(messages, 4)],
        ["first \nsecond", "third\nfourth", "fifth\nsixth"]
    );
    talk.leave();
}

#[test]
fn history_is_per_project_without_secrets() {
    let mut talk = Talk::start(vec![says("1"), says("2")], &[]);
    talk.say("remember me").say(&format!("my key is {}", Anthropic::KEY));
    let (model, _) = talk.leave();
    let mut files = Vec::new();
    let directory = model.env.path("../home/.local/state/toolpost/history");
    files.extend(std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()));
    let kept = std::fs::read_to_string(&files[0]).unwrap();
    assert_eq!((files.len(), kept.as_str()), (1, "\"remember me\"\n"));
    assert_eq!(files[0].metadata().unwrap().permissions().mode() & 0o077, 0);
    // The arrow key recalls it in the next chat.
    let again = Anthropic::start(vec![says("again")]);
    let mut talk = Talk::begin(
        Anthropic {
            env: model.env.with("ANTHROPIC_BASE_URL", again.server.base_url()),
            server: again.server,
        },
        &[],
    );
    talk.say("\u{1b}[A");
    assert_eq!(text(&talk.asked()[0], 0), "remember me");
    talk.leave();
}

#[test]
fn markdown_is_rendered() {
    let page = "# Title\n\nSome **bold** words.\n\n- one\n- two\n\n```sh\nls -l\n```\n";
    let mut talk = Talk::start(vec![says(page).in_pieces(40, std::time::Duration::from_millis(1))], &[]);
    talk.say("go");
    let shown = talk.text();
    for part in ["Title", "\u{1b}[1mbold\u{1b}[0m", "• one\r\n• two", "  ls -l"] {
        assert!(shown.contains(part), "{part:?}: {shown:?}");
    }
    assert!(!shown.contains("**") && !shown.contains("```"), "{shown:?}");
    talk.leave();
}

#[test]
pub(crate) fn plain() {
    let page = "# Title\n\nSome **bold** words.";
    let mut talk = Talk::start(vec![says(page)], &["--plain"]);
    talk.say("go");
    talk.shows("# Title\r\n\r\nSome **bold** words.\r\n");
    talk.leave();
    // A run on a terminal has the same two formats.
    for (words, expected) in [(&["--plain"][..], "**bold**"), (&[], "\u{1b}[1mbold\u{1b}[0m")] {
        let mut model = Anthropic::start(vec![says(page)]);
        model.env = model.env.with("TERM", "xterm");
        let finished = model.env.on_terminal("", ["run", "-p", "go"].iter().chain(words)).ok();
        assert!(finished.out.contains(expected), "{finished}");
        assert_eq!(finished.out.matches("words.").count(), 1, "{finished}");
    }
}

#[test]
fn a_models_text_never_controls_the_terminal() {
    let hostile = "a\u{1b}]0;title\u{7}b &#27;[2J `\u{9b}31m`\n\n```\n\u{1b}[2J\n```\n";
    let mut talk = Talk::start(vec![says(hostile)], &[]);
    talk.say("go");
    let shown = talk.text();
    for bad in ["\u{1b}]0;", "\u{7}", "\u{1b}[2J", "\u{9b}"] {
        assert!(!shown.contains(bad), "{bad:?}: {shown:?}");
    }
    talk.leave();
}

#[test]
fn a_running_call_is_replaced_by_its_result() {
    let code = json!({"language": "bash", "code": "sleep 1.3; echo done"});
    let mut talk = Talk::start(vec![calls("run_code", &code), says("Done.")], &["--tools", "run_code"]);
    talk.say("go");
    let shown = talk.text();
    // Drawn, redrawn with its duration, replaced by the result.
    for part in ["→", "run_code", "(1.0 s)", "\u{1b}[1A\r\u{1b}[J", "✓"] {
        assert!(shown.contains(part), "{part:?}: {shown:?}");
    }
    talk.leave();
}

#[test]
fn an_approval_prompt_can_approve_a_tool_for_the_session() {
    let sum = json!({"expression": "6*7"});
    let replies = vec![calls("calculate", &sum), says("one"), calls("calculate", &sum), says("two")];
    let mut talk = Talk::start(replies, &["--ask", "--tools", "calculate"]);
    talk.screen.press("go\r");
    talk.screen.wait_for("yes / session / no?", 1);
    talk.screen.press("y\n");
    talk.ready();
    talk.say("/approve calculate");
    talk.say("/approve");
    talk.shows("approved: calculate");
    talk.say("again");
    talk.shows("two");
    assert_eq!(talk.text().matches("yes / session / no?").count(), 1, "{}", talk.text());
    talk.say("/approve nosuch");
    talk.shows("unknown tool `nosuch`");
    talk.leave();
}

#[test]
fn an_abandoned_prompt_takes_no_input() {
    let replies = vec![calls("calculate", &json!({"expression": "1"})), says("heard")];
    let mut talk = Talk::start(replies, &["--ask", "--tools", "calculate"]);
    talk.screen.press("go\r");
    talk.screen.wait_for("yes / session / no?", 1);
    talk.running.signal(Signal::INT);
    talk.ready();
    talk.say("this is for the model");
    let messages = &talk.asked()[1];
    assert!(messages.to_string().contains("this is for the model"), "{messages}");
    talk.leave();
}

#[test]
fn display_commands_print_their_state() {
    let mut talk = Talk::start(vec![says("Hi.")], &["--tools", "calculate,read_file"]);
    talk.say("/help");
    for part in ["/model [MODEL]", "/undo", "Ctrl-C stops the answer"] {
        talk.shows(part);
    }
    talk.say("/tools").shows("read_file");
    let before = talk.text().len();
    talk.say("/tools calc");
    assert!(!talk.text()[before..].contains("read_file"), "{}", talk.text());
    talk.say("/mcp").shows("all tools are built in");
    talk.say("/cost").shows("0.0000 USD");
    talk.say("hi").say("/usage").shows("7 tokens in, 5 out");
    talk.say("/model").shows("anthropic/claude");
    talk.say("/modl x").shows("Did you mean `/model`?");
    talk.say("/us\t").shows("/usage");
    // A path is not a command, and an unknown command is not a message.
    assert_eq!(talk.model.bodies().len(), 1);
    talk.screen.press("/exit\r");
    talk.running.finish().exit(0);
}

#[test]
fn mcp_prints_the_state_of_sources() {
    let model = Anthropic::start(vec![]);
    crate::targets::weather(&model.env);
    let finished = model.env.run_with("/mcp\n", ["chat", "--tools", "./weather"]).ok();
    assert!(finished.err.contains("4 tools"), "{finished}");
}

#[test]
fn undo_and_clear_discard_turns() {
    let mut talk = Talk::start(vec![says("1"), says("2"), says("3"), says("4")], &[]);
    talk.say("/undo").shows("nothing to undo");
    talk.say("first").say("second").say("/undo").shows("undone; 1 question");
    talk.say("third");
    let messages = &talk.asked()[2];
    assert_eq!([text(messages, 0), text(messages, 1), text(messages, 2)], ["first", "1", "third"]);
    talk.say("/clear").say("fourth");
    assert_eq!(talk.asked()[3].as_array().unwrap().len(), 1);
    talk.leave();
}

#[test]
fn another_model_gets_the_conversation() {
    let mut talk = Talk::start(vec![says("Hi.")], &[]);
    talk.model.env.write("other.yaml", r#"{"turns": [{"text": "I am another."}]}"#);
    talk.say("hello").say("/model script:other.yaml").say("who are you?");
    talk.shows("I am another.");
    talk.say("/model nosuch/thing").shows("unknown provider");
    talk.leave();
    let model = Anthropic::start(vec![]);
    let finished = model.env.run_with("/model script:x.yaml\n", ["chat", "--record", "r.jsonl"]).exit(2);
    assert!(finished.err.contains("cannot change its model"), "{finished}");
}

#[test]
fn a_conversation_resumes_in_another_process() {
    let mut talk = Talk::start(vec![says("Hello Ada.")], &[]);
    talk.say("I am Ada.");
    let (model, left) = talk.leave();
    drop(left);
    let again = Anthropic::start(vec![says("Ada."), says("New.")]);
    let env = model.env.with("ANTHROPIC_BASE_URL", again.server.base_url());
    let mut talk = Talk::begin(Anthropic { env, server: again.server }, &["--continue"]);
    talk.shows("I am Ada.");
    talk.say("Who am I?");
    let messages = &talk.asked()[0];
    assert_eq!([text(messages, 0), text(messages, 1)], ["I am Ada.", "Hello Ada."]);
    // A new conversation, and back to the first.
    talk.say("/clear").say("/resume").shows("(2 questions");
    let shown = talk.text();
    let id = shown.split("(2 questions").next().unwrap().rsplit("\u{1b}[36m").next().unwrap();
    let id = id.split('\u{1b}').next().unwrap().to_owned();
    talk.say(&format!("/resume {id}")).say("And now?");
    assert_eq!(talk.asked()[1].as_array().unwrap().len(), 5);
    talk.say("/resume nosuch").shows("error:");
    talk.leave();
}

#[test]
fn save_never_overwrites() {
    let sum = json!({"expression": "6*7"});
    let mut talk = Talk::start(vec![calls("calculate", &sum), says("It is \u{9b}2J**42**.")], &[]);
    talk.say("how much?").say("/save talk.md").say("/save talk.json").say("/save talk.md");
    talk.shows("error:");
    let (model, _) = talk.leave();
    let page = model.env.read("talk.md");
    for part in ["## You\n\nhow much?", "- `calculate` with", "It is �2J**42**."] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let turns: Value = serde_json::from_str(&model.env.read("talk.json")).unwrap();
    assert_eq!(turns.as_array().unwrap().len(), 4);
}

#[test]
fn artifacts_are_stored_at_the_end() {
    let file = json!({"path": "new.txt", "content": "made"});
    let mut talk = Talk::start(vec![calls("write_file", &file), says("Written.")], &["--artifacts", "kept"]);
    talk.say("write it");
    let (model, _) = talk.leave();
    assert_eq!(model.env.read("kept/new.txt"), "made");
}

#[test]
fn late_events_of_a_call_do_not_disturb_the_prompt() {
    let code = json!({"language": "bash", "code": "sleep 100"});
    let mut talk = Talk::start(vec![calls("run_code", &code), says("Fine.")], &["--tools", "run_code"]);
    talk.screen.press("go\r");
    talk.screen.wait_for("→", 1);
    talk.running.signal(Signal::INT);
    talk.ready();
    talk.say("and now?").shows("Fine.");
    eventually("it is asked again", || talk.model.bodies().len() == 2);
    talk.leave();
}

#[test]
fn trace_and_sandbox_show_the_calls_of_an_answer() {
    let code = json!({"language": "bash", "code": "echo hi"});
    let mut talk = Talk::start(vec![calls("run_code", &code), says("It said hi.")], &["--level", "standard"]);
    talk.say("/trace");
    talk.shows("no answer yet");
    talk.say("/sandbox");
    talk.shows("as requested");
    talk.shows("no code ran in the latest turn");
    talk.say("run it");
    let before = talk.text().len();
    talk.say("/trace");
    let traced = talk.text().split_off(before);
    assert!(traced.contains("language=bash") && traced.contains("sandbox standard"), "{traced}");
    talk.say("/sandbox").shows(" ran at level standard with the layers ");
    talk.leave();
}

#[test]
fn compact_replaces_the_middle_of_a_conversation() {
    let words = ["One.", "Two.", "Three.", "Four."];
    let mut talk = Talk::start(words.map(says).into(), &[]);
    talk.say("/compact");
    talk.shows("the conversation is too short");
    for line in ["first", "second", "third", "fourth"] {
        talk.say(line);
    }
    // 8 turns: the first prompt and the latest six stay.
    talk.say("/compact");
    talk.shows("the conversation is too short");
    talk.leave();
    let mut replies = ["One.", "Two.", "Three.", "Four.", "Five."].map(says).to_vec();
    replies.extend([says_whole("Numbers were said."), says("Six.")]);
    let mut talk = Talk::start(replies, &[]);
    for line in ["first", "second", "third", "fourth", "fifth"] {
        talk.say(line);
    }
    talk.say("/compact");
    talk.shows("a summary replaced 3 messages (7 tokens in, 5 out)");
    talk.say("/usage").say("sixth");
    talk.shows("42 tokens in, 30 out");
    let messages = talk.asked().pop().unwrap().to_string();
    assert!(messages.contains("first") && messages.contains("Numbers were said."), "{messages}");
    assert!(!messages.contains("second") && messages.contains("fifth"), "{messages}");
    talk.leave();
}

#[test]
fn each_turn_ends_with_its_usage() {
    let model = Anthropic::start(vec![calls("calculate", &json!({"expression": "6*7"})), says("42.")]);
    let row = json!({"models": [{"id": "anthropic/small", "context_window": 48,
        "prices": [{"input": 1_000_000, "output": 1_000_000}]}]});
    model.env.write("models.json", row.to_string());
    let words = ["chat", "--model", "anthropic/small", "--config", "models.file=models.json"];
    let finished = model.env.run_with("how much?\n", words).ok();
    let line = finished.err.lines().find(|line| line.starts_with("anthropic/small")).unwrap();
    let (facts, rest) = line.split_once(" USD · ").unwrap();
    assert_eq!(facts, "anthropic/small · 2 turns · 1 tool call · 14 tokens in, 10 out · 24.0000");
    // The duration, and the rest: the last answer had 12 of 48 tokens.
    let (took, left) = rest.split_once(" · ").unwrap();
    assert!(took.ends_with('s') && left == "75 % of the context left", "{line}");
}

#[test]
fn a_failed_question_is_discarded_alone() {
    let refused = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}});
    let replies = vec![says("One."), Reply::json(400, refused.to_string()), says("Three.")];
    let model = Anthropic::start(replies);
    let finished =
        model.env.run_with("first\nsecond\n/trace\n/undo\nthird\n/trace\n/undo\n/trace\n", ["chat"]);
    for (notice, times) in [
        ("the question failed and was discarded", 1),
        ("no tool was called before the question failed", 1),
        ("the last question failed and was discarded", 1),
        ("no tool was called", 2),
        ("undone; 1 question remains. Effects", 1),
        // An undone turn has no calls.
        ("no answer yet", 1),
    ] {
        assert_eq!(finished.err.matches(notice).count(), times, "{notice}: {finished}");
    }
    let messages = &model.bodies()[2]["messages"];
    assert_eq!([text(messages, 0), text(messages, 1), text(messages, 2)], ["first", "One.", "third"]);
}

#[test]
fn a_run_id_finds_its_conversation() {
    let model = Anthropic::start(vec![says("One."), says("Two.")]);
    let record = model.env.run(["run", "-p", "first", "--json"]).ok().json();
    model.env.run(["run", "-p", "second", "--resume", record["id"].as_str().unwrap()]).ok();
    assert_eq!(text(&model.bodies()[1]["messages"], 0), "first");
}

/// A conversation that is long enough for a summary, whose next answer never ends.
fn about_to_be_shorter(rest: Reply) -> Talk {
    let mut replies = ["One.", "Two.", "Three.", "Four.", "Five."].map(says).to_vec();
    replies.push(rest);
    let mut talk = Talk::start(replies, &[]);
    for line in ["first", "second", "third", "fourth", "fifth"] {
        talk.say(line);
    }
    talk
}

#[test]
fn a_cancelled_or_failed_summary_is_counted() {
    let mut talk = about_to_be_shorter(hesitates("Numbers"));
    talk.say("/cost");
    assert!(!talk.text().contains("unknown: a model"), "{}", talk.text());
    talk.screen.press("/compact\r");
    eventually("the summary is asked for", || talk.model.server.requests().len() == 6);
    talk.running.signal(Signal::INT);
    talk.ready();
    talk.shows("stopped; the conversation is unchanged");
    talk.say("/cost").shows("unknown: a model");
    talk.leave();
    let mut talk = about_to_be_shorter(says(" "));
    talk.say("/compact").shows("the summary could not be written");
    talk.say("/usage").shows("42 tokens in, 30 out");
    talk.running.signal(Signal::TERM);
    talk.running.finish().exit(130);
}

#[test]
fn a_termination_signal_ends_a_chat_command() {
    let talk = about_to_be_shorter(hesitates("Numbers"));
    talk.screen.press("/compact\r");
    eventually("the summary is asked for", || talk.model.server.requests().len() == 6);
    talk.running.signal(Signal::TERM);
    talk.running.finish().exit(130);
}

#[test]
fn ctrl_c_cancels_an_upload() {
    let reply = |request: &ReceivedRequest| match request.path.as_str() {
        "/v1/files" => Reply::never(),
        _ => says("Hi."),
    };
    let model = Anthropic::at(LoopbackProvider::start_with(reply).unwrap());
    model.env.write("sales.csv", "region,sales\nnorth,3\n");
    let words = ["chat", "--attach", "sales.csv", "--enable-file-support", "--code", "hosted"];
    let more = ["--model", "claude-opus-5-5"];
    let (_screen, running) = model.env.start_on_terminal("", words.iter().chain(&more));
    eventually("the file is on its way", || model.server.requests().len() == 1);
    running.signal(Signal::INT);
    running.finish().exit(130);
}

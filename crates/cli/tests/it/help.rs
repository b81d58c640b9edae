//! Snapshots of help pages, and checks of their examples.

use crate::support::TestEnv;

const COMMANDS: [&str; 25] = [
    "run",
    "chat",
    "call",
    "tools",
    "serve",
    "exec",
    "doctor",
    "bench",
    "image",
    "schema",
    "completions",
    "init",
    "state",
    "flow",
    "runs",
    "models",
    "files",
    "config",
    "trust",
    "apply",
    "discard",
    "undo",
    "login",
    "logout",
    "help",
];
const TOPICS: [&str; 8] =
    ["exit-codes", "environment", "settings", "targets", "grants", "agents", "gateway", "scripts"];

#[test]
fn every_page_matches_its_snapshot() {
    let env = TestEnv::new();
    let page = |words: &[&str]| env.run(words).ok().out;
    insta::assert_snapshot!("toolpost", page(&["--help"]));
    for command in COMMANDS {
        insta::assert_snapshot!(format!("toolpost_{command}"), page(&[command, "--help"]));
    }
    for topic in TOPICS {
        insta::assert_snapshot!(format!("help_{topic}"), page(&["help", topic]));
    }
}

#[test]
fn every_command_and_topic_has_a_page_and_is_listed() {
    let env = TestEnv::new();
    let wrong = env.run(["help", "zzzzzz", "--json"]).exit(2).error();
    let known = wrong["hints"][0].as_str().unwrap().trim_start_matches("There are: ").trim_end_matches('.');
    let expected = COMMANDS.iter().chain(&TOPICS).copied().collect::<Vec<_>>();
    assert_eq!(known.split(", ").collect::<Vec<_>>(), expected);
    let root = env.run(["--help"]).ok().out;
    for name in expected {
        assert!(root.contains(name), "{name}");
    }
}

#[test]
fn guides_are_listed_and_printed() {
    let env = TestEnv::new();
    let list = env.run(["help", "--guide"]).ok().out;
    assert!(list.lines().any(|line| line == "keys         Give a tool a key"), "{list}");
    let guide = env.run(["help", "--guide", "keys"]).ok().out;
    assert!(guide.starts_with("# Give a tool a key\n") && guide.contains("```console\n"), "{guide}");
    let wrong = env.run(["help", "--guide", "kets", "--json"]).exit(2).error();
    assert!(wrong["hints"][0].as_str().unwrap().contains("keys"), "{wrong}");
}

#[test]
fn help_and_the_help_option_print_the_same_page() {
    let env = TestEnv::new();
    let same =
        |one: &[&str], other: &[&str]| assert_eq!(env.run(one).ok().out, env.run(other).ok().out, "{one:?}");
    same(&["help"], &["--help"]);
    for command in COMMANDS {
        same(&["help", command], &[command, "--help"]);
    }
}

/// The subcommands on a page.
fn subcommands(page: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn brief_pages_fit_a_terminal_and_usual_ones_100_lines() {
    let (env, narrow) = (TestEnv::new(), TestEnv::new().with("COLUMNS", "80"));
    let mut paths = vec![Vec::new()];
    for command in COMMANDS {
        let page = env.run([command, "--help"]).ok().out;
        paths.push(vec![command.to_owned()]);
        paths.extend(subcommands(&page).into_iter().map(|inner| vec![command.to_owned(), inner]));
    }
    assert!(paths.len() > 60, "{paths:?}");
    for path in paths {
        let page = |env: &TestEnv, option| env.run(path.iter().map(String::as_str).chain([option])).ok().out;
        let (brief, usual) = (page(&narrow, "-h"), page(&env, "--help"));
        assert!(brief.lines().count() <= 24, "{path:?}: {} lines\n{brief}", brief.lines().count());
        assert!(usual.lines().count() < 100, "{path:?}: {} lines\n{usual}", usual.lines().count());
        assert!(brief.contains("--help`"), "{brief}");
        assert!(brief.lines().chain(usual.lines()).all(|line| line.chars().count() <= 100), "{path:?}");
    }
    for command in COMMANDS {
        assert!(env.run(["-h"]).ok().out.contains(command), "{command}");
    }
}

#[test]
fn former_options_name_the_present_ones_and_short_typos_a_command() {
    let env = TestEnv::new();
    for (words, tip) in [
        (&["run", "x", "--allow", "calculate"][..], "`--allow` is now `--approve`"),
        (&["call", "calculate", "--env", "KEY"], "`--env` is now `--secret`"),
        (&["tools", "--env-raw=KEY"], "`--env-raw` is now `--secret-raw`"),
        (&["run", "x", "--allow-tool", "Read"], "`--allow-tool` is now `--approve`"),
        (&["rnu", "x"], "'run'"),
        (&["rn", "x"], "'run'"),
        (&["flow", "rnu"], "'run'"),
        (&["flwo"], "'flow'"),
    ] {
        let text = env.run(words).exit(2);
        assert!(text.err.contains(tip) && !text.err.contains("similar argument"), "{text}");
        let json = env.run(words.iter().chain(&["--json"])).exit(2).error();
        assert!(json["hints"].to_string().contains(tip), "{json}");
    }
}

#[test]
fn the_script_of_the_help_runs() {
    let env = TestEnv::new();
    let page = env.run(["help", "scripts"]).ok().out;
    let script =
        page.lines().skip_while(|line| !line.starts_with("  turns:")).take_while(|line| !line.is_empty());
    env.write("sales.yaml", script.flat_map(|line| [&line[2..], "\n"]).collect::<String>());
    env.write("sales.csv", "region,growth\nnorth,12\nsouth,7\n");
    let words =
        ["run", "-p", "Which region grew fastest?", "--attach", "sales.csv", "--model", "script:sales.yaml"];
    assert_eq!(env.run(words).ok().out, "The answer is 42.\n");
    // The expectation is checked.
    env.write("sales.csv", "region,growth\nsouth,7\n");
    env.run(words).exit(1);
}

#[test]
fn the_models_of_the_help_are_a_file_of_models() {
    let env = TestEnv::new();
    let page = env.run(["models", "--help"]).ok().out;
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    let file = page.lines().skip_while(|line| *line != "  models:").take_while(|line| !line.is_empty());
    env.write("mine.yaml", file.flat_map(|line| [&line[2..], "\n"]).collect::<String>());
    let words = ["models", "show", "openai-compatible/mine", "--config", "models.file=mine.yaml", "--json"];
    let model = env.run(words).ok().json();
    assert_eq!((&model["context_window"], &model["prices"][0]["output"]), (&32768.into(), &1.5.into()));
}

#[test]
fn the_examples_that_need_nothing_run() {
    let env = TestEnv::new();
    assert_eq!(env.run(["call", "calculate", "expression=2**64 - 1"]).ok().out, "18446744073709551615\n");
    assert!(env.run(["call", "calculate", "expression=sqrt(2) * 10"]).ok().out.starts_with("14.142"));
    assert_eq!(env.run_with("print(6 * 7)\n", ["exec", "--lang", "python", "-"]).ok().out, "42\n");
    env.write("README.md", "the read me\n");
    assert!(env.run(["call", "builtin", "read_file", "path=README.md"]).ok().out.contains("the read me"));
    let code = r#"{"language": "python", "code": "print(1)"}"#;
    env.run(["call", "run_code", code, "--format", "json"]).ok();
    env.run(["exec", "--", "sh", "-c", "id; ls /"]).ok();
}

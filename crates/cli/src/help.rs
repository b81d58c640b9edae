//! Help: examples of commands, and topics.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::CommandFactory as _;
use toolpost_core::did_you_mean;

use crate::args::former::named_command;
use crate::args::{Cli, HelpArgs};
use crate::config::keys::KEYS;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::pages::row;
use crate::print::Printer;
use crate::style::{HINT, STRONG, paint, trusted};
use crate::{defaults, env, guides};

/// The template of command pages, as clap lays them out.
const COMMAND_TEMPLATE: &str =
    "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}";

/// The help option of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpOption {
    /// `-h`: the everyday options.
    Brief,
    /// `--help`: most options, and examples.
    Usual,
    /// `--help-all`: every option.
    All,
}

impl HelpOption {
    /// The help option among the words of a command line.
    fn from_words(words: &[String]) -> Self {
        let has = |option: &str| words.iter().any(|word| word == option);
        match (has("--help-all"), has("--help")) {
            (true, _) => Self::All,
            (false, true) => Self::Usual,
            (false, false) => Self::Brief,
        }
    }
}

/// The options on the brief page of a command; commands without a row show all their own options.
const BRIEF: [(&str, &str); 11] = [
    ("run", "text file attach workdir model tools approve resume_last agent"),
    ("chat", "text attach workdir review model tools approve ask resume_last"),
    ("call", "target rest workdir timeout dry_run model secret allow_host approve"),
    ("tools", "targets manifest search level"),
    ("serve", "targets search http token_file allow deny approve workdir"),
    ("exec", "code command lang env attach workdir level session"),
    ("flow plan", "file mermaid svg tools"),
    ("flow run", "file input dry_run durability cluster workdir tools approve"),
    ("flow resume", "id workdir tools approve"),
    ("flow worker", "pool listen register cluster workdir tools approve"),
    ("runs replay", "id attach workdir tools approve"),
];

/// Renders the page of the command that a command line names.
pub(crate) fn page(words: &[String]) -> String {
    let option = HelpOption::from_words(words);
    let mut root = Cli::command();
    if option == HelpOption::All {
        root = unhidden(root);
    }
    root.build();
    let (command, path) = named_command(&root, words);
    let path = path.join(" ");
    trusted(match option {
        HelpOption::All => {
            command.clone().help_template(COMMAND_TEMPLATE).render_long_help().ansi().to_string()
        }
        HelpOption::Usual => usual(command),
        HelpOption::Brief if path.is_empty() => {
            command.clone().help_template(brief_root()).render_help().ansi().to_string()
        }
        HelpOption::Brief => brief(command, &path),
    })
}

/// The page of `--help`: one line an option.
fn usual(command: &clap::Command) -> String {
    let mut command = command.clone().mut_arg("help", |option| option.help("Print help; `-h` is shorter"));
    if let Some(notes) = command.get_after_long_help().cloned() {
        command = command.after_help(notes);
    }
    command.render_help().ansi().to_string()
}

/// The page of `-h`, which fits a terminal of 24 lines.
fn brief(command: &clap::Command, path: &str) -> String {
    let shown = BRIEF.iter().find(|(name, _)| *name == path).map(|(_, options)| *options);
    let is_shown = |option: &clap::Arg| {
        let id = option.get_id().as_str();
        let is_own = !option.is_global_set() && !matches!(id, "help" | "help_all" | "version");
        is_own && !option.is_hide_set() && shown.is_none_or(|shown| shown.split(' ').any(|one| one == id))
    };
    let more = format!("`toolpost {path} --help` shows more options and examples.");
    let command = command.clone().mut_args(|option| {
        let is_hidden = !is_shown(&option);
        option.hide(is_hidden).help_heading(None)
    });
    command.after_help(more).render_help().ansi().to_string()
}

/// The template of the root's brief page: commands by subject.
fn brief_root() -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (subject, commands) in SUBJECTS {
        row(&mut text, subject, 12, &commands.join(", "));
    }
    text + "\n`toolpost --help` explains each command; `toolpost COMMAND -h` lists its options."
}

/// The commands by subject.
const SUBJECTS: [(&str, &[&str]); 6] = [
    ("Agents", &["run", "chat", "runs", "models", "files"]),
    ("Tools", &["call", "tools", "serve", "trust", "login", "logout"]),
    ("Sandbox", &["exec", "apply", "discard", "undo", "image"]),
    ("Workflows", &["flow", "state"]),
    ("Setup", &["doctor", "init", "config", "completions"]),
    ("Reference", &["help", "schema", "bench"]),
];

/// Shows all options of a command and its subcommands.
pub(crate) fn unhidden(command: clap::Command) -> clap::Command {
    command.mut_args(|option| option.hide(false)).mut_subcommands(unhidden)
}

const SCRIPTS: &str = "\
A script has the answers of a model, turn by turn; the tools really run.
It needs no key and no network.

  turns:
    - text: I will look at the file first.
      calls: [{ tool: read_file, args: { path: sales.csv } }]
    - expect: { result_contains: north }      # optional: the run fails if it is false
      calls: [{ tool: run_code, args: { language: python, code: \"6 * 7\" } }]
    - text: \"The answer is {{ last.structured.value }}.\"

`last` is the latest tool result (last.text, last.structured), `results[i]` any earlier one.
`toolpost schema script` prints the format.";

const TARGETS: &str = "\
A target is a source of tools. `call` takes one; `tools` and `run --tools` take several.

  builtin           all built-in tools
  builtin:NAME      one built-in tool, also as NAME
  code_execution    Python at the provider where the model has hosted code, else in the sandbox;
                    `--code` and the setting `code.place` choose
  hosted:NAME       a tool that the provider runs: web_search, web_fetch, x_search,
                    file_search=STORE
  command:NAME      an included description, such as command:git
  ./PATH            an executable that answers `--discover`; Python runs a `.py` file
  FILE.toml         a description of a program (kind = \"command\")
                    or a gateway (kind = \"gateway\"): see `toolpost help gateway`
  FILE.toml         an agent (kind = \"agent\"), also FILE.yaml and FILE.json:
                    see `toolpost help agents`
  https://HOST/mcp  an MCP server; also `http://`
  wss://HOST/ws     an MCP server over WebSocket, such as `toolpost serve --ws`; also `ws://`
  stdio:COMMAND     an MCP server, started without a shell
  docker:IMAGE ARGS an MCP server in a container of a local image, without a network
  NAME=TARGET       any of these with a namespace: its tools are NAME__TOOL
  NAME              the setting `targets.NAME`, or a server of `.mcp.json`
                    or of the files of Claude Code, Claude Desktop, Cursor and VS Code

A server's token comes from `--token-env NAME`, `--token-file FILE` or `toolpost login`. Servers of
a file may have headers and variables with `${NAME}`. Such a file has no effect before
`toolpost trust FILE`, which shows its commands. A description starts nothing before that either.

A program or server runs in the sandbox at level standard, or that of `--level` or the settings:
without network, variables and files except its own. `toolpost help grants` lists what grants more.
A server works in the caller's directory. `npx` and `uvx` install their packages first, in a
separate run. With `-v`, a failed call logs the end of the server's stderr.";

const GRANTS: &str = "\
A grant gives one program or server more than its sandbox level. Other targets and `run_code` get
nothing of it.

  --allow-host NAME        a host that it may reach, such as api.example.org
  --allow-address A:PORT   a private address that it may reach, such as 127.0.0.1:8080
  --secret NAME            a placeholder for the variable NAME; allowed hosts get the value
  --secret-raw NAME        the value itself
  --readable PATH          a file or directory that it may read
  --writable DIR           a directory that it may write, without a private layer
  --target-level LEVEL     its sandbox level
  --target-workdir DIR     its working directory
  --install-scripts        packages of `npx` and `uvx` run their scripts while they are installed

The proxy puts the value of a placeholder into the headers `authorization` and `x-api-key` of plain
HTTP requests, and speaks TLS to the host itself. A program that uses `https://` needs --secret-raw.
Values are masked in all output.

Files grant the same under the key `grants`: of a description, an upstream of a gateway, a target of
toolpost.toml, or a server of `.mcp.json`. Relative paths are beneath the directory of the file.

  [targets.weather]
  target = \"stdio:.venv/bin/python server.py\"

  [targets.weather.grants]
  secrets = [\"API_KEY\", { name = \"DSN\", raw = true }]
  allow_hosts = [\"api.example.org\"]
  readable = [\"data\"]                  # also: writable, workdir, level, allow_addresses,
                                       # install_scripts; of a variable: hosts, headers

`toolpost trust FILE` prints what each target reaches, and stores it.";

const GATEWAY: &str = "\
A gateway file merges several targets into one target.

  kind = \"gateway\"

  [[upstreams]]
  name = \"calc\"                  # its tools are calc__add, calc__sub, …
  target = \"./calculator\"        # any target but another gateway
  namespace = true               # false: bare names that no earlier upstream has
  allow = [\"add\", \"read_*\"]    # only these; `tool:`, `prompt:` and `resource:` name a kind
  deny = [\"read_secret\"]         # overrides `allow`
  rename = [{ tool = \"add\", name = \"plus\", description = \"Add numbers.\" }]
  grants = { allow_hosts = [\"a.example\"] }     # see `toolpost help grants`
  lazy = true                    # starts on its first call; listed from the cached manifest
  required = false               # `run` and `chat` begin without it; default: exit code 4
  start_timeout = \"1m\"           # for a start slower than 30 s, without an installation
  pin = \"trust-first-list\"       # or off, trust, quarantine: for unapproved tools
  [[upstreams.clients]]
  identity = \"guest*\"            # rules for callers: replaces `allow`, adds to `deny`
  allow = [\"add\"]

The gateway reconnects an unavailable upstream and keeps its names. `toolpost serve A B C` does the
same for targets without a file. GET /status reports the state of each upstream.

`tools`, `run` and `chat` wait for each upstream, and end with exit code 4 if one is missing; `call`
needs only that of its tool. `serve` is ready at once, and announces upstreams as they start.

A tool, prompt or resource whose definition changes is in quarantine. `toolpost trust FILE.toml
--tool ?` shows the new definition. `--tool calc/add` approves a tool, `--tool calc/prompt:greet` a
prompt, `--tool 'calc/resource:notes://{id}'` a resource.

A running command reloads the file within seconds after `toolpost trust FILE.toml`.";

const AGENTS: &str = "\
An agent file is a target with one tool: a prompt in, an answer out.

  kind = \"agent\"
  v = 1
  name = \"reviewer\"
  description = \"Reviews a change and reports its defects.\"
  model = \"anthropic/claude-opus-5-5\"    # defaults to the caller's model, else the setting
  system_prompt_file = \"reviewer.md\"     # or system_prompt = \"...\"
  tools = [\"read_file\", \"command:git\", \"./other.toml\"]     # targets; defaults to none
  max_cost = 0.50

  [output_schema]                        # the JSON Schema of the answer
  type = \"object\"

temperature, top_p, effort, thinking, stop, max_output_tokens, max_iterations, max_tool_calls,
max_tokens, max_time, max_cost and no_wrap_up mean the same as the settings. Missing limits default
to the settings; settings of answers, such as temperature, are for `run` alone.

`kind`, `v`, `name` and `description` are required. Paths are relative to the file. YAML and JSON
have the same keys. `toolpost trust` pins the file with its agents and prompt. The file has no keys
for secrets. A cycle of files is rejected, and so is a chain of more than 8 files.

Called in a run, the agent counts towards the limits of the run and is stored with it. Called by
`call` or a client of `serve`, it is a separate run: `toolpost runs ls` lists its cost, and at a
limit the call fails with LIMIT.";

const TOPICS: [&str; 8] =
    ["exit-codes", "environment", "settings", "targets", "grants", "agents", "gateway", "scripts"];

pub(crate) fn run(args: &HelpArgs, printer: &Printer) -> Result<Exit, Failure> {
    if let Some(name) = &args.guide {
        printer.result(&guides::page(name)?)?;
        return Ok(Exit::Ok);
    }
    let mut root = Cli::command();
    root.build();
    let text = match args.topic.as_deref() {
        None => trusted(usual(&root)),
        Some("exit-codes") => exit_codes(),
        Some("environment") => environment(),
        Some("settings") => settings(),
        Some("targets") => TARGETS.to_owned(),
        Some("grants") => GRANTS.to_owned(),
        Some("agents") => AGENTS.to_owned(),
        Some("gateway") => GATEWAY.to_owned(),
        Some("scripts") => SCRIPTS.to_owned(),
        Some(name) => match root.find_subcommand_mut(name) {
            Some(command) => trusted(usual(command)),
            None => {
                let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
                let commands: Vec<&str> = commands.map(clap::Command::get_name).collect();
                let known = commands.iter().copied().chain(TOPICS);
                let hint = did_you_mean(name, known.clone())
                    .unwrap_or_else(|| format!("There are: {}.", known.collect::<Vec<_>>().join(", ")));
                return Err(Failure::usage(format!("unknown command or topic `{name}`")).hint(hint));
            }
        },
    };
    printer.result(&text)?;
    Ok(Exit::Ok)
}

fn exit_codes() -> String {
    let mut text = format!("{}\n\n", paint(STRONG, "Exit codes"));
    for (_, number, meaning) in exit::TABLE {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}  {meaning}", paint(HINT, format!("{number:>3}")));
    }
    text.push_str(
        "\nWith --format json or jsonl, an error is one JSON line on standard error; `exit` has the code.",
    );
    text
}

/// Name and meaning of every variable.
pub(crate) fn variables() -> BTreeMap<String, String> {
    let table = env::TABLE.iter().map(|(name, meaning)| (*name, (*meaning).to_owned()));
    let table = table.chain(env::providers()).map(|(name, meaning)| (name.to_owned(), meaning));
    let settings = KEYS.iter().map(|key| (key.variable(), key.meaning.to_owned()));
    table.chain(settings).collect()
}

fn environment() -> String {
    let mut text = format!("{}\n\n", paint(STRONG, "Environment variables"));
    let rows = variables();
    let width = rows.keys().map(String::len).max().unwrap_or_default() + 2;
    for (name, meaning) in &rows {
        row(&mut text, name, width, meaning);
    }
    let _ = write!(
        text,
        "\nThe sandbox gets none of them. The default model is {}; see `toolpost help models`.",
        defaults::MODELS[0].1
    );
    text
}

fn settings() -> String {
    let mut text = format!("{}\n\n", paint(STRONG, "Settings"));
    for key in KEYS {
        let default =
            if key.default.is_empty() { String::new() } else { format!(" (default {})", key.default) };
        row(&mut text, key.name, 28, &format!("{}{default}", key.meaning));
    }
    row(&mut text, "targets.NAME", 28, "a name for a target of `run`, `call` and `tools`");
    text.push_str(CONFIG_LAYERS);
    text
}

pub(crate) const CONFIG_LAYERS: &str = "
Each source overrides the one before:

  1. built-in defaults
  2. /etc/toolpost/config.toml
  3. ~/.config/toolpost/config.toml
  4. toolpost.toml of this directory, or of the nearest parent
  5. TOOLPOST_NAME of the environment
  6. `--config NAME=VALUE`, and the options of a command

An untrusted toolpost.toml sets output formats and tightens: `ask`, `no_network` and `no_wrap_up`,
smaller limits, a stricter level, fewer allowed tools and hosts. Its other settings have no effect
before `toolpost trust`, nor has a `.env` beside it. Variables of `.env` and `--env-file` never
override the environment, and no sandbox gets them.";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::pages::*;

    /// Splits a command line like a shell: quotes, and nothing after a redirection.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for character in line.chars() {
            match (quote, character) {
                (Some(open), _) if character == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(character);
                    word.get_or_insert_default();
                }
                (None, ' ') => words.extend(word.take()),
                (None, '<' | '>') => break,
                (Some(_) | None, _) => word.get_or_insert_default().push(character),
            }
        }
        words.extend(word);
        words
    }

    /// The pages whose examples are command lines.
    const COMMANDS: &[&str] = &[
        ROOT,
        RUN,
        CHAT,
        RUNS,
        CALL,
        TOOLS,
        SERVE,
        EXEC,
        DOCTOR,
        #[cfg(unix)]
        BENCH,
        IMAGE,
        IMAGE_BUILD,
        SCHEMA,
        COMPLETIONS,
        INIT,
        STATE,
        MODELS_COMMAND,
        FILES,
        CONFIG,
        TRUST,
        APPLY,
        DISCARD,
        UNDO,
        LOGIN,
        LOGOUT,
        HELP,
    ];

    /// The pages that explain.
    const TOPICS: &[&str] = &[CONFIG_LAYERS, TARGETS, GRANTS, AGENTS, GATEWAY, MODELS, SCRIPTS];

    #[test]
    fn every_example_is_a_command_line() {
        let mut seen = 0;
        for text in COMMANDS {
            for line in text.lines().filter_map(|line| line.strip_prefix("  ")) {
                let line = line.split_once(" | ").map_or(line, |(_, command)| command);
                if line.starts_with('#') {
                    continue;
                }
                for command in line.split(" && ") {
                    let parsed = Cli::try_parse_from(words(command));
                    assert!(parsed.is_ok(), "{command}: {:?}", parsed.err());
                    seen += 1;
                }
            }
        }
        assert!(seen >= 20, "{seen} examples");
    }

    #[test]
    fn the_options_of_brief_pages_exist() {
        let has_cluster = cfg!(feature = "restate");
        let mut root = Cli::command();
        root.build();
        for (path, options) in BRIEF.iter().filter(|(path, _)| has_cluster || *path != "flow worker") {
            let words: Vec<String> = path.split(' ').map(str::to_owned).collect();
            let (command, found) = named_command(&root, &words);
            assert_eq!(found.join(" "), *path);
            for name in options.split(' ').filter(|name| has_cluster || *name != "cluster") {
                let option = command.get_arguments().find(|option| option.get_id() == name);
                assert!(option.is_some_and(|option| !option.is_hide_set()), "{path}: {name}");
            }
        }
    }

    #[test]
    fn examples_fit_100_columns() {
        for text in COMMANDS.iter().chain(TOPICS) {
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}

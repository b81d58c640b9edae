//! Examples and topics of the help.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::CommandFactory as _;
use toolpost_core::did_you_mean;
use toolpost_llm::PROVIDERS;

use crate::args::{Cli, HelpArgs};
use crate::config::keys::KEYS;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{HINT, STRONG, paint};
use crate::{commands, env};

/// The first page: a line for each command, and the options that every command takes.
pub(crate) const ROOT_TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

Commands:
{subcommands}

Options:
      --json      Print JSON
  -v, --verbose   Log more; twice for debugging
  -q, --quiet     Print only the result and errors
      --help-all  Print help with every option
  -V, --version   Print version{after-help}";

/// The pages of commands, as the reader of arguments lays them out.
const COMMAND_TEMPLATE: &str =
    "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}";

pub(crate) const ROOT: &str = "\
Examples:
  toolpost run \"What is in this directory?\" --workdir .
  toolpost call calculate expression='2**64 - 1'
Help topics: exit-codes, environment, settings, targets, grants, agents, gateway, scripts";

/// The page of the command that these words name, with the options that `--help` hides.
pub(crate) fn whole(words: &[String]) -> String {
    let mut root = unhidden(Cli::command());
    root.build();
    let mut command = &root;
    for word in words {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    command.clone().help_template(COMMAND_TEMPLATE).render_long_help().ansi().to_string()
}

/// A command with all of its options in the help.
pub(crate) fn unhidden(command: clap::Command) -> clap::Command {
    command.mut_args(|option| option.hide(false)).mut_subcommands(unhidden)
}

pub(crate) const RUN: &str = "\
Examples:
  # A question about a table, with the key of your provider in ANTHROPIC_API_KEY.
  toolpost run \"Which region grew fastest?\" --attach sales.csv
  # The same without any key: a file says what the model says, and the tools really run.
  toolpost run -p \"Which region grew fastest?\" --attach sales.csv --model script:sales.yaml
  # With many tools, of which the model loads those that it needs.
  toolpost run -p \"Who wrote most of this?\" --workdir . --tools builtin,command:git --dynamic
  # In an existing directory, where you see all changes at the end and say yes or no.
  toolpost run -p \"Fix the failing test\" --workdir . --tools builtin --review
  # In an existing folder, with one tool only, and the whole story as JSON lines.
  toolpost run -p \"Summarise notes.md\" --workdir notes --tools read_file --format jsonl
  # Code runs with the provider if its model takes that, else here; files that it makes come back.
  toolpost run -p \"Plot sales.csv\" --attach sales.csv --tools code_execution --enable-file-support
  # The real Claude Code with these tools, in the sandbox, with its own tools off.
  toolpost run -p \"Which region grew fastest?\" --attach sales.csv --agent claude-code --model sonnet

Without --tools the model has read_file, list_directory, calculate, write_file and run_code.
Without --workdir it works in a fresh folder that holds the attachments; files that it makes there
are put into --artifacts, and the folder goes away. So are files that code made with the provider.
Hosted code is paid by the hour and the least time of each container. That is an estimate, of which
free hours of the account are not taken off; and nobody is asked before the provider runs a tool.
Claude Code knows the tools as mcp__toolpost__NAME. It is paid by CLAUDE_CODE_OAUTH_TOKEN or
ANTHROPIC_API_KEY, which only its process sees; in the sandbox it reaches the provider alone.";

pub(crate) const CHAT: &str = "\
Examples:
  # A conversation about a table, with the key of your provider in ANTHROPIC_API_KEY.
  toolpost chat --attach sales.csv
  # In an existing folder, where files may be written only after you are asked.
  toolpost chat --workdir . --ask
  # In a copy of the directory: you see all changes when the conversation ends.
  toolpost chat --workdir . --review
  # Offline: a file says what the model says, and the tools really run.
  toolpost chat --model script:sales.yaml

/help lists the commands of a conversation. Ctrl-C stops an answer and keeps what was said so far;
Ctrl-D leaves. A line goes on after `\\` and with Alt-Enter. What you said in a project is offered
again by the arrow keys, from a file under XDG_STATE_HOME that takes nothing that looks like a
secret. Without a terminal each line of standard input is said in turn.";

pub(crate) const RUNS: &str = "\
Examples:
  toolpost runs ls
  toolpost runs show last
  toolpost runs stats --since 24h
  toolpost runs replay 0197 --attach sales.csv
  toolpost runs rm 0197
  toolpost runs export 0197 sales.jsonl && toolpost run -p \"...\" --model replay:sales.jsonl

Runs are stored in the file of --store, without keys and tokens that are set; --no-save, or the
setting no_save, stores none. The last 1,000 stay. So do the last 1,000 calls that no run made:
those of `call`, and those of `serve` with an error INTERNAL. `runs show ID` takes the id that such
an error prints.";

pub(crate) const CALL: &str = "\
Examples:
  toolpost call calculate expression='sqrt(2) * 10'
  toolpost call builtin read_file path=README.md
  toolpost call ./weather forecast city=Oslo --stream
  toolpost call command:git git_log limit=3
  toolpost call command:curl url=https://example.com/ --allow-host example.com
  toolpost call ./weather forecast city=Oslo --env API_KEY --allow-host api.example.org
  toolpost call run_code '{\"language\": \"python\", \"code\": \"print(1)\"}' --level strict --format json

A target is explained in `toolpost help targets`. With several tools its name comes first.
In key=value the value is a text if the parameter is one, else JSON.
`@FILE` and `-` hold one JSON object.

A tool with a session asks on the terminal. Through a pipe, each question is one JSON line on
standard output, each answer one JSON line on standard input. The end of standard input ends the
session. The last line is the result.";

pub(crate) const TOOLS: &str = "\
Examples:
  toolpost tools
  toolpost tools --manifest run_code
  toolpost tools builtin:read_file --format json
  toolpost tools ./weather command:git
  toolpost tools 'stdio:npx -y @modelcontextprotocol/server-everything'
  toolpost tools builtin --search \"read a file\"";

pub(crate) const SERVE: &str = "\
Examples:
  # What Claude Code, or any other client, is told to start.
  toolpost serve ./weather command:git builtin:run_code
  # For clients that connect; the address is printed.
  toolpost serve builtin --http 127.0.0.1:0
  toolpost serve ./weather --http 127.0.0.1:8080 --token-file tokens.txt --format json
  # Many targets behind one: forecast of the first is weather__forecast.
  toolpost serve ./weather mail=https://mail.example/mcp --lazy --deny 'mail__delete_*'
  # Hundreds of tools for the price of three; whoever brings the second token may delete nothing.
  toolpost serve ./crm ./mail --search --core-tool 'crm__find_*' --deny-for 'token-2=*__delete_*'
  # Long calls become tasks, which a restarted server still knows.
  toolpost serve ./render --http 127.0.0.1:8080 --task-store tasks.db

With several targets, one that is away is connected again, and its names stay. A tool whose
definition changes meanwhile is in quarantine until the command begins again; a gateway file keeps
what a person has approved, see `toolpost help gateway`.

GET /health answers OK, GET /status says what it is doing and how each source is. Requests that name
another Host, or come from a web page, are rejected.

Clients that connect need a token. Without `--token-file`, TOOLPOST_SERVE_TOKEN and OAuth, `serve`
generates one, prints it once, and stores it for the same name and address in a file of mode 0600 in
~/.local/state/toolpost/serve-tokens. `toolpost call URL --token-file FILE` reads the token there.
Other clients send it in a header. Claude Code and toolpost read it from a variable, in `.mcp.json`:

{ \"mcpServers\": { \"tools\": { \"type\": \"http\", \"url\": \"http://127.0.0.1:8080/mcp\",
\"headers\": { \"Authorization\": \"Bearer ${TOOLPOST_SERVE_TOKEN}\" } } } }";

pub(crate) const EXEC: &str = "\
Examples:
  toolpost exec analysis.py --attach data.csv --artifacts out
  toolpost exec analysis.py --attach data.csv -- data.csv --top 5
  toolpost exec --lang python --timeout 5s --memory 256M - < script.txt
  toolpost exec --level strict -- sh -c 'id; ls /'
  toolpost exec --workdir . --review -- npm install
  toolpost exec --requirement requests --lang python - < script.txt
  toolpost exec --backend docker --runtime runsc --image python:3.13-slim analysis.py
  # An interpreter that stays: the second command finds what the first has left.
  toolpost exec --session one first.py
  toolpost exec --session one - < second.py
  toolpost exec --sessions
  toolpost exec --session one --end

The program's output is this command's output, and so is the value of a last expression: a table
prints as text. Figures of matplotlib become files. If the program fails itself, the exit status
is 1; which one it had is told, and stands in `--format json`. A limit that it reached is exit
status 4 or 6.";

pub(crate) const EXEC_USAGE: &str = "\
toolpost exec [OPTIONS] <CODE-FILE> [-- <ARG>...]
       toolpost exec [OPTIONS] -- <COMMAND>...
       toolpost exec --session <ID> [OPTIONS] [CODE-FILE]";

pub(crate) const DOCTOR: &str = "\
Examples:
  toolpost doctor
  toolpost doctor --format json

The exit status is 0 when at least one sandbox level can be given, else 5.";

pub(crate) const IMAGE: &str = "\
Examples:
  toolpost image build data
  toolpost exec --profile data analysis.py --attach data.csv
  toolpost image ls
  toolpost image rm data";

pub(crate) const IMAGE_BUILD: &str = "\
Examples:
  toolpost image build data
  toolpost image build --profile-file science.txt
  toolpost image build python --docker

Packages are from the index that `packages.index` of the settings or PIP_INDEX_URL names, and are
installed in the sandbox. The environment is used with `toolpost exec --profile NAME`.";

pub(crate) const SCHEMA: &str = "\
Examples:
  toolpost schema
  toolpost schema run-record
  toolpost schema script > script.schema.json";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  toolpost completions bash > ~/.local/share/bash-completion/completions/toolpost
  toolpost completions zsh > ~/.zfunc/_toolpost
  toolpost completions fish > ~/.config/fish/completions/toolpost.fish";

pub(crate) const INIT: &str = "\
Examples:
  toolpost init tool --exec greet
  toolpost init tool --rust greet greet-tool
  toolpost init agent reviewer
  toolpost init command disk
  toolpost init gateway tools";

pub(crate) const STATE: &str = "\
Examples:
  toolpost state show
  toolpost state show counters/@ada --format json
  toolpost state log counters/@ada --after 10
  toolpost state at counters/@ada 3";

const MODELS_COMMAND: &str = "\
Examples:
  toolpost models ls --provider anthropic --can code_execution
  toolpost models show claude-opus-5-5
  toolpost models ls --json --config models.file=mine.yaml";

pub(crate) const FILES: &str = "\
Examples:
  toolpost files put sales.csv --provider anthropic
  toolpost files ls --json
  toolpost files get file_011CNha8 -o sales.csv
  toolpost files rm file_011CNha8

The account is that of the provider's key. A file that was uploaded stays until it is removed or
ends; mostly only files that hosted code has made can be downloaded. Nothing is overwritten.";

pub(crate) const CONFIG: &str = "\
Examples:
  toolpost config list --show-origin
  toolpost config set model anthropic/claude-sonnet-5-5
  toolpost config set targets.weather ./weather --project
  toolpost config unset model

`toolpost help settings` explains the settings and which of them count.";

pub(crate) const TRUST: &str = "\
Examples:
  toolpost trust .
  toolpost trust toolpost.toml git.toml
  toolpost trust --remove git.toml
  # While you edit it: each change is trusted at once.
  toolpost trust --watch git.toml
  toolpost trust gateway.toml --tool calc/add

A file is trusted with the content that it has now, together with the files that it references:
policies, descriptions, prompts, programs and scripts named by path. All of them are listed. When
one of them changes, the file counts no more until it is trusted again. A server that is given
variables is pinned with the whole directory of its program: at most 10,000 files and 256 MiB.

Read the files first: they may name programs, allow tools and choose where your data goes. File
tools never write a trusted file, nor `toolpost.toml`, `.env` and `.mcp.json` of this directory.";

pub(crate) const APPLY: &str = "\
Examples:
  toolpost apply
  toolpost apply 3f9c0a1b
  toolpost apply 3f9c0a1b --allow-protected .vscode

Code that works in a directory of this host writes to a private layer. At the end of a run, checked
changes are applied. They are held after `--review`, Ctrl-C, a crash, or a mass deletion: more
than 1,000 files, or everything.

`run` and `chat` apply the changes of each tool call when it ends. With `--review` and `--discard`,
tools and code work in a private copy of the directory, at most 4 GiB and 500,000 entries, and the
changes of the whole run are settled at its end. Paths stay those of the directory. MCP servers and
tools behind a gateway work in their own directories, which are not part of the copy.

Some paths never change unless `--allow-protected` admits them: what git, shells, editors, agents
and package managers execute or obey. An entry that changed on the host meanwhile is a conflict.

A layer differs from a plain directory: renaming an existing directory fails with EXDEV, which
tools answer by copying; hard links to existing files become copies; sockets and pipes stay in
the layer; other mounts beneath are not shown; extended attributes are dropped. `exec --live`
does without it.";

pub(crate) const DISCARD: &str = "\
Examples:
  toolpost discard 3f9c0a1b";

pub(crate) const UNDO: &str = "\
Examples:
  toolpost undo
  toolpost undo 3f9c0a1b

The last run in each directory can be taken back. An entry that changed since stays as it is.";

pub(crate) const LOGIN: &str = "\
Examples:
  toolpost login https://tools.example/mcp
  toolpost login https://tools.example/mcp --scope read --callback-port 8765
  toolpost login https://tools.example/mcp --client-id me --client-secret-env CLIENT_SECRET

An address is printed: open it in a browser of this machine, and agree there. The tokens are kept
in a file that you alone may read, for every command that names this server. They are got anew as
long as the server allows it; then a command ends with exit status 3 and asks for another login.

What a server names is not asked if it is this machine or in a private network, unless the server is
there itself, or the setting `http.allow_hosts` names the host.";

pub(crate) const LOGOUT: &str = "\
Examples:
  toolpost logout https://tools.example/mcp";

pub(crate) const HELP: &str = "\
Examples:
  toolpost help run
  toolpost help exit-codes
  toolpost help scripts";

const MODELS: &str = "\
A model is named by `--model`, or by TOOLPOST_MODEL.

  PROVIDER/NAME    a provider's model: the table below has the providers
  claude-…         and other names that tell their provider by their beginning
  script:FILE      a file that says what the model says: see `toolpost help scripts`
  replay:FILE      a conversation that `--record FILE` wrote; the requests must be the same again
  schema:          calls each tool once, with arguments made of its schema; schema:required leaves
                   out what a call may leave out
";

/// How models are named: the providers, with what they need, and what is taken when nobody names a model.
pub(crate) fn models() -> String {
    let mut text = format!("{MODELS_COMMAND}\n\n{MODELS}\n");
    for provider in PROVIDERS {
        let needs = match (provider.needs_key, provider.base_url) {
            (true, _) => format!("needs {}", provider.key_variables.join(" or ")),
            (false, Some(address)) => {
                format!("{address}, or what {} says", provider.base_url_variables.join(" or "))
            }
            (false, None) => format!("needs the address in {}", provider.base_url_variables.join(" or ")),
        };
        let starts: Vec<String> = provider
            .prefixes
            .iter()
            .map(|prefix| format!("{prefix}…"))
            .chain(provider.bare_names.iter().map(|name| (*name).to_owned()))
            .collect();
        let starts = if starts.is_empty() { String::new() } else { format!("; {}", starts.join(", ")) };
        row(&mut text, &format!("{}/NAME", provider.name), 24, &format!("{needs}{starts}"));
    }
    let defaults: Vec<&str> = commands::model::DEFAULT_MODELS.iter().map(|(_, model)| *model).collect();
    let _ = write!(
        text,
        "\nWithout a name, `run` takes the first of these whose provider's key is set:\n{}.\n\n`toolpost models ls` lists what is known of models. A model that is not known can be used\nall the same; what it costs is then unknown. A file that the setting models.file names adds and\nchanges models, with prices in US dollars per million tokens:\n\n  models:\n    - id: openai-compatible/mine\n      context_window: 32768\n      prices: [{{ input: 0.5, output: 1.5 }}]",
        defaults.join(", ")
    );
    text
}

const SCRIPTS: &str = "\
A script says what the model says, turn by turn; the tools really run.
It needs no key and no network.

  turns:
    - text: I will look at the file first.
      calls: [{ tool: read_file, args: { path: sales.csv } }]
    - expect: { result_contains: north }      # optional: the run fails if it is untrue
      calls: [{ tool: run_code, args: { language: python, code: \"6 * 7\" } }]
    - text: \"The answer is {{ last.structured.value }}.\"

`last` is the latest tool result (last.text, last.structured), `results[i]` any earlier one.
`toolpost schema script` prints the whole format.";

const TARGETS: &str = "\
A target says where tools come from. `call` takes one; `tools` and `run --tools` take several.

  builtin           all built-in tools
  builtin:NAME      one of them; its name alone does as well
  code_execution    Python in the sandbox, as providers run it: with them where the model takes
                    that, unless `--code local` or `code.place` says otherwise
  hosted:NAME       a tool that the provider of the model runs: web_search, web_fetch, x_search,
                    file_search=STORE
  command:NAME      a description that comes with toolpost, such as command:git
  ./PATH            an executable that answers `--discover`; a `.py` file goes to Python
  FILE.toml         a description of a program, with kind = \"command\",
                    or of many targets, with kind = \"gateway\": see `toolpost help gateway`
  FILE.toml         an agent, with kind = \"agent\"; FILE.yaml and FILE.json as well:
                    see `toolpost help agents`
  https://HOST/mcp  a server of the Model Context Protocol; `http://` as well
  wss://HOST/ws     the same over WebSocket, as `toolpost serve` has it; `ws://` as well
  stdio:COMMAND     such a server, started with these words; there is no shell
  docker:IMAGE ARGS such a server in a container of an image that is there, without a network
  NAME              what `targets.NAME` of the settings stands for, or a server of `.mcp.json`,
                    or of the files of Claude Code, Claude Desktop, Cursor and VS Code

A server's token is named by its place: `--token-env NAME` or `--token-file FILE`; or it is that of
`toolpost login`. A file's servers may have headers and variables with `${NAME}` in them. Such a
file counts, and starts anything, only after `toolpost trust FILE`, which shows its commands.

A program or server runs in the sandbox, at level standard unless `--level` or the settings say
otherwise: without network, variables and other files than its own. What else it gets is granted,
see `toolpost help grants`. A server works in the directory of the caller. `npx` and `uvx` install
their packages first, in a run of their own. With `-v`, a failed call logs the end of the server's
stderr. A description starts nothing until `toolpost trust FILE.toml`.";

const GRANTS: &str = "\
A grant gives one program or server what its sandbox level does not. Other targets and `run_code`
stay as they are.

  --allow-host NAME        a host that it may reach, such as api.example.org
  --allow-address A:PORT   a private address that it may reach, such as 127.0.0.1:8080
  --env KEY                a placeholder for the variable KEY; allowed hosts get the value
  --env-raw KEY            the value itself
  --readable PATH          a file or directory that it may read
  --writable DIR           a directory that it may write, without a private layer
  --target-level LEVEL     its sandbox level
  --target-workdir DIR     its working directory
  --install-scripts        packages of `npx` and `uvx` run their scripts while they are installed

The proxy puts the value of a placeholder into the headers `authorization` and `x-api-key` of plain
HTTP requests, and speaks TLS to the host itself. A program that uses `https://` needs --env-raw.
Values are masked in all output.

Files grant the same under the key `grants`: of a description, an upstream of a gateway, a target of
toolpost.toml, or a server of `.mcp.json`. Relative paths are beneath the directory of the file.

  [targets.weather]
  target = \"stdio:.venv/bin/python server.py\"

  [targets.weather.grants]
  env = [\"API_KEY\", { name = \"DSN\", raw = true }]
  allow_hosts = [\"api.example.org\"]
  readable = [\"data\"]                  # also: writable, workdir, level, allow_addresses,
                                       # install_scripts; of a variable: hosts, headers

`toolpost trust FILE` prints what each target reaches, and stores it.";

const GATEWAY: &str = "\
A gateway is many targets behind one: a file that can be named wherever a target can.

  kind = \"gateway\"

  [[upstreams]]
  name = \"calc\"                  # its tools are calc__add, calc__sub, …
  target = \"./calculator\"        # any target but another gateway
  namespace = true               # false: bare names, as far as no earlier upstream has them
  allow = [\"add\", \"read_*\"]    # only these are open; `tool:`, `prompt:` and `resource:` name a kind
  deny = [\"read_secret\"]         # closed, whatever is allowed
  rename = [{ tool = \"add\", name = \"plus\", description = \"Add numbers.\" }]
  grants = { allow_hosts = [\"a.example\"] }     # see `toolpost help grants`
  lazy = true                    # started on its first call, listed from what it had before
  pin = \"trust-first-list\"       # or off, trust, quarantine: tools that nobody has approved
  [[upstreams.clients]]
  identity = \"guest*\"            # rules for callers: `allow` instead of, `deny` beside those above
  allow = [\"add\"]

An upstream that is away is connected again, and its names stay. `toolpost serve A B C` does the
same for targets without a file; GET /status says how each is.

A tool, prompt or resource whose definition has changed is in quarantine. `toolpost trust FILE.toml
--tool ?` shows what it says now, and `--tool calc/add` approves it, `--tool calc/prompt:greet` a
prompt, `--tool 'calc/resource:notes://{id}'` a resource.

A change of the file acts within seconds in a command that runs, once `toolpost trust FILE.toml` has
pinned it.";

const AGENTS: &str = "\
An agent in a file is a tool: a prompt in, its answer out. It is a target like any other.

  kind = \"agent\"
  v = 1
  name = \"reviewer\"
  description = \"Reviews a change and says what is wrong with it.\"
  model = \"anthropic/claude-opus-5-5\"    # without it, the caller's, else that of the settings
  system_prompt_file = \"reviewer.md\"     # or system_prompt = \"...\"
  tools = [\"read_file\", \"command:git\", \"./other.toml\"]     # targets; without it, none
  max_cost = 0.50

  [output_schema]                        # the answer is then a value of this JSON Schema
  type = \"object\"

temperature, top_p, effort, thinking, stop, max_output_tokens, max_iterations, max_tool_calls,
max_tokens, max_time, max_cost and no_wrap_up are the settings of these names. What is left out of
the limits is as in the settings; what those say of answers is for `run`, and does not count here.

`kind`, `v`, `name` and `description` must be there. Paths are relative to the file. YAML and JSON
have the same names. `toolpost trust` pins the file with the agents and the prompt that it names.
No secret stands in it. A file that leads back to itself is rejected, and so are more than 8 files
that lead from one to the next.

Called in a run, it counts towards the limits of the run and is kept with it. Called by `call` or a
client of `serve`, it is a run of its own: `toolpost runs ls` lists it with what it cost, and at a
limit the call fails with LIMIT.";

const TOPICS: [&str; 8] =
    ["exit-codes", "environment", "settings", "targets", "grants", "agents", "gateway", "scripts"];

pub(crate) fn run(args: &HelpArgs, printer: &Printer) -> Result<Exit, Failure> {
    let mut root = Cli::command();
    root.build();
    let text = match args.topic.as_deref() {
        None => root.render_long_help().ansi().to_string(),
        Some("exit-codes") => exit_codes(),
        Some("environment") => environment(),
        Some("settings") => settings(),
        Some("targets") => TARGETS.to_owned(),
        Some("grants") => GRANTS.to_owned(),
        Some("agents") => AGENTS.to_owned(),
        Some("gateway") => GATEWAY.to_owned(),
        Some("scripts") => SCRIPTS.to_owned(),
        Some(name) => match root.find_subcommand_mut(name) {
            Some(command) => command.render_long_help().ansi().to_string(),
            None => {
                let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
                let commands: Vec<&str> = commands.map(clap::Command::get_name).collect();
                let known = commands.iter().copied().chain(TOPICS);
                let hint = did_you_mean(name, known.clone())
                    .unwrap_or_else(|| format!("There are: {}.", known.collect::<Vec<_>>().join(", ")));
                return Err(Failure::usage(format!("there is no command or topic `{name}`")).hint(hint));
            }
        },
    };
    printer.result(&text)?;
    Ok(Exit::Ok)
}

fn exit_codes() -> String {
    let mut text = format!("{}\n\n", paint(STRONG, "Exit statuses"));
    for (_, number, meaning) in exit::TABLE {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}  {meaning}", paint(HINT, format!("{number:>3}")));
    }
    text.push_str("\nWith --format json or jsonl an error is one line of JSON on standard error; its `exit` says the same.");
    text
}

fn environment() -> String {
    let mut text = format!("{}\n\n", paint(STRONG, "Environment variables"));
    let table = env::TABLE.iter().map(|(name, meaning)| (*name, (*meaning).to_owned()));
    let settings = KEYS.iter().map(|key| (key.variable, key.meaning.to_owned()));
    let rows: BTreeMap<&str, String> = table.chain(env::providers()).chain(settings).collect();
    let width = rows.keys().map(|name| name.len()).max().unwrap_or_default() + 2;
    for (name, meaning) in &rows {
        row(&mut text, name, width, meaning);
    }
    let _ = write!(
        text,
        "\nNone of them reaches a sandbox. The default model is {}, or what `toolpost help models` says.",
        commands::model::DEFAULT_MODELS[0].1
    );
    text
}

fn row(text: &mut String, name: &str, width: usize, meaning: &str) {
    let gap = " ".repeat(width.saturating_sub(name.len()));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {}{gap}{meaning}", paint(HINT, name));
}

fn settings() -> String {
    let mut text = format!("{}\n\n", paint(STRONG, "Settings"));
    for key in KEYS {
        let default =
            if key.default.is_empty() { String::new() } else { format!(" (default {})", key.default) };
        row(&mut text, key.name, 28, &format!("{}{default}", key.meaning));
    }
    row(&mut text, "targets.NAME", 28, "a target that `run`, `call` and `tools` then know by this name");
    text.push_str(CONFIG_LAYERS);
    text
}

const CONFIG_LAYERS: &str = "
Each of these counts more than the one before:

  1. what is built in
  2. /etc/toolpost/config.toml
  3. ~/.config/toolpost/config.toml
  4. toolpost.toml of this folder, or of the nearest above it
  5. TOOLPOST_NAME of the environment
  6. `--config NAME=VALUE`, and the options of a command

A toolpost.toml that is not trusted sets how output looks, and otherwise only tightens: `ask`,
`no_network` and `no_wrap_up`, smaller limits, a stricter level, fewer allowed tools and hosts. The
rest of it waits for `toolpost trust`, and so does a `.env` beside it, whose variables, like those
of `--env-file`, fill what the environment leaves unset. They override nothing and reach no sandbox.";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// The words of a command line, as a shell reads it: quotes, and nothing behind a redirection.
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
    fn an_example_fits_into_a_usual_terminal() {
        for text in COMMANDS.iter().chain(TOPICS) {
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}

//! Help pages of commands: their examples and notes.

use std::fmt::Write as _;

use toolpost_llm::PROVIDERS;

use crate::defaults;
use crate::style::{HINT, paint};

/// The template of the root page: one line per command, and the global options.
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
  -V, --version   Print version; with --json, build and formats{after-help}";

pub(crate) const ROOT: &str = "\
Example: toolpost run \"What is in this directory?\" --workdir .
Help topics: exit-codes, environment, settings, targets, grants, agents, gateway, scripts";

pub(crate) const RUN: &str = "\
Examples:
  # A question about a table, with the key of your provider in ANTHROPIC_API_KEY.
  toolpost run \"Which region grew fastest?\" --attach sales.csv
  # Offline: a script has the model's answers; the tools really run.
  toolpost run -p \"Which region grew fastest?\" --attach sales.csv --model script:sales.yaml
  # With many tools, loaded on demand.
  toolpost run -p \"Who wrote most of this?\" --workdir . --tools builtin,command:git --dynamic
  # In a host directory, with a review of all changes at the end.
  toolpost run -p \"Fix the failing test\" --workdir . --tools builtin --review
  # With one tool, and all events as JSON Lines.
  toolpost run -p \"Summarize notes.md\" --workdir notes --tools read_file --format jsonl
  # Code runs at the provider where the model has hosted code, else here.
  toolpost run -p \"Plot sales.csv\" --attach sales.csv --tools code_execution --enable-file-support
  # The real Claude Code with these tools, in the sandbox, with its own tools off.
  toolpost run -p \"Which region grew fastest?\" --attach sales.csv --agent claude-code --model sonnet
  # A setting for this run; see `toolpost help settings`.
  toolpost run \"Name three rivers.\" --config top_p=0.5 --config max_iterations=2

The default tools are read_file, list_directory, calculate, write_file and run_code.
Without --workdir, the agent works in a fresh directory with copies of the attachments. New files,
also those of hosted code, are written to --artifacts; the fresh directory is removed.
Providers bill hosted code by the hour, with a minimum charge per container. The shown cost is an
estimate without free hours. Tools that a provider runs need no approval here.
Claude Code calls the tools mcp__toolpost__NAME. Its credential is CLAUDE_CODE_OAUTH_TOKEN or
ANTHROPIC_API_KEY; only its process has it. In the sandbox it reaches the provider alone.";

pub(crate) const CHAT: &str = "\
Examples:
  # A conversation about a table, with the key of your provider in ANTHROPIC_API_KEY.
  toolpost chat --attach sales.csv
  # In a host directory, with an approval prompt before each tool call.
  toolpost chat --workdir . --ask
  # In a private copy of the directory, with a review of all changes at the end.
  toolpost chat --workdir . --review
  # Offline: a script has the model's answers; the tools really run.
  toolpost chat --model script:sales.yaml

/help lists the chat commands. Ctrl-C stops an answer and stores its beginning; Ctrl-D leaves.
A line continues after `\\` and with Alt-Enter. The arrow keys recall earlier messages of the
project from a file under XDG_STATE_HOME, which never stores text that looks like a secret.
Without a terminal, each line of standard input is one message.";

pub(crate) const FLOW: &str = "\
Examples:
  toolpost flow plan report.yaml
  toolpost flow plan report.yaml --svg > report.svg
  toolpost flow run report.yaml topic=rivers
  toolpost flow run report.yaml topic=rivers --durability none --format jsonl
  toolpost flow show last
  toolpost flow approve last
  toolpost flow signal last figures '{\"n\": 41}'
  toolpost flow resume last

A plan is a YAML, JSON or TOML file with `kind: flow` and `steps`. A step calls a tool, runs code or
a command, waits, or holds other steps: parallel, sequential, pipeline, race, map, loop, flow. The
text `${{ steps.load.output }}` is an expression in Jinja's language; what a step reads, it waits
for. `toolpost schema flow` prints the format; docs/flows.md explains it.

Each event of a run is stored in the file of --store. A run whose process was killed continues with
`flow resume`: steps that have ended are not run again; those in flight are, with the same key.";

pub(crate) const RUNS: &str = "\
Examples:
  toolpost runs ls
  toolpost runs show last
  toolpost runs stats --since 24h
  toolpost runs replay 0197 --attach sales.csv
  toolpost runs rm 0197
  toolpost runs export 0197 sales.jsonl && toolpost run -p \"...\" --model replay:sales.jsonl

The last 1,000 runs are stored in the file of --store, with keys and tokens masked; --no-save and
the setting no_save store none. The last 1,000 calls outside of runs are stored too: those of
`call`, and those of `serve` that failed with INTERNAL. `runs show ID` takes the ID of such an
error. `last` is the newest run of all directories that use the store.

`runs show` has the records of calls. Their results are in the requests to the model, which
`runs export` writes.

`runs replay` needs no provider: it gives the recorded answers and runs the tools again. The exit
code is 0 if the model got the recorded requests; else it is 1, and the first difference is shown.";

pub(crate) const CALL: &str = "\
Examples:
  toolpost call calculate expression='sqrt(2) * 10'
  toolpost call builtin read_file path=README.md
  toolpost call ./weather forecast city=Oslo --stream
  toolpost call command:git git_log limit=3
  toolpost call command:curl url=https://example.com/ --allow-host example.com
  toolpost call ./weather forecast city=Oslo --secret API_KEY --allow-host api.example.org
  toolpost call run_code '{\"language\": \"python\", \"code\": \"print(1)\"}' --level strict --format json

`toolpost help targets` lists the kinds of targets. If a target has several tools, name one first.
The value of key=value is a text if the parameter is a string, else JSON.
`@FILE` and `-` hold one JSON object. Limits of the tool bound --timeout and --retries.
--stream prints the JSON Lines of the executable protocol.

A session tool shows its prompts on the terminal. Through a pipe, each prompt is one JSON line on
standard output, and each answer one JSON line on standard input. The end of standard input ends
the session. The last line is the result.";

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
  # Over stdio: the command that Claude Code or another client starts.
  toolpost serve ./weather command:git builtin:run_code
  # Over HTTP; the URL is printed.
  toolpost serve builtin --http 127.0.0.1:0
  toolpost serve ./weather --http 127.0.0.1:8080 --token-file ~/tokens.txt --format json
  # Several targets: forecast of the first is weather__forecast; built-in tools keep their names.
  toolpost serve ./weather mail=https://mail.example/mcp --lazy --deny 'mail__delete_*'
  # Hundreds of tools behind three; the client with the second token deletes nothing.
  toolpost serve ./crm ./mail --search --core-tool 'crm__find_*' --deny-for 'token-2=*__delete_*'
  # Long calls become tasks that survive a restart.
  toolpost serve ./render --http 127.0.0.1:8080 --task-store ~/render/tasks.db

With several targets, `serve` reconnects an unavailable one and keeps its names. A tool whose
definition changes is in quarantine until `serve` restarts; a gateway file stores approvals, see
`toolpost help gateway`.

GET /health answers OK; GET /status reports sessions, calls and the state of each source. Requests
with another Host header, or from a web page, are rejected.

Several clients have a working directory each: `clients/NAME`, with the names of the token file.
`--shared-workdir` gives them one. No tool reaches the server's own files: tokens, tasks, state.

Clients over HTTP need a token. Without `--token-file`, TOOLPOST_SERVE_TOKEN and OAuth, `serve`
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
  # A session: the second command finds the variables of the first.
  toolpost exec --session one first.py
  toolpost exec --session one - < second.py
  toolpost exec --sessions
  toolpost exec --session one --end

The command prints the program's output and the value of a last expression; a table prints as text.
Figures of matplotlib become files. If the program fails, the exit code is 1; stderr and
`--format json` have its exit status. At a limit the exit code is 4 or 6.

Packages of --requirement are installed once. An egress policy merges with --allow-host and
--allow-address. DOCKER_HOST names the Docker daemon.";

pub(crate) const EXEC_USAGE: &str = "\
toolpost exec [OPTIONS] <CODE-FILE> [-- <ARG>...]
       toolpost exec [OPTIONS] -- <COMMAND>...
       toolpost exec --session <ID> [OPTIONS] [CODE-FILE]";

pub(crate) const DOCTOR: &str = "\
Examples:
  toolpost doctor
  toolpost doctor --format json

The exit code is 0 if at least one sandbox level is available, else 5.";

#[cfg(unix)]
pub(crate) const BENCH: &str = "\
Examples:
  toolpost bench
  toolpost bench sandbox mcp --output report
  toolpost bench --python .venv/bin/python
  toolpost bench --compare toolpost-bench/results.json --output second

The peers are programs on PATH (bwrap, srt, codex, docker) and packages of --python: pydantic-ai,
openai-agents, fastmcp, langgraph, toolpost. Missing peers are listed with their installation.
The report has report.md, one SVG chart per comparison, and results.json. A run takes less than
five minutes, uses loopback only, and sends nothing.";

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

The setting `packages.index` or PIP_INDEX_URL names the package index. Packages are installed in
the sandbox. `toolpost exec --profile NAME` uses the environment. A line of --profile-file is a
requirement, and its module if that has another name.";

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

pub(crate) const MODELS_COMMAND: &str = "\
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

The provider's key names the account. An uploaded file stays until you remove it or it expires.
Most providers allow downloads only of files that hosted code wrote. A download never overwrites a
file; the new one gets a number.";

pub(crate) const CONFIG: &str = "\
Examples:
  toolpost config list --show-origin
  toolpost config set model anthropic/claude-sonnet-5-5
  toolpost config set targets.weather ./weather --project
  toolpost config unset model

`toolpost help settings` explains the settings and their order.";

pub(crate) const TRUST: &str = "\
Examples:
  toolpost trust .
  toolpost trust toolpost.toml git.toml
  toolpost trust --remove git.toml
  # While you edit it: each change is trusted at once.
  toolpost trust --watch git.toml
  toolpost trust gateway.toml --tool calc/add

Trust pins the content of a file together with the files that it references: policies, descriptions,
prompts, programs and scripts named by path. All of them are listed. A change of one revokes the
trust. A server with granted variables is pinned with the whole directory of its program: at most
10,000 files and 256 MiB. A directory stands for its `toolpost.toml` and `.env`. Without paths,
`toolpost trust` lists the trusted files. With --tool, the path is that of a gateway.

Read the files first: they may name programs, allow tools and choose where your data goes. File
tools never write a trusted file, nor `toolpost.toml`, `.env` and `.mcp.json` of this directory.";

pub(crate) const APPLY: &str = "\
Examples:
  toolpost apply
  toolpost apply last
  toolpost apply 3f9c0a1b
  toolpost apply 3f9c0a1b --allow-protected .vscode

Code that works in a directory of this host writes to a private layer. At the end of a run, checked
changes are applied. They are held after `--review`, Ctrl-C, a crash, or a mass deletion: more
than 1,000 files, or everything.

`run` and `chat` apply the changes of each tool call when it ends. With `--review` and `--discard`,
tools and code work in a private copy of the directory, at most 4 GiB and 500,000 entries, and the
changes of the whole run are settled at its end. Paths stay those of the directory. MCP servers and
tools behind a gateway work in their own directories, which are not part of the copy.

Some paths never change unless `--allow-protected` admits them: what git, shells, editors, REPLs and
agents execute or obey unasked, and new programs with the name of a system program in a directory of
`PATH`. What only build, package and linter commands read changes, and the report marks it.
`exec --review` holds denied paths for `apply --allow-protected`.

An entry that changed on the host meanwhile is a conflict: it stays, and the change of the run stays
held. Move your version, then apply again. Without `--review`, conflicts in build directories and
in sessions are dropped.

A layer differs from a plain directory: renaming an existing directory fails with EXDEV, which
tools answer by copying; hard links to existing files become copies; sockets and pipes stay in
the layer; other mounts beneath are not shown; extended attributes are dropped. `exec --live`
does without it.";

pub(crate) const DISCARD: &str = "\
Examples:
  toolpost discard 3f9c0a1b

`discard` drops the held changes. `toolpost undo` still reverts those that were applied.";

pub(crate) const UNDO: &str = "\
Examples:
  toolpost undo
  toolpost undo 3f9c0a1b

`undo` reverts all applied changes of the last run in this directory, those of code, commands and
file tools, or of the run with this ID. An entry that changed since then stays.";

pub(crate) const LOGIN: &str = "\
Examples:
  toolpost login https://tools.example/mcp
  toolpost login https://tools.example/mcp --scope read --callback-port 8765
  toolpost login https://tools.example/mcp --client-id me --client-secret-env CLIENT_SECRET

Open the printed URL in a browser of this machine and agree. Tokens are stored in a file that only
you can read, for every command with this server. They are refreshed while the server allows it;
after that, a command ends with exit code 3 and asks for a new login.

A server's metadata never leads to this machine or a private network, except to the server's own
address and port or to hosts of the setting `http.allow_hosts`.";

pub(crate) const LOGOUT: &str = "\
Examples:
  toolpost logout https://tools.example/mcp";

pub(crate) const HELP: &str = "\
Examples:
  toolpost help run
  toolpost help exit-codes
  toolpost help scripts
  toolpost help --guide
  toolpost help --guide keys";

pub(crate) const MODELS: &str = "\
`--model`, TOOLPOST_MODEL or the setting `model` names the model.

  PROVIDER/NAME    a provider's model; the table below lists the providers
  claude-…         and other names whose prefix implies the provider
  script:FILE      a script of answers: see `toolpost help scripts`
  replay:FILE      a recording of `--record FILE`; it fails if a request differs
  schema:          calls each tool once with arguments generated from its schema;
                   schema:required omits optional ones
";

/// The names of models, the providers with their variables, and the default models.
pub(crate) fn models() -> String {
    let mut text = format!("{MODELS_COMMAND}\n\n{MODELS}\n");
    for provider in PROVIDERS {
        let needs = match (provider.needs_key, provider.base_url) {
            (true, _) => format!("needs {}", provider.key_variables.join(" or ")),
            (false, Some(address)) => {
                format!("{address}, or {}", provider.base_url_variables.join(" or "))
            }
            (false, None) => format!("needs a URL in {}", provider.base_url_variables.join(" or ")),
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
    let defaults: Vec<&str> = defaults::MODELS.iter().map(|(_, model)| *model).collect();
    let _ = write!(
        text,
        "\nThe default model is the first whose provider's key is set:\n{}.\n\n`toolpost models ls` lists known models. An unknown model works too, without a known price.\nThe file of the setting models.file adds and changes models, with prices in US dollars per\nmillion tokens:\n\n  models:\n    - id: openai-compatible/mine\n      context_window: 32768\n      prices: [{{ input: 0.5, output: 1.5 }}]",
        defaults.join(", ")
    );
    text
}

/// Adds a row of a table with two columns.
pub(crate) fn row(text: &mut String, name: &str, width: usize, meaning: &str) {
    let gap = " ".repeat(width.saturating_sub(name.len()));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {}{gap}{meaning}", paint(HINT, name));
}

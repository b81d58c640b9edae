//! The table of options and the tests that fail when an option is ignored, checked against the help.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{TestEnv, repository};
use crate::{
    bench, call, chat, claude_code, config, directory, docker, everyday, exec, files, gateway, global,
    grants, hosted, launchers, login, look, mcp, memory, models, not_shown, packages, replay, review, run,
    run_agent, serve, serve_clients, serve_oauth, serve_tasks, session, several, state, targets, tuning,
};

/// The test of an option: its name and source.
struct Held {
    name: &'static str,
    source: &'static str,
}

/// A test of the command.
macro_rules! by {
    ($module:ident::$test:ident) => {{
        let _: fn() = $module::$test;
        Held { name: stringify!($test), source: include_str!(concat!(stringify!($module), ".rs")) }
    }};
}

/// A unit test, for options without a visible effect.
const WITHIN: Held =
    Held { name: "every_option_is_in_the_call", source: include_str!("../../src/commands/call.rs") };

/// Grants of a target.
const GRANTS: [&str; 8] = [
    "--secret",
    "--secret-raw",
    "--allow-host",
    "--allow-address",
    "--readable",
    "--writable",
    "--target-level",
    "--target-workdir",
];

/// Global options.
const GLOBAL: &str = "";

fn table() -> BTreeMap<(&'static str, &'static str), Held> {
    let mut table: BTreeMap<_, Held> = BTreeMap::from_iter(vec![
        ((GLOBAL, "--format"), by!(global::format)),
        ((GLOBAL, "--json"), by!(global::json)),
        ((GLOBAL, "--verbose"), by!(global::verbose)),
        ((GLOBAL, "--quiet"), by!(global::quiet)),
        ((GLOBAL, "--log"), by!(global::log)),
        ((GLOBAL, "--log-file"), by!(global::log_file)),
        ((GLOBAL, "--color"), by!(global::color)),
        ((GLOBAL, "--config"), by!(config::config_option)),
        ((GLOBAL, "--store"), by!(config::store)),
        ((GLOBAL, "--env-file"), by!(config::env_file)),
        (("config list", "--show-origin"), by!(config::show_origin)),
        (("config get", "<KEY>"), by!(config::set)),
        (("config set", "<KEY>"), by!(config::set)),
        (("config set", "<VALUE>"), by!(config::set)),
        (("config set", "--project"), by!(config::set_project)),
        (("state show", "[ID]"), by!(state::show)),
        (("state show", "--prefix"), by!(state::prefix)),
        (("state log", "<ID>"), by!(state::log)),
        (("state log", "--after"), by!(state::log)),
        (("state log", "--limit"), by!(state::log)),
        (("state at", "<ID>"), by!(state::at)),
        (("state at", "<VERSION>"), by!(state::at)),
        (("trust", "[PATHS]..."), by!(config::trust)),
        (("apply", "[ID]"), by!(directory::review)),
        (("apply", "--review"), by!(directory::review)),
        (("apply", "--allow-protected"), by!(directory::apply_allow_protected)),
        (("discard", "<ID>"), by!(directory::discard)),
        (("undo", "[ID]"), by!(directory::review)),
        (("exec", "--sessions"), by!(session::sessions)),
        (("exec", "--review"), by!(directory::review)),
        (("exec", "--discard"), by!(directory::discard)),
        (("exec", "--live"), by!(directory::live)),
        (("exec", "--allow-protected"), by!(directory::allow_protected)),
        (("call", "--live"), by!(directory::tools_work_in_the_same_layer)),
        (("call", "--allow-protected"), by!(directory::tools_work_in_the_same_layer)),
        (("runs replay", "--live"), by!(directory::tools_work_in_the_same_layer)),
        (("runs replay", "--allow-protected"), by!(directory::tools_work_in_the_same_layer)),
        (("run", "--live"), by!(directory::tools_work_in_the_same_layer)),
        (("run", "--allow-protected"), by!(directory::tools_work_in_the_same_layer)),
        (("serve", "--live"), by!(directory::tools_work_in_the_same_layer)),
        (("serve", "--allow-protected"), by!(directory::tools_work_in_the_same_layer)),
        (("serve", "[TARGET]..."), by!(serve::serve_answers_over_stdio)),
        (("serve", "--name"), by!(serve::serve_answers_over_stdio)),
        (("serve", "--http"), by!(serve::http_and_websocket_clients_are_served_until_a_signal)),
        (("serve", "--ws"), by!(serve::http_and_websocket_clients_are_served_until_a_signal)),
        (("serve", "--token-file"), by!(serve::a_token_is_from_a_file_or_the_environment_and_never_printed)),
        (("serve", "--no-token"), by!(serve::no_token_serves_every_local_user)),
        (("serve", "--beyond-loopback"), by!(serve::unusable_and_public_addresses_are_rejected)),
        (("serve", "--origin"), by!(serve::named_hosts_and_origins_are_accepted)),
        (("serve", "--host"), by!(serve::a_named_host_header_is_accepted)),
        (("serve", "--allow"), by!(serve::allow_and_deny_filter_tools)),
        (("serve", "--deny"), by!(serve::allow_and_deny_filter_tools)),
        (("serve", "--allow-for"), by!(several::each_client_has_its_own_rules)),
        (("serve", "--deny-for"), by!(several::each_client_has_its_own_rules)),
        (("serve", "--search[=<FOR>]"), by!(several::search_puts_all_tools_behind_three)),
        (("serve", "--core-tool"), by!(several::search_puts_all_tools_behind_three)),
        (("serve", "--lazy"), by!(several::lazy_targets_start_on_their_first_call_and_status_reports_each)),
        (("serve", "--approve"), by!(serve::options_of_tools_apply_to_calls)),
        (("serve", "--ask"), by!(serve::options_of_tools_apply_to_calls)),
        (("serve", "--level"), by!(serve::options_of_tools_apply_to_calls)),
        (("serve", "--workdir"), by!(serve::options_of_tools_apply_to_calls)),
        (
            ("serve", "--shared-workdir"),
            by!(serve_clients::several_clients_share_no_files_without_the_option),
        ),
        (("serve", "--task-store"), by!(serve_tasks::a_killed_server_restores_its_tasks)),
        (("serve", "--task-after"), by!(serve_tasks::task_options_set_the_delay_and_the_lifetime)),
        (("serve", "--task-ttl"), by!(serve_tasks::task_options_set_the_delay_and_the_lifetime)),
        (("serve", "--oauth-issuer"), by!(serve_oauth::only_tokens_of_the_issuer_are_accepted)),
        (("serve", "--oauth-keys"), by!(serve_oauth::only_tokens_of_the_issuer_are_accepted)),
        (("serve", "--oauth-resource"), by!(serve_oauth::only_tokens_of_the_issuer_are_accepted)),
        (("serve", "--oauth-scope"), by!(serve_oauth::only_tokens_of_the_issuer_are_accepted)),
        (("serve", "--tls-cert"), by!(serve::a_certificate_and_its_key_serve_https)),
        (("serve", "--tls-key"), by!(serve::a_certificate_and_its_key_serve_https)),
        (("trust", "--remove"), by!(config::remove)),
        (("trust", "--tool"), by!(gateway::a_changed_definition_is_quarantined_until_approval)),
        (("run", "--agent"), by!(run_agent::an_agent_file_is_the_agent)),
        (("run", "--claude"), by!(claude_code::claude_code_uses_the_tools_in_the_sandbox_and_in_a_process)),
        (("run", "--executor"), by!(claude_code::claude_code_uses_the_tools_in_the_sandbox_and_in_a_process)),
        (("run", "--image"), by!(claude_code::a_container_has_the_image_that_is_built_for_it)),
        (("run", "--pull"), by!(claude_code::a_container_has_the_image_that_is_built_for_it)),
        (("run", "--max-cost"), by!(run::max_cost)),
        (("run", "--memory"), by!(claude_code::memory_and_cpu_are_limited)),
        (("run", "--cpu"), by!(claude_code::memory_and_cpu_are_limited)),
        (("run", "--own-tools"), by!(claude_code::own_tools_enables_claude_codes_tools)),
        (("run", "--permission-mode"), by!(claude_code::a_permission_mode_skips_prompts)),
        (("run", "--continue"), by!(memory::go_on)),
        (("run", "--resume"), by!(memory::resume)),
        (("run", "--fork"), by!(memory::fork)),
        (("run", "--no-save"), by!(memory::no_save)),
        (("run", "--output"), by!(run::output)),
        (("run", "--output-schema"), by!(run::output_schema)),
        (("runs ls", "--limit"), by!(memory::ls)),
        (("runs ls", "--all"), by!(memory::ls_all)),
        (("runs ls", "--since"), by!(memory::stats)),
        (("runs show", "<ID>"), by!(memory::show)),
        (("runs stats", "--since"), by!(memory::stats)),
        (("runs replay", "<ID>"), by!(replay::a_run_replays_without_its_provider)),
        (("runs replay", "--tools"), by!(replay::replayed_tools_are_those_of_the_option)),
        (("runs replay", "--attach"), by!(replay::a_replayed_tool_sees_current_files)),
        (("runs replay", "--workdir"), by!(replay::a_replayed_tool_sees_current_files)),
        (("runs replay", "--approve"), by!(replay::a_replay_has_its_own_permissions)),
        (("runs replay", "--ask"), by!(replay::a_replay_has_its_own_permissions)),
        (("runs replay", "--yes"), by!(replay::a_replay_has_its_own_permissions)),
        (("runs replay", "--no-input"), by!(replay::a_replay_has_its_own_permissions)),
        (("runs replay", "--level"), by!(replay::level)),
        (("runs export", "<ID>"), by!(memory::export)),
        (("runs export", "<FILE>"), by!(memory::export)),
        (("run", "--interactive"), by!(chat::interactive)),
        (("run", "--plain"), by!(chat::plain)),
        (("run", "--prompt"), by!(run::prompt)),
        (("run", "--file"), by!(run::file)),
        (("run", "--attach"), by!(run::attach)),
        (("run", "--enable-file-support"), by!(hosted::enable_file_support)),
        (("run", "--code"), by!(hosted::code)),
        (("run", "--workdir"), by!(run::workdir)),
        (("run", "--review"), by!(review::review)),
        (("run", "--discard"), by!(review::discard)),
        (("run", "--system-prompt"), by!(run::system_prompt)),
        (("run", "--model"), by!(run::model)),
        (("models ls", "--provider"), by!(models::provider)),
        (("models ls", "--can"), by!(models::can)),
        (("models ls", "--retired"), by!(models::retired)),
        (("models show", "<MODEL>"), by!(models::show)),
        (("files put", "<PATH>..."), by!(files::put)),
        (("files put", "--provider"), by!(files::provider)),
        (("files get", "<ID>"), by!(files::get)),
        (("files get", "--output"), by!(files::get)),
        (("files get", "--container"), by!(files::container)),
        (("files get", "--provider"), by!(files::provider)),
        (("files ls", "--limit"), by!(files::limit)),
        (("files ls", "--provider"), by!(files::provider)),
        (("files rm", "<ID>..."), by!(files::rm)),
        (("files rm", "--provider"), by!(files::provider)),
        (("run", "--fallback"), by!(tuning::fallback)),
        (("run", "--temperature"), by!(run::temperature)),
        (("run", "--effort"), by!(run::effort)),
        (("run", "--record"), by!(run::record_option)),
        (("run", "--tools"), by!(run::tools)),
        (("run", "--mcp-server"), by!(mcp::mcp_server)),
        (("run", "--token-env"), by!(mcp::mcp_server)),
        (("run", "--token-file"), by!(mcp::mcp_server)),
        (("call", "--token-env"), by!(mcp::token_places)),
        (("call", "--token-file"), by!(mcp::token_places)),
        (("tools", "--token-env"), by!(mcp::token_places)),
        (("tools", "--token-file"), by!(mcp::token_places)),
        (("run", "--approve"), by!(run::approve)),
        (("run", "--ask"), by!(run::ask_option)),
        (("run", "--yes"), by!(run::yes)),
        (("run", "--no-input"), by!(run::no_input)),
        (("run", "--level"), by!(run::level)),
        (("run", "--artifacts"), by!(run::artifacts)),
        (("run", "--max-iterations"), by!(run::max_iterations)),
        (("run", "--max-tool-calls"), by!(run::max_tool_calls)),
        (("run", "--max-tokens"), by!(run::max_tokens)),
        (("run", "--max-time"), by!(run::max_time)),
        (("call", "<TARGET>"), by!(call::arguments)),
        (("call", "[TOOL"), by!(call::arguments)),
        (("call", "--workdir"), by!(call::workdir)),
        (("call", "--timeout"), by!(call::timeout)),
        (("call", "--retries"), WITHIN),
        (("call", "--priority"), WITHIN),
        (("call", "--meta"), by!(call::meta)),
        (("call", "--no-cache"), WITHIN),
        (("call", "--validate"), by!(targets::validate)),
        (("call", "--stream"), by!(targets::stream)),
        (("call", "--model"), by!(targets::model)),
        (("call", "--resource"), by!(targets::resource)),
        (("call", "--prompt"), by!(targets::prompt)),
        (("tools", "--search"), by!(targets::search)),
        (("run", "--dynamic[=<HOW>]"), by!(targets::dynamic)),
        (("run", "--core-tool"), by!(targets::core_tool)),
        (("run", "--compact-tools"), by!(targets::compact_tools)),
        (("init tool", "--exec"), by!(targets::init)),
        (("init tool", "--rust"), by!(targets::init)),
        (("init tool", "--toolpost"), by!(targets::init)),
        (("init tool", "[DIRECTORY]"), by!(targets::init)),
        (("tools", "--level"), by!(targets::level_of_discovery)),
        (("call", "--dry-run"), by!(call::dry_run)),
        (("call", "--approve"), by!(call::approve)),
        (("call", "--ask"), by!(call::ask)),
        (("call", "--yes"), by!(call::yes)),
        (("call", "--no-input"), by!(call::no_input)),
        (("call", "--level"), by!(call::level)),
        (("tools", "[TARGET]..."), by!(look::targets)),
        (("tools", "--manifest"), by!(look::manifest)),
        (("exec", "[CODE-FILE]"), by!(exec::code)),
        (("exec", "[COMMAND]..."), by!(exec::command)),
        (("exec", "--lang"), by!(exec::lang)),
        (("exec", "--env"), by!(exec::env)),
        (("exec", "--stdin"), by!(exec::stdin)),
        (("exec", "--attach"), by!(exec::attach)),
        (("exec", "--workdir"), by!(exec::workdir)),
        (("exec", "--level"), by!(exec::level)),
        (("exec", "--allow-degraded"), by!(exec::allow_degraded)),
        (("exec", "--timeout"), by!(exec::timeout)),
        (("exec", "--memory"), by!(exec::memory)),
        (("exec", "--cpu"), by!(exec::cpu)),
        (("exec", "--cpu-time"), by!(exec::cpu_time)),
        (("exec", "--idle"), by!(exec::idle)),
        (("exec", "--max-total-output"), by!(exec::max_total_output)),
        (("exec", "--pids"), by!(exec::pids)),
        (("exec", "--max-output"), by!(exec::max_output)),
        (("exec", "--max-file"), by!(exec::max_file)),
        (("exec", "--artifacts"), by!(exec::artifacts)),
        (("exec", "--allow-host"), by!(exec::allow_host)),
        (("exec", "--allow-address"), by!(exec::allow_address)),
        (("exec", "--readable"), by!(not_shown::exec)),
        (("exec", "--egress-policy"), by!(exec::egress_policy)),
        (("exec", "--pull"), by!(docker::pull)),
        (("exec", "--backend"), by!(docker::backend)),
        (("exec", "--runtime"), by!(docker::runtime)),
        (("exec", "--image"), by!(docker::image)),
        (("exec", "--profile"), by!(packages::profile)),
        (("exec", "--requirement"), by!(packages::requirement)),
        (("image build", "[NAME]"), by!(packages::name)),
        (("image build", "--docker"), by!(docker::build_and_remove)),
        (("image build", "--profile-file"), by!(packages::profile)),
        (("image rm", "<NAME>"), by!(packages::profile)),
        (("image rm", "--docker"), by!(docker::build_and_remove)),
        (("exec", "--session"), by!(session::session)),
        (("exec", "--fork"), by!(session::fork)),
        (("exec", "--reset"), by!(session::reset)),
        (("exec", "--interrupt"), by!(session::interrupt)),
        (("exec", "--end"), by!(session::end)),
        (("exec", "--keep"), by!(session::keep)),
        (("login", "<URL>"), by!(login::url)),
        (("login", "--scope"), by!(login::scope)),
        (("login", "--client-id"), by!(login::client_id)),
        (("login", "--client-secret-env"), by!(login::client_id)),
        (("login", "--issuer"), by!(login::client_id)),
        (("login", "--client-document"), by!(login::client_document)),
        (("login", "--callback-port"), by!(login::callback_port)),
        (("login", "--timeout"), by!(login::timeout)),
        (("logout", "<URL>"), by!(login::url)),
        (("schema", "[NAME]"), by!(look::schema)),
        (("completions", "<SHELL>"), by!(look::shell)),
    ]);
    for command in ["call", "tools", "run", "serve", "runs replay"] {
        for option in GRANTS {
            table.insert((command, option), by!(grants::options_reach_the_target_of_every_command));
        }
        table.insert((command, "--install-scripts"), by!(launchers::install_scripts));
    }
    table
}

/// Options of everyday jobs.
fn everyday_table() -> BTreeMap<(&'static str, &'static str), Held> {
    BTreeMap::from([
        ((GLOBAL, "--help-all"), by!(everyday::help_all)),
        (("bench", "[SUITE]..."), by!(bench::compare)),
        (("bench", "--output"), by!(bench::bench)),
        (("bench", "--python"), by!(bench::bench)),
        (("bench", "--rounds"), by!(bench::bench)),
        (("bench", "--compare"), by!(bench::compare)),
        (("config unset", "<KEY>"), by!(everyday::config_unset)),
        (("config unset", "--project"), by!(everyday::config_unset)),
        (("runs rm", "<ID>..."), by!(everyday::runs_are_named_short_shown_whole_and_removed)),
        (("run", "[PROMPT]"), by!(everyday::a_task_needs_no_option)),
        (("trust", "--watch"), by!(everyday::trust_watch)),
        (("init agent", "<NAME>"), by!(everyday::init_files)),
        (("init agent", "[FILE]"), by!(everyday::init_files)),
        (("init command", "<NAME>"), by!(everyday::init_files)),
        (("init command", "[FILE]"), by!(everyday::init_files)),
        (("init gateway", "<NAME>"), by!(everyday::init_files)),
        (("init gateway", "[FILE]"), by!(everyday::init_files)),
    ])
}

/// The options and arguments on a help page.
fn listed(page: &str) -> BTreeSet<&str> {
    page.lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("           "))
        .filter_map(|line| {
            let line = line.trim_start();
            let line = line
                .strip_prefix("-")
                .filter(|rest| !rest.starts_with('-'))
                .map_or(line, |rest| rest.split_once(", ").map_or("", |(_, long)| long));
            let word = line.split(' ').next()?.trim_end_matches("...");
            match word.get(..1)? {
                "-" => Some(word),
                // An argument keeps its dots.
                "<" | "[" => line.split(' ').next(),
                _ => None,
            }
        })
        .filter(|word| !["--help", "--version", "[default:", "[possible", "[alias:"].contains(word))
        .collect()
}

#[test]
fn every_option_has_a_test() {
    let env = TestEnv::new();
    let pages: BTreeMap<&str, String> = [
        "",
        "run",
        "chat",
        "call",
        "tools",
        "exec",
        "doctor",
        "bench",
        "schema",
        "completions",
        "config list",
        "config get",
        "config set",
        "config unset",
        "config path",
        "trust",
        "apply",
        "discard",
        "undo",
        "login",
        "logout",
        "serve",
        "image build",
        "image ls",
        "image rm",
        "init tool",
        "init agent",
        "init command",
        "init gateway",
        "runs ls",
        "runs show",
        "runs rm",
        "runs stats",
        "runs replay",
        "runs export",
        "models ls",
        "models show",
        "files put",
        "files get",
        "files ls",
        "files rm",
        "state show",
        "state log",
        "state at",
    ]
    .into_iter()
    .map(|command| {
        let words = command.split(' ').chain(["--help-all"]).filter(|word| !word.is_empty());
        (command, env.run(words).ok().out)
    })
    .collect();
    let of_all = listed(&pages[GLOBAL]);
    let mut found = BTreeSet::new();
    for (command, page) in &pages {
        let page = page.split("\nExamples:").next().unwrap();
        let own = listed(page).into_iter().filter(|word| *command == GLOBAL || !of_all.contains(word));
        found.extend(own.filter(|word| *word != "<COMMAND>").map(|word| (*command, word)));
    }
    // `run` has all options of `chat`, in one struct.
    let (chat, run) = (&pages["chat"], &pages["run"]);
    let chat: BTreeSet<_> = listed(chat.split("\nExamples:").next().unwrap());
    assert!(chat.len() > 20 && chat.is_subset(&listed(run)), "{chat:?}");
    found.retain(|(command, _)| *command != "chat");
    let mut table = table();
    table.extend(everyday_table());
    assert_eq!(found, table.keys().copied().collect());
    for (option, Held { name, source }) in &table {
        let is_test = source.lines().zip(source.lines().skip(1)).any(|(attribute, line)| {
            attribute.trim() == "#[test]"
                && line.trim().trim_start_matches("pub(crate) ") == format!("fn {name}() {{")
        });
        assert!(is_test, "{option:?}: `{name}` is not a test");
    }
}

/// The text of the pages that people write: guides, concepts, examples.
fn written_pages() -> String {
    fn add(directory: &std::path::Path, text: &mut String) {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && !["reference", "decisions", "theme"].iter().any(|other| name == *other) {
                add(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                *text += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    let mut text = std::fs::read_to_string(repository("README.md")).unwrap();
    add(&repository("docs"), &mut text);
    text
}

/// An option without a documented job is removed.
#[test]
fn every_option_has_a_job_on_a_page() {
    let pages = written_pages();
    let is_named = |option: &str| {
        pages.match_indices(option).any(|(at, _)| {
            !pages[at + option.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-')
        })
    };
    let mut table = table();
    table.extend(everyday_table());
    let options = table.keys().map(|(_, option)| option.split(['[', '=']).next().unwrap());
    let unnamed: BTreeSet<&str> =
        options.filter(|option| option.starts_with("--") && !is_named(option)).collect();
    assert!(unnamed.is_empty(), "{unnamed:?}");
}

"""Every option of the package has a test that fails if the option is ignored.

`CHECK_OPTIONS=1 pytest test_options.py` ignores each option once, and runs its test, in about five minutes.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ignored_option import PACKAGE, options

HERE = Path(__file__).parent

#: The options that each test shows: functions with their options. `run` stands for `run_sync` too.
PROOFS = {
    "test_agent::test_a_listener_gets_the_events_of_runs_and_nested_runs": "Agent: name description on_event",
    "test_agent::test_a_run_calls_tools_and_answers": "Agent: tools",
    "test_agent::test_a_tool_times_out_and_its_task_is_cancelled": "Agent: tool_timeout",
    "test_agent::test_answers_have_the_declared_type": "Agent: answer",
    "test_agent::test_approvals": "Agent.run: approve",
    "test_agent::test_at_most_so_many_tools_run_at_once": "Agent: max_parallel_tools",
    "test_agent::test_calls_have_the_same_callbacks": (
        "Ctx.progress: percent; Toolbox.call: ask on_progress on_log on_artifact sample"
    ),
    "test_agent::test_limits_end_a_run": "Agent: max_tool_calls max_tokens max_time",
    "test_agent::test_only_a_bool_approves": "Agent: approve",
    "test_agent::test_options_of_a_run_reach_its_tools": "Agent.run: context user metadata deadline",
    "test_agent_hooks::test_a_run_inside_a_tool_spends_from_the_limits_of_its_caller": "Agent.run: parent; Agent.stream: parent",
    "test_agent_hooks::test_an_error_advises_retries": "ToolError: retry",
    "test_agent_hooks::test_the_model_corrects_an_answer_a_limited_number_of_times": "Agent: max_repairs",
    "test_agent_hooks::test_the_model_corrects_an_answer_that_a_check_rejects": "Agent: validate",
    "test_agent_hooks::test_tools_get_the_context_which_no_schema_has": "Ctx: context",
    "test_author::test_a_context_without_a_caller": "Ctx: facts",
    "test_author::test_doctests": "ToolError.not_found: suggestion",
    "test_author::test_errors": "ToolError.dependency: suggestion",
    "test_author::test_methods": "Tool: receiver",
    "test_author::test_options": (
        "tool: title category group tags examples read_only idempotent retries concurrency output_limit mode task "
        "dry_run meta approval rate sensitive timeout"
    ),
    "test_author::test_resources_and_prompts": "resource: mime_types tags",
    "test_author::test_results": "Output: partial",
    "test_author::test_specs": "Param: examples description gt le lt multiple_of pattern",
    "test_author_peers::test_constraints_accept_the_same_values_as_pydantic": "Param: ge min_length max_length",
    "test_author_program::test_discovery": "main: name version",
    "test_calls::test_an_output_has_content_artifacts_and_counts": "Output: structured content artifacts",
    "test_calls::test_documents_are_versioned_and_survive": "Toolbox: store",
    "test_calls::test_nested_calls_of_tools": "Ctx.call: arguments",
    "test_calls::test_resources_and_prompts_are_read_here_and_by_a_client": "Toolbox.render: arguments",
    "test_compat_claude_agent_toolkit::test_parallel_calls_overlap_up_to_the_number_of_workers": "Toolbox: concurrency",
    "test_compat_toolable::test_a_model_checks_redacts_and_plans": "Toolbox.call: dry_run",
    "test_compat_toolable::test_methods_are_tools_of_their_instance": "tool: description",
    "test_compat_toolable::test_tools_run_in_a_toolbox_with_checks_and_events": "Toolbox: on_event",
    "test_connections::test_a_program_calls_the_tools_that_its_connection_names": "Toolbox.connect: calls",
    "test_flow::test_a_failed_run_raises_the_error_of_the_tool": "Flow.run: check",
    "test_flow::test_a_run_calls_tools_at_once": "Flow.run: input",
    "test_flow::test_a_stored_run_is_resumed": "Flow.resume: store",
    "test_flow::test_a_denied_approval_fails_the_run": "Flow.approve: approved comment",
    "test_flow::test_a_signal_has_a_value_and_is_not_an_approval": "Flow.signal: value store",
    "test_flow::test_a_stored_run_waits_for_an_approval": "Flow.run: store",
    "test_flow::test_an_approval_of_several_names_its_step": "Flow.approve: step",
    "test_flow::test_file_tools_work_in_a_directory": "Flow.run: working_dir",
    "test_flow::test_problems_are_named": "Flow.run: durability",
    "test_flow::test_progress_has_every_event": "Flow.run: on_progress",
    "test_flow_builder::test_a_plan_has_the_members_of_a_file": "Flow: input output description max_parallel",
    "test_flow_builder::test_the_engine_accepts_what_the_options_make": "Flow: tools timeout failure",
    "test_option_effects::test_a_context_has_its_attempt_and_its_questions_a_name": "Ctx: attempt; Ctx.ask: name",
    "test_option_effects::test_a_deadline_includes_the_queue": "Toolbox.call: deadline",
    "test_option_effects::test_a_log_has_the_changes_of_a_range": "StateDoc.log: after limit",
    "test_option_effects::test_a_program_has_its_variables_and_level": "Toolbox.connect: env level",
    "test_option_effects::test_a_question_has_a_type_and_a_prompt_its_settings": (
        "Ctx.ask: answer; Ctx.sample: system max_tokens temperature stop_sequences"
    ),
    "test_option_effects::test_a_run_continues_a_conversation": "Agent.stream: conversation; Agent.run: conversation",
    "test_option_effects::test_an_agent_has_an_effort": "Agent: effort",
    "test_option_effects::test_an_agent_stops_at_its_cost": "Agent: max_cost_usd",
    "test_option_effects::test_an_agent_stops_at_its_iterations": "Agent: max_iterations",
    "test_option_effects::test_an_artifact_has_a_media_type": (
        "Artifact: media_type; Sample: usage; Ctx.artifact: media_type"
    ),
    "test_option_effects::test_an_option_of_a_call_reaches_the_tool": (
        "Toolbox.call: context idempotency_key user metadata working_dir"
    ),
    "test_option_effects::test_every_error_has_a_suggestion": (
        "ToolError: suggestion; ToolError.invalid_input: suggestion; ToolError.missing_param: suggestion; "
        "ToolError.invalid_path: suggestion; ToolError.conflict: suggestion; ToolError.precondition: suggestion; "
        "ToolError.timeout: suggestion; ToolError.permission: suggestion; ToolError.internal: suggestion; "
        "ToolError.overloaded: suggestion; ToolError.limit: suggestion; ToolError.cancelled: suggestion"
    ),
    "test_option_effects::test_host_paths_of_a_sandbox": "Sandbox: read_only read_write",
    "test_option_effects::test_limits_of_a_sandbox": "Sandbox: pids cpu",
    "test_option_effects::test_max_parallel_limits_a_flow": "Flow.run: max_parallel",
    "test_option_effects::test_names_of_resources_and_prompts": (
        "resource: description name; prompt: name description tags"
    ),
    "test_option_effects::test_no_cache_runs_the_tool": "tool: cache; Toolbox.call: no_cache",
    "test_option_effects::test_options_of_a_command": "Sandbox.run: timeout; Sandbox.exec: files timeout on_output",
    "test_option_effects::test_options_of_a_definition": "tool: name destructive open_world placement memory",
    "test_option_effects::test_options_of_a_resumed_flow": (
        "Flow.resume: durability max_parallel on_progress check; Flow.approve: store"
    ),
    "test_option_effects::test_options_of_a_session": "Session.run: timeout on_output; Session.fork: count",
    "test_option_effects::test_options_of_connections_and_servers": (
        "Toolbox.connect: token; Toolbox.serve: token name version instructions http on_ready"
    ),
    "test_option_effects::test_priority_orders_queued_calls": "Toolbox.call: priority",
    "test_option_effects::test_retries_repeat_a_failed_call": "Toolbox.call: retries",
    "test_option_effects::test_the_level_of_a_call_confines_its_code": "Toolbox.call: level approve",
    "test_option_effects::test_the_options_of_a_run": (
        "Agent.run: ask on_progress on_log on_artifact; Agent.stream: context approve ask on_progress on_log "
        "on_artifact user metadata deadline"
    ),
    "test_option_effects::test_timeouts_of_a_toolbox_and_of_a_call": "Toolbox: timeout; Toolbox.call: timeout",
    "test_option_effects::test_toolboxes_and_scripts_have_a_name": "Toolbox: name; ScriptModel: name",
    "test_option_effects::test_validate_and_mock_run_nothing": "Toolbox.call: validate mock",
    "test_provider::test_a_run_over_http": "Agent: system temperature",
    "test_pool::test_a_full_queue_is_an_error": "Sandbox.pool: max_concurrency queue queue_timeout",
    "test_pool::test_a_warm_up_runs_before_the_code": "Sandbox.pool: warm_up",
    "test_pool::test_invalid_settings": "Sandbox.pool: language idle_workers idle_shutdown",
    "test_pool::test_runs_start_in_idle_interpreters": "Sandbox.pool: preload",
    "test_provider::test_a_model_has_its_own_access": "Model: api_key base_url; Agent: max_output_tokens",
    "test_provider::test_a_model_has_its_own_retries_and_timeout": "Model: timeout max_retries",
    "test_provider::test_hosted_tools_are_named": "Agent: hosted_tools",
    "test_provider::test_tools_are_loaded_on_demand": "Agent: dynamic core_tools",
    "test_sandbox::test_a_result_line_is_a_value": "Sandbox.run: language",
    "test_sandbox::test_a_session_keeps_its_state": "Session.run: files; Session.reset: keep_files",
    "test_sandbox::test_a_working_directory_gets_checked_changes": "Sandbox: workdir",
    "test_sandbox::test_an_invalid_option_is_named": "Sandbox: level timeout memory live requirements",
    "test_sandbox::test_commands_run_without_a_shell": "Sandbox.exec: stdin",
    "test_sandbox::test_egress_reaches_allowed_hosts_only": "Sandbox: allow_hosts",
    "test_sandbox::test_files_and_input_reach_the_program": "Sandbox.run: stdin files args",
    "test_sandbox::test_limits_are_verdicts": "Sandbox: max_output",
    "test_sandbox::test_only_interpreters_have_sessions": "Sandbox.session: language",
    "test_sandbox::test_output_arrives_as_text": "Sandbox.run: on_output",
    "test_sandbox::test_the_environment_is_clean": "Sandbox: env",
    "test_sandbox::test_code_uses_a_virtual_environment": "Sandbox: venv",
    "test_serve::test_hosts_and_addresses": "Toolbox.serve: hosts",
    "test_serve::test_tools_get_the_object_of_the_server": "Toolbox.serve: context",
}
#: Options without an effect on a host that has every level.
UNSHOWN = {
    "Awaitable.throw.traceback",
    "Awaitable.throw.value",
    "Flow.resume.working_dir",
    "Sandbox.allow_degraded",
}
#: Options of programs, which are other processes: no option can be ignored there.
IN_PROGRAMS = {"main.name", "main.version"}


def shown() -> dict[str, str]:
    """Return the test of each option."""
    found: dict[str, str] = {}
    for test, text in PROOFS.items():
        for function, _, names in (part.partition(": ") for part in text.split("; ")):
            for name in names.split():
                option = f"{function}.{name}"
                assert option not in found, f"{option} has two rows: {found[option]} and {test}"
                found[option] = test
    return found


def test_every_option_has_a_test() -> None:
    documented = set(options())
    assert len(documented) > 150
    missing = documented - shown().keys() - UNSHOWN
    assert not missing, f"options without a test: add a row to PROOFS for {sorted(missing)}"
    unknown = (shown().keys() | UNSHOWN) - documented
    assert not unknown, f"rows of unknown options: remove {sorted(unknown)} from PROOFS"


@pytest.mark.parametrize("test", PROOFS)
def test_the_test_of_an_option_exists(test: str) -> None:
    module, _, name = test.partition("::")
    assert callable(getattr(importlib.import_module(module), name, None)), f"{test} is missing"


@pytest.mark.parametrize("option", sorted(shown().keys() - IN_PROGRAMS) if os.environ.get("CHECK_OPTIONS") else [])
def test_the_test_fails_without_the_option(option: str) -> None:
    module, _, name = shown()[option].partition("::")
    paths = [str(HERE), str(PACKAGE.parent), str(PACKAGE)]
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", "ignored_option"]
    try:
        ended = subprocess.run(
            [*command, f"{HERE / module}.py::{name}"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "IGNORED_OPTION": option},
            capture_output=True,
            text=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        # A test that waits for the effect of the option notices too.
        return
    assert ended.returncode == 1, f"{shown()[option]} passes without {option}: {ended.stdout}"

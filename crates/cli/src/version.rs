//! The report of `toolpost --version --json`.

use serde_json::{Value, json};
use toolpost_agent::{Conversations, RunState};
use toolpost_core::CallRecord;
use toolpost_exec::protocol::{dialect, frame};
use toolpost_flow::FlowEvent;
use toolpost_llm::Recording;
use toolpost_mcp::client::TokenStore;
use toolpost_sandbox::{HeldRun, Session};
use toolpost_store::{Store, TaskFile};

use crate::agent_file;
use crate::config::trust;
use crate::gateway::stores;

/// Version, build, features, and the numbers of formats and protocols. SPECIFICATION.md describes the formats.
pub(crate) fn report() -> Value {
    json!({
        "v": 1,
        "name": "toolpost",
        "version": env!("CARGO_PKG_VERSION"),
        "build": {
            "commit": option_env!("TOOLPOST_BUILD_COMMIT"),
            "target": env!("TOOLPOST_BUILD_TARGET"),
            "profile": env!("TOOLPOST_BUILD_PROFILE"),
            "rustc": env!("TOOLPOST_BUILD_RUSTC"),
        },
        "features": if cfg!(feature = "restate") { vec!["restate"] } else { Vec::new() },
        "formats": {
            "agent": agent_file::VERSION,
            "approved_tools": stores::VERSION,
            "call_record": CallRecord::FORMAT,
            "command": toolpost_exec::command::FORMAT,
            "conversation": Conversations::FORMAT,
            "flow_run": FlowEvent::FORMAT,
            "held_changes": HeldRun::FORMAT,
            "recording": Recording::FORMAT,
            "run_state": RunState::FORMAT,
            "session": Session::FORMAT,
            "store": Store::FORMAT,
            "tasks": TaskFile::FORMAT,
            "tokens": TokenStore::FORMAT,
            "trust": trust::VERSION,
        },
        "protocols": {
            "executable": dialect::PROTOCOL,
            "frame": frame::VERSION,
            "mcp": toolpost_mcp::protocol_versions().collect::<Vec<_>>(),
        },
    })
}

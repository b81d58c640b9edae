//! Workflows: plans as data, a pure scheduler, and runs that survive a crash.
//!
//! A [`Plan`] is a file in YAML, JSON or TOML: steps that call tools, wait, or hold other steps. References such as
//! `${{ steps.load.output }}` order the steps; each begins as soon as what it reads is there. [`Flows`] runs plans with a
//! toolbox and stores each event, so that a run that was killed continues where it ended.
//!
//! Read `plan` first, then `machine`, which decides everything, and `run`, which does it.
//!
//! # Invariants
//!
//! - The machine is pure: the same events in the same order give the same commands. It has no clock and does no I/O.
//! - A run keeps the plan that it began with, whatever happens to the file.
//! - Every step is a call of the toolbox, so all checks, permissions, limits and records hold.
//! - An ended step is never run again; a step that ran when the process died is, with the same idempotency key.
//! - One process writes a run. Others put their messages into its inbox.
//! - A value reaches code as a variable, and a program as one argument. It runs as code only if its step says
//!   `evaluate: true`; the module `evaluation` decides which arguments are code.
//! - Expressions have no effects and a bounded number of instructions, items and bytes.
#![forbid(unsafe_code)]

mod code;
pub mod driver;
mod estimate;
mod evaluation;
mod event;
mod journal;
mod language;
mod machine;
mod names;
mod orchestrator;
mod outcome;
mod plan;
mod prologue;
mod report;
mod run;
mod template;
mod tool;

pub use self::estimate::{Estimate, StepEstimate};
pub use self::event::FlowEvent;
pub use self::journal::{FlowSummary, ToolErrorText};
pub use self::orchestrator::{
    AgentOrchestrator, AgentResult, AgentState, AgentStatus, AgentTask, Execution, ExecutionMode,
    ExecutionOutcome, SystemStats, TaskAgent, Workflow, WorkflowStep,
};
pub use self::outcome::{RunStatus, StepOutcome, StepStatus};
pub use self::plan::{
    Format, Plan, PlanBuilder, PlanError, PlanMember, PlanProblem, Position, StepBuilder, evaluated_steps,
    parse_members, sub_flows,
};
pub use self::report::{StepReport, StepWait};
pub use self::run::{Durability, FlowOutcome, FlowProgress, FlowRun, Flows, ProgressSink, StoredFlow};
pub use self::tool::FlowTool;

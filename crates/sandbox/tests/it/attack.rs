//! The attack table: every row of [`rows::ROWS`] as probes, in every mode of this machine, on this host and
//! on limited ones.
//!
//! The results are printed as lines `ATTACK…`, from which `cargo xtask attack` writes `docs/attacks.md`.

mod bad_input;
mod expected;
mod fuzz;
mod fuzz_artefacts;
mod fuzz_egress;
#[expect(unsafe_code, reason = "a process is made poor between fork and exec")]
pub(crate) mod hosts;
mod lines;
mod mixing;
mod modes;
mod older;
mod probes;
mod rows;
mod selection;
mod table;
pub(crate) mod world;

pub(crate) use expected::{ANY, Expected};
pub(crate) use lines::is_complete;
pub(crate) use modes::{Mode, Place, answer_of};
pub(crate) use world::PRELUDE;

/// An attack, and the expected answers of each level.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The number of its row.
    pub(crate) row: u32,
    /// The attack.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) expected: Expected,
    /// Where it does not apply, with the reason.
    pub(crate) not_for: &'static [(Who, &'static str)],
    /// Whether its host side also works with session cells.
    pub(crate) is_for_cells: bool,
    /// Takes about a second or more.
    pub(crate) is_slow: bool,
}

/// The execution of a probe.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Python in the sandbox; the value of its last expression is the answer.
    Inside(&'static str),
    /// Rust on the host, which returns the answer.
    Host(fn(&Place<'_>) -> String),
}

/// A group of places where a probe does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// A backend, by name.
    Backend(&'static str),
    /// Every backend but this one.
    ButBackend(&'static str),
    /// Containers with their own kernel, whose processes are not the host's.
    OwnKernel,
    /// A level, by name.
    Level(&'static str),
    /// Hosts on which the run shares the namespaces.
    Shared,
    /// Runs with a private root.
    PrivateRoot,
    /// Hosts with namespaces.
    ButShared,
    /// Hosts without Landlock.
    WithoutLandlock,
    /// Sessions that can fork: Landlock's file rules name existing files, and those of a fork are created
    /// later.
    ForkingSessions,
    /// Root without `CAP_SYS_PTRACE`, as in a container: it sees neither sockets nor exit statuses of its program.
    UntracedRoot,
    /// Limited hosts: the probe makes its own.
    PoorHosts,
}

const fn inside(row: u32, name: &'static str, code: &'static str, expected: Expected) -> Probe {
    Probe { row, name, kind: Kind::Inside(code), expected, not_for: &[], is_for_cells: false, is_slow: false }
}

const fn host(row: u32, name: &'static str, probe: fn(&Place<'_>) -> String, expected: Expected) -> Probe {
    Probe { row, name, kind: Kind::Host(probe), expected, not_for: &[], is_for_cells: false, is_slow: false }
}

impl Probe {
    /// This probe, also for session cells.
    const fn cells(mut self) -> Self {
        self.is_for_cells = true;
        self
    }

    /// This probe, marked as slow.
    const fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }

    /// This probe, excluded there.
    const fn not_for(mut self, places: &'static [(Who, &'static str)]) -> Self {
        self.not_for = places;
        self
    }
}

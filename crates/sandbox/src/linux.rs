//! The Linux platform: facts about the host, and runs.

mod admission;
mod attend;
mod build_cache;
mod capture;
mod cgroup;
#[expect(unsafe_code, reason = "raw system calls between clone and exec")]
mod child_steps;
mod copied_directory;
mod detached;
mod facts;
mod files;
mod identity;
mod interpreter;
mod java;
#[expect(unsafe_code, reason = "raw system calls")]
mod kernel;
mod kernel_files;
#[expect(unsafe_code, reason = "raw system calls")]
mod landlock;
#[expect(unsafe_code, reason = "clone, and descriptors that the kernel has just made")]
mod launch;
mod layer;
mod lent_directory;
mod links;
mod lock;
#[expect(unsafe_code, reason = "a thread enters a namespace")]
mod network;
mod own_directory;
mod plan;
mod policy;
pub(crate) mod pool;
mod prepare;
mod profile;
mod python;
pub(crate) mod remember;
mod repositories;
mod root;
mod run;
mod seccomp;
mod session;
mod sparse;
mod supervise;
mod system_calls;
mod template;
mod temporary;
mod toolchain;
mod toolchain_roots;
mod tree;
mod unconfined;
mod value;
mod watch;
mod workspace;

#[cfg(fuzzing)]
pub mod fuzzing;

pub use build_cache::{BuildCache, Lookup as CacheLookup, Slot as CacheSlot, private_directory};
pub use capture::OutputCapture;
pub use copied_directory::CopiedDirectory;
pub(crate) use detached::detached;
pub(crate) use facts::Facts;
pub use facts::program_user;
pub(crate) use files::{Store, read_artifact};
pub use files::{differences, open_regular};
pub(crate) use java::names as java_names;
pub(crate) use layer::{HeldLayer, LiveDirectory, OldVersion, Restored, RunMark, StagedLayer};
pub(crate) use layer::{all as held_layers, all_unproven as unproven_layers, find as held_layer};
pub use own_directory::OwnDirectory;
pub(crate) use prepare::shown;
pub(crate) use profile::profile;
pub(crate) use run::{Output, run};
pub(crate) use session::{Calls, Handle, Interpreter};
pub(crate) use supervise::Flag;
pub(crate) use toolchain::{build, find_installer, find_language, heap};

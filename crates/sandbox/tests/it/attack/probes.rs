//! The probes, by subject.

mod artefacts;
mod backends;
mod egress;
mod files;
mod handed_back;
mod kernel;
mod lifecycles;
mod limits;
mod named;
mod network;
mod processes;
mod quotas;
mod requests;
mod streams;

use super::Probe;

/// Every probe, by row.
pub(crate) fn all() -> Vec<&'static Probe> {
    let mut probes: Vec<&Probe> = [
        artefacts::PROBES,
        backends::PROBES,
        egress::PROBES,
        files::PROBES,
        handed_back::PROBES,
        kernel::PROBES,
        lifecycles::PROBES,
        limits::PROBES,
        named::PROBES,
        network::PROBES,
        processes::PROBES,
        quotas::PROBES,
        requests::PROBES,
        streams::PROBES,
    ]
    .into_iter()
    .flatten()
    .collect();
    probes.sort_by_key(|probe| probe.row);
    probes
}

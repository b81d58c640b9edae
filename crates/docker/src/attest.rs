//! Attests what confines a container, from the kernel's state inside it. The daemon's promises do not count.

use super::channel::Frame;
use super::container::Kind;
use super::error::DockerError;
use toolpost_sandbox::{Layer, Level, MissingLayer, Report};

/// Kernel files that the first process read, by their protocol numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    texts: [String; 12],
}

const STATUS: usize = 0;
const MOUNTS: usize = 1;
const INTERFACES: usize = 2;
const MEMORY: [usize; 2] = [3, 4];
const PROCESSES: [usize; 2] = [5, 6];
const VERSION: usize = 7;
const SWAP: [usize; 2] = [8, 9];
const PROCESSORS: [usize; 2] = [10, 11];

impl Facts {
    pub(super) fn add(&mut self, frame: &Frame) {
        if let Some((index, text)) = frame.content.split_first()
            && let Some(place) = self.texts.get_mut(usize::from(*index))
        {
            *place = String::from_utf8_lossy(text).into_owned();
        }
    }

    fn text(&self, index: usize) -> &str {
        self.texts.get(index).map_or("", String::as_str)
    }

    fn status(&self, name: &str) -> Option<&str> {
        self.text(STATUS).lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// The options and type of a mount; the last one at a path hides the others.
    fn mount(&self, place: &str) -> Option<(String, &str)> {
        let line = self.text(MOUNTS).lines().rfind(|line| line.split(' ').nth(4) == Some(place))?;
        let (head, tail) = line.split_once(" - ")?;
        let mut tail = tail.split(' ');
        let kind = tail.next()?;
        let options = format!("{},{}", head.split(' ').nth(5)?, tail.nth(1).unwrap_or_default());
        Some((options, kind))
    }

    fn limit(&self, places: [usize; 2]) -> Option<u64> {
        places.iter().find_map(|place| self.text(*place).trim().parse().ok())
    }

    /// Whether the container has another kernel than this machine.
    pub(super) fn has_own_kernel(&self) -> bool {
        let inside = self.text(VERSION).split_whitespace().nth(2);
        let here = rustix::system::uname();
        inside.is_some_and(|inside| here.release().to_str() != Ok(inside))
    }

    /// Fills in the layers of a report. A missing required protection is an error.
    pub(super) fn fill(&self, kind: &Kind, is_local: bool, report: &mut Report) -> Result<(), DockerError> {
        let own_kernel = is_local && self.has_own_kernel();
        let mut weak: Vec<&str> = Vec::new();
        let mut has = |layer: Layer, holds: bool, what: &'static str| {
            if holds {
                report.layers.push(layer);
            } else {
                weak.push(what);
            }
        };
        let is_value = |name: &str, wanted: &str| self.status(name) == Some(wanted);
        let no_user = self.status("Uid").is_some_and(|ids| !ids.split_whitespace().any(|id| id == "0"));
        has(Layer::UnprivilegedUser, no_user, "it runs as root");
        has(Layer::PidNamespace, is_value("Pid", "1"), "its first process is not number 1");
        let bare = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].iter().all(|name| {
            self.status(name).is_none_or(|set| set.bytes().all(|byte| byte == b'0')) || own_kernel
        }) && self.status("CapEff").is_some_and(|set| set.bytes().all(|byte| byte == b'0'));
        has(Layer::NoCapabilities, bare, "it has capabilities");
        if own_kernel {
            // Another kernel handles system calls; the profile is not for it, and its files differ.
            report
                .missing
                .push(MissingLayer::new(Layer::Seccomp, "the runtime's own kernel handles all system calls"));
        } else {
            has(Layer::NoNewPrivileges, is_value("NoNewPrivs", "1"), "programs in it can gain privileges");
            has(Layer::Seccomp, is_value("Seccomp", "2"), "it has no seccomp policy");
            if kind.level == Level::Maximum {
                has(Layer::SeccompAllowlist, is_value("Seccomp", "2"), "it has no seccomp allowlist");
            }
        }
        let root =
            self.mount("/").is_some_and(|(options, _)| options.split(',').any(|option| option == "ro"));
        has(Layer::PrivateRoot, root, "its root is writable");
        let workspace = self.mount("/workspace").is_some_and(|(options, kind)| {
            kind == "tmpfs" && options.split(',').any(|option| option.starts_with("size="))
        });
        let shows_workspace = kind.shows_workspace();
        if !shows_workspace && (workspace || !own_kernel) {
            has(Layer::WorkspaceQuota, workspace, "its workspace has no limit");
        }
        let alone = self.text(INTERFACES).lines().skip(2).all(|line| line.trim().starts_with("lo:"));
        has(Layer::NetworkNamespace, alone, "it has a network");
        let is_read_only = |place: &str| {
            self.mount(place).is_some_and(|(options, _)| options.split(',').any(|option| option == "ro"))
        };
        if kind.shown.iter().any(|shown| !is_read_only(&shown.mount_path())) {
            weak.push("a host path is writable");
        }
        if !weak.is_empty() {
            return Err(DockerError::NotConfined { reason: weak.join("; ") });
        }
        if own_kernel && is_value("NoNewPrivs", "1") {
            report.layers.push(Layer::NoNewPrivileges);
        }
        // The checked root implies a mount namespace. A first process with pid 1 is that of a process
        // namespace, and its death kills all others. It sets the run's limits itself.
        report.layers.extend([Layer::MountNamespace, Layer::ResourceLimits, Layer::TreeKill]);
        report.missing.extend([Layer::IpcNamespace, Layer::UtsNamespace, Layer::CgroupNamespace].map(
            |layer| MissingLayer::new(layer, "requested from the daemon; the container does not show it"),
        ));
        let mut limit = |layer: Layer, shown: Option<u64>, wanted: u64| match shown {
            Some(shown) if shown <= wanted => report.layers.push(layer),
            _ => report
                .missing
                .push(MissingLayer::new(layer, "requested from the daemon; the container does not show it")),
        };
        limit(Layer::MemoryLimit, self.limit(MEMORY), kind.memory);
        limit(Layer::ProcessLimit, self.limit(PROCESSES), u64::from(kind.processes) + 1);
        // Version 1 counts memory plus swap, version 2 swap alone.
        limit(Layer::NoSwap, self.limit(SWAP), if self.text(SWAP[0]).is_empty() { 0 } else { kind.memory });
        if let Some(quota) = kind.cpu_quota {
            // Microseconds per tenth of a second, the only requested period.
            let shown =
                PROCESSORS.iter().find_map(|place| self.text(*place).split_whitespace().next()?.parse().ok());
            limit(Layer::CpuQuota, shown, (f64::from(quota) * 100_000.0).ceil() as u64 + 1);
        }
        if own_kernel && !workspace && !shows_workspace {
            report.missing.push(MissingLayer::new(
                Layer::WorkspaceQuota,
                "requested from the daemon; the runtime's kernel does not show it",
            ));
        }
        let absent = [
            (Layer::UserNamespace, "the daemon maps no user ids; the program runs as an unprivileged user"),
            (Layer::LandlockFiles, "a container has a private root instead"),
            (Layer::LandlockTcp, "a container without network needs none"),
        ];
        report.missing.extend(absent.map(|(layer, reason)| MissingLayer::new(layer, reason)));
        report.layers.sort_unstable();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolpost_sandbox::Limits;

    const STATUS_TEXT: &str = "Name:\tinit\nPid:\t1\nUid:\t65534\t65534\t65534\t65534\nCapInh:\t0000000000000000\nCapPrm:\t0\n\
        CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    const MOUNTS_TEXT: &str = "1 0 0:1 / / ro,relatime - overlay overlay rw,lowerdir=x\n\
        2 1 0:2 / /workspace rw,nosuid,nodev - tmpfs tmpfs rw,size=1k,uid=65534\n";
    const INTERFACES_TEXT: &str = "Inter-|\n face |\n    lo: 0 0\n";

    fn facts(texts: [(usize, String); 6]) -> Facts {
        let mut facts = Facts::default();
        for (index, text) in texts {
            let content = [vec![index as u8], text.into_bytes()].concat();
            facts.add(&Frame { kind: b'a', content });
        }
        facts
    }

    fn all() -> [(usize, String); 6] {
        let release = rustix::system::uname();
        let version = format!("Linux version {} (x)", release.release().to_string_lossy());
        [
            (STATUS, STATUS_TEXT.into()),
            (MOUNTS, MOUNTS_TEXT.into()),
            (INTERFACES, INTERFACES_TEXT.into()),
            (3, "536870912\n".into()),
            (5, "65\n".into()),
            (VERSION, version),
        ]
    }

    fn judge(facts: &Facts) -> Result<Report, DockerError> {
        let kind = Kind::new("toolpost", String::new(), None, Level::Strict, &Limits::default(), Vec::new());
        let mut report = Report::new("docker", None, Level::Strict);
        facts.fill(&kind, true, &mut report).map(|()| report)
    }

    #[test]
    fn a_missing_protection_fails_the_run() {
        let report = judge(&facts(all())).unwrap();
        for layer in [Layer::Seccomp, Layer::PrivateRoot, Layer::MemoryLimit, Layer::ProcessLimit] {
            assert!(report.has(layer), "{layer:?} {report:?}");
        }
        for (index, from, to, reason) in [
            (STATUS, "Uid:\t65534", "Uid:\t0", "root"),
            (STATUS, "Pid:\t1", "Pid:\t71", "number 1"),
            (STATUS, "CapEff:\t0000000000000000", "CapEff:\t00000000a80425fb", "capabilities"),
            (STATUS, "CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb", "capabilities"),
            (STATUS, "NoNewPrivs:\t1", "NoNewPrivs:\t0", "gain privileges"),
            (STATUS, "Seccomp:\t2", "Seccomp:\t0", "policy"),
            (MOUNTS, "/ / ro,", "/ / rw,", "root is writable"),
            (MOUNTS, "size=1k,", "", "workspace"),
            (INTERFACES, "    lo: 0 0\n", "    lo: 0 0\n  eth0: 1 1\n", "network"),
        ] {
            let mut texts = all();
            let text = &mut texts.iter_mut().find(|(number, _)| *number == index).unwrap().1;
            assert!(text.contains(from));
            *text = text.replacen(from, to, 1);
            let error = judge(&facts(texts)).unwrap_err().to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        }
        let mut texts = all();
        texts[3].1 = "9223372036854771712".into();
        let report = judge(&facts(texts)).unwrap();
        assert!(!report.has(Layer::MemoryLimit), "a limit that is not there is not reported");
        for layer in [Layer::IpcNamespace, Layer::UtsNamespace, Layer::CgroupNamespace] {
            assert!(!report.has(layer), "{layer:?} cannot be seen from inside");
        }
        assert!(report.missing.iter().any(|missing| missing.layer == Layer::MemoryLimit));
    }
}

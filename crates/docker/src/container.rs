//! Creates containers: settings, names, labels, and the image with our first process.

use std::sync::OnceLock;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use toolpost_egress::shorten;

use super::engine::{Engine, ImageFacts};
use super::error::DockerError;
use super::shown::Shown;
use super::tar;
use toolpost_sandbox::container::{first_process, seccomp_profile};
use toolpost_sandbox::{Level, Limits};

const FIRST_PROCESS_PATH: &str = "/.toolpost/init";

/// The label of our containers and images.
pub(super) const LABEL: &str = "toolpost";
const OWNER: &str = "toolpost.owner";
const OWNER_STARTED: &str = "toolpost.owner.started";
const MACHINE: &str = "toolpost.machine";
const BASE: &str = "toolpost.base";
/// The name of images with our first process.
const PREPARED: &str = "toolpost-prepared";

/// The user inside: `nobody` on every system.
const USER: u32 = 65534;

/// The distinguishing settings of a container. Containers of one kind are interchangeable.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kind {
    /// The name prefix.
    pub(super) prefix: String,
    /// The id of the image with our first process.
    pub(super) image: String,
    pub(super) runtime: Option<String>,
    /// The level of its system call policy: `strict` or `maximum`.
    pub(super) level: Level,
    pub(super) memory: u64,
    pub(super) processes: u32,
    pub(super) cpu_quota: Option<f32>,
    pub(super) workspace_bytes: u64,
    pub(super) workspace_inodes: u64,
    /// Whether its first process listens for the egress proxy.
    pub(super) has_egress: bool,
    /// The read-only host paths.
    pub(super) shown: Vec<Shown>,
}

impl Kind {
    pub(super) fn new(
        prefix: &str,
        image: String,
        runtime: Option<String>,
        level: Level,
        limits: &Limits,
        shown: Vec<Shown>,
    ) -> Self {
        Self {
            prefix: prefix.to_owned(),
            image,
            runtime,
            level,
            memory: limits.memory,
            processes: limits.processes,
            cpu_quota: limits.cpu_quota,
            workspace_bytes: limits.workspace_bytes,
            workspace_inodes: limits.workspace_inodes,
            has_egress: false,
            shown,
        }
    }

    /// Whether the workspace is a read-only host directory.
    pub(super) fn shows_workspace(&self) -> bool {
        self.shown.iter().any(Shown::is_workspace)
    }

    /// The settings for the Docker API. They contain no host path except those that the operator shows, and
    /// no untrusted text.
    pub(super) fn settings(&self) -> Value {
        let directory = |extra: &str| {
            format!(
                "rw,nosuid,nodev,size={},nr_inodes={},uid={USER},gid={USER},{extra}",
                self.workspace_bytes, self.workspace_inodes
            )
        };
        let mut temporary = json!({
            "/tmp": directory("mode=1777,noexec"),
            "/dev/shm": directory("mode=1777,noexec"),
        });
        if !self.shows_workspace() {
            temporary["/workspace"] = directory("mode=0755,exec").into();
        }
        // One more than the program's limit: the first process.
        let processes = u64::from(self.processes) + 1;
        let host = json!({
            "Binds": [],
            "Mounts": self.shown.iter().map(Shown::settings).collect::<Vec<_>>(),
            "NetworkMode": "none",
            "ReadonlyRootfs": true,
            "Privileged": false,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": [
                "no-new-privileges",
                format!("seccomp={}", seccomp_profile(self.level, self.has_egress)),
            ],
            "PidMode": "",
            "IpcMode": "private",
            "UTSMode": "",
            "CgroupnsMode": "private",
            "Memory": self.memory,
            // Equal to the memory limit: no swap.
            "MemorySwap": self.memory,
            "PidsLimit": processes,
            "NanoCpus": self.cpu_quota.map_or(0, |quota| (f64::from(quota) * 1e9) as u64),
            "Ulimits": [
                // With 0 the host would still start a core dump helper.
                { "Name": "core", "Soft": 1, "Hard": 1 },
                { "Name": "sigpending", "Soft": 1024, "Hard": 1024 },
                { "Name": "memlock", "Soft": 65536, "Hard": 65536 },
                { "Name": "msgqueue", "Soft": 65536, "Hard": 65536 },
                { "Name": "nofile", "Soft": 4096, "Hard": 4096 },
            ],
            "Tmpfs": temporary,
            "RestartPolicy": { "Name": "no" },
            "AutoRemove": false,
            "Init": false,
            "LogConfig": { "Type": "none", "Config": {} },
            "Runtime": self.runtime.clone().unwrap_or_default(),
        });
        json!({
            "Image": self.image,
            "Entrypoint": [FIRST_PROCESS_PATH],
            "Cmd": [],
            "Env": [],
            "User": format!("{USER}:{USER}"),
            "WorkingDir": "/",
            "Hostname": "sandbox",
            "Domainname": "",
            "AttachStdin": true,
            "AttachStdout": true,
            "AttachStderr": false,
            "OpenStdin": true,
            "StdinOnce": true,
            "Tty": false,
            // Without network set-up there is an empty namespace; gVisor needs an explicit `none`.
            "NetworkDisabled": self.runtime.as_deref() != Some(super::OWN_KERNEL),
            "Healthcheck": { "Test": ["NONE"] },
            "StopSignal": "SIGKILL",
            "Labels": labels(),
            "HostConfig": host,
        })
    }
}

/// The default name prefix.
pub(super) const PREFIX: &str = "toolpost";

/// Creates a unique name: the prefix and eight hexadecimal digits.
pub(super) fn name(prefix: &str) -> String {
    format!("{prefix}-{}", random_digits())
}

fn random_digits() -> String {
    let mut bytes = [0u8; 4];
    // The daemon rejects a collision, so any source is good enough.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    format!("{:08x}", u32::from_ne_bytes(bytes))
}

/// The start time of a process in kernel ticks; none if there is no such process.
fn start_time(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name in parentheses may contain anything; the time is the 20th field after it.
    text.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// The boot id of this machine's kernel.
fn machine() -> &'static str {
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
    })
}

fn labels() -> Value {
    let pid = std::process::id();
    json!({
        LABEL: "container",
        OWNER: pid.to_string(),
        OWNER_STARTED: start_time(pid).unwrap_or_default(),
        MACHINE: machine(),
    })
}

/// Removes the containers of dead programs of this machine and returns their number.
pub(super) fn remove_leftovers(engine: &Engine) -> Result<usize, DockerError> {
    let mut removed = 0;
    for (id, labels) in engine.with_label(&format!("{LABEL}=container"))? {
        let text = |name: &str| labels[name].as_str().unwrap_or_default();
        // A remote daemon may serve several machines. A local one has only this machine's containers, also
        // from before the last boot.
        let is_ours = text(MACHINE) == machine();
        let is_alive = is_ours
            && text(OWNER).parse().ok().and_then(start_time).is_some_and(|time| time == text(OWNER_STARTED));
        if is_alive || !(is_ours || engine.host().is_local()) {
            continue;
        }
        engine.remove(&id)?;
        removed += 1;
    }
    Ok(removed)
}

/// An image from which containers can be created.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) id: String,
    /// The image's search path.
    pub(super) search_path: Option<String>,
    /// The image's working directory, if set.
    pub(super) directory: Option<String>,
    /// The image's entry point, and its default arguments.
    pub(super) entry: Vec<String>,
    pub(super) arguments: Vec<String>,
    /// The image's variables, except the search path.
    pub(super) variables: Vec<(String, String)>,
}

/// The tag of the base image with our first process.
fn prepared_tag(base: &str) -> String {
    let digest = Sha256::digest(first_process().unwrap_or_default());
    let own = super::hex(digest.get(..4).unwrap_or_default());
    let base = base.rsplit(':').next().unwrap_or(base);
    format!("{PREPARED}:{}-{own}", base.get(..16).unwrap_or(base))
}

/// Returns the image with our first process, built once as a layer of a few kilobytes.
pub(super) fn prepare(engine: &Engine, name: &str, base: &ImageFacts) -> Result<Prepared, DockerError> {
    let unusable = |reason: String| DockerError::ImageUnusable { image: shorten(name), reason };
    let first_process = first_process().map_err(|missing| unusable(missing.to_owned()))?;
    if !base.volumes.is_empty() {
        return Err(unusable(format!(
            "it declares volumes ({}), which have no size limit; build it without `VOLUME`",
            shorten(&base.volumes.join(", "))
        )));
    }
    let prepared = |id: String| Prepared {
        id,
        search_path: base.search_path.clone(),
        directory: base.directory.clone(),
        entry: base.entry.clone(),
        arguments: base.arguments.clone(),
        variables: base.variables.clone(),
    };
    let tag = prepared_tag(&base.id);
    if let Some(found) = engine.image(&tag)? {
        let is_same = found.labels.iter().any(|(name, value)| name == BASE && *value == base.id);
        if is_same {
            return Ok(prepared(found.id));
        }
    }
    let mut labels = labels();
    let settings = json!({
        "Image": base.id, "Entrypoint": [FIRST_PROCESS_PATH], "Cmd": [], "NetworkDisabled": true, "Labels": labels,
        "HostConfig": { "NetworkMode": "none" },
    });
    let container = engine.create(&self::name(PREFIX), name, &settings)?;
    let mut archive = tar::Writer::new(Vec::new());
    let written = archive
        .directory(".toolpost", 0o755)
        .and_then(|()| {
            archive.file(".toolpost/init", 0o555, first_process.len() as u64, &mut &*first_process)
        })
        .and_then(|()| archive.finish())
        .map_err(|source| DockerError::File { action: "make", path: "archive".into(), source });
    let result = written.and_then(|bytes| {
        engine.unpack(&container, &mut bytes.as_slice())?;
        labels[LABEL] = "prepared".into();
        labels[BASE] = base.id.clone().into();
        engine.commit(&container, &tag, &json!({ "Labels": labels, "Entrypoint": [FIRST_PROCESS_PATH] }))
    });
    let removed = engine.remove(&container);
    let id = result?;
    removed?;
    Ok(prepared(id))
}

/// The tags of the images prepared from a base.
pub(super) fn prepared_from(engine: &Engine, base: &str) -> Result<Vec<String>, DockerError> {
    engine.images_with_label(&format!("{BASE}={base}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_prefix_and_eight_digits() {
        let name = name(PREFIX);
        let digits = name.strip_prefix("toolpost-").unwrap();
        assert!(digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        assert_ne!(name, super::name(PREFIX));
    }

    #[test]
    fn settings_share_nothing_with_the_host() {
        let kind = Kind::new(PREFIX, "sha256:x".into(), None, Level::Strict, &Limits::default(), Vec::new());
        let settings = kind.settings();
        let host = &settings["HostConfig"];
        for (name, expected) in [
            ("Binds", json!([])),
            ("Mounts", json!([])),
            ("NetworkMode", json!("none")),
            ("Privileged", json!(false)),
            ("ReadonlyRootfs", json!(true)),
            ("CapDrop", json!(["ALL"])),
            ("CapAdd", json!([])),
            ("PidMode", json!("")),
            ("IpcMode", json!("private")),
        ] {
            assert_eq!(host[name], expected, "{name}");
        }
        assert_eq!(host["Memory"], host["MemorySwap"]);
        assert_eq!(settings["Entrypoint"], json!([FIRST_PROCESS_PATH]));
        assert!(!settings.to_string().contains("docker.sock"));
    }

    #[test]
    fn a_process_has_a_start_time_as_long_as_it_lives() {
        let own = start_time(std::process::id()).unwrap();
        assert!(own.parse::<u64>().is_ok(), "{own}");
        assert_eq!(start_time(u32::MAX), None);
    }
}

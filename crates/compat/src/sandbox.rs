//! `ProcessSandboxConfig`.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use toolpost_core::ToolError;

use crate::fields::Fields;

const MEBIBYTE: u64 = 1 << 20;

/// An imported `ProcessSandboxConfig`.
///
/// | field | here |
/// |---|---|
/// | `max_memory_mb` (256), `max_cpu_percent` (25), `max_execution_time` (30), `max_file_descriptors` (64), `max_processes` (1) | limits of a run |
/// | `allowed_paths` | readable files and directories of the host |
/// | `blocked_paths` | unreachable paths of the host |
/// | `environment_variables` | environment variables; no others are set |
/// | `enable_network` (false), `temp_dir`, `chroot_dir`, `user_id`, `group_id` | rejected if set: the sandbox has its own root, temporary directories and user, and allows hosts by name |
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SandboxConfig {
    /// Memory of all processes together, in bytes.
    pub memory: u64,
    /// Maximum number of busy processors.
    pub cpu: f32,
    /// Timeout of a run.
    pub time: Duration,
    /// Maximum number of open descriptors per process.
    pub descriptors: u32,
    /// Maximum number of processes and threads.
    pub processes: u32,
    /// Readable absolute paths.
    pub allowed: Vec<PathBuf>,
    /// Unreachable absolute paths.
    pub blocked: Vec<PathBuf>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
}

impl SandboxConfig {
    /// Reads a `ProcessSandboxConfig`. A missing or `null` field has its default.
    ///
    /// # Errors
    /// `INVALID_INPUT` with the JSON pointer of an invalid field or of a request that the sandbox does not support.
    pub fn from_json(value: &Value) -> Result<Self, ToolError> {
        let mut fields = Fields::new(value, "")?;
        let memory = fields.whole("max_memory_mb")?.unwrap_or(256).saturating_mul(MEBIBYTE);
        let cpu = (fields.positive("max_cpu_percent")?.unwrap_or(25.0) / 100.0) as f32;
        let seconds = fields.positive("max_execution_time")?.unwrap_or(30.0);
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|error| fields.wrong("max_execution_time", error))?;
        let descriptors = Self::count(&mut fields, "max_file_descriptors", 64)?;
        let processes = Self::count(&mut fields, "max_processes", 1)?;
        if memory == 0 {
            return Err(fields.wrong("max_memory_mb", "expected at least 1"));
        }
        if fields.flag("enable_network", false)? {
            return Err(fields
                .wrong("enable_network", "unrestricted network access is unsupported")
                .suggest("Omit it, and allow hosts by name in the operator's settings."));
        }
        for (name, reason) in [
            ("temp_dir", "every sandbox has its own temporary directories"),
            ("chroot_dir", "the sandbox has its own root from level `strict`"),
            ("user_id", "code runs as its own user"),
            ("group_id", "code runs in its own group"),
        ] {
            if fields.any(name).is_some() {
                return Err(fields.wrong(name, reason).suggest(format!("Omit `{name}`.")));
            }
        }
        let allowed = Self::paths(&mut fields, "allowed_paths")?;
        let blocked = Self::paths(&mut fields, "blocked_paths")?;
        for (index, path) in blocked.iter().enumerate() {
            if let Some(shown) = allowed.iter().find(|shown| path.starts_with(shown)) {
                let reason = format!("`{}` is in the allowed path `{}`", path.display(), shown.display());
                return Err(fields.wrong(&format!("blocked_paths/{index}"), reason));
            }
        }
        let mut environment = BTreeMap::new();
        for (name, value) in fields.object("environment_variables")?.into_iter().flatten() {
            let Some(text) = value.as_str() else {
                return Err(fields.wrong(&format!("environment_variables/{name}"), "expected a string"));
            };
            environment.insert(name.clone(), text.to_owned());
        }
        fields.finish()?;
        Ok(Self { memory, cpu, time, descriptors, processes, allowed, blocked, environment })
    }

    fn count(fields: &mut Fields<'_>, name: &'static str, default: u64) -> Result<u32, ToolError> {
        let number = fields.whole(name)?.unwrap_or(default);
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(fields.wrong(name, format!("expected 1 to {}, found {number}", u32::MAX))),
        }
    }

    fn paths(fields: &mut Fields<'_>, name: &'static str) -> Result<Vec<PathBuf>, ToolError> {
        let paths: Vec<PathBuf> = fields.texts(name)?.into_iter().map(PathBuf::from).collect();
        let is_plain =
            |path: &Path| path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        match paths.iter().position(|path| !is_plain(path)) {
            Some(index) => {
                let place = format!("{name}/{index}");
                Err(fields.wrong(&place, "expected an absolute path without `..`"))
            }
            None => Ok(paths),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_is_read_and_has_its_default() {
        let config = SandboxConfig::from_json(&json!({})).unwrap();
        assert_eq!((config.memory, config.cpu, config.time), (256 << 20, 0.25, Duration::from_secs(30)));
        assert_eq!((config.descriptors, config.processes), (64, 1));
        let config = SandboxConfig::from_json(&json!({
            "max_memory_mb": 128, "max_cpu_percent": 50.0, "max_execution_time": 5, "max_file_descriptors": 32,
            "max_processes": 4, "enable_network": false, "temp_dir": null, "chroot_dir": null, "user_id": null,
            "group_id": null, "allowed_paths": ["/srv/data"], "blocked_paths": ["/srv"],
            "environment_variables": { "MODE": "test" },
        }))
        .unwrap();
        let expected = SandboxConfig {
            memory: 128 << 20,
            cpu: 0.5,
            time: Duration::from_secs(5),
            descriptors: 32,
            processes: 4,
            allowed: vec!["/srv/data".into()],
            blocked: vec!["/srv".into()],
            environment: BTreeMap::from([("MODE".into(), "test".into())]),
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn unsupported_fields_are_rejected_by_name() {
        for (field, value, pointer) in [
            ("enable_network", json!(true), "/enable_network"),
            ("temp_dir", json!("/tmp"), "/temp_dir"),
            ("chroot_dir", json!("/srv"), "/chroot_dir"),
            ("user_id", json!(0), "/user_id"),
            ("group_id", json!(1), "/group_id"),
            ("max_memory_mb", json!(0), "/max_memory_mb"),
            ("max_processes", json!(0), "/max_processes"),
            ("max_file_descriptors", json!(0), "/max_file_descriptors"),
            ("max_execution_time", json!(0), "/max_execution_time"),
            ("max_cpu_percent", json!(-1), "/max_cpu_percent"),
            ("allowed_paths", json!(["data"]), "/allowed_paths/0"),
            ("blocked_paths", json!(["/a/../b"]), "/blocked_paths/0"),
            ("environment_variables", json!({ "A": 1 }), "/environment_variables/A"),
            ("max_memory", json!(1), "/max_memory"),
        ] {
            let error = SandboxConfig::from_json(&json!({ field: value })).unwrap_err();
            assert_eq!(error.context()["pointer"], pointer, "{error}");
        }
        let both = json!({ "allowed_paths": ["/srv"], "blocked_paths": ["/srv/secret"] });
        assert_eq!(SandboxConfig::from_json(&both).unwrap_err().context()["pointer"], "/blocked_paths/0");
    }
}

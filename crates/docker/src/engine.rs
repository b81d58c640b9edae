//! The calls of the Docker Engine API in use, with typed errors.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_egress::shorten;

use super::connection::Connection;
use super::error::DockerError;
use super::host::DockerHost;
use super::http::{self, Answer, Body};
use super::login::{RegistryLogin, registry};

/// The oldest supported API version (Docker 20.10), and the newest tested one.
const MIN_VERSION: (u32, u32) = (1, 41);
const MAX_VERSION: (u32, u32) = (1, 47);
/// The time that a container has to die on removal.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A connected daemon and its API version.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    host: DockerHost,
    version: String,
    /// The timeout of calls that should return at once.
    answer_timeout: Duration,
}

/// Information about the daemon.
#[derive(Debug, Clone)]
pub(super) struct Information {
    pub(super) runtimes: Vec<String>,
    pub(super) default_runtime: String,
    pub(super) cgroup_version: String,
    pub(super) security: Vec<String>,
    pub(super) server: String,
}

/// The state of a container.
#[derive(Debug, Clone, Default)]
pub(super) struct ContainerState {
    pub(super) status: String,
    pub(super) exit_code: i64,
    pub(super) was_out_of_memory: bool,
    pub(super) error: String,
}

/// Information about an image.
#[derive(Debug, Clone)]
pub(super) struct ImageFacts {
    pub(super) id: String,
    pub(super) tags: Vec<String>,
    pub(super) size: u64,
    pub(super) created: String,
    pub(super) volumes: Vec<String>,
    pub(super) labels: Vec<(String, String)>,
    pub(super) search_path: Option<String>,
    pub(super) directory: Option<String>,
    pub(super) entry: Vec<String>,
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) system: String,
}

impl Engine {
    /// Connects to the daemon and negotiates a version.
    pub(super) fn connect(host: &DockerHost, answer_timeout: Duration) -> Result<Self, DockerError> {
        let action = "ping";
        let answer = http::request(host, action, "GET", "/_ping", Body::None, answer_timeout)?;
        let answer = accept(action, answer)?;
        let offered = answer.version.as_deref().and_then(parse_version).ok_or_else(|| {
            DockerError::protocol(action, "the `Api-Version` header is missing; this is not a Docker daemon")
        })?;
        if offered < MIN_VERSION {
            let reason = format!(
                "its API version is {}.{}, expected at least {}.{} (Docker 20.10); update it",
                offered.0, offered.1, MIN_VERSION.0, MIN_VERSION.1
            );
            return Err(DockerError::protocol(action, reason));
        }
        let (major, minor) = offered.min(MAX_VERSION);
        Ok(Self { host: host.clone(), version: format!("/v{major}.{minor}"), answer_timeout })
    }

    pub(super) fn host(&self) -> &DockerHost {
        &self.host
    }

    pub(super) fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    fn call(
        &self,
        action: &str,
        method: &str,
        path: &str,
        body: Body<'_>,
        limit: Duration,
    ) -> Result<Answer, DockerError> {
        http::request(&self.host, action, method, &format!("{}{path}", self.version), body, limit)
    }

    fn get(&self, action: &str, path: &str) -> Result<Answer, DockerError> {
        self.call(action, "GET", path, Body::None, self.answer_timeout)
    }

    pub(super) fn information(&self) -> Result<Information, DockerError> {
        let action = "query the daemon";
        let value = read(action, &accept(action, self.get(action, "/info")?)?)?;
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Ok(Information {
            runtimes: value["Runtimes"]
                .as_object()
                .map(|all| all.keys().cloned().collect())
                .unwrap_or_default(),
            default_runtime: text("DefaultRuntime"),
            cgroup_version: text("CgroupVersion"),
            security: texts(&value["SecurityOptions"]),
            server: text("ServerVersion"),
        })
    }

    /// Creates a container and returns its id.
    pub(super) fn create(&self, name: &str, image: &str, settings: &Value) -> Result<String, DockerError> {
        let action = "create a container";
        let path = format!("/containers/create?name={name}");
        let answer = self.call(action, "POST", &path, Body::Json(settings), self.answer_timeout)?;
        if answer.status == 404 {
            return Err(DockerError::ImageMissing { image: shorten(image) });
        }
        let value = read(action, &accept(action, answer)?)?;
        let id = value["Id"].as_str().filter(|id| is_id(id));
        id.map(str::to_owned).ok_or_else(|| DockerError::protocol(action, "the id is missing"))
    }

    pub(super) fn start(&self, id: &str) -> Result<(), DockerError> {
        let action = "start a container";
        let answer =
            self.call(action, "POST", &format!("/containers/{id}/start"), Body::None, self.answer_timeout)?;
        gone(id, &answer)?;
        accept(action, answer).map(drop)
    }

    /// Attaches to a container's input and output.
    pub(super) fn attach(&self, id: &str) -> Result<(Connection, Vec<u8>), DockerError> {
        let action = "attach to a container";
        let path = format!("{}/containers/{id}/attach?stream=1&stdin=1&stdout=1", self.version);
        match http::upgrade(&self.host, action, &path, self.answer_timeout)? {
            Ok(stream) => Ok(stream),
            Err(answer) => {
                gone(id, &answer)?;
                Err(rejection(action, &answer))
            }
        }
    }

    /// The state of a container; none if it does not exist.
    pub(super) fn state(&self, id: &str) -> Result<Option<ContainerState>, DockerError> {
        let action = "inspect a container";
        let answer = self.get(action, &format!("/containers/{id}/json"))?;
        if answer.status == 404 {
            return Ok(None);
        }
        let value = read(action, &accept(action, answer)?)?;
        let state = &value["State"];
        let text = |name: &str| state[name].as_str().unwrap_or_default().to_owned();
        Ok(Some(ContainerState {
            status: text("Status"),
            exit_code: state["ExitCode"].as_i64().unwrap_or_default(),
            was_out_of_memory: state["OOMKilled"].as_bool().unwrap_or_default(),
            error: text("Error"),
        }))
    }

    /// Kills and removes a container. A missing one is not an error.
    pub(super) fn remove(&self, id: &str) -> Result<(), DockerError> {
        let action = "remove a container";
        let path = format!("/containers/{id}?force=1&v=1");
        let begin = Instant::now();
        loop {
            let answer = self.call(action, "DELETE", &path, Body::None, self.answer_timeout)?;
            if matches!(answer.status, 404 | 409) {
                return Ok(());
            }
            // The daemon gives up on a container whose many processes die slowly; a retry finds it dead.
            if answer.status != 500 || begin.elapsed() >= REMOVE_TIMEOUT {
                return accept(action, answer).map(drop);
            }
            thread::sleep(Duration::from_millis(250));
        }
    }

    /// The ids and labels of all containers with a label.
    pub(super) fn with_label(&self, label: &str) -> Result<Vec<(String, Value)>, DockerError> {
        let action = "list containers";
        let filter = encode(&json!({ "label": [label] }).to_string());
        let answer = self.get(action, &format!("/containers/json?all=1&filters={filter}"))?;
        let value = read(action, &accept(action, answer)?)?;
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(list
            .iter()
            .filter_map(|entry| {
                let id = entry["Id"].as_str().filter(|id| is_id(id))?;
                Some((id.to_owned(), entry["Labels"].clone()))
            })
            .collect())
    }

    /// Unpacks an archive beneath the root of a container, running or not.
    pub(super) fn unpack(&self, id: &str, archive: &mut dyn Read) -> Result<(), DockerError> {
        let action = "copy files into a container";
        let path = format!("/containers/{id}/archive?path=%2F");
        let answer = self.call(action, "PUT", &path, Body::Archive(archive), self.answer_timeout)?;
        gone(id, &answer)?;
        accept(action, answer).map(drop)
    }

    /// Commits a container as an image and returns its id.
    pub(super) fn commit(&self, id: &str, tag: &str, settings: &Value) -> Result<String, DockerError> {
        let action = "commit a container";
        let (name, version) = split_tag(tag);
        let path = format!("/commit?container={id}&repo={}&tag={}", encode(name), encode(version));
        let answer = self.call(action, "POST", &path, Body::Json(settings), self.answer_timeout * 4)?;
        gone(id, &answer)?;
        let value = read(action, &accept(action, answer)?)?;
        value["Id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| DockerError::protocol(action, "the id is missing"))
    }

    /// Information about an image; none if it does not exist.
    pub(super) fn image(&self, name: &str) -> Result<Option<ImageFacts>, DockerError> {
        let action = "inspect an image";
        let answer = self.get(action, &format!("/images/{}/json", encode(name)))?;
        if answer.status == 404 {
            return Ok(None);
        }
        let value = read(action, &accept(action, answer)?)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let config = &value["Config"];
        let mut variables: Vec<(String, String)> = texts(&config["Env"])
            .iter()
            .filter_map(|variable| variable.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let search_path =
            variables.iter().position(|(name, _)| name == "PATH").map(|place| variables.remove(place).1);
        Ok(Some(ImageFacts {
            id: text(&value["Id"]),
            tags: texts(&value["RepoTags"]),
            size: value["Size"].as_u64().unwrap_or_default(),
            created: text(&value["Created"]),
            volumes: config["Volumes"]
                .as_object()
                .map(|all| all.keys().cloned().collect())
                .unwrap_or_default(),
            labels: pairs(&config["Labels"]),
            search_path,
            directory: config["WorkingDir"]
                .as_str()
                .filter(|directory| directory.starts_with('/'))
                .map(str::to_owned),
            entry: texts(&config["Entrypoint"]),
            arguments: texts(&config["Cmd"]),
            variables,
            system: format!("{}/{}", text(&value["Os"]), text(&value["Architecture"])),
        }))
    }

    /// The names of all images with a label, each as `name:tag` or id.
    pub(super) fn images_with_label(&self, label: &str) -> Result<Vec<String>, DockerError> {
        let action = "list images";
        let filter = encode(&json!({ "label": [label] }).to_string());
        let answer = self.get(action, &format!("/images/json?filters={filter}"))?;
        let value = read(action, &accept(action, answer)?)?;
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(list
            .iter()
            .flat_map(|entry| {
                let tags: Vec<String> =
                    texts(&entry["RepoTags"]).into_iter().filter(|tag| tag != "<none>:<none>").collect();
                if tags.is_empty() { vec![entry["Id"].as_str().unwrap_or_default().to_owned()] } else { tags }
            })
            .collect())
    }

    /// Pulls an image from its registry.
    pub(super) fn pull(
        &self,
        name: &str,
        login: Option<&RegistryLogin>,
        limit: Duration,
    ) -> Result<(), DockerError> {
        let (image, tag) = split_tag(name);
        let path = format!("/images/create?fromImage={}&tag={}", encode(image), encode(tag));
        let header = login.map(|login| login.header(name)).unwrap_or_default();
        self.progress("pull an image", &path, Body::None, limit, &header).map_err(|error| match error {
            DockerError::Rejected { message: reason, .. } if is_login_error(&reason) => {
                DockerError::LoginRejected { image: shorten(name), registry: shorten(registry(name)), reason }
            }
            DockerError::Rejected { message: reason, .. } => {
                DockerError::NotPulled { image: shorten(name), reason }
            }
            other => other,
        })
    }

    /// Imports an archive as an image of one layer.
    pub(super) fn import(
        &self,
        tag: &str,
        changes: &[String],
        archive: &mut dyn Read,
        limit: Duration,
    ) -> Result<(), DockerError> {
        let (name, version) = split_tag(tag);
        let mut path = format!("/images/create?fromSrc=-&repo={}&tag={}", encode(name), encode(version));
        for change in changes {
            path.push_str("&changes=");
            path.push_str(&encode(change));
        }
        self.progress("import an image", &path, Body::Archive(archive), limit, "")
    }

    /// Removes the name of an image, and the image with its last name.
    pub(super) fn remove_image(&self, name: &str, force: bool) -> Result<(), DockerError> {
        let action = "remove an image";
        let path = format!("/images/{}?force={}", encode(name), u8::from(force));
        let answer = self.call(action, "DELETE", &path, Body::None, self.answer_timeout * 2)?;
        if answer.status == 404 {
            return Err(DockerError::ImageMissing { image: shorten(name) });
        }
        accept(action, answer).map(drop)
    }

    /// A call with progress lines; a successful status may still contain an error line.
    fn progress(
        &self,
        action: &str,
        path: &str,
        body: Body<'_>,
        limit: Duration,
        headers: &str,
    ) -> Result<(), DockerError> {
        const MAX_LINE: usize = 256 << 10;
        let mut line = Vec::new();
        let mut message: Option<String> = None;
        let mut look = |line: &[u8]| {
            let value: Value = serde_json::from_slice(line).unwrap_or_default();
            let text = value["error"].as_str().or_else(|| value["message"].as_str());
            if let Some(text) = text {
                message.get_or_insert_with(|| shorten_long(text));
            }
        };
        let path = format!("{}{path}", self.version);
        let (status, _) =
            http::stream(&self.host, action, "POST", &path, body, limit, headers, &mut |piece| {
                for byte in piece {
                    if *byte == b'\n' {
                        look(&line);
                        line.clear();
                    } else if line.len() < MAX_LINE {
                        line.push(*byte);
                    }
                }
                Ok(())
            })?;
        look(&line);
        if status >= 400 || message.is_some() {
            let message = message.unwrap_or_else(|| "no reason given".into());
            return Err(DockerError::Rejected { action: action.to_owned(), status, message });
        }
        Ok(())
    }
}

/// Whether the daemon's message is about the login.
fn is_login_error(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["unauthorized", "authentication required", "no basic auth credentials", "access denied"]
        .iter()
        .any(|words| reason.contains(words))
}

/// Splits `name:version` or `name@digest`; the default version is `latest`. A port is not a version.
pub(super) fn split_tag(name: &str) -> (&str, &str) {
    if let Some((image, digest)) = name.split_once('@') {
        // A tag beside a digest has no effect.
        let image =
            image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(image, _)| image);
        return (image, digest);
    }
    match name.rsplit_once(':') {
        Some((image, tag)) if !tag.contains('/') => (image, tag),
        _ => (name, "latest"),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Whether a text is a container id, which becomes part of URLs.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Percent-encodes everything special in a path or query.
fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    value
        .as_object()
        .map(|all| {
            all.iter()
                .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().into()))
                .collect()
        })
        .unwrap_or_default()
}

/// Shortens and escapes a daemon's message.
fn shorten_long(text: &str) -> String {
    let mut short: String = text.chars().take(600).flat_map(char::escape_debug).collect();
    if text.chars().nth(600).is_some() {
        short.push('…');
    }
    short
}

fn rejection(action: &str, answer: &Answer) -> DockerError {
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let message = value["message"]
        .as_str()
        .map_or_else(|| shorten_long(&String::from_utf8_lossy(&answer.body)), shorten_long);
    DockerError::Rejected { action: action.to_owned(), status: answer.status, message }
}

fn accept(action: &str, answer: Answer) -> Result<Answer, DockerError> {
    if (200..300).contains(&answer.status) || answer.status == 304 {
        return Ok(answer);
    }
    Err(rejection(action, &answer))
}

/// The error for a removed or stopped container.
fn gone(id: &str, answer: &Answer) -> Result<(), DockerError> {
    if !matches!(answer.status, 404 | 409) {
        return Ok(());
    }
    let DockerError::Rejected { message, .. } = rejection("", answer) else { return Ok(()) };
    Err(DockerError::ContainerGone { container: id.get(..12).unwrap_or(id).to_owned(), reason: message })
}

fn read(action: &str, answer: &Answer) -> Result<Value, DockerError> {
    serde_json::from_slice(&answer.body)
        .map_err(|error| DockerError::protocol(action, format!("the answer is not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_are_split_into_name_and_version() {
        for (name, expected) in [
            ("busybox", ("busybox", "latest")),
            ("a/b:1.2", ("a/b", "1.2")),
            ("localhost:5000/a", ("localhost:5000/a", "latest")),
            ("localhost:5000/a:x", ("localhost:5000/a", "x")),
            ("localhost:5000/a@sha256:00", ("localhost:5000/a", "sha256:00")),
            ("localhost:5000/a:x@sha256:00", ("localhost:5000/a", "sha256:00")),
        ] {
            assert_eq!(split_tag(name), expected);
        }
    }

    #[test]
    fn untrusted_text_stays_in_its_path_segment() {
        assert_eq!(encode("a b&c=d?e#f%\r\n"), "a%20b%26c%3Dd%3Fe%23f%25%0D%0A");
        assert!(is_id(&"a0".repeat(32)) && !is_id("../x") && !is_id(&"g".repeat(64)));
    }
}

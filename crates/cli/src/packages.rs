//! Packages for code: indexes, installation and environments.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toolpost_runtimes::{Environment, Installed, Installer, Profile, Requirements};
use toolpost_sandbox::{BuildCache, Egress, Error, Language, SYSTEM_SEARCH_PATH, Sandbox};

use crate::config::{Config, paths};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// Package sources: the settings, else the variables of `pip` and `npm`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sources {
    index: Option<String>,
    registry: Option<String>,
    certificate: Option<PathBuf>,
    find_links: Option<PathBuf>,
    no_network: bool,
}

impl Sources {
    pub(crate) fn read(config: &Config) -> Result<Self, Failure> {
        let own = &config.settings.packages;
        let path = |setting: &Option<PathBuf>, variable, what: &str| {
            let named = setting.clone().or_else(|| env::get_os(variable).map(PathBuf::from));
            let real = named.map(|path| {
                let real = path.canonicalize().map_err(|error| Failure::file(what, &path, &error))?;
                config.check_pinned(what, &real).map(|()| real)
            });
            real.transpose()
        };
        Ok(Self {
            index: own.index.clone().or_else(|| env::get("PIP_INDEX_URL")),
            registry: own.registry.clone().or_else(|| env::get("npm_config_registry")),
            certificate: path(&own.certificate, "PIP_CERT", "the file of certificates")?,
            find_links: path(&own.find_links, "PIP_FIND_LINKS", "the directory with packages")?,
            no_network: config.settings.no_network,
        })
    }

    /// An installer for packages of a language, in the given sandbox.
    pub(crate) fn installer(&self, language: Language, sandbox: &Sandbox) -> Installer {
        let address = if language == Language::Python { &self.index } else { &self.registry };
        let named = address.as_deref().map(|address| addresses(address, self.no_network));
        let named = named.unwrap_or_default();
        let is_here = !named.is_empty() && named.iter().all(|address| address.ip().is_loopback());
        // The operator named the index: it may be in a private network.
        let own = named.into_iter().filter(|address| is_private(address.ip()));
        let out = own.fold(Egress::new().no_network(self.no_network), Egress::allow_address);
        let mut installer = Installer::new(sandbox.clone().egress(out)).offline(self.no_network && !is_here);
        if let Some(address) = address {
            installer = installer.index(address);
        }
        if let Some(file) = &self.certificate {
            installer = installer.certificate(file);
        }
        if let Some(directory) = &self.find_links {
            installer = installer.find_links(directory);
        }
        installer
    }

    /// The variables for programs that build an image.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        [
            ("PIP_INDEX_URL", self.index.as_ref().map(OsString::from)),
            ("PIP_CERT", self.certificate.as_ref().map(OsString::from)),
            ("npm_config_registry", self.registry.as_ref().map(OsString::from)),
            ("PIP_FIND_LINKS", self.find_links.as_ref().map(OsString::from)),
            ("https_proxy", env::get_os("HTTPS_PROXY")),
            ("SSL_CERT_FILE", env::get_os("SSL_CERT_FILE")),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }

    /// Installs packages for code in a language, or finds installed ones.
    pub(crate) fn install(
        &self,
        packages: &[String],
        language: Option<Language>,
        sandbox: &Sandbox,
    ) -> Result<Installed, Failure> {
        let requirements = match language {
            Some(Language::Python) => Requirements::python(packages)?,
            Some(Language::JavaScript | Language::TypeScript) => Requirements::npm(packages)?,
            other => {
                let other = other.map_or("a command", Language::name);
                return Err(Failure::usage(format!("`--requirement` is not available for {other}"))
                    .hint("Packages are installed for code in python, javascript and typescript."));
            }
        };
        let directory = paths::cache().ok_or_else(paths::no_home)?;
        std::fs::create_dir_all(&directory)
            .map_err(|error| Failure::file("the directory", &directory, &error))?;
        let installer = self.installer(requirements.language(), sandbox);
        crate::runtime::installing(
            |cancel| installer.install(&requirements, &directory.join("packages"), cancel),
            |error| self.explained(error),
        )
    }

    /// Adds a hint about the settings to an error.
    pub(crate) fn explained(&self, error: Error) -> Failure {
        let is_missing = matches!(error, Error::Requirement { .. });
        let failure = Failure::from(error);
        if is_missing && self.no_network {
            return failure.hint(
                "`no_network` is set: packages come only from the directory of `packages.find_links` or PIP_FIND_LINKS.",
            );
        }
        if is_missing {
            return failure.hint(
                "Check its name and version. `packages.index` and `packages.registry` name the sources, also in a private network.",
            );
        }
        failure
    }
}

/// The addresses of an index; `no_network` skips the name lookup.
fn addresses(address: &str, no_network: bool) -> Vec<SocketAddr> {
    let (scheme, rest) = address.split_once("://").unwrap_or(("https", address));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = if scheme == "http" { 80 } else { 443 };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, text)) if !text.ends_with(']') => (name, text.parse().unwrap_or(port)),
        _ => (host, port),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = name.parse::<IpAddr>() {
        return vec![SocketAddr::new(ip, port)];
    }
    if no_network && name != "localhost" {
        return Vec::new();
    }
    (name, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

/// Whether an address is loopback or private.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local(),
    }
}

/// The build cache, if there is a cache directory.
pub(crate) fn build_cache() -> Result<Option<BuildCache>, Failure> {
    let Some(cache) = paths::cache() else { return Ok(None) };
    std::fs::create_dir_all(&cache).map_err(|error| Failure::file("the directory", &cache, &error))?;
    Ok(Some(BuildCache::at(cache.join("builds"))?))
}

/// The directory of environments.
pub(crate) fn environments() -> Result<PathBuf, Failure> {
    paths::environments().ok_or_else(paths::no_home)
}

/// The environment of a profile, if it exists.
pub(crate) fn environment(name: &str) -> Result<Option<Environment>, Failure> {
    Ok(Environment::list(&environments()?).into_iter().find(|environment| environment.name == name))
}

/// Adds a profile's environment, unless the host's Python has its packages.
pub(crate) fn with_profile(sandbox: Sandbox, name: &str) -> Result<Sandbox, Failure> {
    if let Some(environment) = environment(name)? {
        return Ok(sandbox.search_first(environment.programs()));
    }
    let precondition = |message: String| Failure::new(Exit::Failed, "PRECONDITION", message);
    let Ok(profile) = Profile::named(name) else {
        let known = Profile::NAMES.join(", ");
        let failure = precondition(format!("there is no environment `{name}`"));
        return Err(failure.hint("`toolpost image ls` lists the environments.").hint(format!(
            "Build one: `toolpost image build --profile-file {name}.txt`. Included profiles are {known}."
        )));
    };
    let missing = profile.missing(&sandbox)?;
    if missing.is_empty() {
        return Ok(sandbox);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.requirement.as_str()).collect();
    Err(precondition(format!("the host's Python lacks packages of `{name}`: {}", names.join(", ")))
        .hint(format!("Build the environment: `toolpost image build {name}`.")))
}

/// The search path of interpreters with the packages of a profile.
pub(crate) fn search_path(own: Option<OsString>, name: &str) -> Result<Option<OsString>, Failure> {
    if let Some(environment) = environment(name)? {
        let own = own.unwrap_or_else(|| SYSTEM_SEARCH_PATH.into());
        let mut search = environment.programs().into_os_string();
        search.push(":");
        search.push(own);
        return Ok(Some(search));
    }
    let sandbox = paths::home().iter().fold(Sandbox::new(), Sandbox::home);
    // Fails unless the host's Python has all packages.
    with_profile(own.iter().fold(sandbox, Sandbox::search_path), name)?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_socket_addresses() {
        for (text, expected) in [
            ("http://127.0.0.1:8080/simple", Some("127.0.0.1:8080")),
            ("https://10.0.0.1/simple", Some("10.0.0.1:443")),
            ("http://[::1]:99/", Some("[::1]:99")),
            ("http://[::1]", Some("[::1]:80")),
            ("https://pypi.example/simple", None),
        ] {
            let found = addresses(text, true);
            assert_eq!(found.first().copied(), expected.map(|text| text.parse().unwrap()), "{text}");
        }
        assert!(addresses("http://localhost:1/", true).iter().all(|address| address.ip().is_loopback()));
        assert!(is_private("10.1.2.3".parse().unwrap()) && !is_private("192.0.2.1".parse().unwrap()));
    }
}

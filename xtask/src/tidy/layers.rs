//! Which package may use which: the arrows inside the workspace and the external crates of each layer.

use std::collections::BTreeSet;

use super::Complaint;
use super::tables::{
    EXCLUSIVE, FACADE_USERS, FORBIDDEN, Internal, LAYERS, NOT_IN_LOCKFILE, TEST_PACKAGE, TOP_PACKAGES,
};
use crate::workspace::{DependencyKind, Package, Workspace};

pub(super) fn check(workspace: &Workspace) -> Vec<Complaint> {
    let own: BTreeSet<&str> = workspace.packages.iter().map(|package| package.name.as_str()).collect();
    let mut complaints = Vec::new();
    for package in &workspace.packages {
        complaints.extend(check_package(package, &own));
    }
    complaints.extend(check_lockfile(workspace));
    complaints
}

fn check_package(package: &Package, own: &BTreeSet<&str>) -> Vec<Complaint> {
    let manifest = format!("{}/Cargo.toml", package.directory);
    let complain = |rule, found: String, action: &str| Complaint::new(rule, &manifest, found, action);
    let Some(layer) = LAYERS.iter().find(|layer| layer.package == package.name) else {
        return vec![complain(
            "layers",
            format!("the package `{}` is in no layer", package.name),
            "add it to LAYERS with what it hides, or make it a module of another crate",
        )];
    };
    let mut complaints = Vec::new();
    if layer.directory != package.directory {
        complaints.push(complain(
            "layers",
            format!("`{}` lies in `{}`, expected `{}`", package.name, package.directory, layer.directory),
            "move it, or change its row of LAYERS",
        ));
    }
    for dependency in &package.dependencies {
        let name = dependency.name.as_str();
        let development = dependency.kind == DependencyKind::Development;
        if name == TEST_PACKAGE && !development {
            complaints.push(complain(
                "test-package",
                format!("`{name}` is a normal dependency"),
                "move it to [dev-dependencies]: it is never published",
            ));
        } else if own.contains(name) {
            if !development && !may_use(package, layer.may_use, name) {
                complaints.push(complain(
                    "layers",
                    format!("`{}` may not use `{name}` ({})", package.name, layer.reason),
                    "go through a trait of the core, or write a decision record and change LAYERS",
                ));
            }
        } else if !development {
            complaints.extend(
                external(package, name)
                    .map(|(found, action)| Complaint::new("external-crates", &manifest, found, action)),
            );
        }
    }
    complaints
}

fn may_use(package: &Package, internal: Internal, name: &str) -> bool {
    match internal {
        Internal::Only(names) => names.contains(&name),
        Internal::All => {
            !TOP_PACKAGES.contains(&name)
                || (name == "toolpost" && FACADE_USERS.contains(&package.name.as_str()))
        }
    }
}

fn external<'a>(package: &'a Package, name: &'a str) -> impl Iterator<Item = (String, String)> + 'a {
    let exclusive = EXCLUSIVE
        .iter()
        .filter(move |row| named(row.crates, name) && !row.only.contains(&package.name.as_str()))
        .map(move |row| {
            let action = if row.only.is_empty() {
                "do without it".to_owned()
            } else {
                format!("leave it to {}", row.only.join(", "))
            };
            (format!("`{}` may not use `{name}` ({})", package.name, row.reason), action)
        });
    let forbidden = FORBIDDEN
        .iter()
        .filter(move |row| row.package == package.name && named(row.crates, name))
        .map(move |row| {
            (
                format!("`{}` may not use `{name}` ({})", package.name, row.reason),
                "move the code to a crate that may, or write a decision record and change FORBIDDEN"
                    .to_owned(),
            )
        });
    exclusive.chain(forbidden)
}

fn named(crates: &[&str], name: &str) -> bool {
    crates.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *pattern,
    })
}

/// The names of the packages in the lockfile, in its order.
fn locked(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_package = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.starts_with('[') {
            in_package = line == "[[package]]";
        }
        let name = line.strip_prefix("name = \"")?.strip_suffix('"')?;
        in_package.then_some((index, name))
    })
}

fn check_lockfile(workspace: &Workspace) -> Vec<Complaint> {
    const LOCKFILE: &str = "Cargo.lock";
    const BUDGETS: &str = "xtask/budgets.toml";
    let Some(text) = workspace.text(LOCKFILE) else {
        return vec![Complaint::new("lockfile", LOCKFILE, "there is none", "commit it: builds must repeat")];
    };
    let mut complaints: Vec<Complaint> = locked(&text)
        .filter_map(|(index, name)| {
            let (_, action) = NOT_IN_LOCKFILE.iter().find(|(banned, _)| *banned == name)?;
            Some(Complaint::new("lockfile", LOCKFILE, format!("`{name}` is banned"), *action).at(index))
        })
        .collect();
    let budget =
        workspace.text(BUDGETS).and_then(|text| text.parse::<toml::Table>().ok()).and_then(|table| {
            table
                .get("lockfile")?
                .get("packages")?
                .as_integer()
                .and_then(|budget| usize::try_from(budget).ok())
        });
    let count = locked(&text).count();
    match budget {
        None => complaints.push(Complaint::new(
            "lockfile",
            BUDGETS,
            "no number at `lockfile.packages`",
            "write the budget there",
        )),
        Some(budget) if count > budget => complaints.push(Complaint::new(
            "lockfile",
            LOCKFILE,
            format!("{count} packages, expected at most {budget}"),
            format!("find a smaller dependency or a feature to leave out, or raise the budget in {BUDGETS} with its reason"),
        )),
        Some(_) => {}
    }
    complaints
}

//! The rules on the façade: how many names its root and prelude have, and that no two public types share a name.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;
use super::tables::{MAX_PRELUDE_NAMES, MAX_ROOT_NAMES};
use crate::source::Source;

/// The root of the façade.
const FACADE: &str = "crates/toolpost/src/lib.rs";

/// A public item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Export {
    /// The module of the façade where it is public.
    module: String,
    name: String,
    /// The crate and its module that define it; empty for a second path to an item of the façade.
    origin: String,
}

/// A module that is read: where it is in the façade, and where in its crate.
#[derive(Clone, Debug)]
struct Place {
    module: String,
    krate: String,
    inside: String,
}

impl Place {
    fn nested(&self, name: &str) -> Self {
        Self {
            module: nested(&self.module, name),
            krate: self.krate.clone(),
            inside: nested(&self.inside, name),
        }
    }
}

pub(super) fn check(sources: &[Source]) -> Vec<Complaint> {
    let Some(root) = sources.iter().find(|source| source.path == FACADE) else { return Vec::new() };
    let mut exports = Vec::new();
    let place = Place { module: String::new(), krate: "toolpost".to_owned(), inside: String::new() };
    walk(sources, root, &place, &mut exports);
    let mut complaints = Vec::new();
    for (module, place, limit) in [("", "root", MAX_ROOT_NAMES), ("prelude", "prelude", MAX_PRELUDE_NAMES)] {
        let names: BTreeSet<&str> =
            exports.iter().filter(|export| export.module == module).map(|export| &*export.name).collect();
        if names.len() > limit {
            let found = format!("{} names in the {place}, expected at most {limit}: {names:?}", names.len());
            complaints.push(Complaint::new("facade-names", FACADE, found, "move the rarest into its module"));
        }
    }
    let mut types: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for export in exports.iter().filter(|export| is_type(&export.name) && !export.origin.is_empty()) {
        types.entry(&export.name).or_default().insert(&export.origin);
    }
    for (name, origins) in types.iter().filter(|(_, origins)| origins.len() > 1) {
        let found = format!("the type name `{name}` in {origins:?}");
        complaints.push(Complaint::new("facade-types", FACADE, found, "rename all but one of them"));
    }
    complaints
}

/// Whether a name is spelled like a type, not like a constant or a function.
fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
}

/// Adds the public items of a file, and those of its public modules.
fn walk(sources: &[Source], source: &Source, place: &Place, exports: &mut Vec<Export>) {
    let code: Vec<&str> =
        source.lines.iter().filter(|line| !line.in_test).map(|line| line.code.as_str()).collect();
    items(sources, source, &code.join("\n"), place, exports);
}

fn items(sources: &[Source], source: &Source, code: &str, place: &Place, exports: &mut Vec<Export>) {
    let mut add = |name: &str, origin: String| {
        exports.push(Export { module: place.module.clone(), name: name.to_owned(), origin });
    };
    let own = format!("{}::{}", place.krate, place.inside);
    let (mut uses, mut modules) = (Vec::new(), Vec::new());
    let mut rest = code;
    while let Some((word, after)) = next_public(rest) {
        let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        rest = after;
        match word {
            "use" => {
                let (tree, after) = after.split_once(';').unwrap_or((after, ""));
                rest = after;
                leaves("", tree, &mut uses);
            }
            "mod" => {
                let after = after.get(name.len()..).unwrap_or_default().trim_start();
                let block = after.starts_with('{').then(|| balanced(after));
                modules.push((name, block));
                rest = after.get(block.map_or(0, str::len)..).unwrap_or_default();
            }
            _ => add(name, own.clone()),
        }
    }
    let mut others = Vec::new();
    for (path, alias) in uses.into_iter().filter(|(path, _)| !path.ends_with("__private")) {
        let krate = path.split("::").next().unwrap_or_default();
        if let Some(file) = file_of(sources, krate, &path) {
            let module = if alias == "*" { place.module.clone() } else { nested(&place.module, &alias) };
            let inside = path.get(krate.len() + 2..).unwrap_or_default().to_owned();
            others.push((file, Place { module, krate: krate.to_owned(), inside }));
            continue;
        }
        let parent = path.rsplit_once("::").map_or("", |(parent, _)| parent);
        match krate {
            "crate" if place.krate == "toolpost" => add(&alias, String::new()),
            _ if krate.starts_with("toolpost_") => {
                add(&alias, format!("{krate}::{}", &parent[krate.len()..].trim_start_matches(':')));
            }
            _ => add(&alias, own.clone()),
        }
    }
    for (file, place) in others {
        walk(sources, file, &place, exports);
    }
    for (name, block) in modules.into_iter().filter(|(name, _)| !name.starts_with('_')) {
        let place = place.nested(name);
        let directory = source.path.trim_end_matches("lib.rs").trim_end_matches(".rs").trim_end_matches('/');
        let path = format!("{directory}/{name}.rs");
        match (block, sources.iter().find(|source| source.path == path)) {
            (Some(block), _) => items(sources, source, block, &place, exports),
            (None, Some(file)) => walk(sources, file, &place, exports),
            (None, None) => {}
        }
    }
}

fn nested(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// The file of a crate or of a public module of it, if the path names one.
fn file_of<'a>(sources: &'a [Source], krate: &str, path: &str) -> Option<&'a Source> {
    let directory = format!("crates/{}/src", krate.strip_prefix("toolpost_")?.replace('_', "-"));
    let find = |path: String| sources.iter().find(|source| source.path == path);
    let root = find(format!("{directory}/lib.rs"))?;
    let below = path.strip_prefix(krate)?.trim_start_matches("::");
    if below.is_empty() {
        return Some(root);
    }
    let public = format!("pub mod {below};");
    root.lines
        .iter()
        .any(|line| line.code == public)
        .then(|| find(format!("{directory}/{below}.rs")))
        .flatten()
}

/// The keyword after the next `pub`, and the code after that keyword. Fields and restricted items are passed over.
fn next_public(code: &str) -> Option<(&str, &str)> {
    const ITEMS: [&str; 11] =
        ["use", "mod", "struct", "enum", "trait", "type", "fn", "const", "static", "async", "unsafe"];
    let mut lines = code;
    loop {
        // Items of a module stand at the beginning of a line, those of an inline module one level deeper.
        let at = lines.find("pub ")?;
        let (before, after) = lines.split_at(at);
        let after = after.strip_prefix("pub ")?;
        let depth = before.rsplit('\n').next().unwrap_or(before).len();
        let word = after.split(' ').next().unwrap_or_default();
        lines = after;
        if depth <= 4 && ITEMS.contains(&word) && (depth == 0 || word == "use") {
            return Some((word, after.strip_prefix(word)?.trim_start()));
        }
    }
}

/// The block that begins with a brace, up to the one that closes it.
fn balanced(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return code.get(..=at).unwrap_or(code);
        }
    }
    code
}

/// The paths that a `use` names, each with the name that it gets.
fn leaves(prefix: &str, tree: &str, found: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some((head, list)) = tree.split_once('{') {
        let prefix = format!("{prefix}{}", head.trim());
        let list = list.trim_end().trim_end_matches('}');
        let mut depth = 0_usize;
        let parts = list.split(|c: char| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        });
        for part in parts.filter(|part| !part.trim().is_empty()) {
            leaves(&prefix, part, found);
        }
        return;
    }
    let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let path = format!("{prefix}{}", path.trim());
    let (parent, leaf) = path.rsplit_once("::").unwrap_or(("", &path));
    let alias = if alias.is_empty() { leaf } else { alias.trim() };
    let path = if leaf == "*" || leaf == "self" { parent.to_owned() } else { path.clone() };
    found.push((path, alias.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        check(&sources).into_iter().map(|complaint| complaint.found).collect()
    }

    #[test]
    fn two_types_of_one_name_are_found_through_modules_and_crates() {
        let files = |more: &'static str| {
            [
                (
                    FACADE,
                    "pub use toolpost_core::{Call, tool};\npub use toolpost_sandbox as sandbox;\npub mod record {\n    pub use toolpost_core::Widget;\n}\n",
                ),
                ("crates/core/src/lib.rs", "pub use self::event::Widget;\npub use self::call::Call;\n"),
                ("crates/sandbox/src/lib.rs", more),
                ("crates/sandbox/src/docker.rs", "pub struct Widget;\n"),
            ]
        };
        assert_eq!(complaints(&files("pub use run::Run;\nmod docker;\n")), Vec::<String>::new());
        for text in ["pub mod docker;\n", "pub use run::{Run, Widget};\n", "pub enum Widget {}\n"] {
            let found = complaints(&files(text));
            assert!(found.len() == 1 && found[0].contains("`Widget`"), "{text}: {found:?}");
        }
    }

    #[test]
    fn names_of_the_root_and_the_prelude_are_counted() {
        let names: Vec<String> = (0..=MAX_ROOT_NAMES).map(|n| format!("f{n}")).collect();
        let root = format!("pub use toolpost_core::{{{}}};\n", names.join(", "));
        assert_eq!(complaints(&[(FACADE, &root)]).len(), 1);
        let prelude = format!("pub mod prelude {{\n    {root}}}\n");
        assert_eq!(complaints(&[(FACADE, &prelude)]).len(), 1);
        assert_eq!(
            complaints(&[(FACADE, "pub mod prelude {\n    pub use crate::Call;\n}\npub use a::Call;\n")])
                .len(),
            0
        );
    }
}

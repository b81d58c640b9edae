//! The files of a plan: its own and those of its sub-flows.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::node::{Content, Format, MAX_BYTES, Node, Position};
use super::read::LISTS;
use super::types::{PlanError, PlanProblem};

/// The maximum number of sub-flows within each other.
const MAX_FLOWS: usize = 8;

/// The text of a file of at most [`MAX_BYTES`].
pub(super) fn text_of(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

pub(super) fn only(at: Position, message: impl Into<String>) -> PlanError {
    PlanError(vec![PlanProblem {
        at,
        step: String::new(),
        message: message.into(),
        hint: None,
        is_warning: false,
    }])
}

/// The files of a plan.
pub(super) struct Files<'a> {
    pub(super) text: &'a dyn Fn(&Path) -> Result<String, String>,
    /// The files that are being read, outermost first.
    pub(super) open: Vec<PathBuf>,
}

impl Files<'_> {
    /// The document of a file with the documents of its sub-flows.
    pub(super) fn node(&mut self, path: &Path) -> Result<Node, PlanError> {
        let fail =
            |reason: String| only(Position::default(), format!("cannot read `{}`: {reason}", path.display()));
        let real = path.canonicalize().map_err(|error| fail(error.to_string()))?;
        if self.open.contains(&real) {
            return Err(only(
                Position::default(),
                format!("the flow `{}` is a part of itself", path.display()),
            ));
        }
        if self.open.len() >= MAX_FLOWS {
            return Err(only(Position::default(), format!("flows are nested more than {MAX_FLOWS} times")));
        }
        let text = (self.text)(&real).map_err(fail)?;
        let mut node =
            Node::parse(&text, Format::of_path(&real)).map_err(|(at, message)| only(at, message))?;
        self.open.push(real.clone());
        self.expand(&mut node, real.parent())?;
        self.open.pop();
        Ok(node)
    }

    /// Replaces the paths of sub-flows by their documents.
    pub(super) fn expand(&mut self, node: &mut Node, directory: Option<&Path>) -> Result<(), PlanError> {
        let Content::Map(members) = &mut node.content else { return Ok(()) };
        for (key, at, member) in members {
            match (&mut member.content, LISTS.contains(&key.as_str())) {
                (Content::List(steps), true) => {
                    steps.iter_mut().try_for_each(|step| self.expand(step, directory))?;
                }
                (Content::Text(path), false) if key == "flow" => {
                    let Some(directory) = directory else {
                        return Err(only(
                            *at,
                            "a plan without a file has its sub-flows inside, not in other files",
                        ));
                    };
                    if path.contains("${{") {
                        return Err(only(*at, "`flow` is the path of a file, not an expression"));
                    }
                    let path = directory.join(&*path);
                    let read = self.node(&path).map_err(|mut error| {
                        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                        for problem in &mut error.0 {
                            problem.message = format!("{name}:{}: {}", problem.at, problem.message);
                            problem.at = *at;
                        }
                        error
                    })?;
                    *member = Node { at: member.at, ..read };
                }
                _ => {}
            }
        }
        Ok(())
    }
}

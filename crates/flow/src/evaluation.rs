//! Values that would run as code: where they are in a call, and why it is rejected.
//!
//! A tool declares by the formats of its schema which arguments decide what runs ([`Evaluation`]). A step may fill them by
//! an expression only with `evaluate: true`. The plan is checked before it runs, and each call by its driver.

mod program;

use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolpost_core::{Alias, Evaluation, Schema, ToolError, ToolSpec};
use toolpost_schema::{Part, resolve, subschemas};
use toolpost_toolbox::Toolbox;

use self::program::{Place, Word};
use crate::template::{Part as TextPart, Template};

/// The maximum number of schemas that apply to one argument. An argument with more counts as code.
const MAX_SCHEMAS: usize = 10_000;
/// The fix of each rejection.
pub(crate) const HINT: &str =
    "code gets values by `variables`; a step that runs a value says `evaluate: true`";

/// The arguments of steps with `code` and `command`, whatever tools the toolbox has.
static PROGRAMS: LazyLock<Schema> = LazyLock::new(|| {
    Schema::new(json!({ "properties": {
        "code": { "format": "code" },
        "language": { "format": "program" },
        "argv": { "format": "argv" },
        "stdin": { "format": "stdin" },
    } }))
});

/// An argument, or a part of one, that comes from an expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValuePlace {
    /// The JSON pointer within the arguments; empty for all of them.
    pointer: String,
    /// Whether a text has literal characters before the value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_prefix: bool,
}

impl ValuePlace {
    /// The places of the expressions in arguments.
    pub(crate) fn all(arguments: &Template) -> Vec<Self> {
        let mut places = Vec::new();
        collect(arguments, "", &mut places);
        places
    }

    /// The names and numbers on the way from the arguments to the value.
    fn segments(&self) -> impl Iterator<Item = String> {
        self.pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~"))
    }
}

fn collect(template: &Template, pointer: &str, places: &mut Vec<ValuePlace>) {
    let mut add = |has_prefix| places.push(ValuePlace { pointer: pointer.to_owned(), has_prefix });
    match template {
        Template::Constant(_) => {}
        Template::Whole(_) => add(false),
        Template::Text(parts) => add(matches!(parts.first(), Some(TextPart::Literal(_)))),
        Template::List(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, &format!("{pointer}/{index}"), places);
            }
        }
        Template::Map(members) => {
            for (name, item) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect(item, &format!("{pointer}/{name}"), places);
            }
        }
        // The variables are data.
        Template::Code(code) => collect(code.body(), pointer, places),
    }
}

/// A value that would decide what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evaluated {
    /// The JSON pointer of the argument.
    pub(crate) pointer: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Code,
    Program,
    Option,
}

impl fmt::Display for Evaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let argument = self.pointer.strip_prefix('/').unwrap_or("with").replace('/', ".");
        match self.kind {
            Kind::Code => write!(f, "`{argument}`: a value would run as code"),
            Kind::Program => write!(f, "`{argument}`: a value would name the program"),
            Kind::Option => write!(f, "`{argument}`: a value that starts with `-` would be an option"),
        }
    }
}

/// The first value of a step with `code` or `command` that would decide what runs.
pub(crate) fn of_program(arguments: &Value, values: &[ValuePlace]) -> Option<Evaluated> {
    let mut found = of_schema(&PROGRAMS, arguments, values)?;
    // The name in the plan.
    if let Some(word) = found.pointer.strip_prefix("/argv") {
        found.pointer = format!("/command{word}");
    }
    Some(found)
}

/// The first value of a call that would decide what runs. `alias` is the name by which the call names the tool.
pub(crate) fn of_call(
    spec: &ToolSpec,
    alias: Option<&Alias>,
    arguments: &Value,
    values: &[ValuePlace],
) -> Option<Evaluated> {
    if values.is_empty() || !spec.input_schema.decides_execution() {
        return None;
    }
    let Some(alias) = alias else { return of_schema(&spec.input_schema, arguments, values) };
    // The checks of the call report arguments that the alias cannot have.
    let arguments = alias.rewrite(arguments).ok()?;
    let values: Vec<ValuePlace> = values.iter().map(|place| renamed(place, alias)).collect();
    of_schema(&spec.input_schema, &arguments, &values)
}

/// A place within the arguments that the tool gets.
fn renamed(place: &ValuePlace, alias: &Alias) -> ValuePlace {
    let Some(path) = place.pointer.strip_prefix('/') else { return place.clone() };
    let (name, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    let own = alias.parameters.get(&name.replace("~1", "/").replace("~0", "~"));
    let name = own.map_or_else(|| name.to_owned(), |own| own.replace('~', "~0").replace('/', "~1"));
    ValuePlace { pointer: format!("/{name}{rest}"), has_prefix: place.has_prefix }
}

/// Checks a call of a driver, whose step does not say `evaluate: true`.
///
/// # Errors
/// `INVALID_INPUT` for a value that would decide what runs, or that the program would take as an option.
pub async fn check_values(
    toolbox: &Toolbox,
    tool: &str,
    arguments: &Value,
    is_program: bool,
    values: &[ValuePlace],
) -> Result<(), ToolError> {
    if values.is_empty() {
        return Ok(());
    }
    if toolbox.spec(tool).is_none() {
        // Its source may not have listed its tools yet.
        toolpost_core::ToolSource::list(toolbox).await?;
    }
    let spec = toolbox.spec(tool);
    let of_tool = spec.and_then(|spec| {
        let alias = spec.aliases.iter().find(|alias| alias.name == tool);
        of_call(&spec, alias, arguments, values)
    });
    let found = of_tool.or_else(|| is_program.then(|| of_program(arguments, values)).flatten());
    match found {
        None => Ok(()),
        Some(found) => {
            let fix = match found.kind {
                Kind::Option => {
                    "Write an option and its value as one item, end the options before it, or say `evaluate: true`."
                }
                _ => "Code gets values by `variables`; a step that runs a value says `evaluate: true`.",
            };
            Err(ToolError::invalid_input(found.to_string()).with("pointer", found.pointer).suggest(fix))
        }
    }
}

fn of_schema(schema: &Schema, arguments: &Value, values: &[ValuePlace]) -> Option<Evaluated> {
    let root = schema.as_value();
    let mut lines = CommandLines::default();
    for place in values {
        if let Some(kind) = lines.add(root, place) {
            return Some(Evaluated { pointer: place.pointer.clone(), kind });
        }
    }
    if lines.input.is_some() {
        lines.add_constant(root, arguments);
    }
    lines.check(arguments, values)
}

/// The command lines of a call, some words of which are values.
#[derive(Default)]
struct CommandLines {
    /// The pointers of their lists.
    lists: Vec<String>,
    /// The pointer of a value that is the input of a program.
    input: Option<String>,
}

impl CommandLines {
    /// Takes the place of a value. Returns how it decides what runs, unless that depends on the words of a command line.
    fn add(&mut self, root: &Value, place: &ValuePlace) -> Option<Kind> {
        let Some(mut schemas) = within(root, vec![root]) else { return Some(Kind::Code) };
        let mut pointer = String::new();
        let mut segments = place.segments().peekable();
        loop {
            for kind in schemas.iter().filter_map(|schema| Evaluation::of_schema(schema)) {
                match kind {
                    Evaluation::Code => return Some(Kind::Code),
                    Evaluation::Program => return Some(Kind::Program),
                    Evaluation::Input => self.input = Some(pointer.clone()),
                    Evaluation::CommandLine if segments.peek().is_none() => return Some(Kind::Program),
                    Evaluation::CommandLine => {
                        if !self.lists.contains(&pointer) {
                            self.lists.push(pointer.clone());
                        }
                    }
                }
            }
            let Some(segment) = segments.next() else { break };
            pointer.push('/');
            pointer.push_str(&segment.replace('~', "~0").replace('/', "~1"));
            schemas = match within(root, beneath(&schemas, &segment)) {
                Some(schemas) => schemas,
                None => return Some(Kind::Code),
            };
        }
        // The value has members that decide what runs.
        is_declared_beneath(root, schemas).then_some(Kind::Code)
    }

    /// Takes the command lines without values.
    fn add_constant(&mut self, root: &Value, arguments: &Value) {
        let schemas = within(root, vec![root]).unwrap_or_default();
        for name in arguments.as_object().into_iter().flatten().map(|(name, _)| name) {
            let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
            let own = within(root, beneath(&schemas, name)).unwrap_or_default();
            let is_line = |schema: &&Value| Evaluation::of_schema(schema) == Some(Evaluation::CommandLine);
            if own.iter().any(is_line) && !self.lists.contains(&pointer) {
                self.lists.push(pointer);
            }
        }
    }

    /// The first word, or the input, that decides what runs.
    fn check(&self, arguments: &Value, values: &[ValuePlace]) -> Option<Evaluated> {
        self.lists.iter().find_map(|list| {
            let words = arguments.pointer(list)?.as_array()?;
            let place_of = |index: usize| {
                let pointer = format!("{list}/{index}");
                let is_within = |place: &&ValuePlace| {
                    place.pointer == pointer || place.pointer.starts_with(&format!("{pointer}/"))
                };
                values.iter().find(is_within)
            };
            let words: Vec<Word<'_>> = words
                .iter()
                .enumerate()
                .map(|(index, word)| match place_of(index) {
                    Some(place) => Word::Value { text: word.as_str(), has_prefix: place.has_prefix },
                    None => Word::Constant(word.as_str().unwrap_or_default()),
                })
                .collect();
            let (place, kind) = match program::evaluated(&words, self.input.is_some())? {
                (Place::Word(0), _) => (format!("{list}/0"), Kind::Program),
                (Place::Word(index), true) => (format!("{list}/{index}"), Kind::Option),
                (Place::Word(index), false) => (format!("{list}/{index}"), Kind::Code),
                (Place::Input, _) => (self.input.clone()?, Kind::Code),
            };
            Some(Evaluated { pointer: place, kind })
        })
    }
}

/// The schemas that apply to the same value as the given ones; `None` if there are too many.
fn within<'a>(root: &'a Value, schemas: Vec<&'a Value>) -> Option<Vec<&'a Value>> {
    let mut all: Vec<&Value> = Vec::new();
    let mut pending = schemas;
    while let Some(schema) = pending.pop() {
        if all.iter().any(|known| std::ptr::eq(*known, schema)) {
            continue;
        }
        if all.len() == MAX_SCHEMAS {
            return None;
        }
        all.push(schema);
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|to| resolve(root, to));
        pending.extend(reference);
        let same = subschemas(schema).into_iter().filter(|(part, _)| *part == Part::Whole);
        pending.extend(same.map(|(_, inner)| inner));
    }
    Some(all)
}

/// The schemas that may apply to a member or an element.
fn beneath<'a>(schemas: &[&'a Value], segment: &str) -> Vec<&'a Value> {
    let index: Option<usize> = segment.parse().ok();
    let parts = schemas.iter().flat_map(|schema| subschemas(schema));
    parts
        .filter(|(part, _)| match part {
            Part::Member(name) => *name == segment,
            Part::Element(place) => Some(*place) == index,
            Part::MatchingMembers | Part::OtherMembers => true,
            Part::OtherElements | Part::AnyElement => index.is_some(),
            Part::Whole | Part::Names | Part::Definition => false,
        })
        .map(|(_, inner)| inner)
        .collect()
}

/// Whether a member or an element of a value decides what runs.
fn is_declared_beneath<'a>(root: &'a Value, schemas: Vec<&'a Value>) -> bool {
    let mut seen: Vec<&Value> = Vec::new();
    let mut pending = schemas;
    while let Some(schema) = pending.pop() {
        if seen.iter().any(|known| std::ptr::eq(*known, schema)) {
            continue;
        }
        if seen.len() == MAX_SCHEMAS {
            return true;
        }
        seen.push(schema);
        let inner = subschemas(schema).into_iter().filter(|(part, _)| *part != Part::Definition);
        for inner in inner.map(|(_, inner)| inner) {
            if Evaluation::of_schema(inner).is_some() {
                return true;
            }
            pending.push(inner);
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|to| resolve(root, to)) {
            if Evaluation::of_schema(target).is_some() {
                return true;
            }
            pending.push(target);
        }
    }
    false
}

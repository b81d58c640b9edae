//! Argument templates: text with `{parameter}` in it, expanded without a shell.

use std::borrow::Cow;

use serde_json::Value;
use toolpost_core::{Args, ToolError};

use super::parameter::{Parameter, find};
use super::place::DescriptionError;
use super::reader::Item;

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// The value of a parameter.
    Parameter(String),
}

/// Text with parameters. A literal brace is doubled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

impl Template {
    /// Parses a template; every parameter in it must be declared.
    pub(super) fn read(item: &Item<'_>, parameters: &[Parameter]) -> Result<Self, DescriptionError> {
        let template = Self::parse(item.text()?).map_err(|message| item.error(message))?;
        let mut lists = 0;
        for name in template.parameters() {
            let parameter = find(item, parameters, name)?;
            lists += usize::from(parameter.repeats());
        }
        if lists > 1 {
            return Err(item.error("two lists in one template; the text can repeat for one list only"));
        }
        Ok(template)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut open = String::new();
        let mut rest = text;
        while let Some(place) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(place);
            open.push_str(before);
            let after = &brace[1..];
            if brace.starts_with("{{") || brace.starts_with("}}") {
                open.push_str(&brace[..1]);
                rest = &after[1..];
                continue;
            }
            let end = after.find('}').filter(|_| brace.starts_with('{')).ok_or_else(|| {
                "expected `{parameter}`, found a single brace; double a literal brace".to_owned()
            })?;
            if !open.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut open)));
            }
            pieces.push(Piece::Parameter(after[..end].to_owned()));
            rest = &after[end + 1..];
        }
        open.push_str(rest);
        if !open.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(open));
        }
        Ok(Self { pieces })
    }

    /// Its parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Parameter(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// The parameter at its start.
    fn first_parameter(&self) -> Option<&str> {
        match self.pieces.first() {
            Some(Piece::Parameter(name)) => Some(name),
            _ => None,
        }
    }

    /// Rejects templates that turn a value into an option: `--{x}`, `--name{x}`, and `-{x}` and `-n{x}` with free text.
    fn check_argument(&self, item: &Item<'_>, parameters: &[Parameter]) -> Result<(), DescriptionError> {
        for name in self.parameters() {
            let parameter = find(item, parameters, name)?;
            if parameter.is_sensitive && !parameter.allow_in_args {
                return Err(item.error(format!(
                    "`{name}` is sensitive, but other users can read the command line; pass it by `env` or `stdin`, or set \
                     `allow_in_args = true`"
                )));
            }
        }
        let [Piece::Text(option), Piece::Parameter(name), ..] = self.pieces.as_slice() else { return Ok(()) };
        let is_number = find(item, parameters, name)?.is_number();
        let is_safe = match option.strip_prefix('-') {
            None => true,
            Some(_) if option.contains('=') => true,
            Some(rest) => !rest.starts_with('-') && is_number,
        };
        if is_safe {
            return Ok(());
        }
        Err(item.error(format!(
            "the value of `{name}` would become part of the option `{option}…`; write `{option}={{{name}}}`, or two \
             separate items"
        )))
    }

    /// The expanded texts: none if a parameter is absent, one per item of a list parameter.
    pub(super) fn expand(&self, parameters: &[Parameter], args: &Args) -> Vec<String> {
        let repeated = self.parameters().find_map(|name| {
            let parameter = parameters.iter().find(|parameter| parameter.name == name)?;
            parameter.repeats().then_some(parameter)
        });
        let Some(repeated) = repeated else {
            return self.fill(parameters, args, None).into_iter().collect();
        };
        let values = repeated.value(args);
        let items = values.as_deref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|item| self.fill(parameters, args, Some((&repeated.name, item)))).collect()
    }

    /// One text, with one item for a list parameter.
    fn fill(&self, parameters: &[Parameter], args: &Args, item: Option<(&str, &Value)>) -> Option<String> {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(literal) => text.push_str(literal),
                Piece::Parameter(name) => match item {
                    Some((repeated, value)) if repeated == name => text.push_str(&plain(value)),
                    _ => {
                        let parameter = parameters.iter().find(|parameter| parameter.name == *name)?;
                        text.push_str(&parameter.text(args)?);
                    }
                },
            }
        }
        Some(text)
    }
}

/// The text of a value: a string as it is, any other value as JSON.
pub(super) fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// Arguments with a condition.
#[derive(Clone, Debug)]
struct Condition {
    parameter: String,
    /// The required value; without one, the parameter must be present and neither `false` nor empty.
    is: Option<Value>,
    args: Vec<Template>,
    otherwise: Vec<Template>,
}

/// One entry of `args`.
#[derive(Clone, Debug)]
enum TemplatePart {
    Always(Template),
    When(Condition),
}

/// The arguments of a program.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    entries: Vec<TemplatePart>,
}

impl Arguments {
    /// Parses a list of templates and conditions.
    pub(super) fn read(item: &Item<'_>, parameters: &[Parameter]) -> Result<Self, DescriptionError> {
        let entries =
            item.list()?.iter().map(|item| TemplatePart::read(item, parameters)).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// These arguments after others.
    pub(super) fn after(&self, before: &Self) -> Self {
        Self { entries: before.entries.iter().chain(&self.entries).cloned().collect() }
    }

    /// The parameters that the arguments use.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().flat_map(|entry| {
            let (own, lists): (Option<&str>, [&[Template]; 2]) = match entry {
                TemplatePart::Always(template) => (None, [std::slice::from_ref(template), &[]]),
                TemplatePart::When(condition) => {
                    (Some(condition.parameter.as_str()), [&condition.args, &condition.otherwise])
                }
            };
            own.into_iter().chain(lists.into_iter().flatten().flat_map(Template::parameters))
        })
    }

    /// Expands the arguments of a call.
    ///
    /// # Errors
    /// `INVALID_INPUT` for a value that the program would parse as an option.
    pub(super) fn expand(
        &self,
        program: &str,
        parameters: &[Parameter],
        args: &Args,
    ) -> Result<Vec<String>, ToolError> {
        let mut arguments = Vec::new();
        // After `--` every argument is an operand.
        let mut only_operands = false;
        let templates = self.entries.iter().flat_map(|entry| match entry {
            TemplatePart::Always(template) => std::slice::from_ref(template),
            TemplatePart::When(condition) if condition.holds(parameters, args) => &condition.args,
            TemplatePart::When(condition) => &condition.otherwise,
        });
        for template in templates {
            let first = template.first_parameter();
            let may_start_with_dash = only_operands
                || first.is_none_or(|name| {
                    parameters.iter().any(|parameter| parameter.name == name && parameter.allow_leading_dash)
                });
            for text in template.expand(parameters, args) {
                if text.starts_with('-') && !may_start_with_dash {
                    let name = first.unwrap_or_default();
                    return Err(ToolError::invalid_input(format!(
                        "/{name}: expected a value without a leading `-`, which `{program}` parses as an option"
                    ))
                    .with("pointer", format!("/{name}"))
                    .suggest("Remove the `-`; write a file name that starts with it as `./-name`."));
                }
                only_operands |= text == "--" && first.is_none();
                arguments.push(text);
            }
        }
        Ok(arguments)
    }
}

impl TemplatePart {
    fn read(item: &Item<'_>, parameters: &[Parameter]) -> Result<Self, DescriptionError> {
        let argument = |item: &Item<'_>| {
            let template = Template::read(item, parameters)?;
            template.check_argument(item, parameters)?;
            Ok(template)
        };
        if !item.is_table() {
            return argument(item).map(Self::Always);
        }
        let mut table = item.table()?;
        let when = table.need("when")?;
        let parameter = find(&when, parameters, when.text()?)?.name.clone();
        let is = table.read("is", Item::json)?;
        let list = |item: &Item<'_>| item.list()?.iter().map(argument).collect::<Result<Vec<_>, _>>();
        let args = table.read("args", list)?.unwrap_or_default();
        let otherwise = table.read("otherwise", list)?.unwrap_or_default();
        if args.is_empty() && otherwise.is_empty() {
            return Err(table.error("expected arguments in `args` or `otherwise`"));
        }
        table.end()?;
        Ok(Self::When(Condition { parameter, is, args, otherwise }))
    }
}

impl Condition {
    fn holds(&self, parameters: &[Parameter], args: &Args) -> bool {
        let value = parameters
            .iter()
            .find(|parameter| parameter.name == self.parameter)
            .and_then(|parameter| parameter.value(args));
        match (value.as_deref(), &self.is) {
            (value, Some(expected)) => value == Some(expected),
            (None | Some(Value::Bool(false)), None) => false,
            (Some(Value::Array(items)), None) => !items.is_empty(),
            (Some(Value::String(text)), None) => !text.is_empty(),
            (Some(_), None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_text_and_parameters() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let parameter = |name: &str| Piece::Parameter(name.to_owned());
        for (template, expected) in [
            ("--no-color", vec![text("--no-color")]),
            ("", vec![text("")]),
            ("{a}", vec![parameter("a")]),
            ("--x={a}:{b}!", vec![text("--x="), parameter("a"), text(":"), parameter("b"), text("!")]),
            ("HEAD@{{1}}", vec![text("HEAD@{1}")]),
            ("{{{a}}}", vec![text("{"), parameter("a"), text("}")]),
        ] {
            assert_eq!(Template::parse(template).unwrap().pieces, expected, "{template}");
        }
        for wrong in ["{", "}", "a{b", "{a}}", "a}b"] {
            assert!(Template::parse(wrong).unwrap_err().contains("double a literal brace"), "{wrong}");
        }
    }
}

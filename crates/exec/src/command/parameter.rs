//! Parameters of a command: schemas and text values.

use std::borrow::Cow;

use serde_json::Value;
use toolpost_core::{Args, ParameterType, object_schema};

use super::place::DescriptionError;
use super::reader::{Item, hint};
use super::template::plain;

/// JSON Schema keywords of a parameter and of list items.
const KEYWORDS: [&str; 18] = [
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "properties",
    "additionalProperties",
];

/// One parameter.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    kind: ParameterType,
    pub(super) schema: Value,
    pub(super) is_required: bool,
    default: Option<Value>,
    pub(super) is_sensitive: bool,
    /// Whether a value, or each item of a list, is a path.
    pub(super) is_path: bool,
    /// Whether a value may start with `-`.
    pub(super) allow_leading_dash: bool,
    /// Whether a sensitive value may be on the command line.
    pub(super) allow_in_args: bool,
    /// Separator that joins the items of a list into one text.
    join: Option<String>,
}

/// The parameter that an item refers to.
pub(super) fn find<'p>(
    item: &Item<'_>,
    parameters: &'p [Parameter],
    name: &str,
) -> Result<&'p Parameter, DescriptionError> {
    parameters.iter().find(|parameter| parameter.name == name).ok_or_else(|| {
        let known: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let hint = hint(name, &known);
        item.error(format!("expected a parameter name, found `{name}`{hint}"))
    })
}

impl Parameter {
    /// Parses one table of `parameters`.
    pub(super) fn read(name: String, item: &Item<'_>) -> Result<Self, DescriptionError> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_name) {
            return Err(item.error("expected a name of at most 64 letters, digits, `_` or `-`"));
        }
        let mut table = item.table()?;
        let kind: ParameterType = table.need("type")?.parse()?;
        let mut schema = kind.schema();
        let description = table.need("description")?.non_empty()?;
        insert(&mut schema, "description", Value::String(description));
        keywords(&mut table, &mut schema)?;
        if let Some(items) = table.take("items") {
            if kind != ParameterType::Array {
                return Err(items.error("only an `array` has items"));
            }
            let mut inner = items.table()?;
            let mut of_items = inner.need("type")?.parse::<ParameterType>()?.schema();
            if let Some(text) = inner.read("description", Item::non_empty)? {
                insert(&mut of_items, "description", Value::String(text));
            }
            keywords(&mut inner, &mut of_items)?;
            inner.end()?;
            insert(&mut schema, "items", of_items);
        }
        let default = table.read("default", Item::json)?;
        if let Some(value) = &default {
            insert(&mut schema, "default", value.clone());
        }
        if let Some(value) = table.read("example", Item::json)? {
            insert(&mut schema, "examples", Value::Array(vec![value]));
        }
        let is_optional = table.switch("optional")?;
        let join = table.read("join", |item| item.text().map(ToOwned::to_owned))?;
        if join.is_some() && kind != ParameterType::Array {
            return Err(table.error("`join` is for an `array`"));
        }
        let is_path = [&schema["format"], &schema["items"]["format"]].contains(&&Value::from("file"));
        let parameter = Self {
            name,
            kind,
            schema,
            is_path,
            is_required: default.is_none() && !is_optional,
            default,
            is_sensitive: table.switch("sensitive")?,
            allow_leading_dash: table.switch("allow_leading_dash")?,
            allow_in_args: table.switch("allow_in_args")?,
            join,
        };
        table.end()?;
        Ok(parameter)
    }

    /// Whether a template with it repeats per item.
    pub(super) fn repeats(&self) -> bool {
        self.kind == ParameterType::Array && self.join.is_none()
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self.kind, ParameterType::Integer | ParameterType::Number)
    }

    /// The argument or the default.
    pub(super) fn value<'a>(&'a self, args: &'a Args) -> Option<Cow<'a, Value>> {
        let given = args.get(&self.name).filter(|value| !value.is_null());
        given.or(self.default.as_ref()).map(Cow::Borrowed)
    }

    /// The value as one text.
    pub(super) fn text(&self, args: &Args) -> Option<String> {
        let value = self.value(args)?;
        match (value.as_ref(), &self.join) {
            (Value::Array(items), Some(join)) => {
                let texts: Vec<Cow<'_, str>> = items.iter().map(plain).collect();
                (!texts.is_empty()).then(|| texts.join(join))
            }
            (value, _) => Some(plain(value).into_owned()),
        }
    }
}

fn insert(schema: &mut Value, key: &str, value: Value) {
    if let Some(object) = schema.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

fn keywords(table: &mut super::reader::Section<'_>, schema: &mut Value) -> Result<(), DescriptionError> {
    for keyword in KEYWORDS {
        if let Some(item) = table.take(keyword) {
            let mut value = item.json()?;
            if keyword == "format" {
                value = ParameterType::format_for(item.text()?).into();
            }
            insert(schema, keyword, value);
        }
    }
    Ok(())
}

/// The input schema of the parameters.
pub(super) fn input_schema(parameters: &[Parameter]) -> Value {
    let parameters = parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), &parameter.schema, parameter.is_required));
    object_schema(parameters, true).into()
}

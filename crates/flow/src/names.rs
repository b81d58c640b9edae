//! The names that an expression reads: inputs, results of steps, and the variables of a block.

use std::fmt;
use std::sync::{Arc, OnceLock};

use minijinja::value::{Object, ObjectRepr};
use serde_json::{Value, json};

use crate::outcome::StepResult;
use crate::plan::types::Block;
use crate::template::Member;

/// The values of an instance of a block. Instances within it see them too.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) block: Arc<Block>,
    /// The results of its steps, as they end.
    pub(crate) results: Box<[OnceLock<Arc<StepResult>>]>,
    /// Its own variables, such as `item` and `index`.
    pub(crate) variables: Vec<Variable>,
    pub(crate) outer: Option<Arc<Known>>,
}

/// A name and its value.
pub(crate) type Variable = (Arc<str>, Arc<Shared>);

/// A JSON value, also as a value of the language, which is made at the first use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) json: Arc<Value>,
    language: OnceLock<minijinja::Value>,
}

impl Shared {
    pub(crate) fn new(json: Arc<Value>) -> Arc<Self> {
        Arc::new(Self { json, language: OnceLock::new() })
    }

    fn language(&self) -> minijinja::Value {
        self.language.get_or_init(|| minijinja::Value::from_serialize(&*self.json)).clone()
    }
}

impl Known {
    pub(crate) fn new(block: &Arc<Block>, variables: Vec<Variable>, outer: Option<Arc<Known>>) -> Arc<Self> {
        let results = block.steps.iter().map(|_| OnceLock::new()).collect();
        Arc::new(Self { block: Arc::clone(block), results, variables, outer })
    }

    fn own_variable(&self, name: &str) -> Option<&Arc<Shared>> {
        self.variables.iter().find(|(own, _)| **own == *name).map(|(_, value)| value)
    }

    /// A variable of the instance or of one around it.
    pub(crate) fn variable(&self, name: &str) -> Option<Arc<Shared>> {
        let mut all = std::iter::successors(Some(self), |known| known.outer.as_deref());
        all.find_map(|known| known.own_variable(name)).cloned()
    }
}

/// The names of one evaluation.
#[derive(Clone)]
pub(crate) struct Names {
    known: Option<Arc<Known>>,
    /// A variable of this step alone.
    own: Option<(&'static str, Arc<Shared>)>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// The reason why a name has no value.
type Reason = String;

impl Names {
    pub(crate) fn from_known(known: &Arc<Known>) -> Self {
        Self { known: Some(Arc::clone(known)), own: None }
    }

    /// A variant with a variable of one step.
    pub(crate) fn with(self, name: &'static str, value: Arc<Shared>) -> Self {
        Self { own: Some((name, value)), ..self }
    }

    /// No names at all.
    pub(crate) fn none() -> Self {
        Self { known: None, own: None }
    }

    #[cfg(test)]
    pub(crate) fn of_input(input: Arc<Value>) -> Self {
        let block = Arc::new(Block::default());
        Self::from_known(&Known::new(&block, vec![("input".into(), Shared::new(input))], None))
    }

    fn all(&self) -> impl Iterator<Item = &Known> {
        std::iter::successors(self.known.as_deref(), |known| known.outer.as_deref())
    }

    fn variable(&self, name: &str) -> Option<&Arc<Shared>> {
        let own = self.own.as_ref().filter(|(own, _)| *own == name).map(|(_, value)| value);
        own.or_else(|| self.all().find_map(|known| known.own_variable(name)))
    }

    /// The result of a step, in the nearest block that has it.
    fn step(&self, id: &str) -> Result<&Arc<StepResult>, Reason> {
        let found = self.all().find_map(|known| Some((known, known.block.position(id)?)));
        let (known, place) = found.ok_or_else(|| format!("there is no step `{id}`"))?;
        let result = known.results.get(place).and_then(OnceLock::get);
        result.ok_or_else(|| format!("the step `{id}` has not ended"))
    }

    /// Reads a name with its members.
    pub(crate) fn read(&self, members: &[Member]) -> Result<Value, Reason> {
        let name = |at: usize| match members.get(at) {
            Some(Member::Name(name)) => Some(name.as_str()),
            _ => None,
        };
        if name(0) == Some("steps")
            && let Some(id) = name(1)
        {
            let result = self.step(id)?;
            return match (name(2), members.get(3..).unwrap_or_default()) {
                (Some("output"), rest) => beneath(&result.output.json, rest),
                (Some("status"), []) => Ok(result.status.as_str().into()),
                (Some("error"), rest) => beneath(&result.error_value(), rest),
                (None, []) => Ok(result.to_value()),
                (other, _) => Err(format!(
                    "a step has `output`, `status` and `error`, not `{}`",
                    other.unwrap_or("[…]")
                )),
            };
        }
        let first = name(0).unwrap_or_default();
        let value = self.variable(first).ok_or_else(|| format!("there is no `{first}` here"))?;
        beneath(&value.json, members.get(1..).unwrap_or_default())
    }
}

fn beneath(mut value: &Value, members: &[Member]) -> Result<Value, Reason> {
    for member in members {
        value = match (member, value) {
            (Member::Name(name), Value::Object(object)) => {
                object.get(name).ok_or_else(|| format!("there is no `{name}`"))?
            }
            (Member::Index(index), Value::Array(items)) => items
                .get(*index)
                .ok_or_else(|| format!("there is no item {index}; the list has {}", items.len()))?,
            (Member::Name(name), other) => {
                return Err(format!("`{name}` is read of {}", kind(other)));
            }
            (Member::Index(_), other) => {
                return Err(format!("an item is read of something that is {}", kind(other)));
            }
        };
    }
    Ok(value.clone())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl Object for Names {
    fn get_value(self: &Arc<Self>, key: &minijinja::Value) -> Option<minijinja::Value> {
        match key.as_str()? {
            "steps" => Some(minijinja::Value::from_object(Steps(Names::clone(self)))),
            name => self.variable(name).map(|value| value.language()),
        }
    }

    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }
}

/// `steps` in the language.
#[derive(Debug)]
struct Steps(Names);

impl Object for Steps {
    fn get_value(self: &Arc<Self>, key: &minijinja::Value) -> Option<minijinja::Value> {
        let result = self.0.step(key.as_str()?).ok()?;
        Some(minijinja::Value::from_object(Step(Arc::clone(result))))
    }
}

/// One step in the language.
#[derive(Debug)]
struct Step(Arc<StepResult>);

impl Object for Step {
    fn get_value(self: &Arc<Self>, key: &minijinja::Value) -> Option<minijinja::Value> {
        match key.as_str()? {
            "output" => Some(self.0.output.language()),
            "status" => Some(self.0.status.as_str().into()),
            "error" => Some(minijinja::Value::from_serialize(self.0.error_value())),
            _ => None,
        }
    }
}

impl StepResult {
    /// The error as JSON, null without one.
    pub(crate) fn error_value(&self) -> Value {
        self.error
            .as_ref()
            .map_or(Value::Null, |error| json!({ "code": error.code().as_str(), "message": error.message() }))
    }

    fn to_value(&self) -> Value {
        json!({ "output": &*self.output.json, "status": self.status.as_str(), "error": self.error_value() })
    }
}

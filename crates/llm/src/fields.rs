//! JSON objects that keep the text of their members.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// Maximum number of members of an object: lookups are linear, so more would cost quadratic time.
pub(crate) const MAX_MEMBERS: usize = 1_000;

/// The members of an object in order. Lookups are linear.
///
/// A value is not a `RawJson`, which is cheap to clone but expensive to create: most members are never shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, Box<RawValue>)>);

impl Fields {
    pub(crate) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// Reads a member; `None` if it is absent, `null` or of another shape.
    pub(crate) fn read<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        read(self.get(name).map(RawValue::get))
    }

    /// Replaces a member in its place, or appends it.
    pub(crate) fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Replaces or appends a member of any serializable value.
    pub(crate) fn put(
        &mut self,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), serde_json::Error> {
        self.set(name, to_raw_value(value)?);
        Ok(())
    }

    /// Removes a member, if it exists.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| key != name);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), &**value))
    }
}

/// Equal if names and texts are equal, in the same order.
impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().zip(other.iter()).all(|(a, b)| a.0 == b.0 && a.1.get() == b.1.get())
            && self.len() == other.len()
    }
}

/// The members of an object, borrowed from its text.
#[derive(Debug, Default)]
pub(crate) struct Members<'a>(Vec<(Text<'a>, &'a RawValue)>);

/// A text, borrowed unless it has escapes.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl<'a> Members<'a> {
    /// Parses an object; anything else has no members.
    pub(crate) fn parse(json: &'a str) -> Self {
        serde_json::from_str(json).unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| key.0 == name).map(|(_, value)| *value)
    }

    /// Reads a member; `None` if it is absent, `null` or of another shape.
    pub(crate) fn read<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        read(self.get(name).map(RawValue::get))
    }

    /// Replaces a member in its place, or appends it.
    pub(crate) fn set(&mut self, name: &'a str, value: &'a RawValue) {
        match self.0.iter_mut().find(|(key, _)| key.0 == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((Text(name.into()), value)),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(key, value)| (&*key.0, *value))
    }
}

fn read<'a, T: Deserialize<'a>>(text: Option<&'a str>) -> Option<T> {
    text.and_then(|text| serde_json::from_str::<Option<T>>(text).ok()).flatten()
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AllOf(PhantomData)).map(Self)
    }
}

/// A value with a fixed member name.
pub(crate) trait Named: Default {
    const NAME: &'static str;
}

/// The members of an object, with one of them parsed in the same pass.
#[derive(Debug)]
pub(crate) struct With<'a, T> {
    /// The other members.
    pub(crate) members: Members<'a>,
    /// The parsed member; `None` if it is absent, and its default if it is `null`.
    pub(crate) inner: Option<T>,
}

impl<'de: 'a, 'a, T: Named + Deserialize<'de>> Deserialize<'de> for With<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OneOf(PhantomData))
    }
}

/// Reads all members of an object and parses one of them.
struct OneOf<'a, T>(PhantomData<(&'a (), T)>);

impl<'de: 'a, 'a, T: Named + Deserialize<'de>> Visitor<'de> for OneOf<'a, T> {
    type Value = With<'a, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut read = With { members: Members(Vec::with_capacity(8)), inner: None };
        while let Some(name) = map.next_key::<Text<'a>>()? {
            if name.0 == T::NAME {
                read.inner = Some(map.next_value::<Option<T>>()?.unwrap_or_default());
                continue;
            }
            if read.members.0.len() == MAX_MEMBERS {
                return Err(serde::de::Error::custom(format!("more than {MAX_MEMBERS} members")));
            }
            read.members.0.push((name, map.next_value()?));
        }
        Ok(read)
    }
}

/// Reads all members of an object, up to the limit.
struct AllOf<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for AllOf<K, V> {
    type Value = Vec<(K, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            if members.len() == MAX_MEMBERS {
                return Err(serde::de::Error::custom(format!("more than {MAX_MEMBERS} members")));
            }
            members.push(member);
        }
        Ok(members)
    }
}

/// Maximum number of values of a list in an answer: a value needs much more memory than its few bytes of text.
pub(crate) const MAX_VALUES: usize = 20_000;

/// A list of at most [`MAX_VALUES`] values.
#[derive(Debug)]
pub(crate) struct Listed<T>(pub(crate) Vec<T>);

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Listed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Values(PhantomData)).map(Self)
    }
}

/// Reads all values of a list, up to the limit.
struct Values<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Values<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            if values.len() == MAX_VALUES {
                return Err(serde::de::Error::custom(format!("more than {MAX_VALUES} values")));
            }
            values.push(value);
        }
        Ok(values)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AllOf(PhantomData)).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_text_and_order() {
        let mut fields: Fields = serde_json::from_str(r#"{"b": 1.0, "a": null, "c": [ 1 ]}"#).unwrap();
        fields.set("a", RawValue::from_string("2.50".to_owned()).unwrap());
        fields.put("d", "x").unwrap();
        assert_eq!(serde_json::to_string(&fields).unwrap(), r#"{"b":1.0,"a":2.50,"c":[ 1 ],"d":"x"}"#);
        assert_eq!(fields.read::<String>("d").as_deref(), Some("x"));
        assert_eq!(fields.read::<String>("b"), None);
    }

    #[test]
    fn too_many_values_are_rejected() {
        let list = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(serde_json::from_str::<Listed<u8>>(&list(MAX_VALUES)).unwrap().0.len(), MAX_VALUES);
        let error = serde_json::from_str::<Listed<u8>>(&list(MAX_VALUES + 1)).unwrap_err();
        assert!(error.to_string().contains("values"), "{error}");
    }

    #[test]
    fn too_many_members_are_rejected() {
        let members: Vec<String> = (0..=MAX_MEMBERS).map(|number| format!("\"{number}\":1")).collect();
        let text = format!("{{{}}}", members.join(","));
        assert!(serde_json::from_str::<Fields>(&text).unwrap_err().to_string().contains("members"));
    }
}

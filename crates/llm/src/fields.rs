//! A JSON object whose members stay as they were written.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::RawJson;

/// The most members that an object may have: a search by name is a walk, so many would cost quadratic time.
pub(crate) const MOST: usize = 1_000;

/// The members of an object in their order. Few enough that a search by name is a walk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fields(Vec<(String, RawJson)>);

impl Fields {
    pub(crate) fn get(&self, name: &str) -> Option<&RawJson> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Reads a member; `None` if it is absent, `null` or of another shape.
    pub(crate) fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.get(name).and_then(|raw| raw.read::<Option<T>>().ok()).flatten()
    }

    /// Replaces a member in its place, or appends it.
    pub(crate) fn set(&mut self, name: &str, value: RawJson) {
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Replaces or appends a member of any serialisable value.
    pub(crate) fn put(
        &mut self,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), serde_json::Error> {
        self.set(name, RawJson::of(value)?);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &RawJson)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some((key, value)) = map.next_entry::<String, RawJson>()? {
                    if fields.0.len() == MOST {
                        return Err(serde::de::Error::custom(format!("more than {MOST} members")));
                    }
                    fields.0.push((key, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_text_and_their_place() {
        let mut fields: Fields = serde_json::from_str(r#"{"b": 1.0, "a": null, "c": [ 1 ]}"#).unwrap();
        fields.set("a", RawJson::parse("2.50").unwrap());
        fields.put("d", "x").unwrap();
        assert_eq!(serde_json::to_string(&fields).unwrap(), r#"{"b":1.0,"a":2.50,"c":[ 1 ],"d":"x"}"#);
        assert_eq!(fields.read::<String>("d").as_deref(), Some("x"));
        assert_eq!(fields.read::<String>("b"), None);
    }

    #[test]
    fn too_many_members_are_refused() {
        let members: Vec<String> = (0..=MOST).map(|number| format!("\"{number}\":1")).collect();
        let text = format!("{{{}}}", members.join(","));
        assert!(serde_json::from_str::<Fields>(&text).unwrap_err().to_string().contains("members"));
    }
}

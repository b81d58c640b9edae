//! Strict conversion of values to JSON: an unsupported value is an error with its pointer.

use std::fmt::{self, Display};

use serde::Serialize;
use serde::ser::{self, Serializer};
use serde_json::{Map, Number, Value};

use super::pointer::escape_pointer;
use crate::ToolError;

/// The struct name by which `serde_json` marks raw JSON text.
const RAW: &str = "$serde_json::private::RawValue";

/// Converts a value to JSON.
///
/// Unlike `serde_json::to_value`, it never alters a value: a non-finite number and a key that is not a string are errors.
///
/// # Errors
/// `INTERNAL` with the JSON pointer of a value that JSON cannot represent: only the tool's code can fix it.
pub fn to_json(value: &(impl Serialize + ?Sized)) -> Result<Value, ToolError> {
    value.serialize(Encoder).map_err(|error| {
        let pointer = error
            .names
            .iter()
            .rev()
            .fold(String::new(), |pointer, name| pointer + "/" + &escape_pointer(name));
        let place = if pointer.is_empty() { "the value" } else { &pointer };
        ToolError::internal(format!("JSON cannot represent {place}: {}", error.message))
            .with("pointer", pointer)
    })
}

/// A value that JSON cannot represent.
#[derive(Debug)]
struct EncodeError {
    message: String,
    /// Names on the path to the value, innermost first.
    names: Vec<String>,
}

impl EncodeError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), names: Vec::new() }
    }

    fn within(mut self, name: impl Display) -> Self {
        self.names.push(name.to_string());
        self
    }

    /// Adds a name, and the variant that contains it.
    fn within_variant(self, name: impl Display, variant: Option<&'static str>) -> Self {
        variant.into_iter().fold(self.within(name), Self::within)
    }
}

impl Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EncodeError {}

impl ser::Error for EncodeError {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message.to_string())
    }
}

type Encoded = Result<Value, EncodeError>;

struct Encoder;

fn number(value: f64) -> Encoded {
    Number::from_f64(value)
        .map(Value::Number)
        .ok_or_else(|| EncodeError::new(format!("expected a finite number, found {value}")))
}

fn too_large(value: impl Display) -> EncodeError {
    EncodeError::new(format!("expected an integer of at most 64 bits, found {value}"))
}

/// A value, under its variant's name if it has one.
fn tagged(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => Map::from_iter([(variant.to_owned(), value)]).into(),
        None => value,
    }
}

macro_rules! values {
    ($($method:ident: $kind:ty),* $(,)?) => {
        $(fn $method(self, value: $kind) -> Encoded {
            Ok(value.into())
        })*
    };
}

impl Serializer for Encoder {
    type Ok = Value;
    type Error = EncodeError;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = List;
    type SerializeMap = Entries;
    type SerializeStruct = Fields;
    type SerializeStructVariant = Fields;

    values! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_str: &str,
        serialize_bytes: &[u8],
    }
    fn serialize_i128(self, value: i128) -> Encoded {
        let small = i64::try_from(value).map(Value::from);
        small.or_else(|_| u64::try_from(value).map(Value::from)).map_err(|_| too_large(value))
    }

    fn serialize_u128(self, value: u128) -> Encoded {
        u64::try_from(value).map(Value::from).map_err(|_| too_large(value))
    }

    fn serialize_f32(self, value: f32) -> Encoded {
        number(value.into())
    }

    fn serialize_f64(self, value: f64) -> Encoded {
        number(value)
    }

    fn serialize_char(self, value: char) -> Encoded {
        Ok(value.to_string().into())
    }

    fn serialize_none(self) -> Encoded {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Encoded {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Encoded {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Encoded {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Encoded {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Encoded {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Encoded {
        Ok(tagged(Some(variant), value.serialize(self).map_err(|error| error.within(variant))?))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<List, EncodeError> {
        // The length is only a hint.
        Ok(List { items: Vec::with_capacity(length.unwrap_or(0).min(4096)), variant: None })
    }

    fn serialize_tuple(self, length: usize) -> Result<List, EncodeError> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _name: &'static str, length: usize) -> Result<List, EncodeError> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<List, EncodeError> {
        Ok(List { variant: Some(variant), ..self.serialize_seq(Some(length))? })
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Entries, EncodeError> {
        Ok(Entries { map: Map::new(), key: String::new() })
    }

    fn serialize_struct(self, name: &'static str, _length: usize) -> Result<Fields, EncodeError> {
        Ok(Fields { map: Map::new(), variant: None, raw: name == RAW })
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Fields, EncodeError> {
        Ok(Fields { map: Map::new(), variant: Some(variant), raw: false })
    }
}

struct List {
    items: Vec<Value>,
    variant: Option<&'static str>,
}

impl List {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let located = |error: EncodeError| error.within_variant(self.items.len(), self.variant);
        let item = value.serialize(Encoder).map_err(located)?;
        self.items.push(item);
        Ok(())
    }
}

macro_rules! sequences {
    ($($name:ident::$method:ident),* $(,)?) => {
        $(impl ser::$name for List {
            type Ok = Value;
            type Error = EncodeError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
                self.push(value)
            }

            fn end(self) -> Encoded {
                Ok(tagged(self.variant, self.items.into()))
            }
        })*
    };
}

sequences! {
    SerializeSeq::serialize_element, SerializeTuple::serialize_element, SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
}

struct Entries {
    map: Map<String, Value>,
    key: String,
}

impl ser::SerializeMap for Entries {
    type Ok = Value;
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        self.key = match serde_json::to_value(key).map_err(ser::Error::custom)? {
            Value::String(key) => key,
            found => return Err(EncodeError::new(format!("expected a string as a key, found {found}"))),
        };
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let key = std::mem::take(&mut self.key);
        match value.serialize(Encoder) {
            Ok(value) => drop(self.map.insert(key, value)),
            Err(error) => return Err(error.within(key)),
        }
        Ok(())
    }

    fn end(self) -> Encoded {
        Ok(self.map.into())
    }
}

struct Fields {
    map: Map<String, Value>,
    variant: Option<&'static str>,
    /// The only field holds JSON text.
    raw: bool,
}

impl Fields {
    fn insert<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), EncodeError> {
        let value = value.serialize(Encoder).map_err(|error| error.within_variant(key, self.variant))?;
        self.map.insert(key.to_owned(), value);
        Ok(())
    }

    fn finish(self) -> Encoded {
        if self.raw {
            let text = self.map.get(RAW).and_then(Value::as_str).unwrap_or_default();
            return serde_json::from_str(text).map_err(ser::Error::custom);
        }
        Ok(tagged(self.variant, self.map.into()))
    }
}

macro_rules! structs {
    ($($name:ident),*) => {
        $(impl ser::$name for Fields {
            type Ok = Value;
            type Error = EncodeError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), EncodeError> {
                self.insert(key, value)
            }

            fn end(self) -> Encoded {
                self.finish()
            }
        })*
    };
}

structs!(SerializeStruct, SerializeStructVariant);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Serialize)]
    enum Shape {
        Unit,
        New(f64),
        Pair(f64, f32),
        Named { side: f64, of: Option<char> },
    }

    #[derive(Serialize)]
    struct All<T> {
        shapes: Vec<Shape>,
        by_name: BTreeMap<String, T>,
        unit: (),
        big: (i64, u64, i8, bool),
    }

    fn all<T>(value: T) -> All<T> {
        All {
            shapes: vec![
                Shape::Unit,
                Shape::New(1.5),
                Shape::Pair(0.5, 2.0),
                Shape::Named { side: 2.0, of: Some('c') },
            ],
            by_name: BTreeMap::from([("a/b".to_owned(), value)]),
            unit: (),
            big: (i64::MIN, u64::MAX, -1, true),
        }
    }

    #[test]
    fn values_encode_as_with_serde_json() {
        assert_eq!(to_json(&all("x")).unwrap(), serde_json::to_value(all("x")).unwrap());
        let nested = serde_json::json!({"a": [1, 2.5, null, {"b": "c"}]});
        assert_eq!(to_json(&nested).unwrap(), nested);
        let raw = serde_json::value::RawValue::from_string("{\"a\": 1}".into()).unwrap();
        assert_eq!(to_json(&raw).unwrap(), serde_json::json!({"a": 1}));
        assert_eq!(to_json(&BTreeMap::from([('k', 1_i128)])).unwrap(), serde_json::json!({"k": 1}));
    }

    #[test]
    fn unsupported_values_are_errors_with_a_pointer() {
        let infinite = All { shapes: vec![Shape::Unit, Shape::Pair(1.0, f32::INFINITY)], ..all(0) };
        for (result, pointer, expected) in [
            (to_json(&f64::NAN), "", "JSON cannot represent the value: expected a finite number, found NaN"),
            (to_json(&all([1.0, f64::NAN])), "/by_name/a~1b/1", "expected a finite number, found NaN"),
            (to_json(&infinite), "/shapes/1/Pair/1", "found inf"),
            (to_json(&[Shape::New(f64::NEG_INFINITY)]), "/0/New", "found -inf"),
            (to_json(&Shape::Named { side: f64::NAN, of: None }), "/Named/side", "found NaN"),
            (
                to_json(&all(BTreeMap::from([(7, "x")]))),
                "/by_name/a~1b",
                "expected a string as a key, found 7",
            ),
            (to_json(&BTreeMap::from([((1, 2), 3)])), "", "expected a string as a key, found [1,2]"),
            (to_json(&[u128::MAX]), "/0", "at most 64 bits"),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.context()["pointer"], pointer, "{error}");
            assert!(error.message().contains(expected), "{error}");
        }
    }
}

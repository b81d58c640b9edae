//! Generated values of Python and JavaScript with their oracle: what leaves the sandbox is equal, or the type and the
//! text that the language itself has for it.
//!
//! A part that JSON cannot hold is in a list of its own. The code prints the types and texts of that list by the means of
//! its language, without the scripts that render values.

use serde_json::{Map, Value, json};
use toolpost_sandbox::Language;

/// The values of one run of code.
const VALUES: usize = 20;
/// The levels of lists and objects in a value.
const DEPTH: usize = 3;
/// The values of a test, unless `PROPTEST_CASES` says otherwise.
const CASES: usize = 400;

/// The number of batches of a test.
#[expect(clippy::disallowed_methods, reason = "the variable of all property tests")]
pub(crate) fn batches() -> u64 {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    cases.div_ceil(VALUES) as u64
}

/// Values as sources, and what must arrive.
pub(crate) struct Batch {
    language: Language,
    /// The sources of the parts that JSON cannot hold.
    opaque: Vec<String>,
    sources: Vec<String>,
    /// A part that JSON cannot hold is a [`place`].
    expected: Vec<Value>,
}

/// The place of a part in the list of those that JSON cannot hold.
fn place(index: usize) -> Value {
    json!({ "$opaque": index })
}

impl Batch {
    pub(crate) fn new(language: Language, seed: u64) -> Self {
        let mut generator = Generator {
            random: Random::new(seed),
            is_python: language == Language::Python,
            opaque: Vec::new(),
        };
        let (sources, expected) = (0..VALUES).map(|_| generator.value(DEPTH)).unzip();
        Self { language, opaque: generator.opaque, sources, expected }
    }

    /// Code that prints the oracle, and whose value is the list of values.
    pub(crate) fn code(&self) -> String {
        let (opaque, values) = (self.opaque.join(",\n "), self.sources.join(",\n "));
        if self.language == Language::Python {
            format!("{PYTHON}o = [\n {opaque}\n]\nprint(oracle(o))\n[\n {values}\n]\n")
        } else {
            format!(
                "(() => {{\n{JAVASCRIPT}const o = [\n {opaque}\n];\nconsole.log(oracle(o));\nreturn [\n {values}\n];\n}})()\n"
            )
        }
    }

    /// The code with another script that renders the value, which it prints.
    pub(crate) fn code_with(&self, script: &str) -> String {
        let script = json!(script);
        let code = self.code();
        if self.language == Language::Python {
            let code = code.replace("print(oracle(o))\n[", "print(oracle(o))\nvalues = [");
            format!("{code}exec({script})\nprint('::result', Value().describe(values).decode())\nNone\n")
        } else {
            let code = code.trim_end();
            format!("console.log('::result ' + eval({script})({code}));\nundefined\n")
        }
    }

    /// The first value that differs from the one that must arrive, and how. `stdout` is the output of the code.
    pub(crate) fn fault(&self, stdout: &str, value: Option<&Value>) -> Option<String> {
        let first = stdout.lines().next().unwrap_or_default();
        let Ok(texts) = serde_json::from_str::<Vec<(String, String)>>(first) else {
            return Some(format!("no oracle: {stdout}"));
        };
        let Some(found) = value.and_then(Value::as_array).filter(|found| found.len() == VALUES) else {
            return Some(format!("no list of {VALUES} values: {value:?}"));
        };
        let rows = self.sources.iter().zip(&self.expected).zip(found);
        rows.into_iter().find_map(|((source, expected), found)| {
            let expected = with_texts(expected, &texts);
            let opaque = if source.contains("o[") { self.opaque.join(", ") } else { String::new() };
            let is_equal = is_equal(&expected, found);
            (!is_equal).then(|| format!("{source} expected {expected}, found {found}; o = [{opaque}]"))
        })
    }
}

fn with_texts(expected: &Value, texts: &[(String, String)]) -> Value {
    match expected {
        Value::Object(members) if members.len() == 1 && members.contains_key("$opaque") => {
            let (kind, text) = &texts[members["$opaque"].as_u64().unwrap() as usize];
            json!({ "type": kind, "text": text })
        }
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), with_texts(member, texts))).collect()
        }
        Value::Array(items) => items.iter().map(|item| with_texts(item, texts)).collect(),
        plain => plain.clone(),
    }
}

/// Whether values are equal to the last digit and sign. The order of members does not count.
fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_same = |(name, member): (&String, &Value)| {
                other.get(name).is_some_and(|other| is_equal(member, other))
            };
            one.len() == other.len() && one.iter().all(is_same)
        }
        (Value::Number(one), Value::Number(other)) => one.to_string() == other.to_string(),
        (one, other) => one == other,
    }
}

const PYTHON: &str = "\
import json
from array import array
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePosixPath
from uuid import UUID
class Color(Enum): RED = 1
class Own:
    def __init__(self, x): self.x = x
    def __repr__(self): return f'Own({self.x!r})'
def kind(x):
    of = type(x)
    return of.__qualname__ if of.__module__ == 'builtins' else of.__module__ + '.' + of.__qualname__
def shown(x):
    if isinstance(x, str): return ascii(x)
    try: return repr(x)
    except ValueError: return format(x, '#x')
def oracle(o): return json.dumps([[kind(x), shown(x)] for x in o])
";

const JAVASCRIPT: &str = "\
const { inspect, types } = require('util');
const isPlain = (x) => { const of = Object.getPrototypeOf(x); return of === null || of === Object.prototype; };
const kind = (x) => (typeof x === 'object' ? x.constructor?.name || 'Object' : typeof x);
const shown = (x) => {
  if (typeof x === 'string') return JSON.stringify(x);
  if (typeof x !== 'object') return inspect(x);
  const isDeep = Array.isArray(x) || types.isMap(x) || types.isSet(x) || ArrayBuffer.isView(x) || isPlain(x);
  return inspect(x, isDeep ? { depth: 10, maxArrayLength: 100000, maxStringLength: 1000000 } : {});
};
const oracle = (o) => JSON.stringify(o.map((x) => [kind(x), shown(x)]));
";

/// Pseudo-random numbers of a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(0x5eed_1234_5678_9abc ^ (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: u64) -> u64 {
        (self.next() >> 11) % count
    }

    fn list(&mut self, max: u64, mut item: impl FnMut(&mut Self) -> String) -> String {
        let items: Vec<String> = (0..self.below(max + 1)).map(|_| item(self)).collect();
        items.join(", ")
    }

    fn bytes(&mut self) -> String {
        self.list(6, |random| random.below(256).to_string())
    }

    fn small(&mut self) -> String {
        (self.below(2001) as i64 - 1000).to_string()
    }

    /// A finite number: near a power of two, or of random bits.
    fn float(&mut self) -> f64 {
        let near = |random: &mut Self| 2f64.powi(random.below(80) as i32) + random.below(3) as f64 - 1.0;
        let number = match self.below(5) {
            0 => f64::from_bits(self.next()),
            1 => self.next() as f64 / 1e10,
            2 => near(self),
            3 => -near(self),
            _ => [0.0, -0.0, 1e22, -1e21, 5e-324, f64::MAX, 1e16][self.below(7) as usize],
        };
        if number.is_finite() { number } else { 0.5 }
    }

    /// The digits of an integer of any size.
    fn digits(&mut self) -> String {
        let sign = if self.below(2) == 0 { "" } else { "-" };
        let digits = match self.below(3) {
            0 => self.below(1000).to_string(),
            1 => ((1_i128 << self.below(121)) + i128::from(self.below(3)) - 1).to_string(),
            _ => {
                let first = self.below(9) + 1;
                let rest: String = (0..self.below(300)).map(|_| self.below(10).to_string()).collect();
                format!("{first}{rest}")
            }
        };
        if digits == "0" { digits } else { format!("{sign}{digits}") }
    }
}

/// A character, or half of one.
#[derive(Clone, Copy)]
enum Unit {
    Whole(char),
    Half(u16),
}

struct Generator {
    random: Random,
    is_python: bool,
    opaque: Vec<String>,
}

impl Generator {
    /// A part that JSON cannot hold.
    fn opaque(&mut self, source: String) -> (String, Value) {
        self.opaque.push(source);
        let index = self.opaque.len() - 1;
        (format!("o[{index}]"), place(index))
    }

    /// The source of a value, and the value that must arrive.
    fn value(&mut self, depth: usize) -> (String, Value) {
        match self.random.below(if depth == 0 { 6 } else { 9 }) {
            0 => self.constant(),
            1 => self.integer(),
            2 => self.float(),
            3 => self.text(),
            4 | 5 => {
                let source = if self.is_python { self.python() } else { self.javascript() };
                self.opaque(source)
            }
            6 => self.list(depth),
            _ => self.object(depth),
        }
    }

    fn constant(&mut self) -> (String, Value) {
        let (python, javascript, value) =
            [("None", "null", Value::Null), ("True", "true", json!(true)), ("False", "false", json!(false))]
                [self.random.below(3) as usize]
                .clone();
        ((if self.is_python { python } else { javascript }).to_owned(), value)
    }

    fn integer(&mut self) -> (String, Value) {
        let digits = self.random.digits();
        let source = if self.is_python { format!("({digits})") } else { format!("({digits}n)") };
        (source, integer(&digits))
    }

    fn float(&mut self) -> (String, Value) {
        let number = self.random.float();
        let is_integer = number.fract() == 0.0 && (-(2f64.powi(63))..2f64.powi(64)).contains(&number);
        let is_integer = is_integer && !(number == 0.0 && number.is_sign_negative());
        let value = if is_integer && !self.is_python {
            integer(&(number as i128).to_string())
        } else {
            json!(number)
        };
        (format!("({number:?})"), value)
    }

    fn units(&mut self, may_have_halves: bool) -> Vec<Unit> {
        const LETTERS: [char; 18] = [
            'a', 'Z', ' ', '"', '\\', '\'', '\n', '\r', '\0', '\u{7f}', 'é', '\u{2028}', '\u{feff}', '𐐷',
            '{', '`', '$', '€',
        ];
        let has_half = may_have_halves && self.random.below(8) == 0;
        let mut units: Vec<Unit> = (0..self.random.below(8))
            .map(|_| Unit::Whole(LETTERS[self.random.below(LETTERS.len() as u64) as usize]))
            .collect();
        if has_half {
            // Only first halves: two of them make no character.
            units.push(Unit::Half(0xd800 + self.random.below(0x400) as u16));
        }
        units
    }

    fn literal(&self, units: &[Unit]) -> String {
        let escaped = units.iter().map(|unit| match *unit {
            Unit::Half(half) => format!("\\u{half:04x}"),
            Unit::Whole(letter) if (letter as u32) < 0x1_0000 => format!("\\u{:04x}", letter as u32),
            Unit::Whole(letter) if self.is_python => format!("\\U{:08x}", letter as u32),
            Unit::Whole(letter) => format!("\\u{{{:x}}}", letter as u32),
        });
        format!("'{}'", escaped.collect::<String>())
    }

    /// The text of units, unless one is half of a character.
    fn whole(units: &[Unit]) -> Option<String> {
        let letter = |unit: &Unit| if let Unit::Whole(letter) = unit { Some(*letter) } else { None };
        units.iter().map(letter).collect()
    }

    fn text(&mut self) -> (String, Value) {
        let units = self.units(true);
        let source = self.literal(&units);
        match Self::whole(&units) {
            Some(text) => (source, json!(text)),
            None => self.opaque(source),
        }
    }

    fn plain_text(&mut self) -> String {
        let units = self.units(false);
        self.literal(&units)
    }

    fn list(&mut self, depth: usize) -> (String, Value) {
        let count = self.random.below(5);
        let (sources, values): (Vec<_>, Vec<_>) = (0..count).map(|_| self.value(depth - 1)).unzip();
        let items = sources.join(", ");
        let is_tuple = self.is_python && self.random.below(3) == 0;
        let comma = if count == 1 { "," } else { "" };
        (if is_tuple { format!("({items}{comma})") } else { format!("[{items}]") }, values.into())
    }

    fn object(&mut self, depth: usize) -> (String, Value) {
        let (mut source, mut members) = (String::new(), Map::new());
        for index in 0..self.random.below(5) {
            let mut units = self.units(false);
            // Names differ, and none is a number, which JavaScript would move.
            units.extend(format!("k{index}").chars().map(Unit::Whole));
            let (item, value) = self.value(depth - 1);
            let name = self.literal(&units);
            let member =
                if self.is_python { format!("{name}: {item}, ") } else { format!("[{name}]: {item}, ") };
            source.push_str(&member);
            members.insert(Self::whole(&units).unwrap_or_default(), value);
        }
        let source = match (self.is_python, self.random.below(6)) {
            (true, 0) => format!("OrderedDict({{{source}}})"),
            (true, _) => format!("{{{source}}}"),
            (false, 0) => format!("Object.assign(Object.create(null), {{{source}}})"),
            (false, _) => format!("({{{source}}})"),
        };
        (source, members.into())
    }

    /// A value of Python that JSON cannot hold.
    fn python(&mut self) -> String {
        let (text, other) = (self.plain_text(), self.plain_text());
        let random = &mut self.random;
        let (year, month, day) = (random.below(9999) + 1, random.below(12) + 1, random.below(28) + 1);
        let (hour, minute, second) = (random.below(24), random.below(60), random.below(60));
        match random.below(26) {
            0 => format!("{{{}, {text}, None}}", random.small()),
            1 => format!("frozenset([{}])", random.list(4, Random::small)),
            2 => format!("bytes([{}])", random.bytes()),
            3 => format!("bytearray([{}])", random.bytes()),
            4 => format!("complex({:?}, {:?})", random.float(), random.float()),
            5 => format!("Decimal('{}.{}')", random.digits(), random.below(1000)),
            6 => format!("Fraction({}, {})", random.digits(), random.below(100) + 1),
            7 => format!("date({year}, {month}, {day})"),
            8 => {
                let zone = random.below(1400) as i64 - 700;
                let zone = format!("timezone(timedelta(minutes={zone}))");
                format!(
                    "datetime({year}, {month}, {day}, {hour}, {minute}, {second}, {}, {zone})",
                    random.below(1_000_000)
                )
            }
            9 => format!("timedelta(days={}, seconds={second})", random.small()),
            10 => format!("time({hour}, {minute}, {second})"),
            11 => format!("range({}, {}, {})", random.small(), random.small(), random.below(9) + 1),
            12 => ["float('nan')", "float('inf')", "float('-inf')"][random.below(3) as usize].to_owned(),
            13 => format!("{{{}: {text}, {other}: 2}}", random.small()),
            14 => format!("{{({}, {text}): 1, None: [2]}}", random.small()),
            15 => format!("{{{:?}: 1, b'x': {text}, True: 3}}", random.float()),
            16 => format!("{{{text}: 1, '\\ud8{:02x}': 2}}", random.below(256)),
            17 => format!("Counter([1, {}])", random.list(4, |random| random.below(3).to_string())),
            18 => format!("deque([{}])", random.list(4, Random::small)),
            19 => format!("PurePosixPath({text} + 'x')").replace("\\u0000", "0"),
            20 => format!("UUID(int={})", random.next()),
            21 => format!("Own({text})"),
            22 => format!("array('d', [{:?}, {:?}])", random.float(), random.float()),
            23 => ["Color.RED", "...", "int", "NotImplemented"][random.below(4) as usize].to_owned(),
            // More digits than Python writes.
            24 => format!("10**5000 + {}", random.next()),
            _ => format!("slice({}, None, {})", random.small(), random.below(9)),
        }
    }

    /// A value of JavaScript that JSON cannot hold.
    fn javascript(&mut self) -> String {
        let text = self.plain_text();
        let random = &mut self.random;
        match random.below(23) {
            0 => ["NaN", "Infinity", "-Infinity"][random.below(3) as usize].to_owned(),
            1 => "undefined".to_owned(),
            2 => format!("new Date({})", (random.next() >> 16) as i64 - (1 << 47)),
            3 => "new Date(NaN)".to_owned(),
            4 => format!("/a{}/gu", random.below(100)),
            5 => format!("new Map([[{}, {text}], [{text}, {}n]])", random.small(), random.digits()),
            6 => format!("new Set([{}, {text}, null])", random.small()),
            7 => format!("new Uint8Array([{}])", random.bytes()),
            8 => format!("new Float64Array([{:?}, {:?}])", random.float(), random.float()),
            9 => format!("new BigInt64Array([{}n, -1n])", random.next()),
            10 => format!("new Uint8Array([{}]).buffer", random.bytes()),
            11 => format!("Buffer.from({text})"),
            12 => format!("Symbol({text})"),
            13 => format!("((x) => x + {})", random.below(10)),
            14 => format!("new (class Point {{ x = {} }})()", random.small()),
            15 => format!("[{}, , {text}]", random.small()),
            16 => format!("Object.assign([{}], {{ more: {text} }})", random.small()),
            17 => format!("({{ [Symbol({text})]: 1, a: 2 }})"),
            18 => format!("Object({}n)", random.digits()),
            19 => format!("new Proxy({{ a: {} }}, {{}})", random.small()),
            20 => "({ get a() { throw 1 } })".to_owned(),
            21 => format!("({{ '\\ud8{:02x}': {} }})", random.below(256), random.small()),
            _ => "new WeakMap()".to_owned(),
        }
    }
}

/// The value of an integer: its text beyond 64 bits.
fn integer(digits: &str) -> Value {
    let fits = digits.parse::<i64>().map(Value::from).or_else(|_| digits.parse::<u64>().map(Value::from));
    fits.unwrap_or_else(|_| json!({ "type": "int", "text": digits }))
}

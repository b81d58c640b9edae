//! A Pratt parser that evaluates expressions while parsing.

use std::collections::BTreeMap;
use std::f64::consts;

use toolpost::{ToolError, did_you_mean};

use super::function::{FUNCTIONS, MAX_ARGUMENTS};
use super::number::{Fault, Number, Outcome};

/// Maximum nesting depth of parentheses, signs and powers.
const MAX_DEPTH: u32 = 64;
/// The number of characters that an error shows on each side of its position.
const CONTEXT: usize = 30;

const CONSTANTS: [(&str, f64); 4] =
    [("pi", consts::PI), ("π", consts::PI), ("e", consts::E), ("tau", consts::TAU)];

/// Binding strengths of operators.
const SUM: u8 = 1;
const PRODUCT: u8 = 2;
const SIGN: u8 = 3;
const POWER: u8 = 4;

/// An error and its position.
#[derive(Debug)]
pub(super) struct Failure {
    place: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Syntax { message: String, hint: Option<String> },
    Arithmetic(Fault),
}

impl Failure {
    /// Formats the error with an excerpt of the expression and a mark under the position.
    pub(super) fn into_error(self, expression: &str) -> ToolError {
        let letters: Vec<char> = expression.chars().collect();
        let start = self.place.saturating_sub(CONTEXT);
        let end = (self.place + CONTEXT).min(letters.len());
        let printable = |letter: &char| if letter.is_control() { ' ' } else { *letter };
        let part: String = letters[start.min(end)..end].iter().map(printable).collect();
        let (before, after) = (if start > 0 { "…" } else { "" }, if end < letters.len() { "…" } else { "" });
        let mark = " ".repeat(self.place - start + before.chars().count());
        let place = self.place + 1;
        let sentence = |message: &str| {
            format!("{message} at character {place} of the expression:\n  {before}{part}{after}\n  {mark}^")
        };
        let error = match self.kind {
            Kind::Syntax { message, hint } => {
                ToolError::invalid_input(sentence(&message)).suggest_maybe(hint)
            }
            Kind::Arithmetic(Fault::Domain(message)) => ToolError::invalid_input(sentence(&message)),
            Kind::Arithmetic(Fault::TooLarge(message)) => ToolError::limit(sentence(&message))
                .suggest("Use logarithms, or run code with arbitrary-precision numbers."),
        };
        error.with("pointer", "/expression").with("character", place)
    }
}

/// Whether a text is a name: a letter or `_`, then letters, digits and `_`; at most 64 characters.
pub(super) fn is_name(text: &str) -> bool {
    text.chars().count() <= 64 && text.starts_with(begins_name) && text.chars().all(continues_name)
}

fn begins_name(letter: char) -> bool {
    letter.is_alphabetic() || letter == '_'
}

fn continues_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Evaluates an expression.
pub(super) fn evaluate(expression: &str, variables: &BTreeMap<String, Number>) -> Result<Number, Failure> {
    let letters = expression.chars().map(|letter| match letter {
        '×' | '·' => '*',
        '÷' => '/',
        '−' => '-',
        other => other,
    });
    let mut parser = Parser { letters: letters.collect(), place: 0, depth: 0, variables };
    let number = parser.expression(0)?;
    parser.skip_spaces();
    match parser.peek() {
        None => Ok(number),
        Some(letter) => Err(parser.unexpected(letter)),
    }
}

struct Parser<'a> {
    letters: Vec<char>,
    place: usize,
    depth: u32,
    variables: &'a BTreeMap<String, Number>,
}

type Operation = fn(Number, Number) -> Outcome;

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.letters.get(self.place).copied()
    }

    fn follows(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(index, letter)| self.letters.get(self.place + index) == Some(&letter))
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.place += 1;
        }
    }

    fn fail<T>(&self, message: impl Into<String>, hint: Option<&str>) -> Result<T, Failure> {
        let kind = Kind::Syntax { message: message.into(), hint: hint.map(Into::into) };
        Err(Failure { place: self.place.min(self.letters.len()), kind })
    }

    fn unexpected(&self, letter: char) -> Failure {
        let (message, hint) = match letter {
            ')' => ("a `)` without `(`".to_owned(), None),
            '=' | '<' | '>' => (
                format!("unexpected `{letter}`"),
                Some("Comparison and assignment are not supported; pass variables in `variables`."),
            ),
            ',' => ("unexpected `,`".to_owned(), Some("Write numbers without `,` as a digit separator.")),
            '(' => ("unexpected `(`".to_owned(), Some("Write `*` to multiply.")),
            letter if begins_name(letter) || letter.is_ascii_digit() => {
                ("expected an operator".to_owned(), Some("Write `*` to multiply."))
            }
            letter => (
                format!("unexpected `{}`", letter.escape_debug()),
                Some("Operators are + - * / // % ** and parentheses."),
            ),
        };
        Failure { place: self.place, kind: Kind::Syntax { message, hint: hint.map(Into::into) } }
    }

    /// The next operator: its length, binding strength and operation.
    fn operator(&self) -> Option<(usize, u8, Operation)> {
        Some(match self.peek()? {
            '*' if self.follows("**") => (2, POWER, Number::power),
            '/' if self.follows("//") => (2, PRODUCT, Number::floor_divide),
            '^' => (1, POWER, Number::power),
            '+' => (1, SUM, Number::add),
            '-' => (1, SUM, Number::subtract),
            '*' => (1, PRODUCT, Number::multiply),
            '/' => (1, PRODUCT, Number::divide),
            '%' => (1, PRODUCT, Number::modulo),
            _ => return None,
        })
    }

    /// Parses while operators bind more tightly than `min`.
    fn expression(&mut self, min: u8) -> Result<Number, Failure> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} levels of nesting");
            return self.fail(message, Some("Calculate parts of it first, and pass them as `variables`."));
        }
        let mut left = self.operand()?;
        loop {
            self.skip_spaces();
            let Some((length, strength, operation)) = self.operator() else { break };
            // Powers are right-associative.
            if strength < min || (strength == min && strength != POWER) {
                break;
            }
            let place = self.place;
            self.place += length;
            let right = self.expression(strength)?;
            left =
                operation(left, right).map_err(|fault| Failure { place, kind: Kind::Arithmetic(fault) })?;
        }
        self.depth -= 1;
        Ok(left)
    }

    fn operand(&mut self) -> Result<Number, Failure> {
        self.skip_spaces();
        let Some(letter) = self.peek() else {
            let hint = "Write an expression such as `2 * (3 + 4)`.";
            return self.fail("expected a number at the end of the expression", Some(hint));
        };
        match letter {
            '+' => {
                self.place += 1;
                self.expression(SIGN)
            }
            '-' => {
                self.place += 1;
                Ok(self.expression(SIGN)?.negate())
            }
            '(' => {
                let open = self.place;
                self.place += 1;
                let inner = self.expression(0)?;
                self.skip_spaces();
                match self.peek() {
                    Some(')') => {
                        self.place += 1;
                        Ok(inner)
                    }
                    None => {
                        self.place = open;
                        self.fail("this `(` has no `)`", None)
                    }
                    Some(letter) => Err(self.unexpected(letter)),
                }
            }
            letter if letter.is_ascii_digit() || letter == '.' => self.number(),
            letter if begins_name(letter) => self.name(),
            letter => Err(self.unexpected(letter)),
        }
    }

    /// Takes matching letters; `_` between digits is dropped.
    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(letter) = self.peek().filter(|letter| fits(*letter) || *letter == '_') {
            if letter != '_' {
                taken.push(letter);
            }
            self.place += 1;
        }
        taken
    }

    fn number(&mut self) -> Result<Number, Failure> {
        let start = self.place;
        for (prefix, radix) in [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8)] {
            if self.follows(prefix) {
                self.place += 2;
                let digits = self.take_while(|letter| letter.is_ascii_alphanumeric());
                return match i128::from_str_radix(&digits, radix) {
                    Ok(value) => Ok(Number::whole(value)),
                    Err(_) => {
                        self.place = start;
                        self.fail(format!("this is not a number of base {radix} below 2**127"), None)
                    }
                };
            }
        }
        let mut text = self.take_while(|letter| letter.is_ascii_digit());
        if self.peek() == Some('.') {
            self.place += 1;
            text.push('.');
            text.push_str(&self.take_while(|letter| letter.is_ascii_digit()));
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            let signed = matches!(self.letters.get(self.place + 1), Some('+' | '-'));
            let digit = self.letters.get(self.place + 1 + usize::from(signed));
            if digit.is_some_and(char::is_ascii_digit) {
                text.push('e');
                if signed {
                    text.extend(self.letters.get(self.place + 1));
                }
                self.place += 1 + usize::from(signed);
                text.push_str(&self.take_while(|letter| letter.is_ascii_digit()));
            }
        }
        match Number::from_digits(&text) {
            Some(Ok(number)) => Ok(number),
            Some(Err(fault)) => Err(Failure { place: start, kind: Kind::Arithmetic(fault) }),
            None => {
                self.place = start;
                self.fail("this is not a number", Some("Write numbers such as 12, 0.5, 1e6 or 0xff."))
            }
        }
    }

    fn name(&mut self) -> Result<Number, Failure> {
        let start = self.place;
        while self.peek().is_some_and(continues_name) {
            self.place += 1;
        }
        let name: String = self.letters[start..self.place].iter().collect();
        self.skip_spaces();
        if self.peek() == Some('(') {
            return self.call(&name, start);
        }
        if let Some(number) = self.variables.get(&name) {
            return Ok(*number);
        }
        if let Some((_, value)) = CONSTANTS.iter().find(|(constant, _)| *constant == name) {
            return Ok(Number::Float(*value));
        }
        self.place = start;
        let shown = crate::files::shown(&name);
        if FUNCTIONS.iter().any(|function| function.name == name) {
            return self.fail(format!("`{name}` is a function"), Some(&format!("Write `{name}(…)`.")));
        }
        let known = self.variables.keys().map(String::as_str).chain(CONSTANTS.iter().map(|(name, _)| *name));
        let hint = did_you_mean(&name, known)
            .unwrap_or_else(|| "Pass its value in `variables`; constants are pi, e and tau.".into());
        self.fail(format!("unknown name `{shown}`"), Some(&hint))
    }

    fn call(&mut self, name: &str, start: usize) -> Result<Number, Failure> {
        let Some(function) = FUNCTIONS.iter().find(|function| function.name == name) else {
            self.place = start;
            let hint = did_you_mean(name, FUNCTIONS.iter().map(|function| function.name));
            return self.fail(format!("unknown function `{}`", crate::files::shown(name)), hint.as_deref());
        };
        self.place += 1;
        let arguments = self.arguments(start)?;
        let count = arguments.len();
        if !(function.min..=function.max).contains(&count) {
            self.place = start;
            let expected = match (function.min, function.max) {
                (min, max) if min == max => min.to_string(),
                (min, MAX_ARGUMENTS) => format!("{min} to {MAX_ARGUMENTS}"),
                (min, max) => format!("{min} or {max}"),
            };
            return self.fail(format!("`{name}` takes {expected} arguments, found {count},"), None);
        }
        (function.run)(&arguments).map_err(|fault| Failure { place: start, kind: Kind::Arithmetic(fault) })
    }

    /// Parses arguments up to the closing parenthesis.
    fn arguments(&mut self, start: usize) -> Result<Vec<Number>, Failure> {
        let mut arguments = Vec::new();
        self.skip_spaces();
        if self.peek() == Some(')') {
            self.place += 1;
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression(0)?);
            self.skip_spaces();
            match self.peek() {
                Some(',') => self.place += 1,
                Some(')') => {
                    self.place += 1;
                    return Ok(arguments);
                }
                Some(letter) => return Err(self.unexpected(letter)),
                None => {
                    self.place = start;
                    return self.fail("the arguments of this function have no closing `)`", None);
                }
            }
        }
    }
}

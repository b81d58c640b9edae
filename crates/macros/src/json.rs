//! A JSON validator, so that an invalid example is a compile error.
//!
//! Not a JSON crate: one would be built for the host for this check only.

/// The maximum nesting depth, as at run time.
const MAX_DEPTH: usize = 100;

/// Checks that a text is one JSON object. The error names the expected token and the place.
pub(crate) fn check_object(text: &str) -> Result<(), String> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    if reader.peek() != Some('{') {
        return Err(reader.expected("`{`"));
    }
    reader.value(0)?;
    reader.skip_space();
    if reader.at == text.len() { Ok(()) } else { Err(reader.expected("nothing after the object")) }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn expected(&self, what: &str) -> String {
        let found: String = self.rest().chars().take(12).collect();
        if found.is_empty() {
            format!("expected {what} at its end")
        } else {
            format!("expected {what} before `{found}`")
        }
    }

    fn skip_while(&mut self, keep: impl Fn(char) -> bool) -> usize {
        let rest = self.rest();
        let length = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += length;
        length
    }

    fn skip_space(&mut self) {
        self.skip_while(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
    }

    fn take(&mut self, expected: &str) -> bool {
        let is_next = self.rest().starts_with(expected);
        if is_next {
            self.at += expected.len();
        }
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("expected at most {MAX_DEPTH} levels"));
        }
        self.skip_space();
        match self.peek() {
            Some('{') => self.list('}', |reader| {
                reader.skip_space();
                reader.string("a key in double quotes")?;
                reader.skip_space();
                if !reader.take(":") {
                    return Err(reader.expected("`:`"));
                }
                reader.value(depth + 1)
            }),
            Some('[') => self.list(']', |reader| reader.value(depth + 1)),
            Some('"') => self.string("a string"),
            Some('-' | '0'..='9') => self.number(),
            _ if self.take("true") || self.take("false") || self.take("null") => Ok(()),
            _ => Err(self.expected("a JSON value")),
        }
    }

    /// The items of a list or an object, brackets included.
    fn list(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            self.skip_space();
            if self.peek() == Some(close) {
                self.at += 1;
                return Ok(());
            }
            if !self.take(",") {
                return Err(self.expected(&format!("`,` or `{close}`")));
            }
        }
    }

    fn string(&mut self, what: &str) -> Result<(), String> {
        if !self.take("\"") {
            return Err(self.expected(what));
        }
        loop {
            self.skip_while(|c| c != '"' && c != '\\' && c >= ' ');
            if self.take("\"") {
                return Ok(());
            }
            if !self.take("\\") {
                return Err(self.expected("the end of a string"));
            }
            match self.peek() {
                Some('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => self.at += 1,
                Some('u')
                    if self
                        .rest()
                        .get(1..5)
                        .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())) =>
                {
                    self.at += 5;
                }
                _ => return Err(self.expected("an escape such as `\\n` or `\\u00e9`")),
            }
        }
    }

    fn number(&mut self) -> Result<(), String> {
        self.take("-");
        let digits = |c: char| c.is_ascii_digit();
        if !self.take("0") && self.skip_while(digits) == 0 {
            return Err(self.expected("a digit"));
        }
        if self.take(".") && self.skip_while(digits) == 0 {
            return Err(self.expected("a digit"));
        }
        if self.take("e") || self.take("E") {
            let _ = self.take("+") || self.take("-");
            if self.skip_while(digits) == 0 {
                return Err(self.expected("a digit"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::check_object;

    #[test]
    fn only_json_objects_are_valid() {
        for good in [
            "{}",
            " { } ",
            r#"{"a": 1, "b": [true, false, null, -0.5e+3, "x\n\u00e9\"", {}, []]}"#,
            "{\"é\": {\"a\": []}}",
        ] {
            assert_eq!(check_object(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "null",
            "[]",
            "{city: Oslo}",
            "{'a': 1}",
            r#"{"a": 1,}"#,
            r#"{"a": 01}"#,
            r#"{"a": 1.}"#,
            r#"{"a" 1}"#,
            r#"{"a": 1"#,
            r#"{"a": "b}"#,
            r#"{"a": "\x"}"#,
            "{\"a\": \"\n\"}",
            r#"{"a": 1} x"#,
            r#"{"a": [1,, 2]}"#,
            r#"{"a": nul}"#,
        ] {
            assert!(check_object(bad).is_err(), "{bad}");
        }
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(check_object(&deep).unwrap_err().contains("100 levels"));
        assert_eq!(
            check_object("{city: Oslo}").unwrap_err(),
            "expected a key in double quotes before `city: Oslo}`"
        );
    }
}

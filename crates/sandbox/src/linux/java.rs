//! Finds the file name and the main class of Java code, before compilation.

/// The names for Java's tools.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// The file name, which must match the public type.
    pub(crate) file: String,
    /// The class with `main`, with its package.
    pub(crate) main: String,
}

/// Finds the names. For code without them, the compiler reports the error.
pub(crate) fn names(source: &str) -> Names {
    let words = words(source);
    let mut package = String::new();
    let mut depth = 0usize;
    let mut public = None;
    let mut last = None;
    let mut main = None;
    for (index, word) in words.iter().enumerate() {
        let next = |ahead: usize| words.get(index + ahead).map_or("", String::as_str);
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            "package" if depth == 0 && package.is_empty() => {
                package =
                    words[index + 1..].iter().take_while(|word| *word != ";").map(String::as_str).collect();
            }
            "class" | "record" | "enum" | "interface" if depth == 0 && is_name(next(1)) => {
                last = Some(next(1).to_owned());
                // Modifiers and annotations are between the end of the previous type and this word.
                let is_public = words[..index]
                    .iter()
                    .rev()
                    .take_while(|word| !matches!(word.as_str(), ";" | "{" | "}"))
                    .any(|word| word == "public");
                if is_public && public.is_none() {
                    public.clone_from(&last);
                }
            }
            "void" if depth == 1 && next(1) == "main" && next(2) == "(" && main.is_none() => {
                main.clone_from(&last);
            }
            _ => {}
        }
    }
    let main = main.or_else(|| public.clone()).unwrap_or_else(|| "Main".into());
    let file = public.unwrap_or_else(|| "Main".into());
    let main = if package.is_empty() { main } else { format!("{package}.{main}") };
    Names { file: format!("{file}.java"), main }
}

fn is_name(word: &str) -> bool {
    // A name becomes a file name; the compiler reports invalid ones.
    word.len() <= 200
        && word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_' || letter == '$')
        && word.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '$')
}

/// The words and signs of the code, without comments and literals.
fn words(source: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        } else if let Some(text) = rest.strip_prefix("\"\"\"") {
            rest = text.split_once("\"\"\"").map_or("", |(_, after)| after);
        } else if first == '"' || first == '\'' {
            let mut escaped = false;
            let end = rest[1..].char_indices().find(|(_, letter)| {
                let is_end = !escaped && (*letter == first || *letter == '\n');
                escaped = !escaped && *letter == '\\';
                is_end
            });
            rest = end.map_or("", |(index, letter)| &rest[1 + index + letter.len_utf8()..]);
        } else if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
        } else {
            let length = rest
                .find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '$'))
                .unwrap_or(rest.len())
                .max(first.len_utf8());
            words.push(rest[..length].to_owned());
            rest = &rest[length..];
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_type_names_the_file_and_main_the_start() {
        let cases = [
            ("class A { public static void main(String[] a) {} }", "Main.java", "A"),
            ("public class Hello { public static void main(String[] a) {} }", "Hello.java", "Hello"),
            ("// public class No\n/* public class No */ class A {} public final class B {}", "B.java", "B"),
            (
                "class A { String s = \"public class X {\"; char c = '{'; } class B { static void main(String[] a) {} }",
                "Main.java",
                "B",
            ),
            (
                "package a . b ; public record P(int x) { public static void main(String[] a) {} }",
                "P.java",
                "a.b.P",
            ),
            (
                "public class Outer { static class Inner { void main() {} } static void main(String[] a) {} }",
                "Outer.java",
                "Outer",
            ),
            ("class A { String t = \"\"\"\n public class Q { \" \"\"\"; void main() {} }", "Main.java", "A"),
            ("nothing", "Main.java", "Main"),
            ("public class ../../x {}", "Main.java", "Main"),
            ("\"\\", "Main.java", "Main"),
        ];
        for (source, file, main) in cases {
            assert_eq!(names(source), Names { file: file.into(), main: main.into() }, "{source}");
        }
    }
}

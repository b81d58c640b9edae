//! Wrong descriptions: each error has its line, what was expected and what was found.

use toolpost_exec::command::CommandTools;

use crate::command::support::{description, read};

fn error(text: &str) -> String {
    match CommandTools::from_toml(text, "x.toml") {
        Err(error) => error.to_string(),
        Ok(tools) => panic!("expected an error, found {tools:?}\n{text}"),
    }
}

const X: &str = "[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\n";

#[test]
fn every_mistake_has_its_line_and_a_sentence() {
    // The tool's own lines begin at line 8.
    let rows: &[(&str, &str)] = &[
        ("nmae = 1", "x.toml:8: tool[0].nmae: unknown key `nmae`; did you mean `name`?"),
        ("args = 1", "x.toml:8: tool[0].args: expected an array, found the number 1"),
        ("args = [\"a\",\n 2]", "x.toml:9: tool[0].args[1]: expected a string, found the number 2"),
        ("args = [\"{y\"]", "x.toml:8: tool[0].args[0]: expected `{parameter}`, found a single brace"),
        (
            "args = [\n\"a\",\n\"{pth}\"]\n[tool.parameters.path]\ntype = \"file\"\ndescription = \"P.\"",
            "x.toml:10: tool[0].args[1]: expected a parameter name, found `pth`; did you mean `path`?",
        ),
        (
            "args = [{ when = \"y\", args = [\"a\"] }]",
            "x.toml:8: tool[0].args[0].when: expected a parameter name",
        ),
        ("args = [{ args = [\"a\"] }]", "x.toml:8: tool[0].args[0]: the key `when` is missing"),
        (
            "args = [{ when = \"x\" }]\n[tool.parameters.x]\ntype=\"string\"\ndescription=\"X.\"",
            "x.toml:8: tool[0].args[0]: expected arguments in `args` or `otherwise`",
        ),
        (
            "args = [{ when = \"x\", arsg = [\"a\"], args = [\"a\"] }]\n[tool.parameters.x]\ntype=\"string\"\ndescription=\"X.\"",
            "did you mean `args`?",
        ),
        (
            "read_only = \"yes\"",
            "x.toml:8: tool[0].read_only: expected true or false, found the string \"yes\"",
        ),
        ("read_only = true\ndestructive = true", "cannot be both"),
        (
            "working_directory = \"requird\"",
            "expected one of required, optional, none, found `requird`; did you mean `required`?",
        ),
        ("directory = \"a\"\nworking_directory = \"none\"", "`working_directory` is `none`"),
        ("title = \" \"", "x.toml:8: tool[0].title: expected a non-empty string"),
        (
            "[tool.env]\nLD_PRELOAD = \"x\"",
            "x.toml:9: tool[0].env.LD_PRELOAD: variable `LD_PRELOAD` is not allowed",
        ),
        ("[tool.env]\n\"A B\" = \"x\"", "a name has letters, digits and underscores"),
        ("[tool.policy]\ntimeout = \"soon\"", "x.toml:9: tool[0].policy.timeout: `soon` is not a duration"),
        ("[tool.policy]\ntimeout = \"0s\"", "expected more than 0"),
        ("[tool.policy]\nretries = -1", "expected an integer of at least 0"),
        ("[tool.policy]\napproval = \"al\"", "`al` is not an approval"),
        ("[tool.policy]\nrate = \"often\"", "`often` is not a rate"),
        ("[tool.policy]\noutput_limit_bytes = 0", "expected an integer of at least 1"),
        ("[tool.policy]\ncache = \"5m\"", "x.toml:5: tool[0]: only an idempotent tool can be cached"),
        (
            "[tool.output]\nformat = \"xml\"",
            "expected one of text, json, json_lines, lines, captures, fields, csv, found `xml`",
        ),
        ("[tool.output]\nlimit = 1", "x.toml:8: tool[0].output: the key `format` is missing"),
        (
            "[tool.output]\nformat = \"text\"\nlimit = 1",
            "`limit` has no effect with the format `text`; it applies to json_lines, lines",
        ),
        ("[tool.output]\nformat = \"captures\"", "`format = \"captures\"` needs a `pattern`"),
        (
            "[tool.output]\nformat = \"captures\"\npattern = '('",
            "x.toml:10: tool[0].output.pattern: the regular expression is invalid",
        ),
        ("[tool.output]\nformat = \"captures\"\npattern = '(?=a)(?<x>.)'", "look-around"),
        ("[tool.output]\nformat = \"captures\"\npattern = '(a)'", "no named group"),
        (
            "[tool.output]\nformat = \"captures\"\npattern = '(?<size>a)'\ntypes = { siez = \"integer\" }",
            "expected one of size, found `siez`; did you mean `size`?",
        ),
        (
            "[tool.output]\nformat = \"captures\"\npattern = '(?<a>a)'\ntypes = { a = \"int\" }",
            "expected one of string, integer, number, boolean, found `int`",
        ),
        ("[tool.output]\nformat = \"fields\"", "needs `columns`"),
        (
            "[tool.output]\nformat = \"fields\"\ncolumns = [\"a\"]\nfield_separator = \"\"",
            "expected a separator, found an empty string",
        ),
        ("[tool.output]\nformat = \"text\"\nlimit_bytes = 100000000000", "expected at most 67108864 bytes"),
        (
            "[tool.output]\nformat = \"json\"\n[tool.output.schema]\ntype = \"objekt\"",
            "JSON Schema is invalid",
        ),
        (
            "[[tool.exit]]\ncode = 300\nmeans = \"empty\"",
            "x.toml:9: tool[0].exit[0].code: expected an exit status from 0 to 255",
        ),
        ("[[tool.exit]]\ncode = 1\nmeans = \"NOTFOUND\"", "found `NOTFOUND`; did you mean `NOT_FOUND`?"),
        ("[[tool.exit]]\nmeans = \"empty\"", "would match every failure"),
        ("[[tool.exit]]\ncode = 1\nmeans = \"empty\"\nmessage = \"x\"", "are for errors"),
        (
            "[[tool.exit]]\ncode = 1\nstderr = '['\nmeans = \"empty\"",
            "x.toml:10: tool[0].exit[0].stderr: the regular expression is invalid",
        ),
        ("[[tool.example]]\noutput = 1", "the key `args` is missing"),
        ("[[tool.example]]\nargs = { y = 1 }", "example 1 does not match"),
    ];
    for (tool, expected) in rows {
        let found = error(&description("p", "", tool));
        assert!(found.contains(expected), "{tool}\nexpected {expected}\nfound    {found}");
        assert!(found.starts_with("x.toml:"), "{found}");
    }
}

#[test]
fn parameters_are_checked() {
    let rows: &[(&str, &str)] = &[
        (
            "[tool.parameters.x]\ndescription = \"X.\"",
            "x.toml:9: tool[0].parameters.x: the key `type` is missing",
        ),
        ("[tool.parameters.x]\ntype = \"strng\"\ndescription = \"X.\"", "Did you mean `string`?"),
        ("[tool.parameters.x]\ntype = \"string\"", "the key `description` is missing"),
        (
            "[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\nmin_length = 1",
            "did you mean `minLength`",
        ),
        (
            "[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\nminimum = 1",
            "`minimum` of parameter `x` has no effect",
        ),
        ("[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\ndefault = 1", "x"),
        ("[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\npattern = \"(\"", "pattern"),
        (
            "[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\nitems = { type = \"string\" }",
            "only an `array` has items",
        ),
        (
            "[tool.parameters.x]\ntype = \"string\"\ndescription = \"X.\"\njoin = \",\"",
            "`join` is for an `array`",
        ),
        (
            "[tool.parameters.x]\ntype = \"array\"\ndescription = \"X.\"\nitems = { typ = \"string\", type = \"string\" }",
            "did you mean `type`?",
        ),
        (
            "[tool.parameters.\"x y\"]\ntype = \"string\"\ndescription = \"X.\"",
            "expected a name of at most 64 letters",
        ),
    ];
    for (parameter, expected) in rows {
        let found = error(&description("p", "", &format!("args = [\"{{x}}\"]\n{parameter}")));
        assert!(found.contains(expected), "{parameter}\nexpected {expected}\nfound    {found}");
    }
    let unread = error(&description("p", "", X));
    assert_eq!(
        unread,
        "x.toml:8: tool[0].parameters.x: the parameter is unused; write `{x}` in `args`, `stdin`, `directory` or `env`, or remove it"
    );
    let secret = error(&description("p", "", &format!("args = [\"--token={{x}}\"]\n{X}sensitive = true")));
    assert!(secret.contains("x.toml:8") && secret.contains("pass it by `env` or `stdin`"), "{secret}");
    let lists = "[tool.parameters.a]\ntype = \"array\"\ndescription = \"A.\"\n[tool.parameters.b]\ntype = \"array\"\ndescription = \"B.\"";
    assert!(error(&description("p", "", &format!("args = [\"{{a}}{{b}}\"]\n{lists}"))).contains("two lists"));
}

#[test]
fn a_value_that_reads_as_an_option_is_rejected() {
    for template in ["--{x}", "-{x}", "-o{x}", "--name{x}", "--{x}=1"] {
        let found = error(&description("p", "", &format!("args = [\"{template}\"]\n{X}")));
        assert!(
            found.contains("x.toml:8: tool[0].args[0]: the value of `x` would become part of the option"),
            "{found}"
        );
    }
    let number = "[tool.parameters.x]\ntype = \"integer\"\ndescription = \"X.\"\n";
    read(&description("p", "", &format!("args = [\"-n{{x}}\", \"-{{x}}\"]\n{number}")));
    assert!(error(&description("p", "", &format!("args = [\"--{{x}}\"]\n{number}"))).contains("option"));
}

#[test]
fn the_file_itself_is_checked() {
    let good = description("p", "", "");
    let rows = [
        (String::new(), "x.toml:1: the key `kind` is missing"),
        (good.replace("\"command\"", "\"flow\""), "x.toml:1: kind: expected `command`, found `flow`"),
        (
            good.replace("v = 1", "v = 2"),
            "x.toml:2: v: expected 1, found 2: the description has another version",
        ),
        (good.replace("v = 1\n", ""), "the key `v` is missing"),
        (good.replace("[[tool]]", "[[tols]]"), "it has no tool"),
        (
            description("p", "progam = 1", ""),
            "x.toml:4: progam: unknown key `progam`; did you mean `program`?",
        ),
        (description("p", "args = [\"{x}\"]", X), "x.toml:4: args[0]: expected a parameter name, found `x`"),
        (
            description("p", "[sandbox]\nlevel = \"strikt\"", ""),
            "x.toml:5: sandbox.level: unknown level `strikt`, did you mean `strict`?",
        ),
        (description("p", "[sandbox]\nreadable = [\"a\"]", ""), "expected an absolute path, found `a`"),
        (description("p", "[sandbox]\nmemory_mib = 0", ""), "expected an integer of at least 1"),
        (description("p", "[sandbox]\nnet = true", ""), "unknown key `net`; did you mean `network`?"),
        (description("p", "[version]\nminimum = \"x\"\npattern = '(a)'", ""), "expected numbers with dots"),
        (description("p", "[version]\nminimum = \"1\"\npattern = 'a'", ""), "the pattern has no group"),
        (description("p", "", "x = "), "x.toml:8: "),
        (description("p", "", "name = \"u\""), "x.toml:8: "),
        (
            description("p", "", "[[tool]]\nname = \"t\"\ndescription = \"Again.\""),
            "x.toml:8: tool[1]: the tool at line 5 is also named `t`",
        ),
        (good.replace("\"t\"", "\"1 t\""), "starts with a letter"),
        (format!("{good}# {}", "x".repeat(2 << 20)), "the maximum is 1048576"),
        (format!("{good}x = {}", "[".repeat(10_000)), "x.toml:9: "),
    ];
    for (text, expected) in rows {
        let found = error(&text);
        let start: String = text.chars().take(200).collect();
        assert!(found.contains(expected), "{start}\nexpected {expected}\nfound    {found}");
    }
}

#[test]
fn the_digest_is_that_of_the_text() {
    let text = description("p", "", "");
    let tools = read(&text);
    assert_eq!((tools.origin(), tools.digest().len()), ("test.toml", 64));
    assert_eq!(tools.digest(), read(&text).digest());
    assert_ne!(tools.digest(), read(&format!("{text}# a comment\n")).digest());
}

//! The descriptions that come with the toolkit.

/// Makes the table of the descriptions of a folder.
macro_rules! descriptions {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../descriptions/", $name, ".toml")))),*]
    };
}

/// The descriptions that come with the toolkit: the name of a program, and the text.
pub const SHIPPED: [(&str, &str); 13] = descriptions![
    "curl",
    "date",
    "diff",
    "du",
    "file",
    "find",
    "git",
    "jq",
    "rg",
    "sha256sum",
    "sqlite3",
    "tar",
    "wc",
];

/// The JSON Schema of the file format, for editors.
pub const COMMAND_SCHEMA: &str = include_str!("../../descriptions/command.schema.json");

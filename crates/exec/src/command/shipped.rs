//! The included descriptions.

/// Embeds descriptions by name.
macro_rules! descriptions {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../descriptions/", $name, ".toml")))),*]
    };
}

/// The included descriptions: program name and text.
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

/// The JSON Schema of description files, for editors.
pub const COMMAND_SCHEMA: &str = include_str!("../../descriptions/command.schema.json");

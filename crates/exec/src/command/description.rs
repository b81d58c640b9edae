//! The description file: a program and its tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use regex::Regex;
use serde_json::Value;
use toml::de::DeTable;
use toolpost_core::{
    Annotations, Approval, Example, Placement, Policy, Retry, StartCheck, Timeout, ToolSpec, parse_duration,
};
use toolpost_sandbox::{Granted, Grants, Level, Sandbox};

use super::exit::ExitRule;
use super::output::{self, OutputFormat};
use super::parameter::{Parameter, input_schema};
use super::place::{DescriptionError, Source};
use super::reader::{Item, Section};
use super::template::{Arguments, Template};

type Result<T> = std::result::Result<T, DescriptionError>;

/// The version of the format of descriptions.
pub const VERSION: i64 = 1;
/// Maximum size of a description, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The part that all tools of a description share.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) install: Option<String>,
    pub(super) version: Option<VersionNeed>,
    pub(super) level: Level,
    pub(super) needs_network: bool,
    pub(super) readable: Vec<PathBuf>,
    pub(super) memory: Option<u64>,
    /// The grants of the description, by name.
    pub(super) grants: Grants,
    /// A check before each start.
    pub(super) start_check: Option<StartCheck>,
}

/// The required version of a program.
#[derive(Debug)]
pub(super) struct VersionNeed {
    pub(super) args: Vec<String>,
    /// Its first group is the version.
    pub(super) pattern: Regex,
    pub(super) minimum: String,
    /// Set once the version was checked.
    pub(super) is_met: OnceLock<()>,
}

/// Whether a tool uses the working directory of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkingDirectory {
    /// A call without a working directory fails.
    Required,
    /// Without a working directory, the tool gets an empty temporary one.
    Optional,
    /// The tool always gets an empty temporary directory.
    None,
}

const WORKING_DIRECTORIES: [(&str, WorkingDirectory); 3] = [
    ("required", WorkingDirectory::Required),
    ("optional", WorkingDirectory::Optional),
    ("none", WorkingDirectory::None),
];

/// One tool of a description.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) program: Arc<Program>,
    /// The resolved grants; `None` until the operator resolved them.
    pub(super) granted: Option<Arc<Granted>>,
    pub(super) spec: Arc<ToolSpec>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) arguments: Arguments,
    pub(super) stdin: Option<Template>,
    pub(super) directory: Option<Template>,
    pub(super) working_directory: WorkingDirectory,
    pub(super) environment: Vec<(String, Template)>,
    pub(super) output: OutputFormat,
    pub(super) exits: Vec<ExitRule>,
}

/// Defaults of the file for all of its tools.
struct Shared {
    program: Arc<Program>,
    arguments: Arguments,
    environment: Vec<(String, Template)>,
    exits: Vec<ExitRule>,
    policy: Settings,
    category: Option<String>,
    group: Option<String>,
    tags: Vec<String>,
}

/// Reads a description.
pub(super) fn read(text: &str, origin: &str, check: Option<StartCheck>) -> Result<Vec<Command>> {
    let source = Source { origin, text };
    if text.len() > MAX_TEXT {
        let message = format!("the description has {} bytes; the maximum is {MAX_TEXT}", text.len());
        return Err(source.error(&(0..0), "", message));
    }
    let document = DeTable::parse(text).map_err(|error| {
        source.error(&error.span().unwrap_or_default(), "", error.message().trim_end().to_owned())
    })?;
    let mut file = Section::new(&source, String::new(), 0..0, document.get_ref());
    let kind = file.need("kind")?;
    if kind.text()? != "command" {
        return Err(
            kind.error(format!("expected `command`, found `{}`: this is another kind of file", kind.text()?))
        );
    }
    let version = file.need("v")?;
    if version.integer()? != VERSION {
        return Err(version.error(format!(
            "expected {VERSION}, found {}: the description has another version",
            version.integer()?
        )));
    }
    let shared = shared(&mut file, check, Path::new(origin).parent().unwrap_or(Path::new("")))?;
    let tables = file.tables("tool")?;
    if tables.is_empty() {
        return Err(file.error("it has no tool; add at least one `[[tool]]`"));
    }
    file.end()?;
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    let mut commands = Vec::with_capacity(tables.len());
    for table in tables {
        let place = table.error("");
        let command = tool(&shared, table)?;
        if let Some(first) = lines.insert(command.spec.name.clone(), place.line) {
            let message = format!("the tool at line {first} is also named `{}`", command.spec.name);
            return Err(DescriptionError { message, ..place });
        }
        commands.push(command);
    }
    Ok(commands)
}

fn shared(file: &mut Section<'_>, start_check: Option<StartCheck>, base: &Path) -> Result<Shared> {
    let program = file.need("program")?;
    let name = program_beneath(base, program.non_empty()?);
    let install = file.read("install", Item::non_empty)?;
    let version = file.read("version", |item| VersionNeed::read(item.table()?))?;
    let mut program = Program {
        name,
        install,
        version,
        level: Level::Standard,
        needs_network: false,
        readable: Vec::new(),
        memory: None,
        grants: Grants::default(),
        start_check,
    };
    if let Some(item) = file.take("sandbox") {
        sandbox(item.table()?, &mut program)?;
    }
    if let Some(item) = file.take("grants") {
        let grants = item.table().and_then(|_| item.json())?;
        let grants: Grants = serde_json::from_value(grants).map_err(|error| item.error(error.to_string()))?;
        program.grants = grants.below(base);
    }
    Ok(Shared {
        program: Arc::new(program),
        arguments: file.read("args", |item| Arguments::read(item, &[]))?.unwrap_or_default(),
        environment: environment(file, &[])?,
        exits: file.tables("exit")?.into_iter().map(ExitRule::read).collect::<Result<_>>()?,
        policy: file.read("policy", |item| Settings::read(item.table()?))?.unwrap_or_default(),
        category: file.read("category", Item::non_empty)?,
        group: file.read("group", Item::non_empty)?,
        tags: file.read("tags", Item::texts)?.unwrap_or_default(),
    })
}

/// Resolves a program path against the description's directory. A bare name stays.
fn program_beneath(base: &Path, name: String) -> String {
    if !name.contains('/') {
        return name;
    }
    let path = base.join(&name);
    std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned()
}

impl VersionNeed {
    fn read(mut table: Section<'_>) -> Result<Self> {
        let minimum = table.need("minimum")?;
        let number = minimum.non_empty()?;
        if !number.split('.').all(|part| part.parse::<u64>().is_ok()) {
            return Err(minimum.error(format!("expected numbers with dots, such as 2.20, found `{number}`")));
        }
        let pattern = table.need("pattern")?;
        let need = Self {
            args: table.read("args", Item::texts)?.unwrap_or_else(|| vec!["--version".into()]),
            pattern: output::pattern(&pattern)?,
            minimum: number,
            is_met: OnceLock::new(),
        };
        if need.pattern.captures_len() < 2 {
            return Err(pattern.error("the pattern has no group; write `(…)` around the version"));
        }
        table.end()?;
        Ok(need)
    }
}

fn sandbox(mut table: Section<'_>, program: &mut Program) -> Result<()> {
    program.level = table.read("level", Item::parse::<Level>)?.unwrap_or(program.level);
    program.needs_network = table.switch("network")?;
    for item in table.read("readable", Item::list)?.unwrap_or_default() {
        let path = PathBuf::from(item.non_empty()?);
        if !path.is_absolute() {
            return Err(item.error(format!("expected an absolute path, found `{}`", path.display())));
        }
        program.readable.push(path);
    }
    program.memory =
        table.read("memory_mib", |item| Ok(item.count()? as u64))?.map(|mib| mib.saturating_mul(1 << 20));
    table.end()
}

fn environment(table: &mut Section<'_>, parameters: &[Parameter]) -> Result<Vec<(String, Template)>> {
    let Some(item) = table.take("env") else { return Ok(Vec::new()) };
    let mut variables = Vec::new();
    for (name, value) in item.table()?.entries() {
        Sandbox::new().env(&name, "").check_settings().map_err(|error| value.error(error.to_string()))?;
        variables.push((name, Template::read(&value, parameters)?));
    }
    Ok(variables)
}

/// The table `policy`: a tool's values override the file's.
#[derive(Clone, Debug, Default)]
struct Settings {
    timeout: Option<Duration>,
    retries: Option<u32>,
    concurrency: Option<u32>,
    rate: Option<toolpost_core::Rate>,
    cache: Option<Duration>,
    approval: Option<Approval>,
    output_limit: Option<usize>,
}

impl Settings {
    fn read(mut table: Section<'_>) -> Result<Self> {
        let duration = |item: &Item<'_>| {
            let duration = parse_duration(item.text()?).map_err(|message| item.error(message))?;
            if duration.is_zero() { Err(item.error("expected more than 0")) } else { Ok(duration) }
        };
        let number = |item: &Item<'_>| {
            u32::try_from(item.integer()?).map_err(|_| item.error("expected an integer of at least 0"))
        };
        let settings = Self {
            timeout: table.read("timeout", duration)?,
            retries: table.read("retries", number)?,
            concurrency: table.read("concurrency", number)?,
            rate: table.read("rate", Item::parse)?,
            cache: table.read("cache", duration)?,
            approval: table.read("approval", Item::parse)?,
            output_limit: table.read("output_limit_bytes", Item::count)?,
        };
        table.end()?;
        Ok(settings)
    }

    /// The policy of a tool. A destructive tool needs approval unless the description says otherwise.
    fn policy(&self, own: &Self, annotations: Annotations) -> Policy {
        let mut policy = Policy::default();
        policy.placement = Placement::Blocking;
        policy.timeout = own.timeout.or(self.timeout).map(Timeout::After);
        policy.retry = own.retries.or(self.retries).map(|attempts| Retry { attempts, ..Retry::default() });
        policy.concurrency = own.concurrency.or(self.concurrency);
        policy.rate = own.rate.or(self.rate);
        policy.cache = own.cache.or(self.cache);
        let careful = annotations.destructive.then_some(Approval::Ask);
        policy.approval = own.approval.or(self.approval).or(careful);
        policy.output_limit = own.output_limit.or(self.output_limit);
        policy
    }
}

fn tool(shared: &Shared, mut table: Section<'_>) -> Result<Command> {
    let place = table.error("");
    let name = table.need("name")?.non_empty()?;
    let mut spec = ToolSpec::new(name, table.need("description")?.non_empty()?);
    spec.title = table.read("title", Item::non_empty)?;
    spec.category = table.read("category", Item::non_empty)?.or_else(|| shared.category.clone());
    spec.group = table.read("group", Item::non_empty)?.or_else(|| shared.group.clone());
    spec.tags.clone_from(&shared.tags);
    for tag in table.read("tags", Item::texts)?.unwrap_or_default() {
        if !spec.tags.contains(&tag) {
            spec.tags.push(tag);
        }
    }
    spec.annotations = Annotations {
        read_only: table.switch("read_only")?,
        destructive: table.switch("destructive")?,
        idempotent: table.switch("idempotent")?,
        open_world: table.switch("open_world")?,
    };
    if spec.annotations.read_only && spec.annotations.destructive {
        return Err(table.error("a tool cannot be both `read_only` and `destructive`"));
    }
    let declared = table.read("parameters", |item| Ok(item.table()?.entries()))?.unwrap_or_default();
    let parameters: Vec<Parameter> =
        declared.iter().map(|(name, item)| Parameter::read(name.clone(), item)).collect::<Result<_>>()?;

    let own = table.read("args", |item| Arguments::read(item, &parameters))?.unwrap_or_default();
    let template = |item: &Item<'_>| Template::read(item, &parameters);
    let stdin = table.read("stdin", template)?;
    let directory = table.read("directory", template)?;
    let own_environment = environment(&mut table, &parameters)?;
    let read: Vec<&str> = own
        .parameters()
        .chain(stdin.iter().chain(&directory).flat_map(Template::parameters))
        .chain(own_environment.iter().flat_map(|(_, template)| template.parameters()))
        .collect();
    if let Some((name, item)) = declared.iter().find(|(name, _)| !read.contains(&name.as_str())) {
        return Err(item.error(format!(
            "the parameter is unused; write `{{{name}}}` in `args`, `stdin`, `directory` or `env`, or remove it"
        )));
    }
    let output = table.read("output", |item| OutputFormat::read(item.table()?))?.unwrap_or_default();
    let working_directory = table
        .read("working_directory", |item| item.one_of(&WORKING_DIRECTORIES))?
        .unwrap_or(WorkingDirectory::Optional);
    if directory.is_some() && working_directory == WorkingDirectory::None {
        return Err(table.error("`directory` needs a working directory, but `working_directory` is `none`"));
    }
    let mut exits: Vec<ExitRule> =
        table.tables("exit")?.into_iter().map(ExitRule::read).collect::<Result<_>>()?;
    exits.extend(shared.exits.iter().cloned());
    let policy = table.read("policy", |item| Settings::read(item.table()?))?.unwrap_or_default();
    for mut example in table.tables("example")? {
        let args = example.need("args")?.json()?;
        spec.examples.push(Example { args, output: example.read("output", Item::json)? });
        example.end()?;
    }
    table.end()?;

    spec.policy = shared.policy.policy(&policy, spec.annotations);
    spec.sensitive = parameters
        .iter()
        .filter(|parameter| parameter.is_sensitive)
        .map(|parameter| parameter.name.clone())
        .collect();
    spec = spec.input(input_schema(&parameters));
    if let Some(schema) = output.schema() {
        spec = spec.output(schema);
    }
    spec.meta.insert("program".into(), shared.program.name.clone().into());
    if shared.program.needs_network {
        spec.meta.insert("needs_network".into(), true.into());
    }
    let wrong = |message: String| DescriptionError { message, ..place.clone() };
    spec.check().map_err(|error| wrong(error.message))?;
    check_schemas(&spec).map_err(wrong)?;
    let mut environment = shared.environment.clone();
    environment.retain(|(name, _)| own_environment.iter().all(|(own, _)| own != name));
    environment.extend(own_environment);
    Ok(Command {
        program: Arc::clone(&shared.program),
        granted: None,
        spec: Arc::new(spec),
        parameters,
        arguments: own.after(&shared.arguments),
        stdin,
        directory,
        working_directory,
        environment,
        output,
        exits,
    })
}

/// Compiles the schemas, to find an invalid keyword before the first call.
fn check_schemas(spec: &ToolSpec) -> std::result::Result<(), String> {
    spec.input_schema.is_valid(&Value::Null).map_err(|error| error.message().to_owned())?;
    match &spec.output_schema {
        Some(schema) => schema.is_valid(&Value::Null).map(drop).map_err(|error| error.message().to_owned()),
        None => Ok(()),
    }
}

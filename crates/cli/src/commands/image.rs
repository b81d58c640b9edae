//! `toolpost image`

use serde_json::{Value, json};
use toolpost_runtimes::{Environment, Profile};
use toolpost_sandbox::{Language, Sandbox};

use crate::args::{ImageBuildArgs, ImageCommand, ImageRmArgs};
use crate::config::{Config, paths};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::packages::{self, Sources};
use crate::print::Printer;
use crate::style::{FAINT, HINT, STRONG, one_line, paint};
use crate::{container, env};

pub(crate) fn run(command: &ImageCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    match command {
        ImageCommand::Build(args) => build(args, config, printer),
        ImageCommand::Ls => list(printer),
        ImageCommand::Rm(args) => remove(args, printer),
    }
}

fn build(args: &ImageBuildArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    // Claude Code has no packages for an interpreter, only an image.
    let is_image = args.docker || args.name.as_deref() == Some(container::CLAUDE_CODE);
    let profile = match (&args.name, &args.profile_file) {
        // An image has a recipe, which may be no profile.
        (Some(_), _) if is_image => None,
        (Some(name), _) => Some(Profile::named(name).map_err(|error| {
            Failure::from(error).hint("For your own profile: `toolpost image build --profile-file FILE`.")
        })?),
        (None, Some(path)) => Some(Profile::from_file(path)?),
        (None, None) => {
            return Err(
                Failure::usage("the name is missing").hint("For example: `toolpost image build data`.")
            );
        }
    };
    let sources = Sources::read(config)?;
    let mut built = json!({ "v": 1, "environment": null, "image": null });
    let mut lines = Vec::new();
    if let Some(profile) = profile {
        let environment = make_environment(&profile, &sources, printer)?;
        lines.push(line_of_environment(&json!(environment)));
        built["environment"] = json!(environment);
    }
    if let (true, Some(name)) = (is_image, &args.name) {
        let note = &mut |line: &str| printer.note(&paint(FAINT, one_line(line, 300)));
        let image = json!(container::build(name, sources.variables(), note)?);
        lines.push(line_of_image(&image));
        built["image"] = image;
    }
    if printer.is_text() {
        printer.result(&lines.join("\n"))?;
    } else {
        printer.json(&built)?;
    }
    Ok(Exit::Ok)
}

fn make_environment(profile: &Profile, sources: &Sources, printer: &Printer) -> Result<Environment, Failure> {
    let directory = packages::environments()?;
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent).map_err(|error| Failure::file("the directory", parent, &error))?;
    }
    let count = profile.packages.len();
    printer.note(&paint(
        FAINT,
        format!("installing {count} packages of `{}` and their dependencies", profile.name),
    ));
    let sandbox = Sandbox::new().search_path(env::get_os("PATH").unwrap_or_default());
    let sandbox = paths::home().iter().fold(sandbox, Sandbox::home);
    let installer = sources.installer(Language::Python, &sandbox);
    crate::runtime::installing(
        |cancel| Environment::build(profile, &directory, &installer, cancel),
        |error| sources.explained(error),
    )
}

fn list(printer: &Printer) -> Result<Exit, Failure> {
    let environments = json!(Environment::list(&packages::environments()?));
    // Without a daemon there are no images.
    let (images, trouble) = match container::list() {
        Ok(images) => (json!(images), None),
        Err(failure) => (json!([]), Some(failure.message)),
    };
    if !printer.is_text() {
        let docker = json!({ "available": trouble.is_none(), "reason": trouble });
        printer.json(&json!({ "v": 1, "environments": environments, "images": images, "docker": docker }))?;
        return Ok(Exit::Ok);
    }
    let mut lines: Vec<String> = Vec::new();
    lines.extend(environments.as_array().into_iter().flatten().map(line_of_environment));
    lines.extend(images.as_array().into_iter().flatten().map(line_of_image));
    if let Some(reason) = trouble {
        printer.note(&paint(FAINT, format!("no images: {}", one_line(&reason, 300))));
    }
    if lines.is_empty() {
        printer.note("no environments and images: `toolpost image build data` builds an environment");
        return Ok(Exit::Ok);
    }
    printer.result(&lines.join("\n"))?;
    Ok(Exit::Ok)
}

fn remove(args: &ImageRmArgs, printer: &Printer) -> Result<Exit, Failure> {
    let name = &args.name;
    if args.docker {
        let whole = if name.contains(['/', ':']) { name.clone() } else { container::tag(name) };
        container::remove(&whole)?;
        printer.note(&format!("removed the image {}", paint(HINT, one_line(&whole, 300))));
        return Ok(Exit::Ok);
    }
    let Some(environment) = packages::environment(name)? else {
        let message = format!("there is no environment `{}`", one_line(name, 100));
        return Err(Failure::new(Exit::Failed, "NOT_FOUND", message)
            .hint("`toolpost image ls` lists environments and images; `--docker` removes an image."));
    };
    environment.remove()?;
    printer.note(&format!("removed the environment {}", paint(HINT, name)));
    Ok(Exit::Ok)
}

fn line_of_environment(environment: &Value) -> String {
    let count = environment["installed"].as_array().map_or(0, Vec::len);
    line("environment", environment, "bytes", &format!("{count} packages"), "directory")
}

fn line_of_image(image: &Value) -> String {
    line("image", image, "size", image["recipe"].as_str().unwrap_or("no recipe"), "system")
}

fn line(kind: &str, thing: &Value, size: &str, about: &str, place: &str) -> String {
    let text = |field: &str| one_line(thing[field].as_str().unwrap_or_default(), 300);
    let size = thing[size].as_u64().unwrap_or(0).div_ceil(1 << 20);
    let name = paint(STRONG, text("name"));
    format!("{kind} {name}: {about}, {size} MiB, {}", text(place))
}

//! Images: built, listed, used, removed.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use toolpost_docker::image::Recipe;
use toolpost_docker::{Docker, DockerError, Options};
use toolpost_sandbox::{Cancel, Program, Sandbox};

use super::daemon::{Daemon, IMAGE};

#[test]
fn an_image_of_a_directory_is_built_used_listed_and_removed() {
    let Some(daemon) = Daemon::get("an_image_of_a_directory_is_built_used_listed_and_removed") else {
        return;
    };
    let images = daemon.images();
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("bin")).unwrap();
    std::fs::copy("/bin/busybox", root.path().join("bin/busybox")).unwrap();
    std::os::unix::fs::symlink("busybox", root.path().join("bin/cat")).unwrap();
    let long = format!("{}/{}", "a-long-directory-name-".repeat(6), "file");
    std::fs::create_dir_all(root.path().join(&long).parent().unwrap()).unwrap();
    std::fs::write(root.path().join(&long), "content").unwrap();
    // Setuid bits and special files do not get into an image.
    let raised = root.path().join("bin/raised");
    std::fs::copy("/bin/busybox", &raised).unwrap();
    std::fs::set_permissions(&raised, std::fs::Permissions::from_mode(0o6755)).unwrap();
    let pipe = root.path().join("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    let tag = "toolpost/directory-test:one";
    let recipe = Recipe::Directory { path: root.path().into() };
    let mut lines = Vec::new();
    let image =
        images.build(&recipe, tag, Duration::from_mins(1), &mut |line| lines.push(line.to_owned())).unwrap();
    assert_eq!((image.name.as_str(), image.recipe.as_deref()), (tag, Some("directory")));
    assert!(image.id.starts_with("sha256:") && image.size > 1 << 20 && !lines.is_empty());
    assert!(images.list().unwrap().iter().any(|other| other == &image));
    assert!(images.list().unwrap().iter().all(|image| !image.name.contains("prepared")));

    let docker = Docker::connect(&daemon.host, Options::new(tag).idle_containers(0)).unwrap();
    let sandbox = Sandbox::new().backend(Arc::new(docker.clone()));
    let run = |arguments: &[&str]| {
        let program = Program::argv(arguments.iter().copied());
        sandbox.run(&program, &Cancel::new(), &mut |_| {}).unwrap()
    };
    assert_eq!(run(&["cat", &format!("/{long}")]).stdout.text(), "content");
    assert_eq!(run(&["/bin/busybox", "stat", "-c", "%a %u", "/bin/raised"]).stdout.text(), "755 0\n");
    assert!(!run(&["/bin/busybox", "test", "-e", "/pipe"]).verdict.is_ok());
    drop((sandbox, docker));
    images.remove(tag).unwrap();
    assert!(matches!(images.get(tag), Err(DockerError::ImageMissing { .. })));
    assert!(matches!(images.remove(tag), Err(DockerError::ImageMissing { .. })));
    let left = daemon.request("GET", "/images/json", "");
    assert!(!left.contains(&image.id), "what was made of it went with it");
    assert!(images.get(IMAGE).is_ok(), "no other image went");
}

#[test]
fn an_image_with_volumes_is_rejected() {
    let Some(daemon) = Daemon::get("an_image_with_volumes_is_rejected") else { return };
    // The result of a Dockerfile with `VOLUME /data`: an image of a container with a volume.
    let made = daemon.request(
        "POST",
        "/containers/create",
        &format!(r#"{{"Image": "{IMAGE}", "Cmd": ["sh"], "Volumes": {{"/data": {{}}}}}}"#),
    );
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let id = made["Id"].as_str().unwrap();
    daemon.request("POST", &format!("/commit?container={id}&repo=with-volume&tag=x"), "{}");
    daemon.request("DELETE", &format!("/containers/{id}?v=1"), "");
    let docker = Docker::connect(&daemon.host, Options::new("with-volume:x").idle_containers(0)).unwrap();
    let error = Sandbox::new()
        .backend(Arc::new(docker))
        .run(&Program::argv(["true"]), &Cancel::new(), &mut |_| {})
        .unwrap_err();
    assert!(matches!(DockerError::from_sandbox(&error), Some(DockerError::ImageUnusable { .. })), "{error}");
    assert!(error.to_string().contains("/data"), "{error}");
}

#[test]
fn invalid_names_directories_and_recipes_are_rejected() {
    let Some(daemon) = Daemon::get("invalid_names_directories_and_recipes_are_rejected") else { return };
    let images = daemon.images();
    let build = |recipe: &Recipe, tag: &str| {
        images.build(recipe, tag, Duration::from_secs(30), &mut |_| {}).unwrap_err().to_string()
    };
    let nowhere = Recipe::Directory { path: "/nowhere/at/all".into() };
    assert!(build(&nowhere, "toolpost/x").contains("/nowhere/at/all"));
    assert!(build(&nowhere, "a b").contains("letters, digits"));
    // A build program gets the set variables, and its own error is reported.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("busybox");
    std::fs::write(&program, "#!/bin/sh\necho \"no $FRUIT today\" >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let images = daemon.images().env("FRUIT", "pears");
    let error = images
        .build(&Recipe::Busybox { program }, "toolpost/x", Duration::from_secs(30), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(error.contains("no pears today"), "{error}");
}

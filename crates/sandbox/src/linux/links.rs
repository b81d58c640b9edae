//! Follows symbolic links of the host, so that they are shown as links.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// The kernel's limit.
const MAX_LINKS: usize = 40;

/// A symbolic link and its target.
pub(super) type Link = (PathBuf, PathBuf);

/// The target of an absolute path, and the links on the way in the kernel's order.
pub(super) fn follow(path: &Path) -> io::Result<(PathBuf, Vec<Link>)> {
    let mut links = Vec::new();
    let mut walked = PathBuf::from("/");
    let mut rest = Vec::new();
    ahead(&mut rest, path);
    while let Some(part) = rest.pop() {
        if part == ".." {
            walked.pop();
            continue;
        }
        let next = walked.join(&part);
        if !next.symlink_metadata()?.is_symlink() {
            walked = next;
            continue;
        }
        if links.len() == MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = std::fs::read_link(&next)?;
        if target.is_absolute() {
            walked = PathBuf::from("/");
        }
        ahead(&mut rest, &target);
        links.push((next, target));
    }
    Ok((walked, links))
}

/// Pushes the components of a path on a stack, the first on top.
fn ahead(stack: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    stack.extend(parts.map(OsStr::to_owned));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_by_the_kernel() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("python-3.12.5/bin")).unwrap();
        std::fs::write(root.join("python-3.12.5/bin/python3"), "").unwrap();
        symlink("python-3.12.5", root.join("python-3.12")).unwrap();
        std::fs::create_dir_all(root.join("venv/bin")).unwrap();
        symlink(root.join("python-3.12/bin/python3"), root.join("venv/bin/python")).unwrap();
        symlink("python", root.join("venv/bin/python3")).unwrap();
        symlink("../venv/bin", root.join("python-3.12.5/env")).unwrap();
        let named = root.join("python-3.12/env/python3");
        let (real, links) = follow(&named).unwrap();
        assert_eq!(real, named.canonicalize().unwrap());
        let expected = [
            (root.join("python-3.12"), "python-3.12.5".into()),
            (root.join("python-3.12.5/env"), "../venv/bin".into()),
            (root.join("venv/bin/python3"), "python".into()),
            (root.join("venv/bin/python"), root.join("python-3.12/bin/python3")),
            (root.join("python-3.12"), PathBuf::from("python-3.12.5")),
        ];
        assert_eq!(links, expected);
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(follow(&root.join("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(follow(&root.join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

//! Identifies the process that holds a run, across restarts of the host.

/// The identity of this process; `None` where the host cannot distinguish reused process IDs.
pub(crate) fn own() -> Option<String> {
    identity(std::process::id())
}

/// Whether the process is alive; `None` if this host cannot tell.
pub(crate) fn is_alive(holder: &str) -> Option<bool> {
    let [number, _, boot, space] = words(holder)?;
    let own = identity(std::process::id())?;
    let [_, _, own_boot, own_space] = words(&own)?;
    if boot != own_boot {
        return Some(false);
    }
    let number = number.parse().ok()?;
    // In another container the same ID is another process.
    (space == own_space).then(|| identity(number).as_deref() == Some(holder))
}

/// The user ID of the process if it is alive and belongs to another user, unless this one is root.
#[cfg(target_os = "linux")]
pub(crate) fn other_user(holder: &str) -> Option<u32> {
    let own = rustix::process::geteuid();
    if own.is_root() || is_alive(holder) != Some(true) {
        return None;
    }
    let [number, ..] = words(holder)?;
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // The effective one.
    let user = users.split_whitespace().nth(1)?.parse().ok()?;
    (user != own.as_raw()).then_some(user)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn other_user(_: &str) -> Option<u32> {
    None
}

fn words(holder: &str) -> Option<[&str; 4]> {
    holder.split(' ').collect::<Vec<_>>().try_into().ok()
}

/// Process ID, start time, boot ID and PID namespace of a living process.
#[cfg(target_os = "linux")]
fn identity(number: u32) -> Option<String> {
    let facts = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name is in parentheses and may have any characters.
    let mut fields = facts.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let begun: u64 = fields.nth(18)?.parse().ok()?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{number} {begun} {} {}", boot.trim(), space.display()))
}

#[cfg(not(target_os = "linux"))]
fn identity(_: u32) -> Option<String> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_live_process_is_distinguished_from_a_dead_one() {
        let own = own().unwrap();
        assert_eq!(is_alive(&own), Some(true));
        let (_, rest) = own.split_once(' ').unwrap();
        assert_eq!(is_alive(&format!("4194305 {rest}")), Some(false));
        let words: Vec<&str> = own.split(' ').collect();
        assert_eq!(is_alive(&[words[0], "1", words[2], words[3]].join(" ")), Some(false));
        assert_eq!(is_alive(&[words[0], words[1], "another", words[3]].join(" ")), Some(false));
        assert_eq!(is_alive(&[words[0], words[1], words[2], "elsewhere"].join(" ")), None);
        for text in ["", "x", "1 2"] {
            assert_eq!(is_alive(text), None, "{text}");
        }
    }
}

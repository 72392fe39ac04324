//! Users and groups of this host, by name or number.

use std::process::Command;

use client::Credentials;
use runtime::identity::GROUPS_MAX;

/// The user and the groups of a token; `user` and `groups` are names or numbers.
pub(super) fn holder(user: &str, groups: &[String]) -> Result<Credentials, String> {
    let uid = match user.parse() {
        Ok(uid) => uid,
        Err(_) => one_number(&["id", "-u", "--", user])
            .ok_or_else(|| format!("this host has no user '{user}'; give its number"))?,
    };
    let mut groups = if groups.is_empty() {
        numbers(&["id", "-G", "--", user]).filter(|found| !found.is_empty()).ok_or_else(|| {
            format!("this host does not know the groups of user '{user}'; give them with --groups")
        })?
    } else {
        groups.iter().map(|group| group_number(group)).collect::<Result<_, _>>()?
    };
    let gid = groups.remove(0);
    groups.retain(|group| *group != gid);
    if groups.len() > GROUPS_MAX {
        return Err(format!(
            "user '{user}' is in {} groups, and a token has room for {}; name those that it needs \
             with --groups",
            groups.len() + 1,
            GROUPS_MAX + 1
        ));
    }
    Ok(Credentials { uid, gid, groups })
}

fn group_number(group: &str) -> Result<u32, String> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let line = output(&["getent", "group", "--", group]);
    let gid = line.as_deref().and_then(|line| line.split(':').nth(2)?.parse().ok());
    gid.ok_or_else(|| format!("this host has no group '{group}'; give its number"))
}

fn one_number(command: &[&str]) -> Option<u32> {
    numbers(command).and_then(|found| found.first().copied())
}

fn numbers(command: &[&str]) -> Option<Vec<u32>> {
    output(command)?.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// What a program of the host prints, if it succeeds. Only the host's own programs ask all of its
/// directories of users.
fn output(command: &[&str]) -> Option<String> {
    let ran = Command::new(command[0]).args(&command[1..]).output().ok()?;
    if ran.status.success() { String::from_utf8(ran.stdout).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_names_or_numbers() {
        let root = holder("root", &["root".into()]).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        let groups = ["5".to_owned(), "7".into(), "5".into()];
        let by_number = holder("4000000001", &groups).unwrap();
        assert_eq!(by_number, Credentials { uid: 4_000_000_001, gid: 5, groups: vec![7] });
        for (user, groups, word) in [
            ("no such user", &["5".to_owned()][..], "give its number"),
            ("4000000001", &[], "--groups"),
            ("0", &["no such group".to_owned()], "no group 'no such group'"),
        ] {
            let text = holder(user, groups).unwrap_err();
            assert!(text.contains(word), "{text}");
        }
        let many: Vec<String> = (0..=GROUPS_MAX + 1).map(|group| group.to_string()).collect();
        assert!(holder("0", &many).unwrap_err().contains("--groups"));
    }
}

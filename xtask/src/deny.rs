//! `cargo xtask deny`: licences and versions of the crates that a build of this host uses, against
//! `deny.toml`.
//!
//! The file has the form that cargo-deny reads. That program also looks for security advisories and
//! at the crates of other systems. It takes longer to build than the tests may wait, so the test
//! command checks what `cargo tree` shows without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use crate::steps::ProgramCall;

/// The rules.
const RULES: &str = "deny.toml";
/// All crates, one to a line: name, version, `|`, licences.
const TREE: &str =
    "cargo tree --workspace --locked --edges normal,build,dev --prefix none --format {p}|{l}";

/// Runs the command; it takes no arguments.
pub(crate) fn run(_: &[String]) -> ExitCode {
    ExitCode::from(check())
}

/// Prints every crate that breaks a rule; the result is an exit code.
pub(crate) fn check() -> u8 {
    let Ok(rules) = std::fs::read_to_string(RULES) else {
        eprintln!("xtask: cannot read {RULES}");
        return 1;
    };
    let Some(tree) = ProgramCall::new(TREE).output() else {
        eprintln!("xtask: this failed: {TREE}");
        return 1;
    };
    let crates = crates(&tree);
    let breaches = breaches(&crates, &strings(&rules, "allow"), &strings(&rules, "skip"));
    for breach in &breaches {
        println!("{RULES}: {breach}");
    }
    println!("deny: {} crates, {} breaches", crates.len(), breaches.len());
    u8::from(!breaches.is_empty())
}

/// Name, version and licences.
type Crate<'a> = (&'a str, &'a str, &'a str);

fn crates(tree: &str) -> BTreeSet<Crate<'_>> {
    let read = |line| {
        let (package, licences) = str::split_once(line, '|')?;
        let mut words = package.split(' ');
        Some((words.next()?, words.next()?, licences.trim_end_matches("(*)").trim()))
    };
    tree.lines().filter_map(read).collect()
}

/// The strings of the list that begins with `key = [`, to the line that closes it.
fn strings(rules: &str, key: &str) -> Vec<String> {
    let lines = rules.lines().map(|line| line.split('#').next().unwrap_or_default());
    let from = lines.skip_while(|line| !line.starts_with(&format!("{key} = [")));
    let mut strings = Vec::new();
    for line in from {
        strings.extend(line.split('"').skip(1).step_by(2).map(str::to_owned));
        if line.trim_end().ends_with(']') {
            break;
        }
    }
    strings
}

fn breaches(crates: &BTreeSet<Crate<'_>>, allowed: &[String], skipped: &[String]) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version, licences) in crates {
        versions.entry(name).or_default().insert(version);
        if !may_use(licences, allowed) {
            breaches.push(format!(
                "{name} {version} has the licence `{licences}`, which is not allowed"
            ));
        }
    }
    for (name, versions) in versions {
        let is_skipped = skipped.iter().any(|skipped| skipped.split('@').next() == Some(name));
        let many = versions.len() > 1;
        let versions: Vec<&str> = versions.into_iter().collect();
        if many && !is_skipped {
            breaches.push(format!("{name} is built in several versions: {}", versions.join(", ")));
        } else if is_skipped && !many {
            breaches.push(format!("{name} has one version now: remove it from `skip`"));
        }
    }
    breaches
}

/// True if all licences of an expression are allowed, of an `OR` one of them.
fn may_use(licences: &str, allowed: &[String]) -> bool {
    let spaced = licences.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any(&words, &mut at, allowed) && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut good = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all(words, at, allowed);
    }
    good
}

fn all(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut good = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        good &= one(words, at, allowed);
    }
    good
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let good = any(words, at, allowed);
        *at += 1;
        return good;
    }
    let mut licence = word.to_owned();
    if words.get(*at) == Some(&"WITH") {
        licence = words[*at - 1..words.len().min(*at + 2)].join(" ");
        *at += 2;
    }
    allowed.contains(&licence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "[licenses]\nallow = [\n    \"MIT\", # \"GPL\"\n    \"Apache-2.0 WITH LLVM-exception\",\n]\n\
        [bans]\nskip = [\"twice@1.0.0\", \"once\"]\n";

    #[test]
    fn crates_that_break_a_rule_are_named() {
        let tree = "good v1.0.0|MIT OR GPL\ngood v1.0.0|MIT OR GPL (*)\nbad v0.1.0 (/x)|GPL AND MIT\n\
            \ntwice v1.0.0|MIT\ntwice v2.0.0|MIT\nmany v1.0.0|MIT\nmany v2.0.0|MIT\nonce v1.0.0|MIT\n";
        let breaches = breaches(&crates(tree), &strings(DENY, "allow"), &strings(DENY, "skip"));
        let parts = [
            "bad v0.1.0 has the licence",
            "many is built in several versions",
            "once has one version",
        ];
        assert_eq!(breaches.len(), parts.len(), "{breaches:?}");
        for (breach, part) in breaches.iter().zip(parts) {
            assert!(breach.contains(part), "{breach}");
        }
    }

    #[test]
    fn expressions_of_licences_are_understood() {
        let allowed = strings(DENY, "allow");
        for good in
            ["MIT", "GPL/MIT", "(GPL OR MIT) AND MIT", "X OR Apache-2.0 WITH LLVM-exception"]
        {
            assert!(may_use(good, &allowed), "{good}");
        }
        for bad in ["", "GPL", "MIT AND GPL", "(MIT", "Apache-2.0", "MIT MIT", "MIT WITH"] {
            assert!(!may_use(bad, &allowed), "{bad}");
        }
    }
}

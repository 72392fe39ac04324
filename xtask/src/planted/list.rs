//! The list of planted bugs: reading it, and putting the bugs into files.
//!
//! The files of [`FOLDER`] are TOML, of which this reads what they need: tables `[[bug]]` with
//! `id`, `what`, the `hunters` that come first (`["files", "nfs"]`) and, for one that must always
//! be caught, `canary = true`; after each its `[[bug.edit]]` with `file`, `old` and `new`, the
//! texts in `'''`. The old text is compared with the code token by token: layout, comments and the
//! commas that rustfmt adds or removes do not matter. In `new` the word [`SWITCH`] stands for "this
//! bug is switched on".

use std::collections::BTreeMap;
use std::ops::Range;

use crate::tidy::code::tokens;

/// Where the list is.
pub(crate) const FOLDER: &str = "machine-emu/sim/planted/";
/// Stands in the new text of an edit for the condition.
pub(crate) const SWITCH: &str = "PLANTED";

/// One bug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bug {
    /// Its name, in lower case with hyphens.
    pub(crate) id: String,
    /// What is wrong, in one sentence.
    pub(crate) what: String,
    /// It must always be caught.
    pub(crate) canary: bool,
    /// Who touches this code most: they hunt first.
    pub(crate) hunters: Vec<String>,
    /// How it gets into the code.
    pub(crate) edits: Vec<Edit>,
    /// Where it is written down: file and line.
    pub(crate) place: (String, usize),
}

/// One change of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The file, from the top of the tree.
    pub(crate) file: String,
    /// What stands there, exactly once.
    pub(crate) old: String,
    /// What takes its place.
    pub(crate) new: String,
    /// The line of the list where the edit begins.
    pub(crate) line: usize,
}

/// Something is wrong with the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListFlaw {
    /// The file of the list.
    pub(crate) file: String,
    /// The line in it, counted from 1.
    pub(crate) line: usize,
    /// What is wrong and what to do about it.
    pub(crate) message: String,
}

impl ListFlaw {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

/// Reads one file of the list.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Bug>, ListFlaw> {
    let mut bugs: Vec<Bug> = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((line, text)) = lines.next() {
        let flaw = |message: &str| ListFlaw::new(file, line, message);
        let text = text.trim_end();
        match text {
            "" => continue,
            "[[bug]]" => {
                bugs.push(Bug { place: (file.to_owned(), line), ..Bug::default() });
                continue;
            }
            _ if text.starts_with('#') => continue,
            _ => {}
        }
        let bug = bugs.last_mut().ok_or(flaw("the list begins with [[bug]]"))?;
        if text == "[[bug.edit]]" {
            bug.edits.push(Edit { line, ..Edit::default() });
            continue;
        }
        let (key, value) = text.split_once(" = ").ok_or(flaw("write `key = value`"))?;
        let value = if value == "'''" {
            literal(&mut lines).ok_or(flaw("this text has no end: close it with '''"))?
        } else {
            value.trim_matches('"').to_owned()
        };
        match (key, bug.edits.last_mut()) {
            ("id", None) => bug.id = value,
            ("what", None) => bug.what = value,
            ("canary", None) => bug.canary = value == "true",
            ("hunters", None) => {
                bug.hunters = names(&value).ok_or(flaw("write `hunters = [\"files\"]`"))?;
            }
            ("file", Some(edit)) => edit.file = value,
            ("old", Some(edit)) => edit.old = value,
            ("new", Some(edit)) => edit.new = value,
            _ => {
                return Err(flaw(
                    "a bug has id, what, hunters, canary; its edits have file, old, new",
                ));
            }
        }
    }
    Ok(bugs)
}

/// The names of a list on one line.
fn names(value: &str) -> Option<Vec<String>> {
    let inner = value.strip_prefix('[')?.strip_suffix(']')?;
    let name = |word: &str| Some(word.trim().strip_prefix('"')?.strip_suffix('"')?.to_owned());
    inner.split(',').map(name).collect()
}

/// The lines up to the closing quotes.
fn literal<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Option<String> {
    let mut text = String::new();
    for (_, line) in lines {
        if line == "'''" {
            return Some(text);
        }
        text.push_str(line);
        text.push('\n');
    }
    None
}

/// Puts all bugs into the files that `text_of` knows: the new text of each that changes, by its
/// path; and what is wrong.
pub(crate) fn apply<'a>(
    bugs: &[Bug],
    text_of: impl Fn(&str) -> Option<&'a str>,
) -> (BTreeMap<String, String>, Vec<ListFlaw>) {
    let mut flaws: Vec<ListFlaw> = flaws_of_names(bugs);
    let mut changes: BTreeMap<String, Vec<(Range<usize>, String)>> = BTreeMap::new();
    for bug in bugs {
        for edit in &bug.edits {
            let flaw = |message: String| ListFlaw::new(&bug.place.0, edit.line, message);
            match place(edit, text_of(&edit.file)) {
                Err(message) => flaws.push(flaw(format!("{}: {message}", bug.id))),
                Ok(range) => {
                    let known = changes.entry(edit.file.clone()).or_default();
                    let overlaps =
                        |other: &Range<usize>| range.start < other.end && other.start < range.end;
                    if known.iter().any(|(other, _)| overlaps(other)) {
                        flaws.push(flaw(format!(
                            "{}: its old text overlaps that of another bug in {}: take fewer \
                             lines, or another place",
                            bug.id, edit.file
                        )));
                    }
                    known.push((range, with_condition(bug, edit)));
                }
            }
        }
    }
    let texts = changes.into_iter().filter_map(|(file, mut changes)| {
        let mut text = text_of(&file)?.to_owned();
        changes.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        if flaws.is_empty() {
            for (range, new) in changes {
                text.replace_range(range, &new);
            }
        }
        Some((file, text))
    });
    (texts.collect(), flaws)
}

fn flaws_of_names(bugs: &[Bug]) -> Vec<ListFlaw> {
    let mut flaws = Vec::new();
    for (index, bug) in bugs.iter().enumerate() {
        let mut flaw = |message: &str| {
            flaws.push(ListFlaw::new(&bug.place.0, bug.place.1, format!("{}: {message}", bug.id)));
        };
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if bug.id.is_empty() || !bug.id.chars().all(is_plain) {
            flaw("an id has lower-case letters, digits and hyphens");
        }
        if bugs[..index].iter().any(|other| other.id == bug.id) {
            flaw("another bug has this id");
        }
        if bug.what.is_empty() {
            flaw("say in `what` what is wrong");
        }
        if !bug.edits.iter().any(|edit| edit.new.contains(SWITCH)) {
            flaw("no edit says PLANTED, so that the bug would always be on");
        }
    }
    flaws
}

/// Where the old text of `edit` stands, from its first token to its last.
fn place(edit: &Edit, text: Option<&str>) -> Result<Range<usize>, String> {
    let file = &edit.file;
    let text = text.ok_or(format!("there is no file {file}: correct the path"))?;
    let mut old: Vec<&str> = tokens(&edit.old).into_iter().map(|at| &edit.old[at]).collect();
    let comma = old.pop_if(|last| *last == ",").is_some();
    if old.is_empty() {
        return Err("an edit needs an old text".to_owned());
    }
    let code = tokens(text);
    let mut places = code.windows(old.len()).filter_map(|window| {
        let is_old = window.iter().zip(&old).all(|(at, old)| &text[at.clone()] == *old);
        let (start, end) = (window[0].start, window[old.len() - 1].end);
        let after = text[end..].trim_start();
        match after.strip_prefix(',').filter(|_| comma) {
            _ if !is_old => None,
            Some(after) => Some(start..text.len() - after.len()),
            None => (!comma || after.starts_with([')', ']', '}'])).then_some(start..end),
        }
    });
    match (places.next(), places.next()) {
        (Some(range), None) => Ok(range),
        (None, _) => Err(format!(
            "{file} does not contain its old text any more: plant the bug anew where the code is \
             now, or remove it from the list"
        )),
        (Some(_), Some(_)) => {
            Err(format!("its old text stands in {file} more than once: take more lines"))
        }
    }
}

fn with_condition(bug: &Bug, edit: &Edit) -> String {
    let path = if edit.file.starts_with("runtime/src/") { "crate" } else { "runtime" };
    edit.new.trim().replace(SWITCH, &format!("{path}::planted::is_on(\"{}\")", bug.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# A list.\n[[bug]]\nid = \"no-flush\"\nwhat = \"It is not flushed.\"\n\
        hunters = [\"disks\", \"cache\"]\ncanary = true\n[[bug.edit]]\nfile = \"runtime/src/a.rs\"\nold = '''\n    flush();\n'''\n\
        new = '''\n    if !PLANTED {\n        flush();\n    }\n'''\n";
    const CODE: &str = "fn a() {\n    flush();\n}\n";

    #[test]
    fn a_bug_is_read_and_put_into_its_file() {
        let bugs = parse("list.toml", LIST).unwrap();
        assert!(bugs[0].canary && bugs[0].what == "It is not flushed.");
        assert_eq!(bugs[0].hunters, ["disks", "cache"]);
        let (texts, flaws) = apply(&bugs, |_| Some(CODE));
        assert_eq!(flaws, []);
        let wanted = "fn a() {\n    if !crate::planted::is_on(\"no-flush\") {\n        flush();\n    \
            }\n}\n";
        assert_eq!(texts["runtime/src/a.rs"], wanted);
    }

    #[test]
    fn the_layout_of_the_old_text_does_not_matter() {
        let edit = |old: &str| Edit { old: old.to_owned(), ..Edit::default() };
        let code = "fn a() {\n    // Now.\n    let x = call(\n        one, // the first\n        \
            \"b  c\",\n    );\n    match x { 1 => one(), 2 => two(), _ => three() }\n}\n";
        for (old, place) in [
            (
                "let x=call(one, \"b  c\");",
                "let x = call(\n        one, // the first\n        \"b  c\",\n    );",
            ),
            ("fn a() {\n\n  let x", "fn a() {\n    // Now.\n    let x"),
            ("1 => one(),\n", "1 => one(),"),
            ("_ => three(),\n", "_ => three()"),
        ] {
            let found = super::place(&edit(old), Some(code)).map(|range| &code[range]);
            assert_eq!(found.as_deref(), Ok(place), "{old}");
        }
        for (old, flaw) in [
            ("call(one, \"b c\")", "does not contain"),
            ("x = call(one),", "does not contain"),
            ("=>", "more than once"),
            ("one", "more than once"),
            ("// Now.", "needs an old text"),
        ] {
            let found = super::place(&edit(old), Some(code));
            assert!(
                found.as_ref().is_err_and(|message| message.contains(flaw)),
                "{old}: {found:?}"
            );
        }
    }

    #[test]
    fn code_that_has_changed_and_edits_that_overlap_are_told() {
        let bugs = parse("list.toml", LIST).unwrap();
        let messages = |bugs: &[Bug], code| {
            let (_, flaws) = apply(bugs, |_| code);
            flaws.into_iter().map(|flaw| flaw.message).collect::<Vec<_>>().join("\n")
        };
        assert!(messages(&bugs, None).contains("there is no file"));
        assert!(messages(&bugs, Some("fn b() {}\n")).contains("does not contain"));
        let twice = format!("{CODE}{CODE}");
        assert!(messages(&bugs, Some(&twice)).contains("more than once"));
        let both = parse("list.toml", &format!("{LIST}{}", LIST.replace("no-flush", "again")));
        assert!(messages(&both.unwrap(), Some(CODE)).contains("overlaps"));
        let unconditional = parse("list.toml", &LIST.replace("PLANTED", "true")).unwrap();
        assert!(messages(&unconditional, Some(CODE)).contains("PLANTED"));
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_line() {
        for (text, line) in [("id = \"a\"\n", 1), ("[[bug]]\n\nid\n", 3), ("[[bug]]\nx = 1\n", 2)] {
            assert_eq!(parse("list.toml", text).map_err(|flaw| flaw.line), Err(line), "{text}");
        }
        let unquoted = "[[bug]]\nhunters = [files]\n";
        assert_eq!(parse("list.toml", unquoted).map_err(|flaw| flaw.line), Err(2));
        let open = "[[bug]]\n[[bug.edit]]\nold = '''\nfn a\n";
        assert_eq!(parse("list.toml", open).map_err(|flaw| flaw.line), Err(3));
    }
}

//! Documents name files and commands that exist, in few words and short lines.

use std::collections::{BTreeMap, BTreeSet};

use super::breach::Measure;
use super::code::{is_word, tokens};
use super::tree::{SourceTree, TextFile};

/// Words of README.md and docs/ together, at most; tables that tidy writes are left out.
pub(super) const WORDS_MAX: usize = 43_000;

/// Columns of a comment or of prose, at most.
const COLUMNS_MAX: usize = 100;

/// Programs whose sub-commands and options are known.
const PROGRAMS: &[&str] = &["mdfs", "mdfs-lab"];

/// Options of every program.
const COMMON: &[&str] = &["help", "version"];

/// The endings of names that are taken for files wherever they stand.
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".sh"];

/// Code spans and the lines of code blocks of a document, with their lines.
fn code_of(page: &TextFile) -> Vec<(usize, &str)> {
    let mut in_block = false;
    let mut found = Vec::new();
    for (line, text) in page.lines() {
        if text.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.push((line, text));
        } else {
            found.extend(text.split('`').skip(1).step_by(2).map(|span| (line, span)));
        }
    }
    found
}

fn counts(places: BTreeMap<String, Vec<(String, usize)>>) -> Vec<Measure> {
    places.into_iter().map(|(key, places)| Measure::of_places(key, places)).collect()
}

/// Paths in the code of documents that lead to no file. A word is a path if it starts with a folder
/// of the top or ends like a file; it may leave out the first folders, or the `.rs`
/// at the end, or start at its document.
pub(super) fn missing_paths(tree: &SourceTree) -> Vec<Measure> {
    let tops = tree.top_folders();
    let mut missing: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for page in tree.of_kind(&["md"]).filter(|page| page.path != CHANGELOG) {
        let (folder, _) = page.path.rsplit_once('/').unwrap_or_default();
        for (line, text) in code_of(page) {
            for word in text.split([' ', ',', '(', ')', '"', '=']) {
                let path = word.trim_start_matches("./").trim_end_matches(['/', '.', ':', ';']);
                let is_plain = |c: char| is_word(c) || "/.-".contains(c);
                let starts_at_top =
                    path.split_once('/').is_some_and(|(first, _)| tops.contains(&first));
                let ends_like_a_file = ENDINGS.iter().any(|ending| {
                    path.strip_suffix(ending).is_some_and(|stem| stem.ends_with(is_word))
                });
                if !path.chars().all(is_plain)
                    || path.starts_with(['/', '.', '-'])
                    || !(starts_at_top || (ends_like_a_file && path.contains('/')))
                {
                    continue;
                }
                let exists = tree.contains(path)
                    || tree.contains(&format!("{path}.rs"))
                    || tree.contains(&format!("{folder}/{path}"))
                    || (ends_like_a_file && tree.has_ending(&format!("/{path}")));
                if !exists {
                    missing.entry(path.to_owned()).or_default().push((page.path.clone(), line));
                }
            }
        }
    }
    counts(missing)
}

/// It names what was.
const CHANGELOG: &str = "CHANGELOG.md";

/// Sub-commands and options, in the code of documents, that no program has: `mdfs`, `mdfs-lab` and
/// `cargo xtask`. An option must be known to some sub-command, not to this one.
pub(super) fn unknown_commands(tree: &SourceTree) -> Vec<Measure> {
    let programs = KnownCommands::of_programs(tree);
    let xtask = KnownCommands::of_xtask(tree);
    let mut unknown: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for page in tree.of_kind(&["md"]).filter(|page| page.path != CHANGELOG) {
        for (line, text) in code_of(page) {
            for call in text.split(['|', ';', '&', '#']) {
                let words: Vec<&str> = call.split_whitespace().collect();
                let Some((program, arguments)) = called(&words) else { continue };
                let known = if program == "cargo xtask" { &xtask } else { &programs };
                if let Some(flaw) = known.flaw(arguments) {
                    let key = format!("{program} {flaw}");
                    unknown.entry(key).or_default().push((page.path.clone(), line));
                }
            }
        }
    }
    counts(unknown)
}

/// The program of ours that a command line calls, and its arguments.
fn called<'a>(words: &'a [&'a str]) -> Option<(&'a str, &'a [&'a str])> {
    let is_before =
        |word: &&&str| matches!(**word, "$" | "sudo" | "exec" | "time") || word.contains('=');
    let words = &words[words.iter().take_while(is_before).count()..];
    let (first, rest) = words.split_first()?;
    if *first == "cargo" {
        return rest
            .split_first()
            .filter(|(word, _)| **word == "xtask")
            .map(|(_, rest)| ("cargo xtask", rest));
    }
    let name = first.rsplit('/').next()?;
    PROGRAMS.contains(&name).then_some((name, rest))
}

/// What a program understands.
#[derive(Debug, Default)]
struct KnownCommands {
    commands: BTreeSet<String>,
    options: BTreeSet<String>,
}

impl KnownCommands {
    /// Read from the descriptions for clap, wherever they are.
    fn of_programs(tree: &SourceTree) -> Self {
        let mut known = Self::default();
        known.options.extend(COMMON.iter().map(|&name| name.to_owned()));
        let described = tree.of_kind(&["rs"]).filter(|file| file.text.contains("clap"));
        for file in described.filter(|file| !file.path.starts_with("xtask/")) {
            let words: Vec<&str> =
                tokens(&file.text).into_iter().map(|at| &file.text[at]).collect();
            for at in 0..words.len() {
                match words[at..] {
                    ["enum", _, "{", ..]
                        if words[..at].iter().rev().take(40).any(|word| *word == "Subcommand") =>
                    {
                        known
                            .commands
                            .extend(variants(&words[at + 3..]).iter().map(|name| kebab(name)));
                    }
                    ["#", "[", "arg" | "clap", "(", ..] => {
                        known.options.extend(option(&words[at + 4..]));
                    }
                    _ => {}
                }
            }
        }
        known
    }

    /// The commands of this tool; options are strings of its source.
    fn of_xtask(tree: &SourceTree) -> Self {
        let mut known = Self::default();
        known.options.extend(COMMON.iter().map(|&name| name.to_owned()));
        let files = tree.of_kind(&["rs"]).filter(|file| file.path.starts_with("xtask/src/"));
        for file in files {
            let quoted = |text: &str| text.split('"').next().map(str::to_owned);
            known.commands.extend(file.text.split("name: \"").skip(1).filter_map(quoted));
            known.options.extend(file.text.split("\"--").skip(1).filter_map(quoted));
        }
        known
    }

    /// The first word that is not understood.
    fn flaw(&self, arguments: &[&str]) -> Option<String> {
        let is_name = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_lowercase())
                && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        let command = arguments.first().filter(|word| is_name(word) && **word != "help");
        if let Some(command) = command.filter(|word| !self.commands.contains(**word)) {
            return Some((*command).to_owned());
        }
        let options = arguments.iter().take_while(|word| **word != "--");
        let mut names = options.filter_map(|word| word.trim_start_matches('[').strip_prefix("--"));
        let unknown = names.find_map(|name| {
            let name = name.split(['=', ']', '|', '.']).next().unwrap_or_default();
            (!name.is_empty() && !self.options.contains(name)).then(|| format!("--{name}"))
        });
        // What a sub-command hands on to other programs is theirs.
        unknown.filter(|_| command.is_some())
    }
}

/// The names of the variants of an enum whose body begins here.
fn variants<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "{" | "(" | "[" => depth += 1,
            "}" if depth == 0 => break,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            name if depth == 0
                && name.starts_with(char::is_uppercase)
                && matches!(words.get(at + 1), Some(&("{" | "(" | "," | "}"))) =>
            {
                names.push(name);
            }
            _ => {}
        }
    }
    names
}

/// The long option that the attribute beginning here describes.
fn option(words: &[&str]) -> Option<String> {
    let end = words.windows(2).position(|pair| pair == [")", "]"])?;
    let long = words[..end].iter().position(|word| *word == "long")?;
    if let Some(name) = words[..end].get(long + 1..long + 3).filter(|next| next[0] == "=") {
        return Some(name[1].trim_matches('"').to_owned());
    }
    let field = words[end + 2..].windows(2).find(|pair| pair[1] == ":")?;
    Some(field[0].replace('_', "-"))
}

/// As clap names a variant.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.extend(c.to_lowercase());
    }
    kebab
}

/// The words of README.md and docs/, without the tables that tidy writes.
pub(super) fn words(tree: &SourceTree) -> Vec<Measure> {
    let is_counted = |file: &&TextFile| file.path == "README.md" || file.path.starts_with("docs/");
    let pages = tree.of_kind(&["md"]).filter(is_counted);
    let count = pages.flat_map(written).map(|line| line.split_whitespace().count()).sum();
    vec![Measure { key: "README.md and docs/".to_owned(), count, places: Vec::new() }]
}

/// The lines that people wrote.
fn written(page: &TextFile) -> impl Iterator<Item = &str> {
    let mut is_made = false;
    page.text.lines().filter(move |line| {
        if line.starts_with("<!-- tables of ") {
            is_made = true;
        } else if line.starts_with("<!-- end of tables") {
            is_made = false;
        }
        !is_made && !line.starts_with("<!--")
    })
}

/// Lines of comments for each crate, and of prose for each document, that are too wide. Tables and
/// code blocks may be wide, and a line that has no blank where it could be broken.
pub(super) fn wide_lines(tree: &SourceTree) -> Vec<Measure> {
    let is_wide = |text: &str| {
        let cut = text.char_indices().nth(COLUMNS_MAX).map(|(at, _)| text[..at].trim_start());
        let prose = cut.map(|cut| cut.trim_start_matches(['/', '!', ' ']));
        prose.is_some_and(|prose| prose.contains(' ') && !prose.starts_with('|'))
    };
    let crates: Vec<&str> = tree.crates().map(|(folder, _)| folder).collect();
    let mut wide: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for file in tree.of_kind(&["rs"]) {
        let within = |folder: &&&str| {
            file.path.strip_prefix(**folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let package = crates.iter().filter(within).max_by_key(|folder| folder.len());
        let key = format!("comments of {}", package.copied().unwrap_or_default());
        let is_comment = |text: &str| text.trim_start().starts_with("//");
        let lines = file.lines().filter(|(_, text)| is_comment(text) && is_wide(text));
        wide.entry(key).or_default().extend(lines.map(|(line, _)| (file.path.clone(), line)));
    }
    for page in tree.of_kind(&["md"]) {
        let mut in_block = false;
        let lines = page.lines().filter(|(_, text)| {
            in_block ^= text.trim_start().starts_with("```");
            !in_block && is_wide(text)
        });
        let lines = lines.map(|(line, _)| (page.path.clone(), line));
        wide.entry(format!("prose of {}", page.path)).or_default().extend(lines);
    }
    wide.retain(|_, places| !places.is_empty());
    counts(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        count: fn(&SourceTree) -> Vec<Measure>,
        files: &[(&str, &str)],
    ) -> Vec<(String, usize)> {
        let counts = count(&SourceTree::of(files));
        counts.into_iter().map(|count| (count.key, count.count)).collect()
    }

    #[test]
    fn a_path_that_leads_nowhere_is_counted() {
        let page = "`layers/x.rs` and `x.rs` and `b/x.rs`, `layers/gone.rs`, `layers/*/y.rs`\n\
            ```\nrun docs/c.md docs/gone.md > /tmp/y.rs\n```\nno `b/gone.rs` and b/none.rs, `c.md`\n";
        let files =
            [("docs/a.md", page), ("docs/c.md", ""), ("layers/x.rs", ""), ("layers/b/x.rs", "")];
        let wanted = ["b/gone.rs", "docs/gone.md", "layers/gone.rs"];
        assert_eq!(found(missing_paths, &files), wanted.map(|path| (path.to_owned(), 1)));
    }

    #[test]
    fn a_command_that_no_program_has_is_counted() {
        let program = "use clap::Subcommand;\n#[derive(Debug, Subcommand)]\npub enum Command {\n\
            \x20   /// List.\n    Ls,\n    #[command(hide = true)]\n    RotateKeys(Args),\n    Serve {\n\
            \x20       /// Where.\n        #[arg(long, value_name = \"A\")]\n        listen_at: A,\n\
            \x20   },\n}\nstruct Args {\n    #[arg(short, long = \"all\")]\n    everything: bool,\n}\n";
        let tool = "const A: B = B { name: \"tidy\", options: &[\"--write\"] };\n";
        let page = "`mdfs`, `mdfs ls VOL`, `mdfs rotate-keys --all`, `mdfs listen`\n```\n\
            $ sudo target/release/mdfs serve --listen-at=1 --everything\n```\n`cargo xtask tidy --write`\n\
            `cargo xtask clean` `cargo test` `mdfs --help` `mdfs COMMAND` `A=b mdfs-lab gone`\n";
        let files = [("cli/src/a.rs", program), ("xtask/src/main.rs", tool), ("docs/a.md", page)];
        let wanted =
            ["cargo xtask clean", "mdfs listen", "mdfs serve --everything", "mdfs-lab gone"];
        let wanted = ["cargo xtask clean", "mdfs --everything", wanted[1], wanted[3]];
        assert_eq!(found(unknown_commands, &files), wanted.map(|path| (path.to_owned(), 1)));
    }

    #[test]
    fn words_that_people_wrote_are_counted() {
        let page = "One two.\n<!-- tables of x -->\n| a | b |\n<!-- end of tables -->\nthree\n";
        let files = [("docs/a.md", page), ("README.md", "four"), ("layers/b.md", "five")];
        assert_eq!(found(words, &files)[0].1, 4);
    }

    #[test]
    fn wide_lines_are_counted() {
        let wide = "word ".repeat(21);
        let code = format!(
            "    // {wide}\nlet x = \"{wide}\";\n// {}\n/// short\n//! | {wide}\n",
            "x".repeat(120)
        );
        let page = format!("{wide}\n| {wide}\n```\n{wide}\n```\n- {wide}\n");
        let files = [("b/Cargo.toml", ""), ("b/a.rs", &code), ("a.md", &page)];
        let wanted = [("comments of b".to_owned(), 1), ("prose of a.md".to_owned(), 2)];
        assert_eq!(found(wide_lines, &files), wanted);
    }
}

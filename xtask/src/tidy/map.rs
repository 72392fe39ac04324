//! README.md is the map of the tree, and no link of any page is dead.

use super::breach::Breach;
use super::tree::{SourceTree, TextFile};

const README: &str = "README.md";

/// Every folder at the top and every crate has its line in the map.
pub(super) fn readme_names_every_folder(tree: &SourceTree) -> Vec<Breach> {
    let readme = tree.file(README).map(|file| file.text.as_str()).unwrap_or_default();
    let crates = tree.crates().map(|(folder, _)| folder);
    let mut folders = tree.top_folders();
    folders.extend(crates);
    folders.sort_unstable();
    folders.dedup();
    let missing = folders.into_iter().filter(|folder| !readme.contains(&format!("`{folder}/`")));
    missing
        .map(|folder| {
            let message = format!("the map has no line for `{folder}/`: say what the folder holds");
            Breach::new(README, 1, message)
        })
        .collect()
}

/// Every crate obeys the lints of the workspace.
pub(super) fn crates_share_the_lints(tree: &SourceTree) -> Vec<Breach> {
    let free = tree.crates().filter(|(_, manifest)| !has_shared_lints(&manifest.text));
    free.map(|(_, manifest)| {
        let message = "add `[lints]` with `workspace = true`: all crates obey the same lints";
        Breach::new(&manifest.path, 1, message)
    })
    .collect()
}

fn has_shared_lints(manifest: &str) -> bool {
    let section = manifest.lines().skip_while(|line| line.trim() != "[lints]").skip(1);
    section.take_while(|line| !line.starts_with('[')).any(|line| line.trim() == "workspace = true")
}

/// A link of a page to a file of the tree leads to one.
pub(super) fn links_lead_to_files(tree: &SourceTree) -> Vec<Breach> {
    let dead_in = |file: &TextFile| {
        let (folder, _) = file.path.rsplit_once('/').unwrap_or_default();
        let links = links(&file.text).into_iter();
        let dead = links.filter(|(_, target)| !tree.contains(&resolve(folder, target)));
        let message = |target| format!("the link leads nowhere: there is no {target}");
        dead.map(|(line, target)| Breach::new(&file.path, line, message(target)))
            .collect::<Vec<_>>()
    };
    tree.of_kind(&["md"]).flat_map(dead_in).collect()
}

/// The targets of links to files, with their lines; code blocks hold no links.
fn links(page: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (line, text) in (1..).zip(page.lines()) {
        if text.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let starts = text.split("](").skip(1).chain(text.split("src=\"").skip(1));
        let targets = starts.filter_map(|rest| rest.split([')', '"', ' ', '#']).next());
        let local = |target: &&str| !target.is_empty() && !target.contains(':');
        found.extend(targets.filter(local).map(|target| (line, target)));
    }
    found
}

/// The path from the top of what `target` means on a page in `folder`.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_line_in_the_map_is_told() {
        let map = "| `layers/` |\n| `layers/cache/` | stripes |\n";
        let files =
            [(README, map), ("layers/cache/Cargo.toml", ""), ("new/a.rs", ""), (".ci/run", "")];
        let breaches = readme_names_every_folder(&SourceTree::of(&files));
        assert_eq!(breaches.len(), 1);
        assert!(breaches[0].message.contains("`new/`"), "{breaches:?}");
    }

    #[test]
    fn a_crate_with_lints_of_its_own_is_told() {
        let good = ("a/Cargo.toml", "[package]\n[lints]\nworkspace = true\n");
        let bad =
            ("b/Cargo.toml", "[lints.rust]\nunsafe_code = \"allow\"\n[x]\nworkspace = true\n");
        let breaches = crates_share_the_lints(&SourceTree::of(&[good, bad]));
        assert_eq!(breaches.iter().map(|b| b.file.as_str()).collect::<Vec<_>>(), ["b/Cargo.toml"]);
    }

    #[test]
    fn a_dead_link_is_told() {
        let page = "[a](b.md) [up](../top.md#part)\n[dead](../b.md)\n```\n[no](link.md)\n```\n\
            [far](https://example.org/x) [here](#part) <img src=\"no.svg\">\n";
        let tree = SourceTree::of(&[("docs/a.md", page), ("docs/b.md", ""), ("top.md", "")]);
        let lines: Vec<_> = links_lead_to_files(&tree).iter().map(|b| b.line).collect();
        assert_eq!(lines, [2, 6]);
    }
}

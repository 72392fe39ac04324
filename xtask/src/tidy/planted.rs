//! The planted bugs still fit the code: a change that removes the place of one fails here, not in
//! the next hunt.

use super::breach::Breach;
use super::tree::SourceTree;
use crate::planted::list;

/// Every bug of the list has its place.
pub(super) fn bugs_have_their_places(tree: &SourceTree) -> Vec<Breach> {
    let mut bugs = Vec::new();
    let mut flaws = Vec::new();
    for file in tree.of_kind(&["toml"]).filter(|file| file.path.starts_with(list::FOLDER)) {
        match list::parse(&file.path, &file.text) {
            Ok(read) => bugs.extend(read),
            Err(flaw) => flaws.push(flaw),
        }
    }
    flaws.extend(list::apply(&bugs, |path| tree.file(path).map(|file| file.text.as_str())).1);
    flaws.iter().map(|flaw| Breach::new(&flaw.file, flaw.line, flaw.message.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_without_a_place_is_told() {
        let bug = "[[bug]]\nid = \"a\"\nwhat = \"b\"\n[[bug.edit]]\nfile = \"a.rs\"\nold = '''\nx\n\
            '''\nnew = '''\nPLANTED\n'''\n";
        let list = format!("{}a.toml", list::FOLDER);
        let lines = |code| {
            let tree = SourceTree::of(&[(list.as_str(), bug), ("a.rs", code)]);
            bugs_have_their_places(&tree).iter().map(|breach| breach.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("x\n"), []);
        assert_eq!(lines("y\n"), [4]);
    }
}

//! Reads the tables of messages out of the code: the rows of `protocol!`, `record!` and `choice!`,
//! as lines of a page.

use super::code::code_of;

/// What one `protocol!` declares besides its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// Its name in the table.
    pub(super) name: String,
    /// Its number in message headers.
    pub(super) id: String,
    /// Its wire version.
    pub(super) version: String,
}

/// All tables of one file; each row is a line of a table in markdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// The layer, if the file declares one.
    pub(super) layer: Option<Layer>,
    /// Rows of `protocol!`: tag, class, request, fields, reply, route, retry, senders, answered
    /// during recovery, meaning.
    pub(super) requests: Vec<String>,
    /// Each `record!`: name, fields, meaning.
    pub(super) records: Vec<String>,
    /// Rows of each `choice!`: name, tag, variant, fields, meaning.
    pub(super) variants: Vec<String>,
}

/// The tables of the Rust file `text`; the line where one cannot be understood is the error.
pub(super) fn read(text: &str) -> Result<Tables, usize> {
    let code = code_of(text);
    let tokens = tokens(&code);
    let lines: Vec<&str> = text.lines().collect();
    let mut tables = Tables::default();
    for (at, start) in tokens.windows(3).enumerate() {
        let read = match [start[0].text, start[1].text, start[2].text] {
            ["protocol", "!", "{"] => TableReader::protocol,
            ["record", "!", "{"] => TableReader::record,
            ["choice", "!", "{"] => TableReader::choice,
            _ => continue,
        };
        let mut reader = TableReader { lines: &lines, tokens: &tokens, at: at + 3 };
        read(&mut reader, &mut tables).ok_or_else(|| reader.line())?;
    }
    Ok(tables)
}

/// The first paragraph of the documentation of what begins in the line with this number.
fn documentation(lines: &[&str], line: usize) -> String {
    let above = lines[..line - 1].iter().rev().map(|text| text.trim());
    let mut docs: Vec<&str> = above
        .take_while(|text| text.starts_with("///") || text.starts_with("#["))
        .filter_map(|text| text.strip_prefix("///"))
        .map(str::trim)
        .collect();
    docs.reverse();
    let paragraph: Vec<&str> = docs.into_iter().take_while(|text| !text.is_empty()).collect();
    without_links(&paragraph.join(" ")).replace('|', "\\|")
}

/// Links of rustdoc lead nowhere on a page: ``[`Sync`]`` becomes `` `Sync` ``.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, after)) = link.split_once("`]") else { break };
        plain += before;
        plain.extend(["`", name, "`"]);
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    plain + rest
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

/// Words, and single characters for all else.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (token, after) = rest.split_at(length.max(first.len_utf8()));
            tokens.push(Token { line, text: token });
            rest = after.trim_start();
        }
    }
    tokens
}

struct TableReader<'a> {
    lines: &'a [&'a str],
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> TableReader<'a> {
    /// `Name id 1 version 1;` and its rows. Each is `1 Bulk Name { fields } -> Reply, by route,
    /// retry class, from senders, phase recovery;`.
    fn protocol(&mut self, tables: &mut Tables) -> Option<()> {
        self.attributes()?;
        let name = self.next()?.to_owned();
        self.expect("id")?;
        let id = self.next()?.to_owned();
        self.expect("version")?;
        let version = self.next()?.to_owned();
        self.expect(";")?;
        tables.layer = Some(Layer { name, id, version });
        while !self.skip("}") {
            self.attributes()?;
            let meaning = self.documentation();
            let (tag, class, name) = (self.next()?, self.next()?, self.next()?);
            let fields = self.fields()?;
            self.expect("-")?;
            self.expect(">")?;
            let reply = self.ty(&[","])?;
            self.expect(",")?;
            self.expect("by")?;
            let route = self.ty(&[","])?;
            self.expect(",")?;
            self.expect("retry")?;
            let retry = self.next()?.replace('_', " ");
            self.expect(",")?;
            self.expect("from")?;
            let senders = self.next()?;
            self.expect(",")?;
            let phase = self.next()?;
            self.expect("recovery")?;
            self.expect(";")?;
            let row = format!(
                "| {tag} | {class} | `{name}` | {fields} | `{reply}` | {route} | {retry} | {senders} \
                 | {phase} | {meaning} |"
            );
            tables.requests.push(row);
            self.attributes()?;
        }
        Some(())
    }

    /// `pub struct Name { fields }`, which begins with a handle if `handle` is before it.
    fn record(&mut self, tables: &mut Tables) -> Option<()> {
        self.attributes()?;
        self.skip("handle");
        self.expect("pub")?;
        self.expect("struct")?;
        let meaning = self.documentation();
        let name = self.next()?;
        let fields = self.fields()?;
        tables.records.push(format!("| `{name}` | {fields} | {meaning} |"));
        self.expect("}")
    }

    /// `pub enum Name { 1 Variant { fields }, ... }`.
    fn choice(&mut self, tables: &mut Tables) -> Option<()> {
        self.attributes()?;
        self.expect("pub")?;
        self.expect("enum")?;
        let name = self.next()?;
        self.expect("{")?;
        while !self.skip("}") {
            self.attributes()?;
            let meaning = self.documentation();
            let (tag, variant) = (self.next()?, self.next()?);
            let fields = self.fields()?;
            self.skip(",");
            let row = format!("| `{name}` | {tag} | `{variant}` | {fields} | {meaning} |");
            tables.variants.push(row);
        }
        self.expect("}")
    }

    /// `{ a: A, b: B }` as the page shows it.
    fn fields(&mut self) -> Option<String> {
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.skip("}") {
            self.attributes()?;
            let name = self.next()?;
            self.expect(":")?;
            let ty = self.ty(&[",", "}"])?;
            self.skip(",");
            fields.push(format!("`{name}: {ty}`"));
        }
        Some(if fields.is_empty() { "none".to_owned() } else { fields.join(", ") })
    }

    /// A type: everything up to one of `ends` that is not within brackets.
    fn ty(&mut self, ends: &[&str]) -> Option<String> {
        let mut depth = 0;
        let mut ty = String::new();
        while depth > 0 || !ends.contains(&self.peek()?) {
            let token = self.next()?;
            match token {
                "<" | "(" | "[" => depth += 1,
                ">" | ")" | "]" => depth -= 1,
                _ => {}
            }
            ty += token;
            if token == "," || token == ";" {
                ty.push(' ');
            }
        }
        Some(ty)
    }

    /// Leaves out `#[...]`.
    fn attributes(&mut self) -> Option<()> {
        while self.skip("#") {
            self.expect("[")?;
            self.ty(&["]"])?;
            self.expect("]")?;
        }
        Some(())
    }

    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).map(|token| token.text)
    }

    fn next(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    fn skip(&mut self, text: &str) -> bool {
        let found = self.peek() == Some(text);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, text: &str) -> Option<()> {
        self.skip(text).then_some(())
    }

    /// Of what begins in the line of the next token.
    fn documentation(&self) -> String {
        documentation(self.lines, self.line())
    }

    fn line(&self) -> usize {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_the_page_shows_them() {
        let code = "
runtime::protocol! {
    /// Doc.
    Ping id 3 version 2;

    /// Read a|b,
    /// see [`Stop`] and [`Gone`](x::Gone).
    ///
    /// Further `{`.
    1 Bulk Read { /// Doc.
        at: u64, list: Vec<(u8, u32)> } -> Option<Box<Bytes>>,
        by name(at, list), retry by_call_id, from any, after recovery;
    // 2 was `Gone`.
    3 Control Stop {} -> (), by caller, retry never, from servers, during recovery;
}
runtime::record! {
    /// Two.
    #[derive(Copy, Default)]
    handle pub struct Pair { a: u64, b: Bytes, }
}
runtime::choice! {
    #[derive(Copy, thiserror::Error)]
    pub enum Error {
        /// It failed.
        #[error(\"failed\")]
        1 Failed { #[from] why: Undelivered },
        2 Full {},
    }
}
";
        let tables = read(code).unwrap();
        let layer = Layer { name: "Ping".into(), id: "3".into(), version: "2".into() };
        assert_eq!(tables.layer, Some(layer));
        assert_eq!(
            tables.requests,
            [
                "| 1 | Bulk | `Read` | `at: u64`, `list: Vec<(u8, u32)>` | `Option<Box<Bytes>>` \
                 | name(at, list) | by call id | any | after | Read a\\|b, see `Stop` and `Gone`. |",
                "| 3 | Control | `Stop` | none | `()` | caller | never | servers | during |  |",
            ]
        );
        assert_eq!(tables.records, ["| `Pair` | `a: u64`, `b: Bytes` | Two. |"]);
        assert_eq!(
            tables.variants,
            [
                "| `Error` | 1 | `Failed` | `why: Undelivered` | It failed. |",
                "| `Error` | 2 | `Full` | none |  |",
            ]
        );
    }

    #[test]
    fn a_table_of_another_form_is_an_error_with_its_line() {
        assert_eq!(read("\nrecord! {\n    struct Private { a: u8 }\n}\n"), Err(3));
    }
}

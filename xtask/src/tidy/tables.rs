//! Reads the tables of messages out of the code: the rows of `protocol!`, `record!` and `choice!`.

use super::tree::code_of;

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

/// A line of the protocol page that one row of a table wants to see there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Where the row stands in the code.
    pub(super) line: usize,
    /// How the line on the page begins.
    pub(super) text: String,
}

/// All tables of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// The layer, if the file declares one.
    pub(super) layer: Option<Layer>,
    /// The rows of all tables.
    pub(super) rows: Vec<Row>,
}

/// The tables of the Rust file `text`; the line where one cannot be understood is the error.
pub(super) fn read(text: &str) -> Result<Tables, usize> {
    let code = code_of(text);
    let tokens = tokens(&code);
    let mut tables = Tables::default();
    for (at, start) in tokens.windows(3).enumerate() {
        let read = match [start[0].text, start[1].text, start[2].text] {
            ["protocol", "!", "{"] => Reader::protocol,
            ["record", "!", "{"] => Reader::record,
            ["choice", "!", "{"] => Reader::choice,
            _ => continue,
        };
        let mut reader = Reader { tokens: &tokens, at: at + 3 };
        read(&mut reader, &mut tables).ok_or_else(|| reader.line())?;
    }
    Ok(tables)
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

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> Reader<'a> {
    /// `Name id 1 version 1;` and its rows, `1 Bulk Name { fields } -> Reply;` each.
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
            let line = self.line();
            let (tag, class, name) = (self.next()?, self.next()?, self.next()?);
            let fields = self.fields()?;
            self.expect("-")?;
            self.expect(">")?;
            let reply = self.ty(&[";"])?;
            self.expect(";")?;
            let text = format!("| {tag} | {class} | `{name}` | {fields} | `{reply}` |");
            tables.rows.push(Row { line, text });
            self.attributes()?;
        }
        Some(())
    }

    /// `pub struct Name { fields }`.
    fn record(&mut self, tables: &mut Tables) -> Option<()> {
        self.attributes()?;
        self.expect("pub")?;
        self.expect("struct")?;
        let line = self.line();
        let name = self.next()?;
        let fields = self.fields()?;
        tables.rows.push(Row { line, text: format!("| `{name}` | {fields} |") });
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
            let line = self.line();
            let (tag, variant) = (self.next()?, self.next()?);
            let fields = self.fields()?;
            self.skip(",");
            let text = format!("| `{name}` | {tag} | `{variant}` | {fields} |");
            tables.rows.push(Row { line, text });
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

    /// Doc with `{`.
    1 Bulk Read { /// Doc.
        at: u64, list: Vec<(u8, u32)> } -> Option<Box<Bytes>>;
    // 2 was `Gone`.
    3 Control Stop {} -> ();
}
runtime::record! {
    #[derive(Copy, Default)]
    pub struct Pair { a: u64, b: Bytes, }
}
runtime::choice! {
    #[derive(Copy, thiserror::Error)]
    pub enum Error {
        #[error(\"failed\")]
        1 Failed { #[from] why: Undelivered },
        2 Full {},
    }
}
";
        let tables = read(code).unwrap();
        let layer = Layer { name: "Ping".into(), id: "3".into(), version: "2".into() };
        assert_eq!(tables.layer, Some(layer));
        let rows: Vec<_> = tables.rows.iter().map(|row| (row.line, row.text.as_str())).collect();
        assert_eq!(
            rows,
            [
                (
                    7,
                    "| 1 | Bulk | `Read` | `at: u64`, `list: Vec<(u8, u32)>` | `Option<Box<Bytes>>` |"
                ),
                (10, "| 3 | Control | `Stop` | none | `()` |"),
                (14, "| `Pair` | `a: u64`, `b: Bytes` |"),
                (20, "| `Error` | 1 | `Failed` | `why: Undelivered` |"),
                (21, "| `Error` | 2 | `Full` | none |"),
            ]
        );
    }

    #[test]
    fn a_table_of_another_form_is_an_error_with_its_line() {
        assert_eq!(read("\nrecord! {\n    struct Private { a: u8 }\n}\n"), Err(3));
    }
}

//! Which machine: `8x8x8 disks=8 board=0,2,4,6`.
//!
//! The first word is the mesh of processors in X, Y and Z; a board is one Z. `disks` counts disk
//! nodes, two on each board of `board`, beyond the Y edge at X 0 and 1 (thesis 2.1.2). Without
//! `board` they are on every second board, or on all from 0 if there are too few.

use std::fmt;

use nom::branch::alt;
use nom::bytes::complete::tag;
use nom::character::complete::{char, digit1, space1};
use nom::combinator::{map_res, opt};
use nom::error::{ErrorKind, FromExternalError, ParseError};
use nom::multi::separated_list1;
use nom::{Err, IResult, Parser};

/// A routing word has five bits per dimension.
const SIDE_MAX: u32 = 32;

const DISK_NODES_PER_BOARD: u32 = 2;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Processors along X, Y and Z.
    pub sides: [u32; 3],
    /// Disk nodes.
    pub disk_nodes: u32,
    /// Boards that carry disk nodes, two each, in this order.
    pub boards: Vec<u32>,
}

/// The place of a node. Disk nodes are at Y equal to the length of the Y side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeCoordinates {
    /// Along the rows of a board.
    pub x: u32,
    /// Along its columns.
    pub y: u32,
    /// The board.
    pub z: u32,
}

impl fmt::Display for NodeCoordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{},{})", self.x, self.y, self.z)
    }
}

/// The line does not name a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "machine {text:?}, column {column}: expected {expected}, as in \"8x8x8 disks=8 board=0,2,4,6\""
)]
pub struct TopologyError {
    /// The whole line.
    pub text: String,
    /// Where, from 1.
    pub column: usize,
    /// What would have been right there.
    pub expected: String,
}

impl Topology {
    /// The machine of the thesis' chapter 4 with all its disk nodes.
    pub fn thesis() -> Self {
        Self { sides: [8; 3], disk_nodes: 8, boards: vec![0, 2, 4, 6] }
    }

    /// Reads the notation.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let error = |rest: &str, expected: String| TopologyError {
            text: text.to_owned(),
            column: 1 + text.len() - rest.len(),
            expected,
        };
        match machine(text) {
            Ok((_, machine)) => Ok(machine),
            Err(
                Err::Error(ExpectedToken { at, what }) | Err::Failure(ExpectedToken { at, what }),
            ) => Err(error(at, what)),
            Err(Err::Incomplete(_)) => Err(error("", "more".to_owned())),
        }
    }

    /// Processors, without the disk nodes.
    pub fn processors(&self) -> u32 {
        self.sides.iter().product()
    }

    /// Where the disk node `index` is.
    pub fn disk_node(&self, index: u32) -> NodeCoordinates {
        let board = self.boards[(index / DISK_NODES_PER_BOARD) as usize];
        NodeCoordinates { x: index % DISK_NODES_PER_BOARD, y: self.sides[1], z: board }
    }

    /// Where the file-system node `index` is: they fill the planes of Y, the one next to the disks
    /// first ("a slice of the machine adjacent to the disk nodes", thesis 3.1).
    pub fn fs_node(&self, index: u32) -> NodeCoordinates {
        self.processor(index)
    }

    /// Where the application node `index` is: they fill the planes of Y, the one farthest from
    /// the disks first.
    pub fn application(&self, index: u32) -> NodeCoordinates {
        let [x, y, z] = self.sides;
        NodeCoordinates { x: index % x, y: index / (x * z) % y, z: index / x % z }
    }

    /// Where the host is, if there is one: the text says that it is on an edge connector, not
    /// where. Here it is beyond the X edge, in a row of the slice next to the disks, on the last
    /// board: so it reaches every processor directly, and its row reaches it.
    pub fn host(&self) -> NodeCoordinates {
        let [x, y, z] = self.sides;
        NodeCoordinates { x, y: y - 1, z: z - 1 }
    }

    /// The processor `index`, counted along X, then Z, then away from the disks.
    fn processor(&self, index: u32) -> NodeCoordinates {
        let [x, y, z] = self.sides;
        let plane = index / (x * z) % y;
        NodeCoordinates { x: index % x, y: y - 1 - plane, z: index / x % z }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.sides;
        let boards: Vec<_> = self.boards.iter().map(ToString::to_string).collect();
        write!(f, "{x}x{y}x{z} disks={} board={}", self.disk_nodes, boards.join(","))
    }
}

/// Where reading stopped, and what should have been there.
#[derive(Debug)]
struct ExpectedToken<'a> {
    at: &'a str,
    what: String,
}

impl<'a> ExpectedToken<'a> {
    fn new(at: &'a str, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }
}

impl<'a> ParseError<&'a str> for ExpectedToken<'a> {
    fn from_error_kind(at: &'a str, kind: ErrorKind) -> Self {
        Self::new(at, kind.description())
    }
    fn append(_: &'a str, _: ErrorKind, other: Self) -> Self {
        other
    }
}

impl<'a, E> FromExternalError<&'a str, E> for ExpectedToken<'a> {
    fn from_external_error(at: &'a str, kind: ErrorKind, _: E) -> Self {
        Self::from_error_kind(at, kind)
    }
}

type Parsed<'a, T> = IResult<&'a str, T, ExpectedToken<'a>>;

/// A failure of `parser` is reported as `what`, at the column where it began.
fn expect<'a, T>(
    what: &'static str,
    mut parser: impl Parser<&'a str, Output = T, Error = ExpectedToken<'a>>,
) -> impl FnMut(&'a str) -> Parsed<'a, T> {
    move |text| match parser.parse(text) {
        Err(Err::Error(_)) => Err(Err::Failure(ExpectedToken::new(text, what))),
        other => other,
    }
}

fn number(text: &str) -> Parsed<'_, u32> {
    map_res(digit1, str::parse).parse(text)
}

/// A number from `min` to `max`.
fn within<'a>(what: &'static str, min: u32, max: u32) -> impl FnMut(&'a str) -> Parsed<'a, u32> {
    move |text| match number(text) {
        Ok((rest, value)) if (min..=max).contains(&value) => Ok((rest, value)),
        _ => Err(Err::Failure(ExpectedToken::new(text, format!("{what} from {min} to {max}")))),
    }
}

fn machine(text: &str) -> Parsed<'_, Topology> {
    let (rest, x) = within("processors along X", 2, SIDE_MAX)(text)?;
    let (rest, _) = expect("x between the sides", char('x')).parse(rest)?;
    let (rest, y) = within("processors along Y", 1, SIDE_MAX - 1)(rest)?;
    let (rest, _) = expect("x between the sides", char('x')).parse(rest)?;
    let (rest, z) = within("processors along Z", 1, SIDE_MAX)(rest)?;
    let (mut rest, (mut disks, mut boards)) = (rest, (None, None));
    let first_rest = rest;
    while let (after, Some(_)) = opt(space1::<_, ExpectedToken<'_>>).parse(rest)? {
        if after.is_empty() {
            rest = after;
            break;
        }
        let word = expect("disks= or board=", alt((tag("disks="), tag("board="))));
        let (value, word) = { word }(after)?;
        let twice = || Err::Failure(ExpectedToken::new(after, format!("{word} once")));
        if word == "disks=" {
            let most = DISK_NODES_PER_BOARD * z;
            let (next, count) = within("disk nodes", 1, most)(value)?;
            if disks.replace(count).is_some() {
                return Err(twice());
            }
            rest = next;
        } else {
            let (next, list) = board_list(value, z)?;
            if boards.replace((value, list)).is_some() {
                return Err(twice());
            }
            rest = next;
        }
    }
    if !rest.is_empty() {
        return Err(Err::Failure(ExpectedToken::new(rest, "a space, a comma or the end")));
    }
    let Some(disk_nodes) = disks else {
        return Err(Err::Failure(ExpectedToken::new(
            first_rest,
            "disks= with the number of disk nodes",
        )));
    };
    let needed = disk_nodes.div_ceil(DISK_NODES_PER_BOARD);
    let boards = match boards {
        None => default_boards(needed, z),
        Some((_, boards)) if boards.len() as u32 == needed => boards,
        Some((at, _)) => {
            let what = format!("{needed} boards for {disk_nodes} disk nodes, two on each");
            return Err(Err::Failure(ExpectedToken::new(at, what)));
        }
    };
    Ok((rest, Topology { sides: [x, y, z], disk_nodes, boards }))
}

fn default_boards(needed: u32, boards: u32) -> Vec<u32> {
    let step = if 2 * needed <= boards + 1 { 2 } else { 1 };
    (0..needed).map(|index| step * index).collect()
}

/// Boards, none of them twice.
fn board_list(text: &str, boards: u32) -> Parsed<'_, Vec<u32>> {
    let one = |text| within("a board", 0, boards - 1)(text);
    let (rest, list) = separated_list1(char(','), one).parse(text)?;
    let twice = list.iter().enumerate().find(|(index, board)| list[..*index].contains(board));
    match twice {
        None => Ok((rest, list)),
        Some((_, board)) => {
            Err(Err::Failure(ExpectedToken::new(text, format!("board {board} once"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_and_written_in_the_same_notation() {
        for text in
            ["8x8x8 disks=8 board=0,2,4,6", "8x8x3 disks=1 board=2", "2x1x16 disks=3 board=9,0"]
        {
            assert_eq!(Topology::parse(text).unwrap().to_string(), text);
        }
        let written = Topology::parse("8x8x8  board=1,0 disks=4 ").unwrap().to_string();
        assert_eq!(written, "8x8x8 disks=4 board=1,0");
    }

    #[test]
    fn disk_nodes_stand_on_every_second_board_unless_told_otherwise() {
        assert_eq!(Topology::parse("8x8x8 disks=7").unwrap().boards, [0, 2, 4, 6]);
        assert_eq!(Topology::parse("8x8x8 disks=10").unwrap().boards, [0, 1, 2, 3, 4]);
        assert_eq!(Topology::parse("8x8x1 disks=2").unwrap().boards, [0]);
    }

    #[test]
    fn an_error_says_where_and_what_was_expected() {
        let bad = [
            ("", 1, "processors along X from 2 to 32"),
            ("1x8x8", 1, "processors along X from 2 to 32"),
            ("8*8x8", 2, "x between the sides"),
            ("8x8", 4, "x between the sides"),
            ("8x8x99999999999 disks=1", 5, "processors along Z from 1 to 32"),
            ("8x8x8", 6, "disks= with the number of disk nodes"),
            ("8x8x8,disks=8", 6, "a space, a comma or the end"),
            ("8x8x8 disc=8", 7, "disks= or board="),
            ("8x8x8 disks=17", 13, "disk nodes from 1 to 16"),
            ("8x8x8 disks=0", 13, "disk nodes from 1 to 16"),
            ("8x8x8 disks=8 disks=8", 15, "disks= once"),
            ("8x8x8 disks=8 board=0,2", 21, "4 boards for 8 disk nodes, two on each"),
            ("8x8x8 disks=4 board=0,8", 23, "a board from 0 to 7"),
            ("8x8x8 disks=4 board=3,3", 21, "board 3 once"),
            ("8x8x8 disks=4 board=0,1 x", 25, "disks= or board="),
        ];
        for (text, column, expected) in bad {
            let error = Topology::parse(text).unwrap_err();
            assert_eq!((error.column, error.expected.as_str()), (column, expected), "{text}");
        }
        let error = Topology::parse("8x8x8 disks=x").unwrap_err().to_string();
        assert_eq!(
            error,
            "machine \"8x8x8 disks=x\", column 13: expected disk nodes from 1 to 16, as in \
             \"8x8x8 disks=8 board=0,2,4,6\""
        );
    }

    #[test]
    fn every_node_has_a_place_of_its_own_and_the_file_system_is_next_to_the_disks() {
        let machine = Topology::parse("8x8x8 disks=8 board=0,2,4,6").unwrap();
        let mut places: Vec<_> = (0..512).map(|index| machine.fs_node(index)).collect();
        assert!(places[..64].iter().all(|place| place.y == 7));
        assert_eq!(machine.application(0), NodeCoordinates { x: 0, y: 0, z: 0 });
        assert_eq!(machine.application(63), NodeCoordinates { x: 7, y: 0, z: 7 });
        assert!((0..512).all(|index| places.contains(&machine.application(index))));
        places.extend((0..8).map(|index| machine.disk_node(index)));
        assert_eq!(places[513], NodeCoordinates { x: 1, y: 8, z: 0 });
        assert_eq!(places[519], NodeCoordinates { x: 1, y: 8, z: 6 });
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 520);
    }
}

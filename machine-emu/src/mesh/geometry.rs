//! Where the nodes stand, which links there are, and how a message goes from one to another.
//!
//! Main nodes fill a box. Disk nodes hang on its far Y face, two to a board: `(0,Y,z)` and
//! `(1,Y,z)`, linked to the main node before them and to each other, and to nothing else; so they
//! have no Z links. A host may hang on any face by one link. Messages go along X, then Y, then Z
//! (MDFS thesis 3.2), so not every pair is reached directly.

use std::fmt;

use thiserror::Error;

/// Nodes along one axis, at most: the routing word of the machine has five bits for each.
pub const AXIS_MAX: u8 = 32;
/// Disk nodes on one board.
const DISKS_PER_BOARD: u32 = 2;
/// No node.
const NONE: u32 = u32::MAX;

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates {
    /// Along the row, which messages travel first.
    pub x: i8,
    /// Along the column, second.
    pub y: i8,
    /// Across the boards, last.
    pub z: i8,
}

impl Coordinates {
    /// The place at these coordinates.
    pub const fn new(x: i8, y: i8, z: i8) -> Self {
        Self { x, y, z }
    }

    fn next(self, direction: Direction) -> Self {
        let Self { x, y, z } = self;
        match direction {
            Direction::Right => Self::new(x + 1, y, z),
            Direction::Left => Self::new(x - 1, y, z),
            Direction::Up => Self::new(x, y + 1, z),
            Direction::Down => Self::new(x, y - 1, z),
            Direction::Fore => Self::new(x, y, z + 1),
            Direction::Back => Self::new(x, y, z - 1),
            Direction::In | Direction::Out => self,
        }
    }

    /// The direction of the first step from here to `to`: X before Y before Z.
    fn towards(self, to: Self) -> Direction {
        match () {
            () if to.x > self.x => Direction::Right,
            () if to.x < self.x => Direction::Left,
            () if to.y > self.y => Direction::Up,
            () if to.y < self.y => Direction::Down,
            () if to.z > self.z => Direction::Fore,
            () if to.z < self.z => Direction::Back,
            () => Direction::Out,
        }
    }
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{},{})", self.x, self.y, self.z)
    }
}

/// The eight channels that begin at a node: six links, and its interface both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// +X.
    Right = 0,
    /// -X.
    Left,
    /// +Y.
    Up,
    /// -Y.
    Down,
    /// +Z.
    Fore,
    /// -Z.
    Back,
    /// From the processor into the network.
    In,
    /// From the network into the queues of the processor.
    Out,
}

impl Direction {
    /// The six links.
    pub const LINKS: [Self; 6] =
        [Self::Right, Self::Left, Self::Up, Self::Down, Self::Fore, Self::Back];

    /// All channels of a node, by number.
    pub const ALL: [Self; 8] = [
        Self::Right,
        Self::Left,
        Self::Up,
        Self::Down,
        Self::Fore,
        Self::Back,
        Self::In,
        Self::Out,
    ];

    /// The way back on the same link.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Right => Self::Left,
            Self::Left => Self::Right,
            Self::Up => Self::Down,
            Self::Down => Self::Up,
            Self::Fore => Self::Back,
            Self::Back => Self::Fore,
            Self::In => Self::Out,
            Self::Out => Self::In,
        }
    }

    /// As in `+x`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Right => "+x",
            Self::Left => "-x",
            Self::Up => "+y",
            Self::Down => "-y",
            Self::Fore => "+z",
            Self::Back => "-z",
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// What a node of the mesh is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// In the box.
    Main,
    /// With disks, on the Y face.
    Disk,
    /// The host, behind one link.
    Host,
}

/// There is no such machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MeshGeometryError {
    /// A side of the box.
    #[error("a mesh of {0}x{1}x{2} cannot be: each side has 1 to {AXIS_MAX} nodes")]
    Size(u8, u8, u8),
    /// More disk nodes than the boards named for them can hold.
    #[error(
        "{disk_nodes} disk nodes need {needed} boards and {boards} are named: name more boards"
    )]
    Boards {
        /// Asked for.
        disk_nodes: u32,
        /// Boards for them, two disk nodes each.
        needed: u32,
        /// Boards named.
        boards: u32,
    },
    /// A board that is not there, or is named twice.
    #[error("board {0} is not in the machine or is named twice: boards are 0 to {1}")]
    Board(u8, u8),
    /// The host stands where it has not exactly one link.
    #[error("a host at {0} has no single neighbour in the mesh: put it next to a face")]
    Host(Coordinates),
}

/// A message cannot be sent: the machine traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{from} cannot send to {to}: at {at} there is no link in direction {direction}; send it through a \
     forwarder"
)]
pub struct Unroutable {
    /// The sender.
    pub from: Coordinates,
    /// The receiver.
    pub to: Coordinates,
    /// How far it would come.
    pub at: Coordinates,
    /// The link that is missing.
    pub direction: &'static str,
}

/// The box, its disk nodes and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshGeometry {
    size: [u8; 3],
    disk_nodes: u32,
    boards: Vec<u8>,
    places: Vec<Coordinates>,
    neighbours: Vec<[u32; 6]>,
    host: Option<u32>,
}

impl MeshGeometry {
    /// A box of `size` main nodes with `disk_nodes` disk nodes on `boards`, two to a board in the
    /// order in which the boards are named, and the host, if any, next to a face.
    pub fn new(
        size: [u8; 3],
        disk_nodes: u32,
        boards: &[u8],
        host: Option<Coordinates>,
    ) -> Result<Self, MeshGeometryError> {
        let [x, y, z] = size;
        // Disk nodes have X coordinates 0 and 1.
        let narrow = disk_nodes > 1 && x < 2;
        if narrow || size.iter().any(|side| !(1..=AXIS_MAX).contains(side)) {
            return Err(MeshGeometryError::Size(x, y, z));
        }
        let (needed, named) = (disk_nodes.div_ceil(DISKS_PER_BOARD), boards.len() as u32);
        if needed > named {
            return Err(MeshGeometryError::Boards { disk_nodes, needed, boards: named });
        }
        let twice = |at: usize| boards[..at].contains(&boards[at]);
        if let Some(at) = (0..boards.len()).find(|&at| boards[at] >= z || twice(at)) {
            return Err(MeshGeometryError::Board(boards[at], z - 1));
        }
        let [x, y, z] = size.map(u8::cast_signed);
        let column = |z| (0..y).flat_map(move |y| (0..x).map(move |x| Coordinates::new(x, y, z)));
        let mut places: Vec<Coordinates> = (0..z).flat_map(column).collect();
        let disk = |node: u32| (node % DISKS_PER_BOARD, boards[(node / DISKS_PER_BOARD) as usize]);
        let disk = |node| Coordinates::new(disk(node).0 as i8, y, disk(node).1.cast_signed());
        places.extend((0..disk_nodes).map(disk));
        let host_node = host.map(|_| places.len() as u32);
        places.extend(host);
        let boards = boards.to_vec();
        let neighbours = Vec::new();
        let mut mesh = Self { size, disk_nodes, boards, places, neighbours, host: host_node };
        mesh.neighbours = (0..mesh.nodes()).map(|node| mesh.links_of(node)).collect();
        match host_node {
            Some(node) if mesh.degree(node) != 1 || !mesh.alone(node) => {
                Err(MeshGeometryError::Host(mesh.place(node)))
            }
            _ => Ok(mesh),
        }
    }

    /// The machine of the thesis: 8x8x8, with `disk_nodes` (up to 8) on boards 0, 2, 4 and 6.
    pub fn thesis(disk_nodes: u32) -> Result<Self, MeshGeometryError> {
        Self::new([8, 8, 8], disk_nodes, &[0, 2, 4, 6], None)
    }

    fn degree(&self, node: u32) -> usize {
        self.neighbours[node as usize].iter().filter(|&&other| other != NONE).count()
    }

    /// No other node stands where this one does.
    fn alone(&self, node: u32) -> bool {
        let here = self.place(node);
        self.places.iter().filter(|&&place| place == here).count() == 1
    }

    fn links_of(&self, node: u32) -> [u32; 6] {
        Direction::LINKS.map(|direction| {
            let there = self.find(self.place(node).next(direction));
            there.filter(|&other| self.linked(node, other, direction)).unwrap_or(NONE)
        })
    }

    /// Whether two nodes side by side have a link: a disk node has none along Z, and a host has
    /// one to a main node only.
    fn linked(&self, one: u32, other: u32, direction: Direction) -> bool {
        match (self.role(one), self.role(other)) {
            (Role::Disk, Role::Disk) => matches!(direction, Direction::Right | Direction::Left),
            (Role::Host, Role::Disk) | (Role::Disk, Role::Host) => false,
            _ => true,
        }
    }

    /// All nodes: main, then disk, then the host.
    pub fn nodes(&self) -> u32 {
        self.places.len() as u32
    }

    /// Main nodes.
    pub fn main_nodes(&self) -> u32 {
        self.size.iter().map(|&side| u32::from(side)).product()
    }

    /// Disk nodes.
    pub fn disk_nodes(&self) -> u32 {
        self.disk_nodes
    }

    /// Nodes along X, Y and Z.
    pub fn size(&self) -> [u8; 3] {
        self.size
    }

    /// Boards with disks.
    pub fn boards(&self) -> &[u8] {
        &self.boards
    }

    /// The host, if there is one.
    pub fn host(&self) -> Option<u32> {
        self.host
    }

    /// The disk node of this number.
    pub fn disk(&self, number: u32) -> Option<u32> {
        (number < self.disk_nodes).then(|| self.main_nodes() + number)
    }

    /// What `node` is for.
    pub fn role(&self, node: u32) -> Role {
        match node {
            node if node < self.main_nodes() => Role::Main,
            node if node < self.main_nodes() + self.disk_nodes => Role::Disk,
            _ => Role::Host,
        }
    }

    /// Where `node` stands.
    pub fn place(&self, node: u32) -> Coordinates {
        self.places[node as usize]
    }

    /// Who stands at `place`.
    pub fn find(&self, place: Coordinates) -> Option<u32> {
        let [x, y, z] = self.size.map(u8::cast_signed);
        if (0..x).contains(&place.x) && (0..y).contains(&place.y) && (0..z).contains(&place.z) {
            let [x, y, _] = self.size.map(u32::from);
            let [px, py, pz] = [place.x, place.y, place.z].map(|at| u32::from(at.cast_unsigned()));
            return Some(px + x * (py + y * pz));
        }
        let rest = (self.main_nodes() as usize..).zip(&self.places[self.main_nodes() as usize..]);
        rest.into_iter().find(|(_, there)| **there == place).map(|(node, _)| node as u32)
    }

    /// The node at the other end of a link.
    pub fn neighbour(&self, node: u32, direction: Direction) -> Option<u32> {
        let links = &self.neighbours[node as usize];
        links.get(direction as usize).copied().filter(|&other| other != NONE)
    }

    /// The next step from `at` to `to`: its direction, and the node there. Only for routes that
    /// [`hops`](Self::hops) has found good.
    pub(super) fn step(&self, at: u32, to: u32) -> (Direction, u32) {
        let direction = self.places[at as usize].towards(self.places[to as usize]);
        match direction {
            Direction::Out => (direction, at),
            _ => (direction, self.neighbours[at as usize][direction as usize]),
        }
    }

    /// The steps of the route from `from` to `to`.
    pub fn route(&self, from: u32, to: u32) -> Result<Vec<Direction>, Unroutable> {
        let mut steps = Vec::new();
        self.walk(from, to, |direction| steps.push(direction))?;
        Ok(steps)
    }

    /// Links between `from` and `to`; an error if the machine cannot send there directly.
    pub fn hops(&self, from: u32, to: u32) -> Result<u32, Unroutable> {
        if self.role(from) == Role::Main && self.role(to) == Role::Main {
            let (from, to) = (self.place(from), self.place(to));
            let axis = |one: i8, other: i8| u32::from(one.abs_diff(other));
            return Ok(axis(from.x, to.x) + axis(from.y, to.y) + axis(from.z, to.z));
        }
        let mut hops = 0;
        self.walk(from, to, |_| hops += 1)?;
        Ok(hops)
    }

    fn walk(&self, from: u32, to: u32, mut step: impl FnMut(Direction)) -> Result<(), Unroutable> {
        let mut at = from;
        while at != to {
            let (direction, next) = self.step(at, to);
            if next == NONE {
                let [from, to, at] = [from, to, at].map(|node| self.place(node));
                return Err(Unroutable { from, to, at, direction: direction.name() });
            }
            step(direction);
            at = next;
        }
        Ok(())
    }

    /// The longest route, in links.
    pub fn diameter(&self) -> u32 {
        // A disk node or a host is one link away from the box.
        self.size.iter().map(|&side| u32::from(side) - 1).sum::<u32>() + 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_goes_along_x_then_y_then_z() {
        let mesh = MeshGeometry::thesis(8).unwrap();
        let [from, to] =
            [Coordinates::new(1, 5, 7), Coordinates::new(3, 4, 5)].map(|at| mesh.find(at).unwrap());
        let names: Vec<_> = mesh.route(from, to).unwrap().iter().map(|step| step.name()).collect();
        assert_eq!(names, ["+x", "+x", "-y", "-z", "-z"]);
    }

    #[test]
    fn a_send_that_cannot_be_routed_says_where_it_would_end() {
        let mesh = MeshGeometry::thesis(8).unwrap();
        let disk = mesh.find(Coordinates::new(1, 8, 2)).unwrap();
        let far = mesh.find(Coordinates::new(2, 0, 2)).unwrap();
        let error = mesh.hops(disk, far).unwrap_err();
        assert_eq!(
            error.to_string(),
            "(1,8,2) cannot send to (2,0,2): at (1,8,2) there is no link in direction +x; send it \
             through a forwarder"
        );
    }

    #[test]
    fn machines_that_cannot_be_are_refused_by_name() {
        let size = [8, 8, 8];
        let refused =
            |size, disks, boards: &[u8], host| MeshGeometry::new(size, disks, boards, host);
        assert_eq!(refused([8, 0, 8], 0, &[], None), Err(MeshGeometryError::Size(8, 0, 8)));
        assert_eq!(refused([33, 8, 8], 0, &[], None), Err(MeshGeometryError::Size(33, 8, 8)));
        let few = MeshGeometryError::Boards { disk_nodes: 3, needed: 2, boards: 1 };
        assert_eq!(refused(size, 3, &[0], None), Err(few));
        assert_eq!(refused(size, 1, &[8], None), Err(MeshGeometryError::Board(8, 7)));
        assert_eq!(refused(size, 4, &[1, 1], None), Err(MeshGeometryError::Board(1, 7)));
        for host in
            [Coordinates::new(3, 3, 3), Coordinates::new(0, 8, 0), Coordinates::new(-1, -1, 0)]
        {
            assert_eq!(refused(size, 2, &[0], Some(host)), Err(MeshGeometryError::Host(host)));
        }
    }
}

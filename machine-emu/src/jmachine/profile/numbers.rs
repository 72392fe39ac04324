//! Which numbers a profile has, and in which unit the model takes each.

use serde::Deserialize;

use super::{Number, ProfileError};

/// Declares the tables: for each the numbers as they are in use, and as a file may leave them out.
macro_rules! tables {
    ($(
        $(#[$about:meta])*
        $table:ident: $Numbers:ident / $Patch:ident {
            $( $(#[$doc:meta])* $number:ident: $unit:literal, )*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Numbers {
                $( $(#[$doc])* #[doc = concat!("In ", $unit, ".")] pub $number: Number, )*
            }

            #[derive(Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            struct $Patch {
                $( $number: Option<Number>, )*
            }

            impl $Patch {
                fn or(self, base: Self) -> Self {
                    Self { $( $number: self.$number.or(base.$number), )* }
                }

                fn complete(self, profile: &str) -> Result<$Numbers, ProfileError> {
                    Ok($Numbers {
                        $( $number: {
                            let name = concat!(stringify!($table), ".", stringify!($number));
                            check(self.$number, profile, name, $unit)?
                        }, )*
                    })
                }
            }
        )*

        /// All numbers, part by part.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Numbers {
            $( $(#[$about])* pub $table: $Numbers, )*
        }

        impl Numbers {
            /// Each number with its name, as `node.dispatch`.
            pub fn all(&self) -> Vec<(String, &Number)> {
                vec![$($(
                    (concat!(stringify!($table), ".", stringify!($number)).to_owned(),
                     &self.$table.$number),
                )*)*]
            }

            pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Number> {
                match name {
                    $($(
                        concat!(stringify!($table), ".", stringify!($number)) => {
                            Some(&mut self.$table.$number)
                        }
                    )*)*
                    _ => None,
                }
            }
        }

        /// What one file says.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct Patch {
            pub(super) about: String,
            pub(super) based_on: Option<String>,
            $( $table: $Patch, )*
        }

        impl Patch {
            /// What this one says, and otherwise `base`; upon which `base` is based.
            pub(super) fn or(self, base: Self) -> Self {
                Self {
                    about: self.about,
                    based_on: base.based_on,
                    $( $table: self.$table.or(base.$table), )*
                }
            }

            /// All numbers, if none is missing.
            pub(super) fn complete(self, profile: &str) -> Result<Numbers, ProfileError> {
                Ok(Numbers { $( $table: self.$table.complete(profile)?, )* })
            }
        }
    };
}

tables! {
    /// The processor of a node, and what messages cost it.
    node: NodeNumbers / NodePatch {
        /// The internal clock.
        clock: "MHz",
        /// From a message at the head of its queue to its handler.
        dispatch: "cycles",
        /// A request, besides its words.
        handler: "cycles",
        /// A process gives way because a value is not there yet.
        suspend: "cycles",
        /// A process goes on.
        resume: "cycles",
        /// A message is sent, besides its words.
        send: "cycles",
        /// A word is fetched from memory and sent.
        send_word: "cycles per word",
        /// A word is taken from the queue into memory.
        receive_word: "cycles per word",
        /// The queue of each priority.
        queue: "words",
        /// A message in a queue takes a multiple of this.
        row: "words",
        /// Header, function, receiver, return address: what a message carries besides its data.
        envelope: "words",
        /// Long transfers go in messages with so much data.
        piece: "words",
        /// Stripes that one node of the cache holds.
        lines: "stripes",
    }

    /// The network.
    network: NetworkNumbers / NetworkPatch {
        /// From one node to its neighbour, for the head of a message.
        hop: "cycles",
        /// Into the network and out of it.
        ends: "cycles",
        /// A word on a channel.
        word: "cycles per word",
        /// A forwarder reads the header and sends the message on.
        forward: "cycles",
    }

    /// A disk.
    disk: DiskNumbers / DiskPatch {
        /// Bytes of a disk.
        capacity: "bytes",
        /// Cylinders.
        cylinders: "cylinders",
        /// Groups of cylinders with one rate each.
        zones: "zones",
        /// Revolutions.
        rotation: "rpm",
        /// A seek, whatever its length.
        seek: "ms",
        /// A seek, times the square root of its length.
        seek_root: "ms per root of a cylinder",
        /// To and from the surface, at the outer edge.
        media_outer: "MB/s",
        /// To and from the surface, at the inner edge.
        media_inner: "MB/s",
        /// The memory of the disk: it takes and gives so much while it is not on the bus.
        buffer: "bytes",
        /// What the disk thinks before a read.
        read_overhead: "ms",
        /// What the disk thinks before a write.
        write_overhead: "ms",
        /// The status of a command.
        completion: "ms",
        /// The disk leaves the bus after it has taken data.
        disconnect: "ms",
        /// The disk comes back to the bus.
        reselect: "ms",
    }

    /// The bus of a disk node.
    bus: BusNumbers / BusPatch {
        /// What the controller moves.
        rate: "MB/s",
        /// The bus has been free for long enough, and one has it.
        arbitration: "us",
        /// Selection and the bytes of a command.
        command: "us",
        /// Disks on it.
        disks: "disks",
    }

    /// A disk node.
    disk_node: DiskNodeNumbers / DiskNodePatch {
        /// A word is copied into the buffer from which the disk is fed.
        copy: "cycles per word",
        /// A command is built and the controller set up.
        command: "cycles",
        /// What one transfer between controller and memory moves.
        dma: "bytes",
        /// Stripes for which writers may be granted room.
        buffers: "stripes",
    }

    /// The host: a workstation behind an interface of its own.
    host: HostNumbers / HostPatch {
        /// Interval at which the process with the interface polls for messages and for bytes from
        /// outside.
        poll: "us",
        /// A word goes between the FIFOs of the interface and the memory.
        word: "us per word",
        /// Unix lets a process go on.
        switch: "us",
        /// The network to the clients.
        wire: "MB/s",
    }

    /// What stands alone in the file system of 1996.
    file: FileNumbers / FilePatch {
        /// For each write of 2 KB to a new file one client holds what all need.
        exclusive: "ms",
    }

    /// The program that measured.
    program: ProgramNumbers / ProgramPatch {
        /// Time per stripe during which the disk nodes are idle.
        serial: "ms",
    }
}

/// The numbers of which nothing, or nothing at once, makes no sense.
const POSITIVE: &[&str] = &[
    "node.clock",
    "node.queue",
    "node.row",
    "node.piece",
    "node.lines",
    "disk.capacity",
    "disk.cylinders",
    "disk.zones",
    "disk.rotation",
    "disk.media_outer",
    "disk.media_inner",
    "disk.buffer",
    "bus.rate",
    "bus.disks",
    "disk_node.dma",
    "disk_node.buffers",
    "host.wire",
];

fn check(
    number: Option<Number>,
    profile: &str,
    name: &str,
    expected: &'static str,
) -> Result<Number, ProfileError> {
    let (profile, name) = (profile.to_owned(), name.to_owned());
    let Some(number) = number else {
        return Err(ProfileError::Missing { profile, number: name });
    };
    if number.unit != expected {
        return Err(ProfileError::Unit { profile, number: name, found: number.unit, expected });
    }
    let positive = POSITIVE.contains(&name.as_str());
    if !number.value.is_finite() || number.value < 0.0 || (positive && number.value == 0.0) {
        let expected = if positive { "greater than 0" } else { "0 or more" };
        let found = number.value.to_string();
        return Err(ProfileError::Range { profile, number: name, found, expected });
    }
    Ok(number)
}

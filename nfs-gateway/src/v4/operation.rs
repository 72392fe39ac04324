//! The table of operations.

/// The version of the program.
pub(crate) const VERSION: u32 = 4;
/// The procedure that carries operations.
pub(crate) const COMPOUND: u32 = 1;

macro_rules! operations {
    ($($number:literal $name:ident $minor:literal $class:ident;)+) => {
        /// A supported operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Nfs4Operation {
            $(#[allow(missing_docs, reason = "the RFC's word")] $name = $number,)+
        }

        impl Nfs4Operation {
            /// The one with this number, if minor version `minor` has it.
            pub(crate) fn of(number: u32, minor: u32) -> Option<Self> {
                match number {
                    $($number => ($minor <= minor).then_some(Self::$name),)+
                    _ => None,
                }
            }

            /// All of them.
            pub(crate) fn all() -> impl Iterator<Item = Self> {
                [$(Self::$name,)+].into_iter()
            }

            /// Its class.
            pub(crate) fn class(self) -> OperationClass {
                match self {
                    $(Self::$name => OperationClass::$class,)+
                }
            }
        }
    };
}

/// How an operation relates to sessions and exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationClass {
    /// Changes nothing.
    Reads,
    /// Changes files: a read-only export refuses.
    ChangesFiles,
    /// Changes the state of a client.
    ChangesState,
    /// The first operation of a request in a session.
    First,
    /// Needs no session if it is the only operation.
    Alone,
}

// Number (RFC 8881 section 16.2.3, RFC 7862 section 11), name, first minor version, class.
operations! {
    3 Access 1 Reads;
    4 Close 1 ChangesState;
    5 Commit 1 Reads;
    6 Create 1 ChangesFiles;
    9 Getattr 1 Reads;
    10 Getfh 1 Reads;
    11 Link 1 ChangesFiles;
    12 Lock 1 ChangesState;
    13 Lockt 1 Reads;
    14 Locku 1 ChangesState;
    15 Lookup 1 Reads;
    16 Lookupp 1 Reads;
    17 Nverify 1 Reads;
    18 Open 1 ChangesState;
    21 OpenDowngrade 1 ChangesState;
    22 Putfh 1 Reads;
    23 Putpubfh 1 Reads;
    24 Putrootfh 1 Reads;
    25 Read 1 Reads;
    26 Readdir 1 Reads;
    27 Readlink 1 Reads;
    28 Remove 1 ChangesFiles;
    29 Rename 1 ChangesFiles;
    31 Restorefh 1 Reads;
    32 Savefh 1 Reads;
    33 Secinfo 1 Reads;
    34 Setattr 1 ChangesFiles;
    37 Verify 1 Reads;
    38 Write 1 ChangesFiles;
    41 BindConnToSession 1 Alone;
    42 ExchangeId 1 Alone;
    43 CreateSession 1 Alone;
    44 DestroySession 1 Alone;
    45 FreeStateid 1 ChangesState;
    52 SecinfoNoName 1 Reads;
    53 Sequence 1 First;
    55 TestStateid 1 Reads;
    57 DestroyClientid 1 Alone;
    58 ReclaimComplete 1 ChangesState;
    59 Allocate 2 ChangesFiles;
    62 Deallocate 2 ChangesFiles;
    69 Seek 2 Reads;
}

/// Does the minor version define `number`? A defined operation without a row is not supported.
pub(crate) fn is_known(number: u32, minor: u32) -> bool {
    let last = if minor == 1 { 58 } else { 75 };
    (3..=last).contains(&number)
}

/// The operation number in the result of an undefined operation (RFC 8881 section 18.52).
pub(crate) const ILLEGAL: u32 = 10_044;

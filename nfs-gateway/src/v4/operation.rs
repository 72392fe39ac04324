//! The table of operations.

/// The version of the program.
pub(crate) const VERSION: u32 = 4;
/// The last minor version.
pub(crate) const MINOR_MAX: u32 = 2;
/// The procedure that carries operations.
pub(crate) const COMPOUND: u32 = 1;

/// Passes the table of operations to the macro `$use`. A row is a number (RFC 8881 section 16.2.3,
/// RFC 7862 section 11, RFC 8276 section 8.4), a name, the first minor version, and a class; then
/// the function in `ops/` that processes the operation, `now` if it never waits, and `boxed` if its
/// future is large.
macro_rules! with_operations {
    ($use:ident) => {
        $use! {
            3 Access 1 Reads, access::serve waits;
            4 Close 1 ChangesState, open::close boxed;
            5 Commit 1 Reads, data::commit boxed;
            6 Create 1 ChangesNames, create::serve boxed;
            8 Delegreturn 1 ChangesState, delegations::give_back now;
            9 Getattr 1 Reads, attributes::get waits;
            10 Getfh 1 Reads, handles::get now;
            11 Link 1 ChangesNames, names::link boxed;
            12 Lock 1 ChangesState, locks::lock boxed;
            13 Lockt 1 Reads, locks::test boxed;
            14 Locku 1 ChangesState, locks::unlock boxed;
            15 Lookup 1 Reads, handles::look_up waits;
            16 Lookupp 1 Reads, handles::look_up_parent boxed;
            17 Nverify 1 Reads, attributes::verify_not boxed;
            18 Open 1 ChangesState, open::serve boxed;
            21 OpenDowngrade 1 ChangesState, open::downgrade now;
            22 Putfh 1 Reads, handles::put waits;
            23 Putpubfh 1 Reads, handles::put_root boxed;
            24 Putrootfh 1 Reads, handles::put_root boxed;
            25 Read 1 Reads, data::read boxed;
            26 Readdir 1 Reads, readdir::serve boxed;
            27 Readlink 1 Reads, names::read_link boxed;
            28 Remove 1 ChangesNames, names::remove boxed;
            29 Rename 1 ChangesNames, names::rename boxed;
            31 Restorefh 1 Reads, handles::restore now;
            32 Savefh 1 Reads, handles::save now;
            33 Secinfo 1 Reads, security::of_name boxed;
            34 Setattr 1 ChangesFiles, attributes::set boxed;
            37 Verify 1 Reads, attributes::verify boxed;
            38 Write 1 ChangesFiles, data::write boxed;
            40 BackchannelCtl 1 ChangesState, back_channel::control now;
            41 BindConnToSession 1 Alone, back_channel::bind now;
            42 ExchangeId 1 Alone, session::exchange_id now;
            43 CreateSession 1 Alone, session::create now;
            44 DestroySession 1 Alone, session::destroy now;
            45 FreeStateid 1 ChangesState, stateids::free now;
            52 SecinfoNoName 1 Reads, security::of_current boxed;
            53 Sequence 1 First, session::sequence now;
            55 TestStateid 1 Reads, stateids::test now;
            57 DestroyClientid 1 Alone, session::destroy_client now;
            58 ReclaimComplete 1 ChangesState, session::reclaim_complete now;
            59 Allocate 2 ChangesFiles, holes::allocate boxed;
            60 Copy 2 ChangesFiles, copy::serve boxed;
            62 Deallocate 2 ChangesFiles, holes::deallocate boxed;
            63 IoAdvise 2 Reads, data::advise boxed;
            68 ReadPlus 2 Reads, data::read_plus boxed;
            69 Seek 2 Reads, holes::seek boxed;
            72 Getxattr 2 Reads, xattrs::get boxed;
            73 Setxattr 2 ChangesNames, xattrs::set boxed;
            74 Listxattrs 2 Reads, xattrs::list boxed;
            75 Removexattr 2 ChangesNames, xattrs::remove boxed;
        }
    };
}
pub(super) use with_operations;

macro_rules! operations {
    ($($number:literal $name:ident $minor:literal $class:ident, $($function:ident)::+ $how:ident;)+) => {
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

            pub(crate) fn class(self) -> OperationClass {
                match self {
                    $(Self::$name => OperationClass::$class,)+
                }
            }
        }
    };
}
with_operations!(operations);

/// How an operation relates to sessions and exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationClass {
    /// Changes nothing.
    Reads,
    /// Changes files: a read-only export refuses.
    ChangesFiles,
    /// Changes names, of files or extended attributes, likewise. The nodes store its reply.
    ChangesNames,
    /// Changes the state of a client.
    ChangesState,
    /// The first operation of a request in a session.
    First,
    /// Needs no session if it is the only operation.
    Alone,
}

/// Does the minor version define `number`? A defined operation without a row is not supported.
pub(crate) fn is_known(number: u32, minor: u32) -> bool {
    let last = if minor == 1 { 58 } else { 75 };
    (3..=last).contains(&number)
}

/// The operation number in the result of an undefined operation (RFC 8881 section 18.52).
pub(crate) const ILLEGAL: u32 = 10_044;

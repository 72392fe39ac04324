//! Metrics of each operation: count, latency, bytes, failures; and the log of slow calls.
//!
//! They belong to the gateway's one thread, so counting is a few additions without a lock. The
//! table has a fixed size: it does not grow with clients, files or time.
//!
//! | file | holds |
//! | --- | --- |
//! | `text.rs` | the metrics in the text format of Prometheus |
//! | `slow.rs` | the log of slow calls |

mod slow;
mod text;

use std::cell::Cell;
use std::time::Duration;

use nfs3_types::mount;
use nfs3_types::nfs3 as nfs;

pub(crate) use slow::{SlowCall, SlowCallLog};
pub(crate) use text::GatewayMetric;

use crate::rpc::CallBody;
use crate::v4::operation::{self, Nfs4Operation};

/// Buckets of latency, with bounds of 2^0 to 2^24 microseconds (17 seconds).
const LATENCY_BUCKETS: usize = 25;

/// Procedures of NFS version 3, of MOUNT, and numbers of operations of version 4.
const PROCEDURES_3: usize = 22;
const PROCEDURES_MOUNT: usize = 6;
const OPERATIONS_4: usize = 76;

/// Procedures of MOUNT that return a list.
const DUMP: u32 = 2;
const EXPORT: u32 = 5;

/// What has counters of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKey {
    /// A procedure of NFS version 3.
    Nfs3(u32),
    /// A procedure of MOUNT.
    Mount(u32),
    /// A call of NFS version 4, with all its operations.
    Compound,
    /// One operation of NFS version 4.
    Nfs4(Nfs4Operation),
    /// An unknown program or procedure.
    Other,
}

impl OperationKey {
    /// The counters of `call`.
    pub(crate) fn of(call: &CallBody) -> Self {
        let known = |procedures: usize| (call.procedure as usize) < procedures;
        match (call.program, call.version) {
            (nfs::PROGRAM, operation::VERSION) => Self::Compound,
            (nfs::PROGRAM, nfs::VERSION) if known(PROCEDURES_3) => Self::Nfs3(call.procedure),
            (mount::PROGRAM, _) if known(PROCEDURES_MOUNT) => Self::Mount(call.procedure),
            _ => Self::Other,
        }
    }

    /// Does its result begin with a status? All do but the two lists of MOUNT and empty results.
    pub(crate) fn begins_with_status(self) -> bool {
        !matches!(self, Self::Mount(DUMP | EXPORT))
    }

    /// Its index in the table.
    fn index(self) -> usize {
        match self {
            Self::Nfs3(procedure) => procedure as usize,
            Self::Mount(procedure) => PROCEDURES_3 + procedure as usize,
            Self::Nfs4(operation) => PROCEDURES_3 + PROCEDURES_MOUNT + operation as usize,
            Self::Compound => PROCEDURES_3 + PROCEDURES_MOUNT + OPERATIONS_4,
            Self::Other => PROCEDURES_3 + PROCEDURES_MOUNT + OPERATIONS_4 + 1,
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        let nfs3 = (0..PROCEDURES_3 as u32).map(Self::Nfs3);
        let mount = (0..PROCEDURES_MOUNT as u32).map(Self::Mount);
        let nfs4 = Nfs4Operation::all().map(Self::Nfs4);
        nfs3.chain(mount).chain(nfs4).chain([Self::Compound, Self::Other])
    }
}

/// The counters of an operation.
#[derive(Debug, Default)]
struct OperationCounters {
    count: Cell<u64>,
    failures: Cell<u64>,
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    nanos: Cell<u64>,
    /// The number that took less than 2^index microseconds, and no less than the bucket before;
    /// longer ones are in no bucket.
    latency: [Cell<u64>; LATENCY_BUCKETS],
}

/// The measurement of one call, or of one operation of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationSample {
    /// From its arrival, or its start, to its result.
    pub(crate) took: Duration,
    /// Bytes of its record; of an operation, of its arguments.
    pub(crate) bytes_in: usize,
    /// Bytes of its result.
    pub(crate) bytes_out: usize,
    /// It returned a status other than success.
    pub(crate) failed: bool,
}

/// All metrics of a gateway.
#[derive(Debug)]
pub(crate) struct Metrics {
    operations: Vec<OperationCounters>,
}

impl Default for Metrics {
    fn default() -> Self {
        let operations = OperationKey::Other.index() + 1;
        Self {
            operations: std::iter::repeat_with(OperationCounters::default)
                .take(operations)
                .collect(),
        }
    }
}

impl Metrics {
    /// Adds a sample.
    pub(crate) fn note(&self, what: OperationKey, outcome: OperationSample) {
        let add = |cell: &Cell<u64>, value: u64| cell.set(cell.get().wrapping_add(value));
        let counters = &self.operations[what.index()];
        add(&counters.count, 1);
        add(&counters.failures, outcome.failed.into());
        add(&counters.bytes_in, outcome.bytes_in as u64);
        add(&counters.bytes_out, outcome.bytes_out as u64);
        add(&counters.nanos, outcome.took.as_nanos() as u64);
        let class = u64::BITS - (outcome.took.as_micros() as u64).leading_zeros();
        if let Some(class) = counters.latency.get(class as usize) {
            add(class, 1);
        }
    }
}

//! The metrics as text (the text format 0.0.4 of Prometheus).

use std::time::Duration;

use nfs3_types::mount::MOUNT_PROGRAM;
use nfs3_types::nfs3::NFS_PROGRAM;
use runtime::metrics::{Metric, MetricKind, MetricsPage};

use super::{LATENCY_BUCKETS, Metrics, OperationCounters, OperationKey};

/// A value of the gateway as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayMetric {
    pub(crate) kind: MetricKind,
    /// Its name, without the prefix.
    pub(crate) name: &'static str,
    /// Its help text.
    pub(crate) help: &'static str,
    pub(crate) value: u64,
}

/// A counter of every operation: name, help text, value.
type CounterColumn = (&'static str, &'static str, fn(&OperationCounters) -> u64);

const COLUMNS: [CounterColumn; 4] = [
    ("requests_total", "Requests answered.", |counters| counters.count.get()),
    ("failures_total", "Requests answered with another status than success.", |counters| {
        counters.failures.get()
    }),
    ("received_bytes_total", "Bytes of requests.", |counters| counters.bytes_in.get()),
    ("sent_bytes_total", "Bytes of results.", |counters| counters.bytes_out.get()),
];

impl Metrics {
    /// The counters of all operations that were called, and those of the gateway.
    pub(crate) fn text(&self, gateway: &[GatewayMetric]) -> String {
        let mut page = MetricsPage::new("mdfs_nfs_");
        for GatewayMetric { kind, name, help, value } in gateway {
            page.metric(name, *kind, help).is(value);
        }
        let called: Vec<(String, &OperationCounters)> = OperationKey::all()
            .map(|what| (what.name(), &self.operations[what.index()]))
            .filter(|(_, counters)| counters.count.get() > 0)
            .collect();
        for (name, help, column) in COLUMNS {
            let mut metric = page.metric(name, MetricKind::Counter, help);
            for (operation, counters) in &called {
                metric.of(format_args!("operation=\"{operation}\""), column(counters));
            }
        }
        let help = "From the arrival of a request to its answer.";
        let mut metric = page.metric("request_seconds", MetricKind::Histogram, help);
        for (operation, counters) in &called {
            counters.histogram(operation, &mut metric);
        }
        page.finish()
    }
}

impl OperationCounters {
    fn histogram(&self, operation: &str, metric: &mut Metric<'_>) {
        let mut sum = 0;
        for class in 0..LATENCY_BUCKETS {
            sum += self.latency[class].get();
            let bound = Duration::from_micros(1 << class).as_secs_f64();
            metric.part("_bucket", format_args!("operation=\"{operation}\",le=\"{bound}\""), sum);
        }
        let count = self.count.get();
        let seconds = Duration::from_nanos(self.nanos.get()).as_secs_f64();
        metric.part("_bucket", format_args!("operation=\"{operation}\",le=\"+Inf\""), count);
        metric.part("_sum", format_args!("operation=\"{operation}\""), seconds);
        metric.part("_count", format_args!("operation=\"{operation}\""), count);
    }
}

impl OperationKey {
    /// Its name, such as `nfs3.getattr`.
    pub(crate) fn name(self) -> String {
        let short = |long: String, prefix: &str| {
            long.strip_prefix(prefix).unwrap_or(&long).to_ascii_lowercase()
        };
        let unknown = |_| "unknown".to_owned();
        match self {
            Self::Nfs3(procedure) => {
                let name = NFS_PROGRAM::try_from(procedure).map(|name| format!("{name:?}"));
                format!("nfs3.{}", short(name.unwrap_or_else(unknown), "NFSPROC3_"))
            }
            Self::Mount(procedure) => {
                let name = MOUNT_PROGRAM::try_from(procedure).map(|name| format!("{name:?}"));
                format!("mount3.{}", short(name.unwrap_or_else(unknown), "MOUNTPROC3_"))
            }
            Self::Nfs4(operation) => format!("nfs4.{}", format!("{operation:?}").to_lowercase()),
            Self::Compound => "nfs4.compound".into(),
            Self::Other => "other".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::OperationSample;
    use crate::v4::operation::Nfs4Operation;

    fn outcome(micros: u64, failed: bool) -> OperationSample {
        OperationSample {
            took: Duration::from_micros(micros),
            bytes_in: 100,
            bytes_out: 20,
            failed,
        }
    }

    #[test]
    fn each_operation_has_its_own_counters() {
        let mut indices: Vec<usize> = OperationKey::all().map(OperationKey::index).collect();
        let count = indices.len();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), count);
        assert!(indices.iter().all(|index| *index < Metrics::default().operations.len()));
    }

    #[test]
    fn the_text_has_all_operations_that_were_called_and_no_others() {
        let metrics = Metrics::default();
        metrics.note(OperationKey::Nfs3(1), outcome(0, false));
        metrics.note(OperationKey::Nfs3(1), outcome(3, true));
        metrics.note(OperationKey::Nfs4(Nfs4Operation::Read), outcome(100_000_000, false));
        let (kind, help) = (MetricKind::Gauge, "Open connections.");
        let text = metrics.text(&[GatewayMetric { kind, name: "connections", help, value: 7 }]);
        for line in [
            "# TYPE mdfs_nfs_connections gauge",
            "mdfs_nfs_connections 7",
            "mdfs_nfs_requests_total{operation=\"nfs3.getattr\"} 2",
            "mdfs_nfs_failures_total{operation=\"nfs3.getattr\"} 1",
            "mdfs_nfs_received_bytes_total{operation=\"nfs3.getattr\"} 200",
            "mdfs_nfs_sent_bytes_total{operation=\"nfs3.getattr\"} 40",
            "mdfs_nfs_request_seconds_bucket{operation=\"nfs3.getattr\",le=\"0.000001\"} 1",
            "mdfs_nfs_request_seconds_bucket{operation=\"nfs3.getattr\",le=\"0.000002\"} 1",
            "mdfs_nfs_request_seconds_bucket{operation=\"nfs3.getattr\",le=\"0.000004\"} 2",
            "mdfs_nfs_request_seconds_bucket{operation=\"nfs3.getattr\",le=\"+Inf\"} 2",
            "mdfs_nfs_request_seconds_sum{operation=\"nfs3.getattr\"} 0.000003",
            "mdfs_nfs_request_seconds_bucket{operation=\"nfs4.read\",le=\"16.777216\"} 0",
            "mdfs_nfs_request_seconds_count{operation=\"nfs4.read\"} 1",
        ] {
            assert!(text.lines().any(|present| present == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("lookup"), "{text}");
    }
}

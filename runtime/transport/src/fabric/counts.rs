//! The metrics of libfabric.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use ::fabric::link::FabricUse;
use ::fabric::policy::Mechanism;

use super::shared::ProviderTotal;
use super::{Fabrics, Provider};
use runtime::metrics::{MetricKind, MetricsPage};
use runtime::sync::lock;

impl Fabrics {
    fn total(&self, provider: Provider) -> ProviderTotal {
        let pairs = lock(&self.pairs);
        let mut total = lock(&self.shared.totals).0.get(&provider).copied().unwrap_or_default();
        let clients = lock(&self.clients);
        let all = pairs.values().chain(clients.iter().map(|(_, pair)| pair));
        let open = all.filter(|pair| pair.provider() == provider && !pair.is_over());
        open.for_each(|pair| total.counters += pair.account().counters);
        total
    }

    /// Links that use libfabric now, in either direction, by process and provider.
    fn links(&self) -> BTreeMap<(u32, Provider), usize> {
        let mut links = BTreeMap::new();
        for pair in lock(&self.pairs).values().filter(|pair| !pair.is_over()) {
            *links.entry((pair.process(), pair.provider())).or_default() += pair.account().links;
        }
        links
    }

    /// Links of clients whose endpoint is not closed.
    fn clients(&self, provider: Provider) -> usize {
        let clients = lock(&self.clients);
        clients.iter().filter(|(_, it)| it.provider() == provider && !it.has_ended()).count()
    }

    /// All counts as lines that Prometheus reads (its text format 0.0.4).
    pub fn counts(&self) -> String {
        let totals: Vec<(&str, ProviderTotal)> =
            self.providers().iter().map(|one| (one.name(), self.total(*one))).collect();
        let mut page = MetricsPage::new("mdfs_fabric_");
        let used = FabricUse::now();
        let help = "Endpoints of this process, for processes and clients.";
        page.metric("endpoints", MetricKind::Gauge, help).is(used.endpoints as u64);
        let help = "Regions of memory that are registered.";
        page.metric("regions", MetricKind::Gauge, help).is(used.regions as u64);
        let help = "Bytes of these regions.";
        page.metric("registered_bytes", MetricKind::Gauge, help).is(used.bytes as u64);
        let help = "Bytes of frames of clients that wait here.";
        let waiting = self.shared.client_bytes.load(Relaxed) as u64;
        page.metric("client_bytes", MetricKind::Gauge, help).is(waiting);
        let mut metric = |name: &str, kind: MetricKind, help: &str, samples: &[(String, u64)]| {
            let mut metric = page.metric(name, kind, help);
            for (labels, value) in samples {
                metric.of(format_args!("{labels}"), value);
            }
        };
        let links = self.links().into_iter().map(|((process, provider), count)| {
            let provider = provider.name();
            (format!("process=\"{process}\",provider=\"{provider}\""), count as u64)
        });
        let links: Vec<_> = links.collect();
        let help = "Links with a process that go over libfabric.";
        metric("links", MetricKind::Gauge, help, &links);
        let clients = self.providers().iter().map(|provider| {
            (format!("provider=\"{}\"", provider.name()), self.clients(*provider) as u64)
        });
        let clients: Vec<_> = clients.collect();
        let help = "Links of clients that have an endpoint here.";
        metric("clients", MetricKind::Gauge, help, &clients);
        let each = |what: &dyn Fn(&ProviderTotal) -> Vec<(&'static str, u64)>, label: &str| {
            let of = |(provider, total): &(&str, ProviderTotal)| {
                let samples = what(total).into_iter().map(|(value, count)| {
                    (format!("provider=\"{provider}\",{label}=\"{value}\""), count)
                });
                samples.collect::<Vec<_>>()
            };
            totals.iter().flat_map(of).collect::<Vec<(String, u64)>>()
        };
        let messages = each(
            &|total| {
                let sent = total.counters.by_mechanism;
                Mechanism::ALL.iter().map(|one| one.name()).zip(sent).collect()
            },
            "mechanism",
        );
        let help = "Messages, where their data was moved.";
        metric("messages_total", MetricKind::Counter, help, &messages);
        let bytes = |total: &ProviderTotal| {
            vec![("out", total.counters.bytes_out), ("in", total.counters.bytes_in)]
        };
        let help = "Bytes of messages.";
        metric("bytes_total", MetricKind::Counter, help, &each(&bytes, "direction"));
        let refused = |total: &ProviderTotal| {
            let counters = total.counters;
            vec![
                ("seal", counters.wrong_seals),
                ("garbage", counters.garbage),
                ("stranger", counters.strangers),
                ("repeated", counters.duplicates),
                ("gap", counters.gaps),
                ("corrupt", counters.corrupt),
                ("rules", counters.violations),
                ("fallback", total.fallbacks),
                ("crowded", total.crowded),
            ]
        };
        let help = "Frames that were not taken, and links that went on without.";
        metric("refused_total", MetricKind::Counter, help, &each(&refused, "reason"));
        page.finish()
    }
}

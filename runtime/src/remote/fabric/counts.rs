//! What is counted of libfabric, for people and Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ::fabric::policy::Mechanism;
use ::fabric::transport::Counters;

use super::pair::Pair;
use super::{Fabrics, Provider, lock};

/// What pairs that have ended have left.
#[derive(Debug, Default)]
pub(super) struct Totals(BTreeMap<Provider, Total>);

/// Of one provider.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    counters: Counters,
    pub(super) fallbacks: u64,
}

impl Totals {
    pub(super) fn of(&mut self, provider: Provider) -> &mut Total {
        self.0.entry(provider).or_default()
    }
}

impl Fabrics {
    /// A pair has ended: what it has counted stays.
    pub(super) fn settle(&self, pair: &Pair) {
        lock(&self.totals).of(pair.provider()).counters += pair.account().counters;
    }

    fn total(&self, provider: Provider) -> Total {
        let pairs = lock(&self.pairs);
        let mut total = lock(&self.totals).0.get(&provider).copied().unwrap_or_default();
        let open = pairs.values().filter(|pair| pair.provider() == provider && !pair.is_over());
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

    /// All counts as lines that Prometheus reads (its text format 0.0.4).
    pub fn counts(&self) -> String {
        let totals: Vec<(&str, Total)> =
            self.providers().iter().map(|one| (one.name(), self.total(*one))).collect();
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, lines: &[(String, u64)]| {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        };
        let links = self.links().into_iter().map(|((process, provider), count)| {
            let provider = provider.name();
            (format!("process=\"{process}\",provider=\"{provider}\""), count as u64)
        });
        let links: Vec<_> = links.collect();
        let help = "Links with a process that go over libfabric.";
        metric("mdfs_fabric_links", "gauge", help, &links);
        let each = |what: &dyn Fn(&Total) -> Vec<(&'static str, u64)>, label: &str| {
            let of = |(provider, total): &(&str, Total)| {
                let told = what(total).into_iter().map(|(value, count)| {
                    (format!("provider=\"{provider}\",{label}=\"{value}\""), count)
                });
                told.collect::<Vec<_>>()
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
        metric("mdfs_fabric_messages_total", "counter", help, &messages);
        let bytes = |total: &Total| {
            vec![("out", total.counters.bytes_out), ("in", total.counters.bytes_in)]
        };
        let help = "Bytes of messages.";
        metric("mdfs_fabric_bytes_total", "counter", help, &each(&bytes, "direction"));
        let refused = |total: &Total| {
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
            ]
        };
        let help = "Frames that were not taken, and links that went on without.";
        metric("mdfs_fabric_refused_total", "counter", help, &each(&refused, "reason"));
        text
    }
}

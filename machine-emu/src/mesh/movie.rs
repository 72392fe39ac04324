//! The record of a mesh as one page that plays: no file beside it, no network.
//!
//! The page has the load of each channel by bucket of time, in 255 steps, and some messages, so
//! that a click on a link lists those that went over it. `movie.html` draws it.

use std::fmt::Write as _;

use super::geometry::Role;
use super::record::{Bucket, ChannelLoad, Recorder, TraceEvent, TraceKind};
use super::worm::Mesh;

/// Messages in the page, at most; of more, evenly spaced ones are taken.
pub const MOVIE_MESSAGES_MAX: usize = 50_000;
/// Channels of a node and priority.
const DIRECTIONS: usize = 8;
/// Waiting heads that count as the darkest.
const WAITING_MAX: u64 = 8;

const PAGE: &str = include_str!("movie.html");

/// The page of what `mesh` recorded, headed by `title`; `None` if it recorded nothing.
pub fn movie(mesh: &Mesh, title: &str) -> Option<String> {
    let recorder = mesh.recorder()?;
    let page = PAGE.replace("{{title}}", &escape(title));
    Some(page.replace("{{data}}", &data(mesh, recorder)))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// The object that the page reads.
fn data(mesh: &Mesh, recorder: &Recorder) -> String {
    let geometry = mesh.geometry();
    let timing = mesh.timing();
    let nodes = geometry.nodes() as usize;
    let mut places = String::new();
    for node in 0..geometry.nodes() {
        let place = geometry.place(node);
        let role = match geometry.role(node) {
            Role::Main => 0,
            Role::Disk => 1,
            Role::Host => 2,
        };
        let _ = write!(places, "[{},{},{},{role}],", place.x, place.y, place.z);
    }
    let buckets = recorder.buckets();
    let cycles = recorder.bucket_cycles();
    let load = |load: ChannelLoad| scale(u64::from(load.flits), cycles);
    let wait = |load: ChannelLoad| scale(u64::from(load.stalled), cycles * WAITING_MAX);
    let [load, wait]: [Vec<u8>; 2] = [&load as &dyn Fn(ChannelLoad) -> u8, &wait]
        .map(|shade| buckets.iter().flat_map(|bucket| links(bucket, nodes, shade)).collect());
    let limit = u64::from(timing.queue_words.unwrap_or(u32::from(u16::MAX)));
    let fill = |bucket: &Bucket, queue: usize| {
        scale(u64::from(bucket.queues.get(queue).copied().unwrap_or_default()), limit)
    };
    let queues = buckets.iter().flat_map(|bucket| (0..2 * nodes).map(|queue| fill(bucket, queue)));
    let queues: Vec<u8> = queues.collect();
    let size = geometry.size();
    let (messages, all) = messages(recorder);
    format!(
        "{{size:[{},{},{}],places:[{places}],buckets:{},bucketCycles:{cycles},cycleNs:{},\
         waitingMax:{WAITING_MAX},queueWords:{limit},messagesAll:{all},eventsLost:{},\
         load:\"{}\",wait:\"{}\",queues:\"{}\",messages:\"{}\"}}",
        size[0],
        size[1],
        size[2],
        buckets.len(),
        timing.cycle_ns,
        recorder.events_lost(),
        base64(&load),
        base64(&wait),
        base64(&queues),
        base64(&messages),
    )
}

/// `value` of `full` in 255 steps; what is not nothing is seen.
fn scale(value: u64, full: u64) -> u8 {
    if value == 0 {
        return 0;
    }
    let shade = 255 * value / full.max(1);
    shade.clamp(1, 255) as u8
}

/// One byte per node and direction; both priorities use the same wire.
fn links<'a>(
    bucket: &'a Bucket,
    nodes: usize,
    shade: &'a dyn Fn(ChannelLoad) -> u8,
) -> impl Iterator<Item = u8> + 'a {
    let at = move |node: usize, level: usize, direction: usize| {
        let channel = (2 * node + level) * DIRECTIONS + direction;
        bucket.channels.get(channel).copied().unwrap_or_default()
    };
    (0..nodes * DIRECTIONS).map(move |index| {
        let (node, direction) = (index / DIRECTIONS, index % DIRECTIONS);
        let [normal, high] = [0, 1].map(|level| at(node, level, direction));
        shade(ChannelLoad {
            flits: normal.flits.saturating_add(high.flits),
            stalled: normal.stalled.saturating_add(high.stalled),
        })
    })
}

/// Deliveries in 18 bytes each, little-endian: cycle of the record (u48), latency (u32), from, to,
/// via, words; and how many there were.
fn messages(recorder: &Recorder) -> (Vec<u8>, usize) {
    let delivered = |event: &&TraceEvent| event.kind == TraceKind::Delivered;
    let all = recorder.events().iter().filter(delivered).count();
    let step = all.div_ceil(MOVIE_MESSAGES_MAX).max(1);
    let mut bytes = Vec::new();
    for event in recorder.events().iter().filter(delivered).step_by(step) {
        let cycle = event.cycle.saturating_sub(recorder.start());
        bytes.extend_from_slice(&cycle.to_le_bytes()[..6]);
        bytes.extend_from_slice(&event.count.to_le_bytes());
        let via = event.via.unwrap_or(u16::MAX);
        for short in [event.from, event.to, via, event.words] {
            bytes.extend_from_slice(&short.to_le_bytes());
        }
    }
    (bytes, all)
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or_default()));
        let bits = three[0] << 16 | three[1] << 8 | three[2];
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, text) in pairs {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn a_little_load_is_seen_and_much_is_dark() {
        assert_eq!([0, 1, 500, 1000, 9000].map(|value| scale(value, 1000)), [0, 1, 127, 255, 255]);
    }
}

//! What a command waits for, on standard error: a line that is rewritten each second on a terminal,
//! else a line when a wait begins and one when it ends.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use client::volume::{Outage, Outages};

/// How often the clients are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Returns to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Shows the longest outage of all clients of the program, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct WaitDisplay {
    clients: Arc<WatchedClients>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WatchedClients {
    state: Mutex<WatchState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct WatchState {
    clients: Vec<Outages>,
    is_over: bool,
}

impl WaitDisplay {
    /// Shows the outages of one more client, until it ends.
    #[allow(clippy::disallowed_methods, reason = "the program looks at its clients while it waits")]
    pub(crate) fn watch(&mut self, client: Outages) {
        let mut state = self.clients.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clients.push(client);
        drop(state);
        if self.thread.is_none() {
            let clients = self.clients.clone();
            // Without a thread nothing is shown, and the command does its work all the same.
            self.thread = thread::Builder::new().spawn(move || clients.show_until_over()).ok();
        }
    }
}

impl Drop for WaitDisplay {
    fn drop(&mut self) {
        self.clients.state.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.clients.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say but what it has shown.
            let _ = thread.join();
        }
    }
}

impl WatchedClients {
    fn show_until_over(&self) {
        let mut lines = WaitLines::new(io::stderr().is_terminal());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_over {
            state.clients.retain(|client| !client.is_over());
            let longest = state.clients.iter().filter_map(Outages::longest);
            print(&lines.next(longest.max_by_key(|outage| outage.lasted)));
            let waited = self.ended.wait_timeout(state, LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        print(&lines.next(None));
    }
}

fn print(text: &str) {
    let mut to = io::stderr();
    // There is no other place to report it.
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

/// What is to be printed.
#[derive(Debug)]
struct WaitLines {
    is_terminal: bool,
    /// The outage that was shown last, while it lasts.
    shown: Option<Outage>,
}

impl WaitLines {
    fn new(is_terminal: bool) -> Self {
        Self { is_terminal, shown: None }
    }

    fn next(&mut self, now: Option<Outage>) -> String {
        let before = self.shown;
        self.shown = now;
        if self.is_terminal {
            return match (before, now) {
                (_, Some(now)) => {
                    let is_new = before.is_none_or(|before| before.to_string() != now.to_string());
                    if is_new { format!("{CLEAR_LINE}waiting for {now}") } else { String::new() }
                }
                (Some(_), None) => CLEAR_LINE.to_owned(),
                (None, None) => String::new(),
            };
        }
        let is_same = before.zip(now).is_some_and(|(before, now)| before.process == now.process);
        if is_same {
            return String::new();
        }
        let ended = before.map(|outage| format!("mdfs: the wait is over for {outage}\n"));
        let begun = now.map(|outage| format!("mdfs: waiting for {outage}\n"));
        ended.into_iter().chain(begun).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(process: u32, seconds: u64) -> Outage {
        Outage { process: Some(process), lasted: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_terminal_has_one_line_that_is_rewritten_and_cleared() {
        let mut lines = WaitLines::new(true);
        assert_eq!(lines.next(None), "");
        assert_eq!(lines.next(Some(outage(2, 2))), "\r\x1b[Kwaiting for process 2 (2 s)");
        assert_eq!(lines.next(Some(outage(2, 2))), "", "nothing has changed");
        assert_eq!(lines.next(Some(outage(2, 3))), "\r\x1b[Kwaiting for process 2 (3 s)");
        assert_eq!(lines.next(None), "\r\x1b[K");
        assert_eq!(lines.next(None), "");
    }

    #[test]
    fn a_file_has_a_line_for_the_beginning_and_one_for_the_end() {
        let mut lines = WaitLines::new(false);
        assert_eq!(lines.next(Some(outage(2, 2))), "mdfs: waiting for process 2 (2 s)\n");
        assert_eq!(lines.next(Some(outage(2, 12))), "");
        let other = lines.next(Some(outage(1, 3)));
        let expected = "mdfs: the wait is over for process 2 (12 s)\n\
                        mdfs: waiting for process 1 (3 s)\n";
        assert_eq!(other, expected);
        assert_eq!(lines.next(None), "mdfs: the wait is over for process 1 (3 s)\n");
        assert_eq!(lines.next(None), "");
    }
}

//! Bytes that clients leave here until the nodes of their files have them stored.

use runtime::delivery::{Delivery, PlacedBytes, Reply, Request, TakeDeposit};
use runtime::host::undelivered_bytes;
use runtime::identity::ClientIdentity;
use runtime::protocol::{Protocol, RequestInfo as _, Undelivered};
use runtime::wire::{Encoder, Wire as _};

use super::ClientIngress;
use super::budget::Account;
use super::connection::decode;
use super::session::{Arrival, LinkEnd, SessionState};
use crate::frame::LinkFrame;

/// What a part takes besides its bytes, about.
const PART_BYTES: usize = 128;

impl<P: Protocol> ClientIngress<P> {
    /// A request of the table of deliveries has come from a client: it may be a [`Deposit`] only.
    /// It never waits: what finds no room is refused, and goes with the request itself. What is
    /// kept is counted by itself, and not with the requests of the link.
    pub(super) fn receive_deposit(
        &self,
        session: &SessionState,
        (identity, account): (&ClientIdentity, Account),
        frame: &LinkFrame,
    ) -> Result<(), LinkEnd> {
        let number = frame.header.call_id;
        match session.arrive(number)? {
            Arrival::New => {}
            // Those that were done are not kept.
            Arrival::Duplicate | Arrival::Done(..) => return Ok(()),
        }
        // It has no handles.
        let request = decode::<Delivery>(frame, None).and_then(|mut decoded| {
            decoded.request.admit(identity)?;
            Ok(decoded.request)
        });
        let reply = match request {
            Ok(Request::Deposit(deposit)) => {
                let bytes = frame.head.len() + frame.bulk.len() + deposit.parts.len() * PART_BYTES;
                let share = self.port.budget.take_for_deposit(account, bytes);
                let left: usize = deposit.parts.iter().map(|part| part.data.len()).sum();
                let is_kept = session.deposits().keep(deposit, share);
                if is_kept {
                    self.port.guard.note_deposited(left as u64);
                }
                let mut out = Encoder::new();
                Reply::Deposit(Ok(is_kept)).put(&mut out);
                out
            }
            Ok(_) => undelivered_bytes(Undelivered::Refused),
            Err(why) => undelivered_bytes(why),
        };
        session.answer(number, (frame.header.of_reply(), reply), false, None);
        Ok(())
    }

    /// What a client has left for a write; empty if it is not here.
    pub(super) fn take_deposit(&self, request: &TakeDeposit) -> Vec<PlacedBytes> {
        let &TakeDeposit { client, transfer } = request;
        let sessions = self.sessions.borrow();
        let mut of_client = sessions.0.range((client, 0)..=(client, u128::MAX));
        let session = of_client.next().map(|(_, (_, session))| session);
        session.map_or_else(Vec::new, |session| session.deposits().take(transfer))
    }
}

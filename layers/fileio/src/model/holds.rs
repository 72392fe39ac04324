//! Files that clients have open.

use super::state::State;
use crate::protocol::{
    Attributes, Create, Error, Held, HeldNew, Hold, Kind, LetGo, Lookup, Open, OpenNew,
    Time,
};

/// The lease of all clients.
pub(super) const LEASE_ID: u64 = 1;

impl State {
    pub(super) fn hold(&mut self, r: &Hold) -> Result<Held, Error> {
        let attributes = self.attributes(&r.file)?;
        Ok(self.held(r.call.client, attributes))
    }

    pub(super) fn let_go(&mut self, r: &LetGo) -> Result<(), Error> {
        let ino = r.file.ino;
        let Some(holders) = self.holders.get_mut(&ino) else { return Ok(()) };
        holders.remove(&r.call.client);
        if holders.is_empty() {
            self.holders.remove(&ino);
            if self.attributes(&r.file).is_ok_and(|file| file.links == 0) {
                self.end(ino);
            }
        }
        Ok(())
    }

    pub(super) fn open(&mut self, r: &Open) -> Result<Held, Error> {
        let (who, directory, name) = (r.who.clone(), r.directory, r.name.clone());
        let attributes = self.lookup(&Lookup { who, directory, name })?;
        Ok(self.held(r.call.client, attributes))
    }

    pub(super) fn open_new(&mut self, r: &OpenNew, now: Time) -> Result<HeldNew, Error> {
        let OpenNew { who, call, directory, name, existing, change, durable } = r.clone();
        let create = Create { who, call, directory, name, existing, change, durable };
        let created = self.create(&create, now)?;
        let Held { lease, .. } = self.held(call.client, created.attributes);
        Ok(HeldNew { created, lease })
    }

    fn held(&mut self, client: u64, attributes: Attributes) -> Held {
        if attributes.kind != (Kind::File {}) {
            return Held { attributes, lease: 0 };
        }
        self.holders.entry(attributes.ino).or_default().insert(client);
        Held { attributes, lease: LEASE_ID }
    }
}

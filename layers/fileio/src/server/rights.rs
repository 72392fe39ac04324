//! What the users who have files open may do with them, also if the mode has changed since.
//!
//! A right is granted when a file is opened, by the mode that it has then, and ends when the client
//! closes it or loses its lease. It counts for the user, not for one client: who has the file open
//! somewhere could read it there anyway.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use meta::attributes::access;

use super::hand_over::RightHandover;
use crate::protocol::{Attributes, Credentials, Handle, handle_of};

/// Rights at one node, at most, of all users, files and clients.
const RIGHTS_MAX: usize = 1 << 16;

/// The rights at one node.
#[derive(Default)]
pub(super) struct OpenRights {
    /// By file and user: the bits that were granted through each client.
    granted: RefCell<BTreeMap<(Handle, u32), BTreeMap<u64, u32>>>,
    count: Cell<usize>,
}

impl OpenRights {
    /// Can this user be granted something through this client?
    pub(super) fn has_room(&self, file: Handle, who: &Credentials, client: u64) -> bool {
        let granted = self.granted.borrow();
        self.count.get() < RIGHTS_MAX
            || granted.get(&(file, who.uid)).is_some_and(|all| all.contains_key(&client))
    }

    /// Grants what the mode permits now.
    pub(super) fn grant(&self, file: Handle, who: &Credentials, client: u64, permitted: u32) {
        // Who may execute may read.
        let runs = permitted & access::EXECUTE != 0;
        let permitted = if runs { permitted | access::READ } else { permitted };
        let mut granted = self.granted.borrow_mut();
        let known = granted.get(&(file, who.uid)).is_some_and(|all| all.contains_key(&client));
        self.count.set(self.count.get() + usize::from(!known));
        *granted.entry((file, who.uid)).or_default().entry(client).or_default() |= permitted;
    }

    /// Has the user the file open for this?
    pub(super) fn has(&self, who: &Credentials, file: &Attributes, wanted: u32) -> bool {
        let file = handle_of(file);
        let granted = self.granted.borrow();
        let clients = granted.get(&(file, who.uid));
        clients.is_some_and(|all| all.values().any(|granted| granted & wanted == wanted))
    }

    /// The client has closed the file.
    pub(super) fn end(&self, ino: u64, client: u64) {
        let mut granted = self.granted.borrow_mut();
        let of = |generation, uid| (Handle { ino, generation }, uid);
        let mut ended = Vec::new();
        for (key, clients) in granted.range_mut(of(0, 0)..=of(u64::MAX, u32::MAX)) {
            if clients.remove(&client).is_some() {
                self.count.set(self.count.get() - 1);
            }
            if clients.is_empty() {
                ended.push(*key);
            }
        }
        for key in ended {
            granted.remove(&key);
        }
    }

    /// What the predecessor of this node has granted.
    pub(super) fn resume(&self, right: &RightHandover) {
        let &RightHandover { file, uid, client, access } = right;
        let who = Credentials { uid, gid: 0, groups: Vec::new() };
        // They fitted into the table of the predecessor.
        self.grant(file, &who, client, access);
    }

    /// For the successor of this node.
    pub(super) fn handed(&self) -> Vec<RightHandover> {
        let granted = self.granted.borrow();
        let all = granted.iter().flat_map(|(&(file, uid), clients)| {
            let of =
                move |(&client, &access): (&u64, &u32)| RightHandover { file, uid, client, access };
            clients.iter().map(of)
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;
    use runtime::wire::Wire as _;

    use super::*;

    #[test]
    fn rights_end_with_the_last_client_that_has_them() {
        let (rights, file) = (OpenRights::default(), Handle { ino: 5, generation: 2 });
        let who = |uid| Credentials { uid, gid: 0, groups: Vec::new() };
        let attributes =
            Attributes { ino: 5, generation: 2, ..Attributes::sample(&mut Rng::new(1)) };
        for client in [8, 9] {
            rights.grant(file, &who(1), client, access::READ);
        }
        rights.grant(file, &who(2), 9, access::EXECUTE);
        assert!(rights.has(&who(1), &attributes, access::READ));
        assert!(rights.has(&who(2), &attributes, access::READ), "who may execute may read");
        assert!(!rights.has(&who(1), &attributes, access::WRITE));
        assert!(!rights.has(&who(3), &attributes, access::READ));
        let other = Attributes { generation: 3, ..attributes };
        assert!(!rights.has(&who(1), &other, access::READ), "another file of the same number");
        rights.end(5, 9);
        assert!(rights.has(&who(1), &attributes, access::READ));
        assert!(!rights.has(&who(2), &attributes, access::READ));
        rights.end(5, 8);
        assert!(!rights.has(&who(1), &attributes, access::READ));
        assert_eq!((rights.count.get(), rights.handed()), (0, Vec::new()));
    }
}

//! Sets of effects: which node each belongs to, and what kinds there are among them.

use std::collections::BTreeMap;

use crate::hash::{ino_node, name_node};
use crate::keys;
use crate::protocol::Effect;

impl Effect {
    /// The node of the name or inode, of `nodes` nodes.
    pub(crate) fn node(&self, nodes: u32) -> u32 {
        match self {
            Self::SetName { directory, name, .. } => name_node(*directory, name, nodes).0,
            Self::DropLink { ino, .. } | Self::ChangeParts { ino, .. } => ino_node(*ino, nodes).0,
        }
    }

    /// Does it change the directory above a directory?
    pub(crate) fn moves_directory(&self) -> bool {
        matches!(self, Self::ChangeParts { change, .. } if change.parent.is_some())
    }
}

/// The effects of node `here`, and the others by node.
pub(crate) fn split(
    effects: Vec<Effect>,
    here: u32,
    nodes: u32,
) -> (Vec<Effect>, BTreeMap<u32, Vec<Effect>>) {
    let mut elsewhere: BTreeMap<u32, Vec<Effect>> = BTreeMap::new();
    for effect in effects {
        elsewhere.entry(effect.node(nodes)).or_default().push(effect);
    }
    let here = elsewhere.remove(&here).unwrap_or_default();
    (here, elsewhere)
}

/// The keys of the names among `effects`.
pub(crate) fn name_keys(effects: &[Effect]) -> impl Iterator<Item = Vec<u8>> {
    effects.iter().filter_map(|effect| match effect {
        Effect::SetName { directory, name, .. } => Some(keys::name(*directory, name)),
        Effect::DropLink { .. } | Effect::ChangeParts { .. } => None,
    })
}

/// Is there a name among `effects`?
pub(crate) fn has_name(effects: &[Effect]) -> bool {
    name_keys(effects).next().is_some()
}

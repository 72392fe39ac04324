//! Keeps the keys fresh by which the clients' tokens are checked (ADR 77).

use std::sync::Arc;
use std::time::Duration;

use fileio::protocol::Error;
use fileio::root_keys::TOKEN_KEYS;
use runtime::Context;
use transport::Authentication;
use transport::identity::TokenVerifier;
use transport::identity::token::TokenKey;

/// The pause between two readings: a third of the time for which the keys count.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether a token came with a key that is not known yet.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// The pause after a reading that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Knows clients by tokens of users, too, whose keys are kept fresh for as long as the machine
/// lives.
pub(crate) fn authentication(context: &Context) -> Authentication {
    let tokens = Arc::new(TokenVerifier::default());
    context.task(refresh_token_keys(context.clone(), tokens.clone()));
    Authentication { tokens: Some(tokens), ..Authentication::default() }
}

/// Gives `verifier` the valid keys of the volume, again and again, for as long as the machine
/// lives. A key that is no longer there counts for 30 seconds at most.
pub async fn refresh_token_keys(context: Context, verifier: Arc<TokenVerifier>) {
    let mut is_told = false;
    loop {
        let began = context.now();
        let pause = match read(&context).await {
            Ok(keys) => {
                verifier.set_keys(keys, began);
                is_told = false;
                REFRESH_EVERY
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "the keys of tokens cannot be read; it is tried again");
                }
                RETRY_AFTER
            }
        };
        let mut slept = Duration::ZERO;
        while slept < pause && !verifier.take_behind() {
            context.sleep(CHECK_EVERY).await;
            slept += CHECK_EVERY;
        }
    }
}

async fn read(context: &Context) -> Result<Vec<TokenKey>, Error> {
    let keys = TOKEN_KEYS.valid(context).await?;
    let keys = keys.iter().map(|key| TokenKey::of_stored(key.number, &key.value));
    keys.collect::<Option<_>>().ok_or(Error::Damaged {})
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use fileio::model::Model;
    use fileio::protocol::{CallId, Credentials, FileIo, Reply, Request};
    use fileio::root_keys::KeysKept;
    use futures::FutureExt as _;
    use futures::future::LocalBoxFuture;
    use machine_emu::{World, WorldShape};
    use runtime::{Caller, NodeId, Server, Undelivered};
    use transport::identity::token::{SigningKey, TokenRefused};

    use super::*;

    const NODES: u32 = 4;

    /// The reference, which can be away.
    struct AtNode(Rc<(Model, Cell<bool>)>);

    impl Server<FileIo> for AtNode {
        fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
            let (model, is_away) = &*self.0;
            let reply = if is_away.get() {
                let why = Undelivered::Unreachable;
                Reply::ListXattrs(Err(Error::Undelivered { why }))
            } else {
                model.answer(&request)
            };
            async move { reply }.boxed_local()
        }
    }

    fn stored(number: u32) -> Vec<u8> {
        SigningKey::stored_of(&[number as u8; 32])
    }

    #[test]
    fn keys_are_read_from_the_volume_and_retired_ones_count_for_30_seconds_at_most() {
        let world = World::new(1, WorldShape { fs_nodes: NODES, disk_nodes: 0 });
        let volume = Rc::new((Model::default(), Cell::new(false)));
        for index in 0..NODES {
            let server = Rc::new(AtNode(volume.clone()));
            world.context(NodeId::fs(index)).serve::<FileIo>(server);
        }
        let context = world.context(NodeId::application(0));
        let verifier = Arc::new(TokenVerifier::default());
        let numbers = Cell::new(0);
        let call = || {
            numbers.set(numbers.get() + 1);
            CallId { client: 5, number: numbers.get() }
        };
        world.run(async {
            context.task(refresh_token_keys(context.clone(), verifier.clone()));
            let sleep = |seconds| context.sleep(Duration::from_secs(seconds));
            let holder = Credentials { uid: 7, gid: 7, groups: Vec::new() };
            let token = SigningKey::from_seed(1, &[1; 32]).token(
                &holder,
                context.unix_time(),
                Duration::from_hours(1),
                0,
            );
            let verify = || verifier.verify(&context, &token).map(|claims| claims.who);
            sleep(1).await;
            assert_eq!(verify(), Err(TokenRefused::NewKey), "there is no key yet");
            TOKEN_KEYS.valid_or_first(&context, stored, call).await.unwrap();
            sleep(10).await;
            assert_eq!(verify(), Ok(holder.clone()));
            let rotate = |kept| TOKEN_KEYS.rotate(&context, kept, stored, call);
            assert_eq!(rotate(KeysKept::Newest).await, Ok(2));
            sleep(10).await;
            assert_eq!(verify(), Ok(holder.clone()), "a token survives one rotation");

            // While the volume does not answer, nothing new is known of its keys.
            volume.1.set(true);
            sleep(15).await;
            assert_eq!(verify(), Ok(holder.clone()));
            sleep(20).await;
            assert_eq!(verify(), Err(TokenRefused::NoKeys));
            volume.1.set(false);
            sleep(30).await;
            assert_eq!(verify(), Ok(holder));

            assert_eq!(rotate(KeysKept::None).await, Ok(3));
            sleep(10).await;
            assert_eq!(verify(), Err(TokenRefused::RetiredKey));
        });
    }
}

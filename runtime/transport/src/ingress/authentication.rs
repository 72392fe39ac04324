//! Who the clients of a listener are.

#[cfg(feature = "tls")]
use std::sync::Arc;

use runtime::context::Context;
use runtime::identity::{Principal, SubtreePath};

use crate::frame::{ClientHello, ClientRefusal};
use crate::guard::PeerIdentity;
#[cfg(feature = "tls")]
use crate::identity::TokenVerifier;
#[cfg(feature = "tls")]
use crate::identity::token::{TokenClaims, TokenRefused};

/// By what a listener knows its clients. Everything that is not proved is refused.
#[derive(Debug, Default)]
pub struct Authentication {
    /// The user of this process, who owns the disks; root if it is not set.
    pub owner: u32,
    /// Checks the tokens of users; without it none is valid.
    #[cfg(feature = "tls")]
    pub tokens: Option<Arc<TokenVerifier>>,
}

/// A client that may come in.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) principal: Principal,
    /// The directory to which it is limited.
    pub(super) subtree: Option<SubtreePath>,
    /// What its token says, if it has shown one.
    #[cfg(feature = "tls")]
    claims: Option<TokenClaims>,
}

impl Admission {
    fn of(principal: Principal) -> Self {
        Self {
            principal,
            subtree: None,
            #[cfg(feature = "tls")]
            claims: None,
        }
    }
}

impl Admission {
    /// The user or host under whose name its links are counted; `None` if it may act as anyone.
    pub(super) fn account(&self) -> Option<u64> {
        match &self.principal {
            Principal::Anyone => None,
            limited => Some(limited.client_number(0, None)),
        }
    }
}

fn refused(why: &(impl ToString + ?Sized)) -> ClientRefusal {
    ClientRefusal { is_final: true, why: why.to_string() }
}

impl Authentication {
    /// For whom a client speaks that has said `hello` over a connection of `peer`.
    pub(super) fn admit(
        &self,
        context: &Context,
        hello: &ClientHello,
        peer: &PeerIdentity,
    ) -> Result<Admission, ClientRefusal> {
        let _ = (context, hello);
        match peer {
            PeerIdentity::Unprotected => Ok(Admission::of(Principal::Anyone)),
            PeerIdentity::Local(user) => {
                let principal = Principal::of_local_peer(user.as_ref(), self.owner);
                principal.map(Admission::of).map_err(|why| refused(&why))
            }
            #[cfg(feature = "tls")]
            PeerIdentity::Host(_) | PeerIdentity::Anonymous if !hello.token.is_empty() => {
                let verified = self.tokens.as_ref().ok_or(TokenRefused::NoKeys);
                let verified = verified.and_then(|tokens| tokens.verify(context, &hello.token));
                let claims = verified.map_err(|why| ClientRefusal {
                    is_final: !why.is_transient(),
                    why: why.to_string(),
                })?;
                let subtree = claims.subtree().map_err(|why| refused(&why))?;
                Ok(Admission { principal: claims.principal(), subtree, claims: Some(claims) })
            }
            #[cfg(feature = "tls")]
            PeerIdentity::Host(host) => {
                let subtree = host.subtree.clone();
                Ok(Admission { subtree, ..Admission::of(host.clone().principal()) })
            }
            #[cfg(feature = "tls")]
            PeerIdentity::Anonymous => Err(refused(
                "a client of another host must show a token (`mdfs token create`) or the \
                 certificate of its host (`mdfs cluster certify --client`)",
            )),
            #[cfg(feature = "tls")]
            PeerIdentity::Process(_) => {
                Err(refused("the key of a process does not say for which user it speaks"))
            }
        }
    }

    /// May the client go on?
    pub(super) fn still_holds(&self, context: &Context, admission: &Admission) -> bool {
        let _ = (context, admission);
        #[cfg(feature = "tls")]
        if let (Some(claims), Some(tokens)) = (&admission.claims, &self.tokens) {
            return tokens.still_holds(context, claims).is_ok();
        }
        true
    }
}

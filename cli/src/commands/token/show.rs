//! `mdfs token show`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use transport::identity::token::{self, TokenClaims};
use transport::tls::read_secret;

use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::time::{date_of, since_1970};

/// Show what a token says.
///
/// Whether its key is still valid, only the servers of its volume know.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs token show alice.token")]
pub(super) struct ShowToken {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
}

/// What a token says, for people and programs.
#[derive(Debug, Serialize)]
struct TokenReport {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// None if it is not limited.
    subtree: Option<String>,
    key: u32,
    not_before: String,
    expires: String,
    is_expired: bool,
}

impl ShowToken {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let failed = |why: &dyn std::fmt::Display| {
            CommandFailure::Wrong(format!("cannot show the token {}: {why}", self.file.display()))
        };
        let text = read_secret(&self.file).map_err(|error| failed(&error))?;
        let claims = token::from_text(&text).and_then(|token| TokenClaims::read(&token));
        let claims = claims.map_err(|error| failed(&error))?;
        let subtree = claims.subtree().map_err(|error| failed(&error))?;
        let date = |seconds| date_of(Duration::from_secs(seconds));
        let report = TokenReport {
            uid: claims.who.uid,
            gid: claims.who.gid,
            groups: claims.who.groups,
            subtree: subtree.map(|path| path.to_string()),
            key: claims.key,
            not_before: date(claims.not_before),
            expires: date(claims.expires),
            is_expired: claims.expires <= since_1970().as_secs(),
        };
        if self.json {
            return session.print_json(&report);
        }
        let TokenReport { uid, gid, groups, subtree, key, not_before, expires, is_expired } =
            report;
        let limit = subtree.map_or_else(String::new, |path| format!("below {path} only\n"));
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let over = if is_expired { ", which is over" } else { "" };
        session.print(format!(
            "user {uid}, group {gid}, further groups: {}\n{limit}\
             valid from {not_before} to {expires} UTC{over}\nsigned by key {key}\n",
            if groups.is_empty() { "none".to_owned() } else { groups.join(", ") }
        ))
    }
}

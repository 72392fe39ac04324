//! Who is at the other end of a local socket, as the kernel knows it.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use tokio::net::UnixStream;

use crate::identity::{Credentials, GROUPS_MAX};

/// The user at the other end, as of the moment when it connected. Of a member of more than
/// [`GROUPS_MAX`] groups the first ones count.
pub(super) fn credentials(socket: &UnixStream) -> io::Result<Credentials> {
    let user = socket.peer_cred()?;
    let mut groups = supplementary_groups(socket.as_raw_fd())?;
    groups.truncate(GROUPS_MAX);
    Ok(Credentials { uid: user.uid(), gid: user.gid(), groups })
}

/// The supplementary groups of the peer of a Unix socket (`SO_PEERGROUPS`, Linux 4.13).
fn supplementary_groups(socket: RawFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS_MAX];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..]))
            .map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the kernel writes at most `bytes` bytes, which is the size of `groups`, and the
        // size that it has or would need into `bytes`.
        #[allow(unsafe_code, reason = "there is no safe wrapper of SO_PEERGROUPS")]
        let status = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if status == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The list was too short, and the kernel says how long it must be.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_knows_who_has_connected() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let (one, _other) = UnixStream::pair().unwrap();
        let user = credentials(&one).unwrap();
        assert_eq!(user.uid, rustix::process::geteuid().as_raw());
        assert_eq!(user.gid, rustix::process::getegid().as_raw());
        let own = rustix::process::getgroups().unwrap();
        let own: Vec<u32> = own.into_iter().map(rustix::fs::Gid::as_raw).collect();
        assert_eq!(user.groups, own);
    }
}

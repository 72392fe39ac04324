//! A volume is opened through the server that serves its directory.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use client::volume::{OpenCause, SOCKET_NAME, open};
use fileio::model::machine;
use runtime::net::Address;

#[test]
fn a_served_volume_is_opened_and_others_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let missing = open(&directory.path().join("missing")).unwrap_err();
    assert!(matches!(missing.cause, OpenCause::NoDirectory));
    let none = open(directory.path()).unwrap_err();
    assert!(matches!(none.cause, OpenCause::Stack(_)));
    assert!(
        none.to_string().ends_with("there is no volume; make one with `mdfs format`"),
        "{none}"
    );

    let socket = directory.path().join(SOCKET_NAME);
    let machine = machine::start().unwrap();
    let (stderr, bound) = std::sync::mpsc::channel();
    let address = Address::Unix(socket.clone());
    drop(machine.on_node(machine.application(), move |context| async move {
        let listener = context.listen(&address).await.unwrap();
        stderr.send(()).unwrap();
        let port = transport::ClientPort::local(runtime::VolumeId(1), String::new(), 0, 0);
        transport::serve::<fileio::protocol::FileIo>(context, listener, port).await;
    }));
    bound.recv().unwrap();
    let volume = open(directory.path()).unwrap();
    assert_eq!(volume.metadata("/").unwrap().ino, 1);
    let file = volume.create("/f");
    // Whether this process may write there depends on who runs the test; that it is asked does not.
    if volume.metadata("/").unwrap().uid == client::process::credentials().unwrap().uid {
        file.unwrap().write_at(0, vec![7; 10 << 20]).unwrap();
        assert_eq!(volume.metadata("/f").unwrap().size, 10 << 20);
    }

    drop(volume);
    drop(machine);
    std::fs::remove_file(&socket).unwrap_or_default();
    std::fs::write(&socket, "not a socket").unwrap();
    assert!(open(directory.path()).is_err());
}

#!/bin/sh
# Runs a command beside GlusterFS: four bricks of one server on this disk, mounted over FUSE, as the side
# "peer" of the benchmark (MDFS_PEER). Nothing of the host changes: Debian's packages are unpacked into a
# folder and laid over /usr in namespaces of their own, where server and mount end with the command.
#
#   cargo bench -p benches --bench checkpoint --no-run
#   sudo benches/checkpoint/glusterfs.sh target/release/deps/checkpoint-HASH --bench n-n restart n-1 3
set -eu

ADDRESS=10.77.7.1
PACKAGES="glusterfs-server glusterfs-client glusterfs-common glusterfs-cli libglusterfs0 libgfapi0 libgfrpc0
    libgfxdr0 libglusterd0 libgfchangelog0 attr"

if [ "${GLUSTER_WORK:-}" = "" ]; then
    GLUSTER_WORK=$(mktemp -d "${TMPDIR:-/tmp}/glusterfs.XXXXXX")
    export GLUSTER_WORK
    trap 'rm -rf "$GLUSTER_WORK"' EXIT
    # shellcheck disable=SC2086 # the packages are many words
    (cd "$GLUSTER_WORK" && mkdir root && apt-get download -q $PACKAGES && for deb in *.deb; do dpkg -x "$deb" root; done)
    unshare --mount --net --pid --fork --mount-proc "$0" "$@"
    exit
fi

ip link set lo up
ip address add $ADDRESS/32 dev lo
mkdir "$GLUSTER_WORK/over" "$GLUSTER_WORK/mount"
mount -t tmpfs none "$GLUSTER_WORK/over"
for part in usr etc var; do
    mkdir -p "$GLUSTER_WORK/root/$part" "$GLUSTER_WORK/over/$part/new" "$GLUSTER_WORK/over/$part/work"
    mount -t overlay overlay "/$part" -o \
        "lowerdir=$GLUSTER_WORK/root/$part:/$part,upperdir=$GLUSTER_WORK/over/$part/new,workdir=$GLUSTER_WORK/over/$part/work"
done
ldconfig
mount -t tmpfs none /run
mkdir -p /run/gluster /var/lib/glusterd /var/log/glusterfs
glusterd
sleep 2
bricks=
for brick in 1 2 3 4; do
    mkdir "$GLUSTER_WORK/brick$brick"
    bricks="$bricks $ADDRESS:$GLUSTER_WORK/brick$brick"
done
# shellcheck disable=SC2086 # the bricks are many words
gluster --mode=script volume create peer $bricks force
gluster --mode=script volume start peer
glusterfs --volfile-server=$ADDRESS --volfile-id=peer "$GLUSTER_WORK/mount"
sleep 1
export MDFS_PEER="$GLUSTER_WORK/mount"
"$@"

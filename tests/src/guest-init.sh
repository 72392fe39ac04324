#!/bin/busybox sh
# The first process of a guest (see guest.rs). FOLDER and PORT come from the kernel's command line, which
# makes what it does not know an environment variable of the first process.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin NO_COLOR=1
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t tmpfs run /run
$bb mount -t tmpfs mnt /mnt
$bb mkdir -p /mnt/volume-in-guest /mnt/other
modules=/usr/lib/uml/modules/$($bb uname -r)
for wanted in nfsv3 nfsv4; do
    line=$($bb grep "/$wanted.ko:" $modules/modules.dep)
    # What a module depends on stands behind it, the deepest last.
    for module in $(echo "${line#*:}" | $bb tr ' ' '\n' | $bb tac) "${line%%:*}"; do
        name=$($bb basename "$module" .ko)
        [ -d "/sys/module/$name" ] || $bb insmod "$modules/$module"
    done
done
# By this name servers know the kernel as a client of version 4: no two guests may have the same.
$bb hostname "$($bb basename "$FOLDER")"
me=10.0.2.15 host=10.0.2.2
$bb ip link set lo up
$bb ip link set eth0 up
$bb ip addr add $me/24 dev eth0
$bb ip route add default via $host
mount_nfs() {
    options="vers=$1,proto=tcp,port=$PORT,addr=$host$3"
    case $1 in
    3) options="$options,nolock,mountproto=tcp,mountport=$PORT,mountaddr=$host" ;;
    *) options="$options,clientaddr=$me" ;;
    esac
    $bb mount -i -t nfs -o "$options" "$host:/" "$2"
}
(set -e; . "$FOLDER/job") 2>&1
echo "the job ends with $?"
$bb umount -a -t nfs,nfs4 2>/dev/null
echo o >/proc/sysrq-trigger
$bb sleep 5

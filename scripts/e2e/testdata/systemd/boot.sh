#!/bin/sh
# boot.sh DIR: this machine's systemd as the first process of namespaces of its own,
# on a root of its own in memory: /usr is this machine's, read-only, and DIR/work is
# /opt. Units are those of DIR/units; all that systemd would bring with it is masked.
#
# It sits in child groups of its own, in a cgroup namespace: without that it would move
# every process of this machine. Whoever starts this removes the groups afterwards:
# their names end with the pid of this shell.
set -eu
dir=$1
name=drawbridge-$$
for at in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
	[ -e "$at/cgroup.procs" ] || continue
	mkdir "$at/$name"
	echo $$ >"$at/$name/cgroup.procs"
done
exec unshare --mount --propagation private --pid --fork --kill-child --cgroup --uts --ipc --net sh -euc '
dir=$1
root=$dir/root
mkdir -p "$root"
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir proc sys dev etc run tmp var usr root opt old
for link in bin lib lib32 lib64 libx32 sbin; do
	[ ! -L "/$link" ] || cp -P "/$link" .
done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount --bind "$dir/work" opt
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
	touch "dev/$node"
	mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/shm dev/pts
ln -s /proc/self/fd dev/fd

if [ -e /sys/fs/cgroup/cgroup.procs ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
	mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
	mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
fi

mkdir -p etc/systemd/system etc/systemd/system-generators
cp -R "$dir/units/." etc/systemd/system/
printf "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n" >etc/passwd
printf "root:x:0:\nnogroup:x:65534:\n" >etc/group
printf "%s\n" 0123456789abcdef0123456789abcdef >etc/machine-id
printf "ID=drawbridge\n" >etc/os-release
for brought in usr/lib/systemd/system/sysinit.target.wants/* usr/lib/systemd/system/basic.target.wants/* usr/lib/systemd/system/sockets.target.wants/* \
	usr/lib/systemd/system/timers.target.wants/* usr/lib/systemd/system/local-fs.target.wants/*; do
	[ -e "$brought" ] && [ ! -e "etc/systemd/system/${brought##*/}" ] || continue
	ln -s /dev/null "etc/systemd/system/${brought##*/}"
done
for generator in usr/lib/systemd/system-generators/*; do
	ln -s /dev/null "etc/systemd/system-generators/${generator##*/}"
done
pivot_root . old
umount -l old
exec env -i container=drawbridge PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	/lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
' sh "$dir"

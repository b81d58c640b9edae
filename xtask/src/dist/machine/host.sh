set -eu
for program in debootstrap "qemu-system-$ARCH" depmod cpio mke2fs; do
  command -v "$program" >/dev/null || { echo "SKIP needs $program"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "SKIP needs root"; exit 0; }
mkdir -p "$WORK"
cd "$WORK"
# Debian's packages, unpacked and not configured. The kernel is among them.
if [ ! -e ready ]; then
  rm -rf root
  debootstrap --foreign --arch="$DEBIAN" --variant=minbase \
    --include="python3,kmod,busybox-static,linux-image-cloud-$DEBIAN" bookworm root >debootstrap.log
  for package in root/var/cache/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C root --keep-directory-symlink
  done
  rm -rf root/proc root/var/cache/apt/archives/*.deb
  mkdir -p root/proc root/srv/u
  printf 'root:x:0:0::/root:/bin/bash\nu:x:1000:1000::/srv/u:/bin/bash\n' >root/etc/passwd
  chown 1000:1000 root/srv/u
  depmod -b root "$(ls root/usr/lib/modules)"
  touch ready
fi
version=$(ls root/usr/lib/modules)
cp "$BINARY" root/usr/bin/toolpost
echo 'root:secret:' >root/etc/shadow
chmod 600 root/etc/shadow
printf '%s' "$GUEST" >root/guest.sh
# The first root has the drivers of the disk.
rm -rf first
mkdir -p first/bin first/dev first/proc first/sys first/new first/drivers
cp root/usr/bin/busybox first/bin/ 2>/dev/null || cp root/bin/busybox first/bin/
number=10
for driver in virtio_pci virtio_blk ext4 crc32c_generic; do
  modprobe -d root -S "$version" --show-depends "$driver" 2>/dev/null || true
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >drivers
while read -r driver; do
  cp "$driver" "first/drivers/$number-${driver##*/}"
  number=$((number + 1))
done <drivers
cat >first/init <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for driver in /drivers/*; do $b insmod "$driver"; done
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; $b sleep 1; done
$b mount -t ext4 /dev/vda /new
for place in dev proc sys; do $b mount --move /$place /new/$place; done
exec $b switch_root /new /bin/bash /guest.sh
INIT
chmod 755 first/init first/bin/busybox
(cd first && find . | cpio --quiet -o -H newc | gzip -1) >first.gz
rm -f disk
mke2fs -q -t ext4 -d root disk 2G
case $ARCH in
  aarch64) set -- -M virt -cpu max,pauth-impdef=on; console=ttyAMA0 ;;
  *) set -- -M q35 -cpu max; console=ttyS0 ;;
esac
timeout 600 "qemu-system-$ARCH" "$@" -smp 2 -m 2048 -nographic -nodefaults -serial stdio -no-reboot \
  -kernel root/boot/vmlinuz-* -initrd first.gz -append "console=$console panic=1 quiet lsm=landlock,yama" \
  -drive file=disk,if=none,id=disk,format=raw -device virtio-blk-pci,drive=disk </dev/null
rm -f disk

package capture

import (
	"strings"
)

// deviceForm matches the names that the kernel and udev give to interfaces and disks
// (systemd.net-naming-scheme(7)), except names made of a MAC address, "enx...".
var deviceForm = lazy(`^(lo|(eth|wlan|ifb|dummy|docker|cni|cbr|virbr|vnet|tap|tun|bond|br|ib|usb|sit|tunl|ip6tnl|wg|lxcbr|lxdbr|flannel\.|vxlan|kube-ipvs|team)[0-9]{0,4}` +
	`|(en|wl|ww|ib)(o[0-9]{1,3}|(P[0-9]{1,4})?p[0-9]{1,3}s[0-9]{1,3}|s[0-9]{1,3})(f[0-9]{1,3})?(n?p[0-9]{1,3}|d[0-9]{1,3})?` +
	`|[shv]d[a-z]{1,3}[0-9]{0,3}|xvd[a-z]{1,2}[0-9]{0,3}|(dm-|md|loop|zram|ram|sr|fd|nbd|zd|rbd|drbd|bcache)[0-9]{1,4}|nvme[0-9]{1,3}(c[0-9]{1,3})?(n[0-9]{1,3}(p[0-9]{1,3})?)?|mmcblk[0-9]p?[0-9]{0,2})$`)

// vocabulary holds the words that are not replaced: those of the kernel, systemd, container
// runtimes and batch systems, and well-known programs.
var vocabulary = set(
	// paths of file systems and controllers
	`sys fs cgroup proc dev run mnt host kernel bpf unified cpu cpuacct cpuset memory devices freezer blkio io pids net cls prio
	perf event hugetlb rdma misc systemd name rw ro nosuid nodev noexec relatime nsdelegate`,
	// systemd
	`system user slice service scope session machine init app background dbus broker journald udevd logind resolved networkd timesyncd
	oomd machined homed importd hostnamed localed timedated tmpfiles sysctl sysusers modules load random seed binfmt remount setup
	update utmp flush getty serial tty ttyS console autovt emergency rescue vconsole firstboot backlight rfkill coredump socket mount
	swap target timer path sd pam journal udev login resolve timesync networkmanager NetworkManager ModemManager polkit polkitd
	accounts daemon udisks upower rtkit wpa supplicant avahi cups colord snapd fwupd packagekit thermald irqbalance acpid
	unattended upgrades multipathd lvm lvmpolld dmeventd iscsid rpcbind gssd statd nfsd nfs blkmapd idmapd auditd rsyslogd rsyslog syslog
	chronyd chrony ntpd ntp cron crond anacron atd sshd ssh sftp server agent gpg pipewire wireplumber pulseaudio gnome kde plasma
	firewalld nftables iptables fail ban tuned smartd mdadm mdmonitor lldpd keepalived haproxy nginx apache httpd postgres postgresql
	mysqld mysql mariadb mariadbd redis mongod etcd consul vault prometheus node exporter grafana`,
	// containers and machines
	`kubepods besteffort burstable guaranteed pod kubelet kube proxy apiserver scheduler controller manager coredns flannel calico cilium
	containerd shim runc crun cri crio conmon docker dockerd podman libpod payload monitor lxc lxd buildkit buildkitd garden nspawn
	libvirt libvirtd qemu kvm virtqemud virtlogd vcpu emulator iothread supervisor sleep pause tini`,
	// batch systems
	`slurm slurmd slurmctld slurmdbd slurmstepd slurmscript uid job step task batch extern interactive special munged pbs torque htcondor condor sge`,
	// kernel threads
	`kthreadd kworker ksoftirqd migration cpuhp rcu gp par sched preempt tasks rude trace kthread idle inject kdevtmpfs kauditd
	khungtaskd oom reaper writeback kcompactd ksmd khugepaged kintegrityd kblockd blkcg punt bio tpm edac poller devfreq wq watchdogd
	kswapd ecryptfs kthrotld acpi thermal pm mld ipv addrconf kstrp zswap shrink charger jbd ext rsv conversion xfs xfsaild btrfs
	nvme reset delete scsi eh tmf ata sff md raid dm dmcrypt kcryptd irq napi hwrng kvmclock events unbound highpri freezable power
	efficient percpu inet frag mm workqueue pool netns slub flushwq cgwb release psimon pr backlog cleaner transaction worker exp kaluad mpath rdacd kmpath u H R sync bdi free destroy css`,
	// kernel releases
	`generic amd arm aarch x cloud aws azure gcp oracle lowlatency rt el deb bpo lts longterm microvm pve`,
	// shells, tools and mete itself
	`test bash sh dash zsh fish sudo su login cat ps top go make gcc cc python perl java node npm ruby mete capture`,
)

func set(lists ...string) map[string]bool {
	m := map[string]bool{}
	for _, l := range lists {
		for w := range strings.FieldsSeq(l) {
			m[w] = true
		}
	}
	return m
}

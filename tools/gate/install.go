package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// fileOf is a file of each Debian package that a stage may need: if it exists, the package
// counts as installed.
var fileOf = map[string]string{
	"chromium":                   "/usr/bin/chromium",                                                          // the dashboard
	"clang-19":                   "/usr/bin/clang-19",                                                          // BPF programs
	"conntrack":                  "/usr/sbin/conntrack",                                                        // kube-proxy
	"dbus-daemon":                "/usr/bin/dbus-daemon",                                                       // the scopes of systemd
	"docker.io":                  "/usr/sbin/dockerd",                                                          // names of containers
	"e2fsprogs":                  "/usr/sbin/mke2fs",                                                           // the disk of a virtual machine
	"gcc":                        "/usr/bin/gcc",                                                               // the race detector; a stub of NVIDIA's library
	"iproute2":                   "/usr/sbin/ip",                                                               // network namespaces and interfaces
	"iptables":                   "/usr/sbin/iptables",                                                         // kube-proxy
	"libbpf-dev":                 "/usr/include/bpf/bpf_helpers.h",                                             // BPF programs
	"libc6-dev":                  "/usr/include/stdlib.h",                                                      // the race detector; a stub of NVIDIA's library
	"libvirt-clients":            "/usr/bin/virsh",                                                             // names of virtual machines
	"libvirt-daemon":             "/usr/sbin/libvirtd",                                                         // the same
	"libvirt-daemon-driver-qemu": "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so", // the same
	"llvm-19":                    "/usr/bin/llvm-strip-19",                                                     // BPF programs
	"mmdebstrap":                 "/usr/bin/mmdebstrap",                                                        // Debian in a virtual machine
	"mosquitto":                  "/usr/sbin/mosquitto",                                                        // meters that publish by MQTT
	"mosquitto-clients":          "/usr/bin/mosquitto_pub",                                                     // the same
	"munge":                      "/usr/sbin/munged",                                                           // keys of Slurm
	"podman":                     "/usr/bin/podman",                                                            // names of containers
	"postgresql-15":              "/usr/lib/postgresql/15/bin/postgres",                                        // the ledger on PostgreSQL
	"prometheus":                 "/usr/bin/promtool",                                                          // the shipped rules; the Prometheus server
	"prometheus-alertmanager":    "/usr/bin/prometheus-alertmanager",                                           // alerts
	"protobuf-compiler":          "/usr/bin/protoc",                                                            // the generated code of the wire
	"qemu-system-x86":            "/usr/bin/qemu-system-x86_64",                                                // virtual machines
	"rpm":                        "/usr/bin/rpm",                                                               // checks packages
	"runc":                       "/usr/sbin/runc",                                                             // containers of a test cluster
	"slurm-client":               "/usr/bin/squeue",                                                            // names of jobs
	"slurmctld":                  "/usr/sbin/slurmctld",                                                        // the same
	"slurmd":                     "/usr/sbin/slurmd",                                                           // the same
}

// install installs the missing Debian packages. If it cannot, for example without root, the
// error has the command to run.
func install(sh *shell, packages []string) error {
	missing := slices.DeleteFunc(slices.Clone(packages), func(p string) bool {
		_, err := os.Stat(fileOf[p])
		return err == nil
	})
	if len(missing) == 0 {
		return nil
	}
	hint := "apt-get install " + strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("needs programs that are not installed; as root: %s", hint)
	}
	env := sh.env
	sh.env = append(slices.Clone(env), "DEBIAN_FRONTEND=noninteractive")
	defer func() { sh.env = env }()
	if err := sh.do("apt-get", "update", "-qq"); err != nil {
		return err
	}
	return sh.do("apt-get", append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
}

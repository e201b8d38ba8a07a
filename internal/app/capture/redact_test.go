package capture

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/testkit/hosttest"
)

func TestKnownNamesStay(t *testing.T) {
	r := newRedactor([]byte("key"))
	for _, s := range []string{"/", "/system.slice/sshd.service", "/kubepods/burstable", "/user.slice/user-1000.slice/user@1000.service/init.scope",
		`/machine.slice/machine-qemu\x2d1\x2dvm.scope`, "/slurm/uid_1000/job_123/step_0/task_0", "/sys/fs/cgroup/cpu,cpuacct", "/system.slice/system-getty.slice/getty@tty1.service"} {
		// A person chose "vm" as the machine's name.
		want := s
		if strings.Contains(s, "vm") {
			want = ""
		}
		if got := r.path(s); want != "" && got != want || want == "" && got == s {
			t.Errorf("path(%s) = %s", s, got)
		}
	}
	for _, d := range []string{"lo", "eth0", "enp0s31f6", "eno1", "wlp3s0", "ens5", "docker0", "sda1", "nvme0n1p3", "dm-0", "loop7", "vda", "xvda1", "br0"} {
		if got := r.device(d); got != d {
			t.Errorf("device(%s) = %s", d, got)
		}
	}
	for _, d := range []string{"enx001122334455", "alice0", "br-1a2b3c4d5e6f", "vg-home", "wlan"} {
		if got := r.device(d); got == d && d != "wlan" {
			t.Errorf("device(%s) stays", d)
		}
	}
}

// TestPseudonyms checks that names stay distinct, that a name always gets the same pseudonym, and
// that its form stays.
func TestPseudonyms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRedactor([]byte(rapid.String().Draw(t, "key")))
		names := rapid.SliceOfDistinct(rapid.StringMatching(`[a-z0-9@.:_-]{1,12}|pod[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|[A-Za-z]{1,2}`), func(s string) string { return s }).Draw(t, "names")
		given := map[string]string{}
		for _, n := range names {
			p := r.text(n)
			if other, ok := given[p]; ok {
				t.Errorf("text(%q) = text(%q) = %q", n, other, p)
			}
			given[p] = n
			if again := r.text(n); again != p {
				t.Errorf("text(%q) = %q, then %q", n, p, again)
			}
			if separators(p) != separators(n) {
				t.Errorf("text(%q) = %q", n, p)
			}
		}
	})
}

func separators(s string) string {
	return strings.Map(func(c rune) rune {
		if class(c) == 0 {
			return c
		}
		return -1
	}, s)
}

// TestLater checks that the second tick of a capture equals that of the machine.
func TestLater(t *testing.T) {
	h := hosttest.Open(t, "v1-kubelet")
	r := newRedactor([]byte("key"))
	limit := limits{2000, 2000}
	first, err := read(h, r, limit)
	if err != nil {
		t.Fatal(err)
	}
	hosttest.Step(t, h)
	second, err := read(h, r, limit)
	if err != nil {
		t.Fatal(err)
	}
	both := newArchive()
	maps.Copy(both.files, first.out.files)
	maps.Copy(both.links, first.out.links)
	both.later(2, first.out, second.out)
	var b bytes.Buffer
	if err := both.write(&b, ""); err != nil {
		t.Fatal(err)
	}
	again := hosttest.Unpack(t, b.Bytes())
	hosttest.Step(t, again)
	for p, want := range second.out.files {
		if got, err := again.ReadFile("/" + p); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", p, got, err, want)
		}
	}
	for p := range first.out.files {
		if _, ok := second.out.files[p]; ok {
			continue
		}
		if got, err := again.ReadFile("/" + p); err == nil {
			t.Errorf("%s is still there: %q", p, got)
		}
	}
	for p, want := range second.out.links {
		if got, err := again.Readlink("/" + p); err != nil || got != want {
			t.Errorf("%s -> %s, %v, want %s", p, got, err, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	for _, s := range []string{"kubepods-pod5ec2e700_aaaa_4bbb_8ccc_5ec2e7000002.slice", "sshd@4-fd00:5ec2::77:22.service", `a\x2db`, "::", "ip-10-0-0-1", "müller", "\xff\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := newRedactor([]byte("key"))
		p := r.path(s)
		if again := r.path(s); again != p {
			t.Errorf("path(%q) = %q, then %q", s, p, again)
		}
		if got, want := strings.Count(p, "/"), strings.Count(s, "/"); got != want {
			t.Errorf("path(%q) = %q", s, p)
		}
		_ = r.comm(s, false)
		_ = r.device(s)
		_ = statLine(fmt.Appendf(nil, "1 (%s) S 0", s), "x")
	})
}

package bpf_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit"
)

// prefixes are classes of prefixes, by their text.
func prefixes(classes map[string]uint8) map[netip.Prefix]uint8 {
	out := make(map[netip.Prefix]uint8, len(classes))
	for text, class := range classes {
		out[netip.MustParsePrefix(text)] = class
	}
	return out
}

// classifying returns a kernel that counts by class, and by more, what a new group does, loopback included, and the group.
func classifying(t testing.TB, more bpf.Part) (*bpf.Kernel, string) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		lacking(t, fmt.Errorf("%w: %w", err, fault.ErrUnsupported))
	}
	root := mount(t, "")
	cfg := config(bpf.Net | bpf.Classes | more)
	cfg.Loopback, cfg.Groups = true, 64
	k := need(t, cfg)
	dir := group(t, root)
	attach(t, k, dir)
	return k, dir
}

// A sender sends datagrams in a network namespace of its own.
type sender struct {
	*childProcess
	key bpf.ClassKey
}

func newSender(t testing.TB, dir string) sender {
	t.Helper()
	kid := spawn(t, []string{dir}, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "udp")
	kid.start()
	if got := kid.answer(); got != "up" {
		t.Fatal(got)
	}
	return sender{kid, bpf.ClassKey{Group: kernfsID(t, dir), NetNS: kernfsID(t, fmt.Sprintf("/proc/%d/ns/net", kid.cmd.Process.Pid))}}
}

func (s sender) send(from, to string, n int) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.in, from, to, n); err != nil {
		s.t.Fatal(err)
	}
	if got := s.answer(); got != "sent" {
		s.t.Fatal(got)
	}
}

// classesOf returns the counts of all keys.
func classesOf(t testing.TB, k *bpf.Kernel) map[bpf.ClassKey]bpf.ClassCounts {
	t.Helper()
	all := map[bpf.ClassKey]bpf.ClassCounts{}
	if err := k.ClassCounts(func(key bpf.ClassKey, n *bpf.ClassCounts) { all[key] = *n }); err != nil {
		t.Fatal(err)
	}
	return all
}

// traffic is a number of datagrams of a class with a size of IP headers, sent and received.
type traffic struct{ class, header, sent, received int }

func countsOf(all ...traffic) (n bpf.ClassCounts) {
	for _, v := range all {
		for i, packets := range []int{v.received, v.sent} {
			b, size := &n[2*(v.class-1)+i], uint64(v.header+8+datagram)
			b.Wire += uint64(packets) * size
			b.Interface += uint64(packets) * (size + 14)
		}
	}
	return n
}

func setClasses(t testing.TB, k *bpf.Kernel, rules map[netip.Prefix]uint8) {
	t.Helper()
	if err := k.SetClasses(rules); err != nil {
		t.Fatal(err)
	}
}

// TestClasses sends over a loopback interface. Bytes that are sent have the class of the destination address, bytes that are
// received have the class of the source address. The longest prefix decides.
func TestClasses(t *testing.T) {
	k, dir := classifying(t, 0)
	setClasses(t, k, prefixes(map[string]uint8{
		"127.0.0.0/8": 1, "127.2.0.0/16": 2, "127.2.2.0/24": 0, "127.2.2.9/32": 6, "127.4.0.0/15": 4,
		"fd00::/16": 3, "fd00:2::/32": 4, "fd00:2:2::/48": 0, "fd00:2:2::9/128": 5,
		"0.0.0.0/0": 5, "::/0": 6,
	}))
	s := newSender(t, dir)
	for _, c := range []struct {
		name     string
		from, to string
		want     []traffic
	}{
		{"short", "127.9.9.9", "127.1.0.1", []traffic{{1, 20, 3, 3}}},
		{"longer", "127.1.0.1", "127.2.0.1", []traffic{{2, 20, 3, 0}, {1, 20, 0, 3}}},
		{"carved out", "127.1.0.1", "127.2.2.1", []traffic{{1, 20, 0, 3}}},
		{"nothing of both", "127.2.2.3", "127.2.2.1", nil},
		{"within what is carved out", "127.2.2.1", "127.2.2.9", []traffic{{6, 20, 3, 0}}},
		{"no whole byte", "127.5.255.1", "127.4.0.1", []traffic{{4, 20, 3, 3}}},
		{"after it", "127.6.0.1", "127.3.255.1", []traffic{{1, 20, 3, 3}}},
		{"short 6", "fd00:9::9", "fd00:1::1", []traffic{{3, 40, 3, 3}}},
		{"longer 6", "fd00:1::1", "fd00:2::1", []traffic{{4, 40, 3, 0}, {3, 40, 0, 3}}},
		{"carved out 6", "fd00:1::1", "fd00:2:2::1", []traffic{{3, 40, 0, 3}}},
		{"within what is carved out 6", "fd00:2:2::1", "fd00:2:2::9", []traffic{{5, 40, 3, 0}}},
		{"all other 6", "::1", "::1", []traffic{{6, 40, 3, 3}}},
	} {
		s.send(c.from, c.to, 3)
		want := map[bpf.ClassKey]bpf.ClassCounts{}
		if c.want != nil {
			want[s.key] = countsOf(c.want...)
		}
		if d := cmp.Diff(want, classesOf(t, k)); d != "" {
			t.Errorf("%s: from %s to %s (-want +got):\n%s", c.name, c.from, c.to, d)
		}
		k.ForgetClasses(s.key)
	}
	if got, _ := count(k, 0, s.key.Group); got.TxBytes != got.RxBytes || got.TxPackets != 12*3 {
		t.Errorf("the group has %+v, want 36 packets each", got)
	}
}

// TestClassesChange changes the rules while a group sends: what it sent before stays in its class.
func TestClassesChange(t *testing.T) {
	k, dir := classifying(t, 0)
	first := prefixes(map[string]uint8{"127.0.0.0/8": 1, "127.2.0.0/16": 2, "fd00::/16": 3})
	setClasses(t, k, first)
	s := newSender(t, dir)
	both := func() {
		t.Helper()
		s.send("127.2.0.1", "127.2.0.2", 5)
		s.send("fd00::1", "fd00::2", 5)
	}
	check := func(what string, want ...traffic) {
		t.Helper()
		if d := cmp.Diff(map[bpf.ClassKey]bpf.ClassCounts{s.key: countsOf(want...)}, classesOf(t, k)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
		sum := bpf.Counts{}
		for i, b := range classesOf(t, k)[s.key] {
			if i%2 == 0 {
				sum.RxBytes += b.Wire
			} else {
				sum.TxBytes += b.Wire
			}
		}
		if got, _ := count(k, 0, s.key.Group); got.RxBytes != sum.RxBytes || got.TxBytes != sum.TxBytes {
			t.Errorf("%s: the group received %d and sent %d, its classes %d and %d", what, got.RxBytes, got.TxBytes, sum.RxBytes, sum.TxBytes)
		}
	}
	both()
	check("first rules", traffic{2, 20, 5, 5}, traffic{3, 40, 5, 5})
	second := prefixes(map[string]uint8{"127.0.0.0/8": 1, "127.2.0.0/16": 6, "fd00::/16": 4})
	setClasses(t, k, second)
	both()
	check("other classes", traffic{2, 20, 5, 5}, traffic{3, 40, 5, 5}, traffic{6, 20, 5, 5}, traffic{4, 40, 5, 5})
	third := prefixes(map[string]uint8{"127.0.0.0/8": 1, "fd00::/8": 5})
	setClasses(t, k, third)
	both()
	check("removed prefixes", traffic{2, 20, 5, 5}, traffic{3, 40, 5, 5}, traffic{6, 20, 5, 5}, traffic{4, 40, 5, 5}, traffic{1, 20, 5, 5}, traffic{5, 40, 5, 5})
	// Prefixes that are gone already cause no error.
	setClasses(t, k, third)
	k.ForgetClasses(s.key)
	if got := classesOf(t, k); len(got) != 0 {
		t.Errorf("%v after they are forgotten", got)
	}
	k.ForgetClasses(s.key)
	s.send("127.2.0.1", "127.2.0.2", 2)
	if d := cmp.Diff(map[bpf.ClassKey]bpf.ClassCounts{s.key: countsOf(traffic{1, 20, 2, 2})}, classesOf(t, k)); d != "" {
		t.Errorf("forgotten ones begin at zero (-want +got):\n%s", d)
	}
}

// TestClassKeys checks that sockets count for their group and their network namespace.
func TestClassKeys(t *testing.T) {
	k, dir := classifying(t, 0)
	setClasses(t, k, prefixes(map[string]uint8{"127.0.0.0/8": 1}))
	below := group(t, dir)
	want := map[bpf.ClassKey]bpf.ClassCounts{}
	for i, at := range []string{dir, dir, below} {
		s := newSender(t, at)
		s.send("127.0.0.1", "127.0.0.2", i+1)
		want[s.key] = countsOf(traffic{1, 20, i + 1, i + 1})
	}
	if d := cmp.Diff(want, classesOf(t, k)); d != "" || len(want) != 3 {
		t.Errorf("3 namespaces in 2 groups (-want +got):\n%s", d)
	}
}

// TestClassesMatchCounts checks that large packets count by class as the group counts them, and as an interface does.
func TestClassesMatchCounts(t *testing.T) {
	const size = 8 << 20
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		k, dir := classifying(t, 0)
		setClasses(t, k, prefixes(map[string]uint8{"127.0.0.1/32": 2, "::1/128": 2}))
		kid := spawn(t, []string{dir}, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "tcp", fmt.Sprint(size), address, "")
		kid.start()
		kid.answer()
		var total bpf.Counts
		testkit.Eventually(t, "all that was sent over the loopback is received", func() bool {
			total, _ = count(k, 0, kernfsID(t, dir))
			return total.RxBytes == total.TxBytes
		})
		all := classesOf(t, k)
		if len(all) != 1 {
			t.Fatalf("%s: %v, want one key", address, all)
		}
		for key, n := range all {
			rx, tx := n[2], n[3]
			n[2], n[3] = bpf.ClassBytes{}, bpf.ClassBytes{}
			if n != (bpf.ClassCounts{}) || rx.Wire != total.RxBytes || tx.Wire != total.TxBytes {
				t.Errorf("%s: %v has %v, received %v and sent %v, want all of %+v", address, key, n, rx, tx, total)
			}
			// Without the headers of the segments of large packets, of which there are many.
			if tx.Interface < size || tx.Interface != rx.Interface || tx.Interface >= tx.Wire {
				t.Errorf("%s: an interface has %+v and %+v of %d bytes", address, rx, tx, size)
			}
		}
		kid.end()
	}
}

func TestClassesRefused(t *testing.T) {
	k, dir := classifying(t, 0)
	good := netip.MustParsePrefix("127.0.0.0/8")
	for name, rules := range map[string]map[netip.Prefix]uint8{
		"class 7":        {good: 1, netip.MustParsePrefix("127.2.0.0/16"): 7},
		"class 255":      {good: 1, netip.MustParsePrefix("fd00::/8"): 255},
		"no prefix":      {good: 1, {}: 1},
		"invalid prefix": {good: 1, netip.PrefixFrom(netip.MustParseAddr("127.0.0.1"), 33): 1},
	} {
		if err := k.SetClasses(rules); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	// The others hold, and what was refused may be taken away.
	setClasses(t, k, map[netip.Prefix]uint8{good: 1})
	s := newSender(t, dir)
	s.send("127.2.0.1", "127.2.0.2", 1)
	if d := cmp.Diff(map[bpf.ClassKey]bpf.ClassCounts{s.key: countsOf(traffic{1, 20, 1, 1})}, classesOf(t, k)); d != "" {
		t.Errorf("after refused rules (-want +got):\n%s", d)
	}

	without := need(t, config(bpf.Net))
	if err := without.SetClasses(nil); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("SetClasses without its part: %v", err)
	}
	if err := without.ClassCounts(nil); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("ClassCounts without its part: %v", err)
	}
	without.ForgetClasses(bpf.ClassKey{})
}

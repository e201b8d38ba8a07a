package bpf_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/testkit"
)

// count returns the counts of one group, and whether it has any.
func count(k *bpf.Kernel, hierarchy uint32, id uint64) (bpf.Counts, bool) {
	for c := range k.Counts() {
		if c.ID == id && c.Hierarchy == hierarchy {
			return c.Counts, true
		}
	}
	return bpf.Counts{}, false
}

// Processes are counted one by one for the group that they begin in; threads,
// of which a Go program has many, are not.
func TestForksAreExact(t *testing.T) {
	for _, unified := range []bool{false, true} {
		t.Run(fmt.Sprint("unified=", unified), func(t *testing.T) {
			controller := "cpuacct"
			if unified {
				controller = ""
			}
			cfg := config(bpf.Forks)
			cfg.Unified = unified
			root, h := mount(t, controller), hierarchy(t, controller)
			k := need(t, cfg)
			dir := group(t, root)
			kid := spawn(t, []string{dir}, nil, "forks", "37")
			kid.say()
			kid.hear()
			kid.say()
			kid.end()
			got, ok := count(k, h, kernfsID(t, dir))
			if want := (bpf.Counts{Forks: 37}); got != want || !ok {
				t.Errorf("counts %+v, %v, want %+v", got, ok, want)
			}
		})
	}
}

// disk returns a directory on a real file system upon a block device.
func disk(t *testing.T) string {
	dir, err := os.MkdirTemp(".", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Dev>>8&0xfff == 0 {
		t.Skipf("%s is on no block device", dir)
	}
	return dir
}

// What a process reads and writes around the cache, or writes and syncs, is
// counted for its group, and with it what the file system writes and what the
// kernel reads of the program, both in the name of the process.
func TestDiskBytes(t *testing.T) {
	const size, more = 16 << 20, 8 << 20
	for _, how := range []string{"direct", "fsync"} {
		t.Run(how, func(t *testing.T) {
			h := hierarchy(t, "blkio")
			k := need(t, config(bpf.Disk))
			place := disk(t)
			files := 0
			write := func() (got bpf.Counts) {
				dir := group(t, mount(t, "blkio"))
				files++
				kid := spawn(t, []string{dir}, nil, "write", filepath.Join(place, fmt.Sprint(files)), fmt.Sprint(size), how)
				kid.say()
				kid.hear()
				kid.say()
				kid.end()
				got, _ = count(k, h, kernfsID(t, dir))
				return got
			}
			got := write()
			if how == "fsync" {
				// The kernel may write some of it before the process has it done, in
				// nobody's name.
				testkit.Eventually(t, "the process writes all of a file", func() bool {
					if got.WrittenBytes < size {
						got = write()
					}
					return got.WrittenBytes >= size
				})
			}
			if got.WrittenBytes < size || got.WrittenBytes > size+more {
				t.Errorf("%d bytes written, want %d and at most %d more", got.WrittenBytes, size, more)
			}
			want := uint64(0)
			if how == "direct" {
				want = size
			}
			if got.ReadBytes < want || got.ReadBytes > want+more {
				t.Errorf("%d bytes read, want %d and at most %d more", got.ReadBytes, want, more)
			}
			if got.Writes == 0 || got.Writes > (size+more)/4096 || (got.Reads == 0) != (got.ReadBytes == 0) {
				t.Errorf("%d reads and %d writes", got.Reads, got.Writes)
			}
			if got.Forks != 0 || got.TxBytes != 0 {
				t.Errorf("other parts counted: %+v", got)
			}
		})
	}
}

// Devices with the major numbers to skip do not count.
func TestSkipMajors(t *testing.T) {
	const size = 1 << 20
	h := hierarchy(t, "blkio")
	dir := group(t, mount(t, "blkio"))
	place := disk(t)
	var st syscall.Stat_t
	if err := syscall.Stat(place, &st); err != nil {
		t.Fatal(err)
	}
	cfg := config(bpf.Disk)
	cfg.SkipMajors = []uint32{uint32(st.Dev >> 8 & 0xfff)}
	k := need(t, cfg)
	run := func(name string) bpf.Counts {
		kid := spawn(t, []string{dir}, nil, "write", filepath.Join(place, name), fmt.Sprint(size), "direct")
		kid.say()
		kid.hear()
		kid.say()
		kid.end()
		got, _ := count(k, h, kernfsID(t, dir))
		return got
	}
	if got := run("a"); got.WrittenBytes != 0 || got.ReadBytes != 0 {
		t.Errorf("skipped device counts: %+v", got)
	}
	k.SetSkipMajors(nil)
	if got := run("b"); got.WrittenBytes < size || got.ReadBytes < size {
		t.Errorf("no longer skipped device does not count: %+v", got)
	}
}

// Packets and bytes are those that TCP says it sent and received, with the
// headers of every segment, though the kernel moves many segments at once.
func TestNetEqualsTCP(t *testing.T) {
	const size = 32 << 20
	for _, c := range []struct {
		address string
		header  uint64 // of an IP packet with TCP and its timestamps
	}{{"127.0.0.1:0", 20 + 32}, {"[::1]:0", 40 + 32}} {
		t.Run(c.address, func(t *testing.T) {
			root := mount(t, "")
			cfg := config(bpf.Net)
			cfg.Loopback = true
			k := need(t, cfg)
			dir := group(t, root)
			below := group(t, dir)
			attach(t, k, dir)
			attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			kid := spawn(t, []string{below}, attr, "tcp", fmt.Sprint(size), c.address)
			kid.say()
			var bytesOut, segsOut, bytesIn, segsIn, again uint64
			answer := kid.hear()
			if _, err := fmt.Sscan(answer, &bytesOut, &segsOut, &bytesIn, &segsIn, &again); err != nil {
				t.Fatal(answer, err)
			}
			got, _ := count(k, 0, kernfsID(t, below))
			if own, ok := count(k, 0, kernfsID(t, dir)); ok {
				t.Errorf("the group above has counts: %+v", own)
			}
			// The two packets that open a connection carry 8 bytes more of
			// options; the sockets do not count the second.
			wantPackets := segsOut + 1
			wantBytes := bytesOut + wantPackets*c.header + 2*8
			// What tells of segments that came late or never has more options, and
			// the sockets do not count the second packet sent again either.
			slack := wantBytes/1000 + again*(c.header+8)
			if got.TxPackets < wantPackets || got.TxPackets > wantPackets+again || got.TxBytes < wantBytes || got.TxBytes > wantBytes+slack {
				t.Errorf("sent %d bytes in %d packets, want %d in %d", got.TxBytes, got.TxPackets, wantBytes, wantPackets)
			}
			if got.RxPackets != got.TxPackets || got.RxBytes != got.TxBytes {
				t.Errorf("received %d bytes in %d packets, want %d in %d over the loopback",
					got.RxBytes, got.RxPackets, got.TxBytes, got.TxPackets)
			}
			if wantPackets < size/1500 || bytesIn != size || segsIn == 0 {
				t.Errorf("TCP_INFO of no use: %s", answer)
			}
		})
	}
}

func attach(t testing.TB, k *bpf.Kernel, dir string) *bpf.Attachment {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer close(t, d)
	a, err := k.AttachNet(int(d.Fd()))
	if err != nil {
		lacking(t, err)
	}
	t.Cleanup(func() { close(t, a) })
	return a
}

// What finds no place is counted for group 0, and a place that is given back
// serves again. Groups of others may take places too, but not all.
func TestPlaces(t *testing.T) {
	cfg := config(bpf.Forks | bpf.Events)
	cfg.Groups = 16
	cfg.Unified = true
	h := hierarchy(t, "")
	k := need(t, cfg)
	root := mount(t, "")
	fork := func(dir string, n int) {
		kid := spawn(t, []string{dir}, nil, "forks", fmt.Sprint(n))
		kid.say()
		kid.hear()
		kid.end()
	}
	var placed, without []string
	for range cfg.Groups + 1 {
		dir := group(t, root)
		fork(dir, 5)
		got, ok := count(k, h, kernfsID(t, dir))
		switch {
		case ok && got.Forks == 5:
			placed = append(placed, dir)
		case !ok:
			without = append(without, dir)
		default:
			t.Errorf("%d forks, want 5", got.Forks)
		}
	}
	if len(placed) == 0 || len(without) == 0 {
		t.Fatalf("%d of %d groups have one of %d places", len(placed), cfg.Groups+1, cfg.Groups)
	}
	if got, _ := count(k, 0, 0); got.Forks < uint64(5*len(without)) || int(k.Full()) < 5*len(without) {
		t.Errorf("%d forks of no group, %d times full, want %d at least", got.Forks, k.Full(), 5*len(without))
	}

	dead := placed[0]
	id := kernfsID(t, dead)
	remove(t, dead)
	d := drain(k).died[id]
	if d.Has&bpf.HasCounts == 0 || d.Counts.Forks != 5 {
		t.Errorf("died with %+v, has %b, want 5 forks", d.Counts, d.Has)
	}
	if got, ok := k.Forget(h, id); !ok || got.Forks != 5 {
		t.Errorf("Forget() = %+v, %v, want 5 forks", got, ok)
	}
	if got, ok := k.Forget(h, id); ok {
		t.Errorf("second Forget() = %+v, want none", got)
	}
	if _, ok := count(k, h, id); ok {
		t.Error("forgotten group still counts")
	}
	fork(without[0], 4)
	places := 0
	for c := range k.Counts() {
		if c.ID != 0 {
			places++
		}
		if c.ID == kernfsID(t, without[0]) && c.Forks != 4 {
			t.Errorf("%d forks in the place that was given back, want 4", c.Forks)
		}
	}
	if places != cfg.Groups {
		t.Errorf("%d groups have places, want %d", places, cfg.Groups)
	}
}

func TestNotAskedFor(t *testing.T) {
	k := need(t, config(bpf.Forks))
	if k.WorkingParts() != bpf.Forks {
		t.Errorf("Can() = %v, want forks", k.WorkingParts())
	}
	for p := bpf.Part(1); p < bpf.All; p <<= 1 {
		if err := k.Err(p); (err == nil) != (p == bpf.Forks) {
			t.Errorf("Err(%v) = %v", p, err)
		} else if err != nil && !strings.Contains(err.Error(), p.String()) {
			t.Errorf("Err(%v) = %v, which does not name it", p, err)
		}
	}
	if _, err := k.NewWalker(0, false); err == nil {
		t.Error("NewWalker() works without its part")
	}
	if _, err := k.AttachNet(0); err == nil {
		t.Error("AttachNet() works without its part")
	}
	if err := k.Tasks(func(*bpf.Task) bool { return true }); err == nil {
		t.Error("Tasks() works without its part")
	}
	if n := k.Drain(func(*bpf.Event) {}); n != 0 {
		t.Errorf("Drain() = %d without its part", n)
	}
}

// A user without rights is told that it is rights that lack.
func TestDenied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become nobody")
	}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	for _, parts := range []bpf.Part{bpf.All, bpf.Forks, bpf.Walks} {
		kid := spawn(t, nil, attr, "open", fmt.Sprint(uint8(parts)))
		kid.say()
		if got := kid.hear(); got != "denied" {
			t.Errorf("Open(%v) as nobody: %s, want denied", parts, got)
		}
		kid.end()
	}
}

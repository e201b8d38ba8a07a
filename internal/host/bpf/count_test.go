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

// count returns the counts of one group, and whether it has a slot.
func count(k *bpf.Kernel, hierarchy uint32, id uint64) (bpf.Counts, bool) {
	for c := range k.Counts() {
		if c.ID == id && c.Hierarchy == hierarchy {
			return c.Counts, true
		}
	}
	return bpf.Counts{}, false
}

// Each process counts for the group in which it begins; threads, of which a Go program has
// many, do not count.
func TestForks(t *testing.T) {
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
			kid.start()
			kid.answer()
			kid.start()
			kid.end()
			got, ok := count(k, h, kernfsID(t, dir))
			if want := (bpf.Counts{Forks: 37}); got != want || !ok {
				t.Errorf("counts %+v, %v, want %+v", got, ok, want)
			}
		})
	}
}

// disk returns a directory of a file system on a block device.
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

// Direct and synced reads and writes of a process count for its group, as do file system
// metadata and reads of the program file on behalf of the process.
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
				kid.start()
				kid.answer()
				kid.start()
				kid.end()
				got, _ = count(k, h, kernfsID(t, dir))
				return got
			}
			got := write()
			if how == "fsync" {
				// The kernel may write back some of it before the process does, without an
				// owner.
				testkit.Eventually(t, "the process writes the whole file", func() bool {
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

// Devices with skipped major numbers do not count.
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
		kid.start()
		kid.answer()
		kid.start()
		kid.end()
		got, _ := count(k, h, kernfsID(t, dir))
		return got
	}
	if got := run("a"); got.WrittenBytes != 0 || got.ReadBytes != 0 {
		t.Errorf("counts of a skipped device: %+v", got)
	}
	k.SetSkipMajors(nil)
	if got := run("b"); got.WrittenBytes < size || got.ReadBytes < size {
		t.Errorf("no counts of a device after it is not skipped: %+v", got)
	}
}

// Packets and bytes match TCP_INFO plus the headers of every segment, although the kernel
// offloads segmentation.
func TestNetMatchesTCPInfo(t *testing.T) {
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
			kid := spawn(t, []string{below}, attr, "tcp", fmt.Sprint(size), c.address, "")
			kid.start()
			var bytesOut, segsOut, bytesIn, segsIn, again uint64
			answer := kid.answer()
			if _, err := fmt.Sscan(answer, &bytesOut, &segsOut, &bytesIn, &segsIn, &again); err != nil {
				t.Fatal(answer, err)
			}
			var got bpf.Counts
			// The last packets may still be on their way, in another thread of the kernel.
			testkit.Eventually(t, "all that was sent over the loopback is received", func() bool {
				got, _ = count(k, 0, kernfsID(t, below))
				return got.RxPackets == got.TxPackets && got.RxBytes == got.TxBytes
			})
			if own, ok := count(k, 0, kernfsID(t, dir)); ok {
				t.Errorf("the parent group has counts: %+v", own)
			}
			// The two packets of the handshake carry 8 more bytes of options; TCP_INFO does
			// not count the second.
			wantPackets := segsOut + 1
			wantBytes := bytesOut + wantPackets*c.header + 2*8
			// Selective acknowledgments have more options, and TCP_INFO does not count a
			// retransmitted second packet either.
			slack := wantBytes/1000 + again*(c.header+8)
			if got.TxPackets < wantPackets || got.TxPackets > wantPackets+again || got.TxBytes < wantBytes || got.TxBytes > wantBytes+slack {
				t.Errorf("sent %d bytes in %d packets, want %d in %d", got.TxBytes, got.TxPackets, wantBytes, wantPackets)
			}
			if wantPackets < size/1500 || bytesIn != size || segsIn == 0 {
				t.Errorf("unusable TCP_INFO: %s", answer)
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

// Groups without a slot count for group 0, and a freed slot is used again. Other processes'
// groups may take slots too, but not all.
func TestSlots(t *testing.T) {
	cfg := config(bpf.Forks | bpf.Events)
	cfg.Groups = 16
	cfg.Unified = true
	h := hierarchy(t, "")
	k := need(t, cfg)
	root := mount(t, "")
	fork := func(dir string, n int) {
		kid := spawn(t, []string{dir}, nil, "forks", fmt.Sprint(n))
		kid.start()
		kid.answer()
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
		t.Fatalf("%d of %d groups have one of %d slots", len(placed), cfg.Groups+1, cfg.Groups)
	}
	if got, _ := count(k, 0, 0); got.Forks < uint64(5*len(without)) || int(k.Full()) < 5*len(without) {
		t.Errorf("%d forks in group 0, %d times full, want at least %d", got.Forks, k.Full(), 5*len(without))
	}

	dead := placed[0]
	id := kernfsID(t, dead)
	drain(k) // other groups of the machine may have filled the ring
	remove(t, dead)
	d := drain(k).died[id]
	if d.Has&bpf.HasCounts == 0 || d.Counts.Forks != 5 {
		t.Errorf("died with %+v, Has %b, want 5 forks", d.Counts, d.Has)
	}
	if got, ok := k.Forget(h, id); !ok || got.Forks != 5 {
		t.Errorf("Forget() = %+v, %v, want 5 forks", got, ok)
	}
	if got, ok := k.Forget(h, id); ok {
		t.Errorf("second Forget() = %+v, want none", got)
	}
	if _, ok := count(k, h, id); ok {
		t.Error("a forgotten group still counts")
	}
	fork(without[0], 4)
	places := 0
	for c := range k.Counts() {
		if c.ID != 0 {
			places++
		}
		if c.ID == kernfsID(t, without[0]) && c.Forks != 4 {
			t.Errorf("%d forks in the freed slot, want 4", c.Forks)
		}
	}
	if places != cfg.Groups {
		t.Errorf("%d groups have slots, want %d", places, cfg.Groups)
	}
}

func TestPartsNotRequested(t *testing.T) {
	k := need(t, config(bpf.Forks))
	if k.WorkingParts() != bpf.Forks {
		t.Errorf("WorkingParts() = %v, want forks", k.WorkingParts())
	}
	for p := bpf.Part(1); p < bpf.All; p <<= 1 {
		if err := k.Err(p); (err == nil) != (p == bpf.Forks) {
			t.Errorf("Err(%v) = %v", p, err)
		} else if err != nil && !strings.Contains(err.Error(), p.String()) {
			t.Errorf("Err(%v) = %v, want an error that names the part", p, err)
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

// A user without privileges gets an error that says so.
func TestDenied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	for _, parts := range []bpf.Part{bpf.All, bpf.Forks, bpf.Walks} {
		kid := spawn(t, nil, attr, "open", fmt.Sprint(uint8(parts)))
		kid.start()
		if got := kid.answer(); got != "denied" {
			t.Errorf("Open(%v) as user nobody: %s, want denied", parts, got)
		}
		kid.end()
	}
}

package publish_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// uuid returns the UUID of the i-th virtual machine.
func uuid(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", i) }

// given returns the share of the i-th virtual machine, called name, after the n-th tick.
func given(i int, name string, n int64) attribute.Guest {
	return attribute.Guest{Guest: &usage.Guest{UUID: uuid(i), Name: name, CID: uint32(i) + 100, GID: os.Getegid(), VCPUs: 2}, Workload: workload.ID(fmt.Sprintf("workload-%d", i)),
		Share: power.Share{Guest: uuid(i), Epoch: fmt.Sprintf("EPOCH%d", i), N: n * 1000, At: n * 1e9, Active: n * 3e6, Idle: n * 1e6, Error: n * 1e5, Modelled: n}}
}

// A record collects log output.
type record struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), what)
}

// start runs a publisher until the test ends.
func start(t *testing.T, cfg publish.Config) (*publish.Publisher, *record) {
	t.Helper()
	log := &record{}
	r, err := publish.New(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r.Hurry(50 * time.Millisecond)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r, log
}

func text(parts ...string) string {
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func exists(parts ...string) bool {
	_, err := os.Lstat(filepath.Join(parts...))
	return err == nil
}

// hasShare reports whether the files of a virtual machine are those of the n-th tick. The share is
// written last.
func hasShare(dir string, n int64) bool {
	m, err := energyshare.Decode([]byte(text(dir, energyshare.File)))
	return err == nil && m.N == n*1000 && text(dir, energyshare.ZoneEnergy) == fmt.Sprintf("%d\n", n*4e6)
}

// TestFiles checks that the files match Scaphandre's layout plus one of mete's, follow each tick,
// and are removed with the virtual machine.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, _ := start(t, publish.Config{Dir: dir})
	gid := os.Getegid()
	if os.Geteuid() == 0 {
		gid = 100
	}
	for n := int64(1); n <= 3; n++ {
		web := given(1, "web", n)
		web.Guest.GID = gid
		r.Publish([]attribute.Guest{web, given(2, "mine", n)})
		testkit.Eventually(t, "the files of the tick", func() bool { return hasShare(dir+"/web", n) && hasShare(dir+"/mine", n) })
		testkit.Eventually(t, "the share of the tick", func() bool {
			m, err := energyshare.Decode([]byte(text(dir, "mine/mete.json")))
			return err == nil && m.Share == given(2, "", n).Share && m.Name == "mine" && m.VCPUs == 2
		})
	}
	if got := text(dir, "web/intel-rapl:0/name"); got != "package-0\n" {
		t.Errorf("name %q", got)
	}
	if got := text(dir, "web/intel-rapl:0/max_energy_range_uj"); got != "4611686018427387904" {
		t.Errorf("range %q", got)
	}
	for name, mode := range map[string]os.FileMode{"web": 0o755, "web/mete.json": 0o640, "web/intel-rapl:0/energy_uj": 0o640} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
		if g := int(st.Sys().(*syscall.Stat_t).Gid); !st.IsDir() && g != gid {
			t.Errorf("%s: group %d, want that of the hypervisor, %d", name, g, gid)
		}
	}
	testkit.Eventually(t, "no temporary file is left", func() bool {
		list, err := filepath.Glob(dir + "/*/*.new")
		return err == nil && len(list) == 0
	})
	r.Publish(nil)
	testkit.Eventually(t, "what was made is gone", func() bool {
		r.Publish([]attribute.Guest{given(3, "other", time.Now().UnixMilli())})
		return !exists(dir, "web") && !exists(dir, "mine/mete.json")
	})
	if !exists(dir, "mine") {
		t.Error("a folder that existed before was removed")
	}
}

// TestNames checks that names cannot escape the directory, that two machines with one name get
// separate folders, and that a restarted machine keeps its folder.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	r, _ := start(t, publish.Config{Dir: filepath.Join(dir, "in")})
	if err := os.Mkdir(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 300)
	all := []attribute.Guest{given(1, "../out", 1), given(2, "..", 1), given(3, "a/b%", 1), given(4, "", 1), given(5, long, 1),
		given(6, "same", 1), given(7, "same", 1), given(8, "line\nbreak", 1)}
	r.Publish(all)
	for _, name := range []string{"%2E./out", "%2E.", "a%2Fb%25", uuid(4), uuid(5), "same", "same.workload-7", "line%0Abreak"} {
		name = strings.ReplaceAll(name, "/out", "%2Fout")
		testkit.Eventually(t, "there is "+name, func() bool { return exists(dir, "in", name, "mete.json") })
	}
	if exists(dir, "out") {
		t.Error("a file is outside the directory")
	}
	if m, err := energyshare.Decode([]byte(text(dir, "in/same/mete.json"))); err != nil || m.Guest != uuid(6) {
		t.Errorf("%+v, %v", m, err)
	}
	next := given(6, "same", 2)
	next.Workload, next.Share.Epoch = "workload-6-next", "NEXT"
	r.Publish(append(all, next)) // both exist for a tick
	testkit.Eventually(t, "the new one has the folder", func() bool { return strings.Contains(text(dir, "in/same/mete.json"), "NEXT") })
	n := int64(2)
	testkit.Eventually(t, "the others are gone", func() bool {
		n++
		next.Share = given(6, "", n).Share
		r.Publish([]attribute.Guest{next})
		return !exists(dir, "in/same.workload-7")
	})
	if !exists(dir, "in/same/mete.json") {
		t.Error("the folder was removed with the former machine")
	}
}

// TestHostileFolder checks that nothing a virtual machine does in its folder harms the host or
// other machines.
func TestHostileFolder(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	zone := filepath.Join(dir, "bad/intel-rapl:0")
	r, log := start(t, publish.Config{Dir: dir})
	n := int64(0)
	next := func() {
		n++
		r.Publish([]attribute.Guest{given(1, "bad", n), given(2, "good", n)})
		testkit.Eventually(t, "the good one has its share", func() bool { return hasShare(dir+"/good", n) })
	}
	next()
	testkit.Eventually(t, "the other one has its share", func() bool { return hasShare(dir+"/bad", n) })
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"a pipe where the new file will be", func() error { return unix.Mkfifo(zone+"/energy_uj.new", 0o666) }},
		{"a link where the new file will be", func() error { return os.Symlink(outside+"/a", zone+"/energy_uj.new") }},
		{"a link in place of the file", func() error {
			return errors.Join(os.Remove(zone+"/energy_uj"), os.Symlink(outside+"/b", zone+"/energy_uj"))
		}},
		{"a pipe in place of the share", func() error {
			return errors.Join(os.Remove(dir+"/bad/mete.json"), unix.Mkfifo(dir+"/bad/mete.json", 0o666))
		}},
		{"no zone any more", func() error { return os.RemoveAll(zone) }},
		{"no folder any more", func() error { return os.RemoveAll(dir + "/bad") }},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		next()
		testkit.Eventually(t, c.name, func() bool { return hasShare(dir+"/bad", n) })
		if st, err := os.Lstat(zone + "/energy_uj"); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", c.name, st.Mode(), err)
		}
	}
	if log.count("level=WARN") != 0 {
		t.Errorf("repaired files are logged:\n%s", log.text.String())
	}
	if err := errors.Join(os.RemoveAll(zone), os.Mkdir(outside+"/zone", 0o755), os.Symlink(outside+"/zone", zone)); err != nil {
		t.Fatal(err)
	}
	next()
	next()
	testkit.Eventually(t, "trouble with a zone that leads out is logged", func() bool { return log.count("cannot be written to files") == 1 })
	if log.count("1 of 2 virtual machines (bad)") != 1 {
		t.Errorf("log:\n%s", log.text.String())
	}
	if err := os.Remove(zone); err != nil {
		t.Fatal(err)
	}
	next()
	testkit.Eventually(t, "its end is logged", func() bool { return log.count("written to files again") == 1 })
	if list, err := os.ReadDir(outside + "/zone"); len(list) > 0 || err != nil || exists(outside, "a") || exists(outside, "b") {
		t.Errorf("written outside: %v, %v", list, err)
	}
}

// TestTrouble checks that a full disk or a missing directory only delays shares, and is logged once
// at its beginning and once at its end.
func TestTrouble(t *testing.T) {
	dir := hosttest.SmallDisk(t, "size=128k,nr_inodes=64")
	r, log := start(t, publish.Config{Dir: dir})
	r.Publish([]attribute.Guest{given(1, "a", 1)})
	testkit.Eventually(t, "there is a share", func() bool { return exists(dir, "a/mete.json") })
	// Fill the rest, to the last page.
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	r.Publish([]attribute.Guest{given(1, "a", 2)})
	testkit.Eventually(t, "a full disk is logged", func() bool { return log.count("no space left on device") == 1 })
	for n := int64(3); n < 6; n++ {
		r.Publish([]attribute.Guest{given(1, "a", n)})
	}
	if m, err := energyshare.Decode([]byte(text(dir, "a/mete.json"))); err != nil || m.N != 1000 {
		t.Errorf("the previous share is incomplete: %+v, %v", m, err)
	}
	if err := os.Remove(filepath.Join(dir, "big")); err != nil {
		t.Fatal(err)
	}
	r.Publish([]attribute.Guest{given(1, "a", 9)})
	testkit.Eventually(t, "it goes on", func() bool { return strings.Contains(text(dir, "a/mete.json"), `"n":9000`) })
	testkit.Eventually(t, "its end is logged", func() bool { return log.count("written to files again") == 1 })
	if n := log.count("no space left on device"); n != 1 {
		t.Errorf("a full disk is logged %d times, want once", n)
	}

	other, log2 := start(t, publish.Config{Dir: dir})
	other.Publish([]attribute.Guest{given(1, "a", 99)})
	testkit.Eventually(t, "a second process is refused", func() bool { return log2.count("another process writes there") == 1 })
	if strings.Contains(text(dir, "a/mete.json"), "99000") {
		t.Error("a second process wrote")
	}

	gone, log3 := start(t, publish.Config{Dir: dir + "/none"})
	gone.Publish([]attribute.Guest{given(1, "a", 1)})
	gone.Publish([]attribute.Guest{given(1, "a", 2)})
	testkit.Eventually(t, "the missing directory is logged", func() bool { return log3.count("no such file") == 1 })
}

// TestTakenOver checks that a later run takes over the folders of an earlier one.
func TestTakenOver(t *testing.T) {
	dir := t.TempDir()
	func() {
		log := slog.New(slog.DiscardHandler)
		r, err := publish.New(publish.Config{Dir: dir}, log)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		r.Publish([]attribute.Guest{given(1, "a", 1), given(2, "b", 1)})
		testkit.Eventually(t, "there are shares", func() bool { return exists(dir, "b/mete.json") })
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if !exists(dir, "a/mete.json") {
		t.Error("shares were removed with the agent")
	}
	r, _ := start(t, publish.Config{Dir: dir})
	r.Publish([]attribute.Guest{given(1, "a", 2)})
	testkit.Eventually(t, "it goes on", func() bool { return strings.Contains(text(dir, "a/mete.json"), `"n":2000`) })
	n := int64(2)
	testkit.Eventually(t, "what the earlier run made goes too", func() bool {
		n++
		r.Publish([]attribute.Guest{given(3, "c", n)})
		return !exists(dir, "a") && !exists(dir, "b")
	})
}

func TestValidate(t *testing.T) {
	for _, s := range []publish.Socket{{Guest: "web", Path: "/x"}, {Guest: uuid(1)}, {Guest: strings.ToUpper("abcdefab-0000-4000-8000-000000000001"), Path: "/x"}} {
		_, err := publish.New(publish.Config{Sockets: []publish.Socket{s}}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/x/settings"
)

// want checks state and texts of a check.
func want(t *testing.T, c Check, s State, texts ...string) {
	t.Helper()
	all := c.Found + "\n" + c.Figures + "\n" + c.Do
	if c.State != s {
		t.Errorf("%s is %s, want %s: %s", c.Name, c.State, s, all)
	}
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("%s says %q, want %q in it", c.Name, all, text)
		}
	}
}

// one returns the check with a name.
func one(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %q among %v", name, checks)
	return Check{}
}

func put(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return path
}

func TestCapabilities(t *testing.T) {
	root := capabilities("Name:\tmete\nCapEff:\t000001ffffffffff\n")
	if len(root) != 1 {
		t.Fatalf("root: %v", root)
	}
	want(t, root[0], OK, "CAP_BPF CAP_PERFMON", "CAP_SYS_PTRACE")

	none := capabilities("CapEff:\t0000000000000000\n")
	if len(none) != len(rights) {
		t.Fatalf("without rights: %v", none)
	}
	for i, r := range rights {
		want(t, none[i], Limited, r.figures, "run the agent as root, or give its unit or container "+r.name)
	}
	// One of the two that BPF needs is not enough: the package bpf needs both.
	half := capabilities(fmt.Sprintf("CapEff:\t%016x\n", uint64(1)<<unix.CAP_BPF))
	want(t, half[0], Limited, "without CAP_BPF and CAP_PERFMON")
	for _, bad := range []string{"", "CapEff: many\n"} {
		want(t, capabilities(bad)[0], Failed)
	}
}

func TestKernelVersion(t *testing.T) {
	for release, s := range map[string]State{"6.1.0-31-amd64": OK, "6.18.44": OK, "10.0": OK, "6.0.19": Limited, "5.15.0-generic": Limited, "unknown": OK} {
		want(t, versionCheck(release), s, release)
	}
}

func TestReader(t *testing.T) {
	denied := fmt.Errorf("bpf: %w", fault.ErrDenied)
	for name, c := range map[string]struct {
		m     facts
		state State
		texts []string
	}{
		"bpf":       {facts{reader: sources.BPF, loaded: bpf.All}, OK, []string{"walks+events+forks+disk+net+tasks"}},
		"a part":    {facts{reader: sources.BPF, loaded: bpf.All &^ bpf.Net, refused: []error{errors.New("bpf: net: no")}}, Limited, []string{"refused: bpf: net: no"}},
		"denied":    {facts{reader: sources.Files, denied: denied}, Limited, []string{"files", "CAP_BPF", "processes started"}},
		"old":       {facts{reader: sources.Files, denied: fault.ErrUnsupported}, Limited, []string{"6.1"}},
		"as wanted": {facts{reader: sources.Files, wanted: sources.Files}, Limited, []string{"as the settings say"}},
		"late":      {facts{err: errTimeout}, Limited, []string{"--timeout"}},
		"no groups": {facts{err: fault.WithHint(fault.ErrUnsupported, "mount cgroup2")}, Failed, []string{"the agent cannot measure", "mount cgroup2"}},
	} {
		t.Run(name, func(t *testing.T) { want(t, readerCheck(&c.m), c.state, c.texts...) })
	}
	if _, ok := scopeCheck(&facts{}); ok {
		t.Error("a machine that was not read has a scope")
	}
	c, _ := scopeCheck(&facts{reader: sources.BPF, partial: "only the groups below"})
	want(t, c, Limited, "only the groups below", "CAP_DAC_READ_SEARCH")
}

func TestControllers(t *testing.T) {
	want(t, missingControllers([]string{"cpu", "io", "memory", "pids"}, "memory", "io", "pids"), OK)
	want(t, missingControllers([]string{"cpu", "pids"}, "memory", "io", "pids"), Limited, "without memory io", "cgroup_disable=")
}

// TestFigures checks that each figure is as good as the worst of the workloads, and that a note of the
// agent stands with its figure, in the agent's words.
func TestFigures(t *testing.T) {
	row := func(k workload.Kind, q map[string]usage.Quality) live.Row { return live.Row{Kind: k, Quality: q} }
	m := facts{live: &live.Machine{
		Notes: []string{"disk: no io controller that counts", "reader files, as BPF cannot be used", "something else",
			"network by class: absent (no)", "network by peer: absent (nor)"},
		Rows: []live.Row{
			row(workload.Path, map[string]usage.Quality{"cpu": usage.Measured, "memory": usage.Measured, "energy_package": usage.Apportioned}),
			row(workload.Path, map[string]usage.Quality{"cpu": usage.Apportioned, "memory": usage.Measured, "network_rx": usage.Measured, "energy_package": usage.Apportioned}),
			row(workload.System, nil), row(workload.Idle, nil), {Kind: workload.Path, Ended: true},
		}}}
	got := figureChecks(&m)
	want(t, one(t, got, "cpu"), Limited, "measured in 1, apportioned in 1 of 2 workloads")
	want(t, one(t, got, "memory"), OK, "measured in 2 of 2 workloads")
	want(t, one(t, got, "disk"), Missing, "absent in 2 of 2", "disk: no io controller that counts")
	want(t, one(t, got, "network"), Limited, "measured in 1, absent in 1 of 2", "network by class: absent (no); network by peer: absent (nor)")
	want(t, one(t, got, "energy"), OK, "apportioned in 2 of 2")
	want(t, one(t, got, "note"), Limited, "something else")
	for _, c := range got {
		if strings.Contains(c.Found+c.Figures, "reader files") {
			t.Errorf("the note about the reader is repeated: %+v", c)
		}
	}
	m.live.Rows[0].Quality["energy_rest"] = usage.Modelled
	want(t, one(t, figureChecks(&m), "energy"), Limited, usage.Modelled.String()+" in 1")
	m.live.Rows = nil
	want(t, one(t, figureChecks(&m), "cpu"), OK, "no workload")
	want(t, figureChecks(&facts{})[0], Missing)
}

// TestStorage checks what is said of disk space.
func TestStorage(t *testing.T) {
	for name, c := range map[string]struct {
		s     storage
		state State
		texts []string
	}{
		"off":  {storage{notes: []string{"it is switched off"}}, Missing, []string{"it is switched off", "is absent"}},
		"none": {storage{}, OK, []string{"no container or pod"}},
		"all":  {storage{found: 3, all: 3}, OK, []string{"all 3"}},
		"some": {storage{found: 1, all: 4, notes: []string{"2: permission denied", "1: not found"}}, Limited, []string{"1 of 4", "2: permission denied; 1: not found", "CAP_SYS_PTRACE"}},
		"no":   {storage{all: 4, notes: []string{"4: permission denied"}}, Missing, []string{"0 of 4"}},
	} {
		t.Run(name, func(t *testing.T) { want(t, storageCheck(&c.s), c.state, c.texts...) })
	}
	m := facts{live: &live.Machine{Notes: []string{"disk space: absent (it is not supported)"}}, storage: storage{notes: []string{"it is not supported"}}}
	got := figureChecks(&m)
	want(t, one(t, got, "disk space"), Missing, "it is not supported")
	for _, c := range got {
		if c.Name == "note" {
			t.Errorf("the note is repeated: %+v", c)
		}
	}
}

func TestStateDirectory(t *testing.T) {
	dir := t.TempDir()
	look := func(path string, mode os.FileMode) state {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		s := state{kind: serverState, dir: path}
		s.look("")
		return s
	}
	uid := os.Geteuid()
	for mode, wanted := range map[os.FileMode]State{0o700: OK, 0o711: OK, 0o750: Limited, 0o755: Limited, 0o770: Failed, 0o777: Failed} {
		s := look(dir, mode)
		want(t, s.check(uid), wanted, fmt.Sprintf("mode %04o", mode))
	}
	s := look(dir, 0o700)
	if s.check(uid+1).State != Limited { // another user than its owner, and not root
		t.Errorf("another user's: %+v", s.check(uid+1))
	}
	want(t, (&state{dir: dir, err: os.ErrPermission}).check(uid), Limited, "as its owner, or as root")
	gone := state{kind: agentState, dir: filepath.Join(dir, "gone")}
	gone.look("")
	want(t, gone.check(uid), Missing, "does not exist")
	file := look(put(t, filepath.Join(dir, "file"), "", 0o600), 0o600)
	want(t, file.check(uid), Failed, "is not a directory")
}

func TestSpace(t *testing.T) {
	const gib = 1 << 30 / 4096
	for name, c := range map[string]struct {
		st    unix.Statfs_t
		state State
	}{
		"enough":        {unix.Statfs_t{Bsize: 4096, Blocks: 100 * gib, Bavail: 50 * gib, Files: 1000, Ffree: 900}, OK},
		"small but all": {unix.Statfs_t{Bsize: 4096, Blocks: gib / 2, Bavail: gib / 4}, OK},
		"low":           {unix.Statfs_t{Bsize: 4096, Blocks: 100 * gib, Bavail: gib / 2}, Limited},
		"full":          {unix.Statfs_t{Bsize: 4096, Blocks: 100 * gib, Bavail: 0}, Failed},
		"few inodes":    {unix.Statfs_t{Bsize: 4096, Blocks: 100 * gib, Bavail: 50 * gib, Files: 1e6, Ffree: 1e4}, Limited},
		"no inodes":     {unix.Statfs_t{Bsize: 4096, Blocks: 100 * gib, Bavail: 50 * gib, Files: 1e6, Ffree: 0}, Failed},
		"read-only":     {unix.Statfs_t{Bsize: 4096, Blocks: 100 * gib, Bavail: 50 * gib, Flags: unix.ST_RDONLY}, Failed},
	} {
		t.Run(name, func(t *testing.T) { want(t, space(&state{kind: serverState}, &c.st), c.state) })
	}
}

// TestLock checks that the holder of a lock by flock(2) is found in the kernel's list.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	list := func(file string) string {
		info, err := os.Stat(put(t, filepath.Join(dir, file), "", 0o600))
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		return fmt.Sprintf("1: POSIX  ADVISORY  WRITE 5 00:01:2 0 EOF\n2: FLOCK  ADVISORY  WRITE 77 %02x:%02x:%d 0 EOF\n", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	}
	server, agent := state{kind: serverState, dir: dir}, state{kind: agentState, dir: dir}
	inServer, inAgent := list("lock"), list("spool/01NODE/lock")
	for _, c := range []struct {
		s      *state
		locks  string
		holder int
	}{{&server, inServer, 77}, {&server, inAgent, 0}, {&server, "", 0}, {&agent, inAgent, 77}, {&agent, inServer, 0}} {
		c.s.holder = 0
		if c.s.look(c.locks); c.s.holder != c.holder {
			t.Errorf("%s with %q: in use by %d, want %d", c.s.kind, c.locks, c.s.holder, c.holder)
		}
	}
	agent.holder = 77
	if c := agent.check(os.Geteuid()); !strings.Contains(c.Found, "in use by process 77") {
		t.Errorf("%+v", c)
	}
	for _, text := range []string{"", "1: FLOCK", "1: POSIX ADVISORY WRITE 7 fe:00:1 0 EOF", "x: FLOCK ADVISORY WRITE none fe:00:1 0 EOF"} {
		if pid := lockHolder(text, unix.Mkdev(0xfe, 0), 1); pid != 0 {
			t.Errorf("%q: %d", text, pid)
		}
	}
	if pid := lockHolder("3: FLOCK  ADVISORY  WRITE 77 fe:00:12 0 EOF\n", unix.Mkdev(0xfe, 0), 12); pid != 77 {
		t.Errorf("process %d, want 77", pid)
	}
}

func TestLedgerFile(t *testing.T) {
	dir := t.TempDir()
	s := state{kind: serverState, dir: dir}
	if c, ok := s.ledger(""); ok {
		t.Errorf("no ledger: %+v", c)
	}
	header := make([]byte, 4096)
	copy(header, "SQLite format 3\x00")
	header[16], header[17], header[31] = 0x10, 0, 1 // pages of 4096 bytes, one of them
	check := func(content []byte) Check {
		put(t, filepath.Join(dir, "ledger.db"), string(content), 0o600)
		c, ok := s.ledger("")
		if !ok {
			t.Fatal("no check")
		}
		return c
	}
	want(t, check(header), OK, "4.00 KiB", "mete check "+dir)
	want(t, check([]byte("notes")), Failed, "not a ledger", "the server does not start")
	header[31] = 9
	want(t, check(header), Failed, "is cut off: it has 4096 of 36864 bytes", "restore")
	s.holder = 1 // a server writes: the header may be ahead
	want(t, check(header), OK)
	c, _ := s.ledger("postgres://me:hunter2@db/mete")
	want(t, c, OK, "not checked")
	if strings.Contains(c.Found+c.Do, "hunter2") {
		t.Errorf("a secret is shown: %+v", c)
	}
}

func TestTokenFile(t *testing.T) {
	tok := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})
	path := filepath.Join(t.TempDir(), "token")
	want(t, tokenFile(path, false), Failed, "does not exist", "mete token create --role agent")
	want(t, tokenFile(path, true), OK, "is not needed")
	put(t, path, tok.Reveal()+"\n", 0o644)
	want(t, tokenFile(path, false), Failed, "mode 0644", "chmod 600")
	put(t, path, tok.Reveal()+"\n", 0o600)
	for _, enrolled := range []bool{false, true} {
		c := tokenFile(path, enrolled)
		want(t, c, map[bool]State{false: OK, true: Limited}[enrolled], tok.ID())
		if secret := strings.Split(tok.Reveal(), "_")[2]; strings.Contains(c.Found+c.Do, secret) {
			t.Errorf("the secret is shown: %+v", c)
		}
	}
	put(t, path, "mete_abc", 0o600)
	want(t, tokenFile(path, false), Failed, "cut off")
	want(t, tokenFile(path, true), Limited, "not needed")
	put(t, path, "", 0o600)
	want(t, tokenFile(path, true), OK, "empty")
}

// pair makes a key and certificate in the form of the files of an authority; parent may be nil.
func pair(t *testing.T, name string, from, to time.Time, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (cert *x509.Certificate, key *ecdsa.PrivateKey, keyPEM, certPEM string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to, IsCA: parent == nil, BasicConstraintsValid: true, DNSNames: []string{"server.example"}}
	if parent == nil {
		parent, parentKey = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestCertificates checks the certificates of a server and of an agent at many times of their lives.
func TestCertificates(t *testing.T) {
	const day = 24 * time.Hour
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	authority, authorityKey, key, cert := pair(t, "authority", begin, begin.Add(3650*day), nil, nil)
	caFile, serverFile := ca.Files(filepath.Join(dir, "server", "authority"))
	put(t, caFile, key+cert, 0o600)
	_, _, key, cert = pair(t, "server", begin, begin.Add(90*day), authority, authorityKey)
	put(t, serverFile, key+cert, 0o600)
	_, _, key, cert = pair(t, "01NODE", begin, begin.Add(30*day), authority, authorityKey)
	id, err := json.Marshal(map[string]string{"node": "01NODE", "cluster": "lab", "server": "https://server.example:9797", "key": key, "certificate": cert,
		"ca": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw}))})
	if err != nil {
		t.Fatal(err)
	}
	identity := put(t, filepath.Join(dir, "agent", "identity", "identity.json"), string(id), 0o600)
	states := []state{{kind: serverState, dir: filepath.Join(dir, "server")}, {kind: agentState, dir: filepath.Join(dir, "agent")}}
	at := func(now time.Time, holder int) []Check {
		states[0].holder = holder
		return certificates(states, now)
	}

	got := at(begin.Add(day), 1)
	if len(got) != 3 {
		t.Errorf("%d checks: %v", len(got), got)
	}
	want(t, one(t, got, "authority"), OK, "until 2035-12-30")
	want(t, one(t, got, "certificate"), OK, "until 2026-04-01", "server.example")
	want(t, one(t, got, "agent"), OK, "node 01NODE of cluster lab", "until 2026-01-31")

	got = at(begin.Add(25*day), 1)
	want(t, one(t, got, "agent"), Limited, "overdue")
	got = at(begin.Add(31*day), 1)
	want(t, one(t, got, "agent"), Failed, "ended on 2026-01-31", "mete token create --role agent --node 01NODE")
	want(t, one(t, at(begin.Add(70*day), 1), "certificate"), Limited, "overdue", "restart")
	want(t, one(t, at(begin.Add(70*day), 0), "certificate"), OK)
	want(t, one(t, at(begin.Add(91*day), 1), "certificate"), Failed, "ended on 2026-04-01", "restart the server")
	want(t, one(t, at(begin.Add(91*day), 0), "certificate"), Limited, "renews it when it starts")
	want(t, one(t, at(begin.Add(3400*day), 1), "authority"), Limited)
	want(t, one(t, at(begin.Add(3700*day), 1), "authority"), Failed, "the server does not start")
	want(t, one(t, at(begin.Add(-day), 1), "authority"), Failed, "clock is behind")

	for _, path := range []string{caFile, serverFile} {
		put(t, path, string(contents(t, path)), 0o640)
		want(t, one(t, at(begin.Add(day), 1), "key"), Failed, path+" holds a key and has mode 0640", "chmod 600 "+path)
		put(t, path, string(contents(t, path)), 0o600)
	}
	put(t, identity, string(id), 0o604)
	want(t, one(t, at(begin.Add(day), 1), "agent"), Failed, "mode 0604")
	put(t, identity, "{", 0o600)
	want(t, one(t, at(begin.Add(day), 1), "agent"), Failed, "remove it and enroll")
	put(t, caFile, "damaged", 0o600)
	want(t, one(t, at(begin.Add(day), 1), "authority"), Failed, "from a backup")
	want(t, certificates([]state{{kind: serverState, dir: t.TempDir()}}, begin)[0], Missing)

	for _, c := range at(begin.Add(day), 1) {
		if strings.Contains(c.Found+c.Do, "PRIVATE") {
			t.Errorf("a key is shown: %+v", c)
		}
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	none := programs(dir, "v1", false)
	want(t, one(t, none, "mete-nvml"), OK, "not needed")
	want(t, one(t, none, "mete-agent"), Missing, "go build -o "+dir+"/ ./cmd/mete-agent")
	want(t, one(t, programs(dir, "v1", true), "mete-nvml"), Missing)

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "mete")
	put(t, path, string(contents(t, self)), 0o755)
	want(t, one(t, programs(dir, "v1", false), "mete"), Failed, "has version devel", "mete-server has v1")
	put(t, path, "#!/bin/sh\n", 0o755)
	want(t, one(t, programs(dir, "v1", false), "mete"), Limited, "version is not known")
	if err := os.Chmod(path, 0o757); err != nil {
		t.Fatal(err)
	}
	want(t, one(t, programs(dir, "v1", false), "mete"), Failed, "can be written by everyone", "chmod o-w")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, one(t, programs(dir, "v1", false), "mete"), Failed, "not executable")
}

// TestSettings checks a file that one program refuses and another accepts.
func TestSettings(t *testing.T) {
	file := put(t, filepath.Join(t.TempDir(), "mete.yaml"), "agent:\n  window: 5\nserver:\n  one: text\n", 0o600)
	loaded := func(section string, add func(*settings.Set)) program {
		p := program{name: "mete " + section, set: settings.New(section)}
		add(p.set)
		p.load(file, func(string) string { return "" })
		return p
	}
	text := ""
	d := doctor{}
	d.programs = [3]program{
		loaded("server", func(s *settings.Set) { s.Text(&text, "one", "X", "one") }),
		loaded("up", func(*settings.Set) {}),
		func() program {
			c := agent.Default()
			p := program{name: "mete-agent", set: c.Settings()}
			p.load(file, func(string) string { return "" })
			return p
		}(),
	}
	got := d.settings()
	want(t, one(t, got, "file"), OK, file, "mode 0600")
	want(t, one(t, got, "section server"), OK, "not the default: 1 setting; mete config server")
	want(t, one(t, got, "section up"), OK, "not the default: 0 settings")
	want(t, one(t, got, "section agent"), Failed, "mete.yaml:2:11", "mete-agent does not start", "write it with a unit")
	// Settings that the agent refuses are not replaced by others.
	m := d.measure(t.Context())
	want(t, readerCheck(&m), Failed, "settings of mete-agent", "mete.yaml:2:11")

	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	d.programs[0] = loaded("server", func(s *settings.Set) { s.Text(&text, "one", "X", "one") })
	want(t, one(t, d.settings(), "section server"), Failed, "can be written by everyone")
}

func TestClock(t *testing.T) {
	want(t, synchronized(unix.TIME_OK, 0, 20*time.Millisecond), OK, "20ms")
	want(t, synchronized(unix.TIME_ERROR, 0, 0), Limited, "not synchronized")
	want(t, synchronized(unix.TIME_OK, unix.STA_UNSYNC, 0), Limited)

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for off, s := range map[time.Duration]State{0: OK, time.Minute: OK, -time.Minute: OK, 3 * time.Minute: Limited, -3 * time.Minute: Limited} {
		want(t, offset(now.Add(off), now, 10*time.Millisecond), s)
	}
	want(t, offset(now, time.Time{}, 0), Missing)
}

func TestHealth(t *testing.T) {
	good := func() *v1.Health {
		return &v1.Health{Nodes: map[string]int{"live": 3}, Server: &v1.ServerHealth{}}
	}
	want(t, healthCheck("s", good(), "v1", "v1"), OK, "nodes: 3 live", "version v1")
	want(t, healthCheck("s", good(), "v0", "v1"), Limited, "restart it")
	h := good()
	h.Nodes["silent"] = 1
	want(t, healthCheck("s", h, "", "v1"), Limited, "1 silent")
	h.Nodes["silent"], h.Nodes["behind"] = 0, 2
	want(t, healthCheck("s", h, "", "v1"), Limited, "2 behind")
	h.Server.Violations = 2
	want(t, healthCheck("s", h, "", "v1"), Failed, "mete check")
	want(t, noServer("s", 0), Missing, "mete up")
	want(t, noServer("s", 7), Failed, "process 7")
}

func TestAgentAnswer(t *testing.T) {
	want(t, agentAnswer("a", http.StatusOK, "ok\n"), OK)
	want(t, agentAnswer("a", http.StatusOK, "ok\nonly the groups below this container's\n"), Limited, "only the groups below")
	want(t, agentAnswer("a", http.StatusServiceUnavailable, "windows cannot be kept: no space left"), Failed, "no space left")
	want(t, agentAnswer("a", http.StatusNotFound, "404"), Limited, "not an agent of mete")
	want(t, agentStatus(canceled(), "127.0.0.1:1"), Missing, "127.0.0.1:1")
}

func TestContainerNames(t *testing.T) {
	dir, err := os.MkdirTemp("", "mete-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket, file := filepath.Join(dir, "sock"), filepath.Join(dir, "file")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := errors.Join(os.Chmod(socket, 0o600), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	domain := filepath.Join(dir, "web.xml")
	if err := os.WriteFile(domain, []byte("<domstatus/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := domainNames("none"); len(got) != 0 {
		t.Errorf("%v without libvirt", got)
	}
	want(t, one(t, domainNames(dir), "domains"), OK, dir, "virtual machines: 1")
	want(t, one(t, domainNames(filepath.Join(dir, "nosuch")), "domains"), Missing, "nosuch", "domains")
	if got := containerNames([]string{"none"}); len(got) != 0 {
		t.Errorf("%v without a daemon", got)
	}
	want(t, one(t, containerNames([]string{file}), "containers"), Failed, "not a socket")
	want(t, one(t, containerNames([]string{socket}), "containers"), OK, socket)
	want(t, one(t, containerNames([]string{filepath.Join(dir, "nosuch")}), "containers"), Missing, "nosuch")
	if err := hosttest.AsOther(t, func() error {
		want(t, one(t, containerNames([]string{socket}), "containers"), Limited, socket, "ids", "docs/guide/docker.md")
		want(t, one(t, domainNames(dir), "domains"), Limited, dir, "CAP_DAC_READ_SEARCH")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func canceled() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	return ctx
}

func TestUnits(t *testing.T) {
	unit := func(id, load, active, sub, file, result string) string {
		return fmt.Sprintf("Id=%s\nLoadState=%s\nActiveState=%s\nSubState=%s\nUnitFileState=%s\nResult=%s\n", id, load, active, sub, file, result)
	}
	got := unitChecks(strings.Join([]string{unit("mete-up.service", "loaded", "active", "running", "enabled", "success"),
		unit("mete-server.service", "loaded", "inactive", "dead", "disabled", "success"),
		unit("mete-agent.service", "loaded", "activating", "auto-restart", "enabled", "exit-code")}, "\n"))
	want(t, one(t, got, "mete-up.service"), OK, "active (running), enabled at boot")
	want(t, one(t, got, "mete-server.service"), Missing, "systemctl enable --now mete-server.service")
	want(t, one(t, got, "mete-agent.service"), Failed, "exit-code", "journalctl -u mete-agent.service")
	want(t, unitChecks(unit("mete-up.service", "loaded", "active", "running", "disabled", "success"))[0], Limited, "systemctl enable")
	want(t, unitChecks(unit("mete-up.service", "not-found", "inactive", "dead", "", ""))[0], Missing, "no unit")
	want(t, unitChecks("")[0], Missing)
}

func TestProbe(t *testing.T) {
	now := time.Now()
	p := client.Probe{Version: "v1", Time: now, Took: time.Millisecond, Expires: now.Add(time.Hour), Names: []string{"server.example"}}
	got := probeChecks("https://s", &p, nil, now, "v1")
	want(t, one(t, got, "reachable"), OK)
	want(t, one(t, got, "trusted"), OK, "server.example")
	want(t, one(t, got, "token"), OK)
	want(t, one(t, got, "version"), OK, "as this program")
	want(t, one(t, probeChecks("https://s", &p, nil, now, "v2"), "version"), OK, "docs/upgrade.md")

	refused := fault.WithHint(fmt.Errorf("role agent cannot read: %w", fault.ErrDenied), "use a token of the role viewer")
	want(t, one(t, probeChecks("https://s", &p, refused, now, "v1"), "token"), Failed, "role agent cannot read", "use a token of the role viewer")
	down := fault.WithHint(fault.ErrUnavailable, "start one with: mete up")
	got = probeChecks("https://s", &client.Probe{}, down, now, "v1")
	if len(got) != 1 {
		t.Errorf("%v", got)
	}
	want(t, got[0], Failed, "start one with")
}

// TestReport checks the forms of the report: order, counts, width, and characters.
func TestReport(t *testing.T) {
	r := Report{Format: 1, Checks: []Check{}}
	r.add("kernel", []Check{of("version", OK, "Linux\n6.1\x1b[31m"), of("reader", Limited, "files").figures("fewer").do("run it as root or with many more words than fit on a line")})
	r.add("state", []Check{of("agent", Missing, "/höhle"), failed("ledger", fault.WithHint(errors.New("cut off"), "restore it"))})
	const text = `KERNEL
  ok       version  Linux 6.1?[31m
  limited  reader   files
                    figures: fewer
                    do: run it as root or with many more
                      words than fit on a line

STATE
  missing  agent    /h?hle
  failed   ledger   cut off
                    do: restore it

4 checks: 1 ok, 1 limited, 1 missing, 1 failed
`
	if got := r.text(60, true); got != text {
		t.Errorf("text:\n%s\nwant:\n%s", got, text)
	}
	if got := r.text(0, false); !strings.Contains(got, "/höhle\n") || !strings.Contains(got, "than fit on a line\n") || strings.Contains(got, "\x1b") {
		t.Errorf("text:\n%s", got)
	}
	b, err := r.json()
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Format int
		Checks []map[string]string
		Counts map[string]int
	}
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Format != 1 || len(back.Checks) != 4 || back.Checks[1]["state"] != "limited" || back.Checks[1]["figures"] != "fewer" || back.Counts["failed"] != 1 {
		t.Errorf("JSON: %s", b)
	}
}

// TestExamine examines this machine: each group has its checks, and those of the figures are the
// agent's own.
func TestExamine(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	state := t.TempDir()
	d := doctor{config: config{state: state, timeout: time.Hour}, host: h, uid: os.Geteuid(), getenv: func(string) string { return "" }, agent: agent.Default(), version: "v1"}
	d.agent.Machine.Energy.VSock, d.agent.Status = false, ""
	d.programs = [3]program{{name: "mete server", set: settings.New("server")}, {name: "mete up", set: settings.New("up")}, {name: "mete-agent", set: settings.New("agent")}}
	r := d.examine(t.Context())
	seen := map[string]bool{}
	for _, c := range r.Checks {
		seen[c.Group] = true
		if c.Found == "" {
			t.Errorf("%s/%s found nothing", c.Group, c.Name)
		}
	}
	for _, g := range groups[:len(groups)-1] { // no server is named
		if !seen[g] {
			t.Errorf("no check of %s", g)
		}
	}
	if seen["server"] {
		t.Error("a server is checked that no flag names")
	}
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("the state directory was changed: %v, %v", left, err)
	}
}

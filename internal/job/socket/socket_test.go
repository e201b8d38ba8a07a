package socket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

const id = "01k5x3v7qz8r9s0t1v2w3x4y5z"

// fakeAgent implements an agent's hooks and records their calls.
type fakeAgent struct {
	mu     sync.Mutex
	did    []string
	job    socket.Job
	end    socket.Outcome
	peer   socket.Peer
	key    func(p socket.Peer, id string) string
	fail   error // of Register
	self   *socket.SelfAccess
	hang   chan struct{} // Snapshot and End wait for it to close, or for ctx
	hangs  chan struct{} // receives when one begins to wait; nil is none
	status any
}

func (a *fakeAgent) note(s string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.did = append(a.did, s)
}

func (a *fakeAgent) Key(p socket.Peer, id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peer = p
	if a.key == nil {
		return id
	}
	return a.key(p, id)
}

func (a *fakeAgent) Project(_ socket.Peer, wanted string) (string, error) {
	return socket.Projects{1234: "shop"}.Of(1234, wanted)
}

func (a *fakeAgent) Register(_ string, j socket.Job) (socket.Registration, error) {
	a.note("register " + j.ID)
	a.job = j
	return socket.Registration{Self: a.self}, a.fail
}

func (a *fakeAgent) Snapshot(ctx context.Context) error {
	a.note("snapshot")
	return a.wait(ctx)
}

func (a *fakeAgent) End(ctx context.Context, id string, o socket.Outcome) error {
	a.note("end " + id)
	a.end = o
	return a.wait(ctx)
}

func (a *fakeAgent) wait(ctx context.Context) error {
	if a.hang == nil {
		return nil
	}
	if a.hangs != nil {
		a.hangs <- struct{}{}
	}
	select {
	case <-a.hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *fakeAgent) Status() any { return a.status }

// dir is a directory that every user may enter, with a short name.
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// listen runs an agent's side at path until the test or stop ends it.
func listen(t *testing.T, path string, a *fakeAgent) (s *socket.Server, stop func()) {
	t.Helper()
	s, err := socket.Listen(path, a, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Errorf("the end of the server: %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func dial(t *testing.T, path string) *socket.Client {
	t.Helper()
	c, err := socket.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.Hurry(1000*time.Hour, time.Hour) // an agent that does not hang may take its time
	return c
}

func job() socket.Job {
	return socket.Job{
		ID: id, Name: "nightly", Labels: map[string]string{"team": "web"}, User: "another user", Project: "shop",
		Groups:  []string{"/user.slice/mete-run-" + id, "/mete-run-" + id + ".scope"},
		Started: time.Now().UTC(),
	}
}

// TestSelf checks that a job receives the access to its own use that its agent gives, if any.
func TestSelf(t *testing.T) {
	path := filepath.Join(dir(t), "agent.sock")
	a := &fakeAgent{}
	listen(t, path, a)
	for _, self := range []*socket.SelfAccess{nil, {}, {URL: "https://server/v1/self", Token: "t", CA: "/run/mete/ca.pem"}} {
		c := dial(t, path)
		a.self = self
		if err := c.Register(t.Context(), job()); err != nil {
			t.Fatal(err)
		}
		given := self != nil && self.Token != ""
		if s, ok := c.SelfAccess(id); ok != given || given && s != *self {
			t.Errorf("it is to ask by %+v, want %+v", s, self)
		}
	}
}

// TestJob follows a job from its start to its end.
func TestJob(t *testing.T) {
	path := filepath.Join(dir(t), "run", "agent.sock")
	a := &fakeAgent{status: map[string]int{"jobs": 1}}
	s, _ := listen(t, path, a)
	for p, want := range map[string]os.FileMode{path: os.ModeSocket | 0o666, filepath.Dir(path): os.ModeDir | 0o755} {
		if info, err := os.Stat(p); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", p, info.Mode(), err, want)
		}
	}
	c, ctx := dial(t, path), t.Context()
	j := job()
	if err := c.Register(ctx, j); err != nil {
		t.Fatal(err)
	}
	if a.job.User == j.User || a.job.User == "" {
		t.Errorf("the user is %q", a.job.User)
	}
	want := j
	want.User = a.job.User
	if d := cmp.Diff(want, a.job); d != "" {
		t.Error(d)
	}
	if me := (socket.Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: os.Getpid()}); a.peer != me {
		t.Errorf("the peer is %+v, want %+v", a.peer, me)
	}
	if list, err := c.Jobs(ctx); err != nil || !slices.Equal(list, []socket.Named{{ID: id, Name: j.Name, User: a.job.User, Project: j.Project}}) {
		t.Errorf("the open jobs are %v, %v", list, err)
	}
	if err := c.Snapshot(ctx, id); err != nil {
		t.Fatal(err)
	}
	o := socket.Outcome{Ended: time.Now().UTC(), Exit: 143, Signal: 15}
	if err := c.End(ctx, id, o); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Jobs(ctx); err != nil || list == nil || len(list) > 0 {
		t.Errorf("after the end the open jobs are %v, %v", list, err)
	}
	if a.end != o {
		t.Errorf("the end is %+v, want %+v", a.end, o)
	}
	if got := []string{"register " + id, "snapshot", "end " + id}; !slices.Equal(a.did, got) || s.Open() != 0 {
		t.Errorf("the agent did %q, %d jobs are open", a.did, s.Open())
	}
	// It is over: there is nothing to end, and nothing to go on with.
	for _, err := range []error{c.End(ctx, id, o), c.Snapshot(ctx, id)} {
		if !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("after the end: %v", err)
		}
	}
	var status map[string]int
	if err := c.Status(ctx, &status); err != nil || status["jobs"] != 1 {
		t.Errorf("status %v, %v", status, err)
	}
}

// TestRefused checks what is refused, and how.
func TestRefused(t *testing.T) {
	path := filepath.Join(dir(t), "agent.sock")
	a := &fakeAgent{key: func(_ socket.Peer, id string) string {
		if strings.HasPrefix(id, "7") {
			return ""
		}
		return id
	}}
	s, _ := listen(t, path, a)
	c, ctx := dial(t, path), t.Context()
	other := strings.Replace(id, "0", "7", 1)
	for name, x := range map[string]struct {
		change func(j *socket.Job)
		want   error
	}{
		"no id":           {func(j *socket.Job) { j.ID = "" }, fault.ErrInvalid},
		"id of a path":    {func(j *socket.Job) { j.ID = "../../../../../etc/passwd1" }, fault.ErrInvalid},
		"id of a scope":   {func(j *socket.Job) { j.ID = id + ".scope" }, fault.ErrInvalid},
		"upper case":      {func(j *socket.Job) { j.ID = strings.ToUpper(id) }, fault.ErrInvalid},
		"no group":        {func(j *socket.Job) { j.Groups = nil }, fault.ErrInvalid},
		"group of others": {func(j *socket.Job) { j.Groups = append(j.Groups, "/system.slice/sshd.service") }, fault.ErrInvalid},
		"other job":       {func(j *socket.Job) { j.Groups = []string{"/mete-run-" + other} }, fault.ErrInvalid},
		"below its group": {func(j *socket.Job) { j.Groups = []string{"/mete-run-" + id + "/x.service"} }, fault.ErrInvalid},
		"relative":        {func(j *socket.Job) { j.Groups = []string{"mete-run-" + id} }, fault.ErrInvalid},
		"many groups":     {func(j *socket.Job) { j.Groups = slices.Repeat(j.Groups, 100) }, fault.ErrInvalid},
		"long name":       {func(j *socket.Job) { j.Name = strings.Repeat("x", 257) }, fault.ErrInvalid},
		"escape":          {func(j *socket.Job) { j.Name = "\x1b[2J" }, fault.ErrInvalid},
		"line":            {func(j *socket.Job) { j.Project = "a\nb" }, fault.ErrInvalid},
		"label":           {func(j *socket.Job) { j.Labels = map[string]string{"": "x"} }, fault.ErrInvalid},
		"many labels": {func(j *socket.Job) {
			for i := range batch.MaxLabels + 1 {
				j.Labels[fmt.Sprint("k", i)] = ""
			}
		}, fault.ErrInvalid},
		"namespace":     {func(j *socket.Job) { j.Labels["io.kubernetes.pod.namespace"] = "kube-system" }, fault.ErrInvalid},
		"pod":           {func(j *socket.Job) { j.Labels["pod"] = "coredns" }, fault.ErrInvalid},
		"project":       {func(j *socket.Job) { j.Project = "of-others" }, fault.ErrDenied},
		"label's value": {func(j *socket.Job) { j.Labels = map[string]string{"k": "\x00"} }, fault.ErrInvalid},
		"large": {func(j *socket.Job) {
			j.Groups = slices.Repeat([]string{strings.Repeat("/x", 1000) + "/mete-run-" + id}, 40)
		}, fault.ErrInvalid},
		"no start": {func(j *socket.Job) { j.Started = time.Time{} }, fault.ErrInvalid},
		"tomorrow": {func(j *socket.Job) { j.Started = time.Now().AddDate(0, 0, 1) }, fault.ErrInvalid},
		"of another user": {func(j *socket.Job) {
			j.ID = other
			j.Groups = []string{"/mete-run-" + other}
		}, fault.ErrDenied},
	} {
		j := job()
		x.change(&j)
		if err := c.Register(ctx, j); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
	}
	a.fail = fmt.Errorf("not now: %w", fault.ErrUnavailable)
	if err := c.Register(ctx, job()); !errors.Is(err, fault.ErrUnavailable) || s.Open() != 0 {
		t.Errorf("where the agent fails: %v, %d jobs are open", err, s.Open())
	}
	a.fail = errors.New("the password is 1234")
	if err := c.Register(ctx, job()); err == nil || strings.Contains(err.Error(), "1234") {
		t.Errorf("an error of the agent's own: %v", err)
	}
	a.fail = nil
	if err := c.Register(ctx, job()); err != nil {
		t.Fatal(err)
	}
	for _, o := range []socket.Outcome{{}, {Ended: time.Now(), Exit: 256}, {Ended: time.Now(), Exit: -1}, {Ended: time.Now(), Signal: 65}, {Ended: time.Now().AddDate(1, 0, 0)}} {
		if err := c.End(ctx, id, o); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("end %+v: %v", o, err)
		}
	}
	if s.Open() != 1 {
		t.Errorf("%d jobs are open", s.Open())
	}
	s.Forget(id)
	if s.Open() != 0 {
		t.Errorf("%d jobs are open after Forget", s.Open())
	}
}

// as returns a client of HTTP that connects as another user.
func as(t *testing.T, uid int, path string) *http.Client {
	t.Helper()
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return dialAs(uid, path) },
	}}
}

// dialAs connects as another user. The kernel notes who the thread is.
func dialAs(uid int, path string) (net.Conn, error) {
	runtime.LockOSThread()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	const same = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); e != 0 {
		return nil, e
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); e != 0 {
		return nil, e // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	if err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// TestOthers checks what one user may do with the job of another, in whose group both have a
// process: nothing; and that root takes the job over. Below, each has a group with the same id: those
// are two jobs.
func TestOthers(t *testing.T) {
	hosttest.Need(t, "root")
	path := filepath.Join(dir(t), "agent.sock")
	a := &fakeAgent{}
	listen(t, path, a)
	ask := func(uid int, method, what, body string) int {
		t.Helper()
		q, err := http.NewRequest(method, "http://agent/v1/"+what, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r, err := as(t, uid, path).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		return r.StatusCode
	}
	const begin = `{"id":"` + id + `","user":"root","groups":["/mete-run-` + id + `"],"started":"2026-01-02T03:04:05Z","of_tomorrow":1}`
	const end = `{"ended":"2026-01-02T03:04:06Z","exit":0}`
	for _, x := range []struct {
		uid                int
		method, what, body string
		status             int
	}{
		{54321, "POST", "jobs", begin, 200},
		{54321, "POST", "jobs", begin, 200},
		{54322, "POST", "jobs", begin, 409},
		{54322, "POST", "jobs/" + id + "/snapshot", "", 403},
		{54322, "PUT", "jobs/" + id + "/end", end, 403},
		{54321, "POST", "jobs/" + id + "/snapshot", "", 200},
		{54321, "PUT", "jobs/" + id + "/end", "{", 400},
		{54321, "PUT", "jobs/" + id + "/end", end, 200},
		{54321, "PUT", "jobs/" + id + "/end", end, 404},
		{54321, "POST", "jobs", begin, 200},
		{0, "POST", "jobs", begin, 200},
		{54321, "POST", "jobs", begin, 409},
		{54321, "PUT", "jobs/" + id + "/end", end, 403},
		{0, "PUT", "jobs/" + id + "/end", end, 200},
		{54321, "POST", "jobs", begin, 200},
		{0, "PUT", "jobs/" + id + "/end", end, 200},
		{54322, "GET", "status", "", 200},
		{54322, "DELETE", "jobs/" + id, "", 404},
		{54322, "GET", "jobs", "", 200},
		{54322, "DELETE", "jobs", "", 405},
		{54322, "PUT", "jobs/..%2f/end", end, 400},
	} {
		if got := ask(x.uid, x.method, x.what, x.body); got != x.status {
			t.Errorf("user %d: %s %s: %d, want %d", x.uid, x.method, x.what, got, x.status)
		}
	}
	if a.job.User != "54321" {
		t.Errorf("the user is %q", a.job.User)
	}
	a.mu.Lock()
	a.did, a.key = nil, func(p socket.Peer, id string) string { return workload.JobKey(id, p.UID) }
	a.mu.Unlock()
	for _, uid := range []int{54321, 54322, 0} {
		if got := ask(uid, "POST", "jobs", begin); got != 200 {
			t.Errorf("user %d: %d with a group of their own", uid, got)
		}
	}
	for _, uid := range []int{54322, 54321, 0} {
		if got := ask(uid, "PUT", "jobs/"+id+"/end", end); got != 200 {
			t.Errorf("user %d: %d as their own job ends", uid, got)
		}
	}
	want := []string{"end " + id + "@54322", "end " + id + "@54321", "end " + id}
	if got := a.did[max(0, len(a.did)-3):]; !slices.Equal(got, want) {
		t.Errorf("ended %v, want %v", got, want)
	}
}

// TestCrowd checks that one user cannot keep the others out.
func TestCrowd(t *testing.T) {
	hosttest.Need(t, "root")
	path := filepath.Join(dir(t), "agent.sock")
	s, _ := listen(t, path, &fakeAgent{})
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for range socket.MaxOfUser + 1 {
		c, err := dialAs(54321, path)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	last := held[socket.MaxOfUser]
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection too many: %v, want its end", err)
	}
	c := dial(t, path)
	if err := c.Register(t.Context(), job()); err != nil {
		t.Errorf("another user: %v", err)
	}
	for n := range socket.MaxJobs/2 + 1 {
		err := s.Add(fmt.Sprint("job ", n), 54321)
		if full := n == socket.MaxJobs/2; full != errors.Is(err, fault.ErrUnavailable) || !full && err != nil {
			t.Fatalf("job %d of a user: %v", n, err)
		}
	}
	if err := s.Add("a job of another", 54322); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// TestStale checks who gets the socket.
func TestStale(t *testing.T) {
	d := dir(t)
	path := filepath.Join(d, "agent.sock")
	a := &fakeAgent{}

	// A killed agent leaves its socket.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if _, err := socket.Listen(path, a, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Listen at a socket in use: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Dial(path); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("Dial at a stale socket: %v", err)
	}
	_, stop := listen(t, path, a)
	if _, err := socket.Listen(path, a, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("Listen at the socket of another agent: %v", err)
	}
	dial(t, path)
	stop()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end the socket: %v", err)
	}
	if _, err := socket.Dial(path); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("Dial without a socket: %v", err)
	}
	_, stop = listen(t, path, a)
	stop()

	// Listen does not replace a file that is not a socket.
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Listen(path, a, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Listen at a file: %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file: %q, %v", b, err)
	}
	if _, err := socket.Listen(filepath.Join(d, strings.Repeat("x", 100)), a, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a path that is too long: %v", err)
	}
}

// TestRivals checks that of agents that start together where a dead one's socket
// is left one gets it, and can be reached.
func TestRivals(t *testing.T) {
	path := filepath.Join(dir(t), "agent.sock")
	for range 20 {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		won := make(chan *socket.Server, 8)
		var all sync.WaitGroup
		for range cap(won) {
			all.Go(func() {
				s, err := socket.Listen(path, &fakeAgent{}, slog.New(slog.DiscardHandler))
				if err == nil {
					won <- s
				} else if !errors.Is(err, fault.ErrConflict) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("%d agents have the socket", len(won))
		}
		dial(t, path)
		if err := (<-won).Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHang checks that an agent that hangs does not block clients while it hangs, and that it can
// be ended.
func TestHang(t *testing.T) {
	path := filepath.Join(dir(t), "agent.sock")
	a := &fakeAgent{hang: make(chan struct{}), hangs: make(chan struct{}, 4)}
	_, stop := listen(t, path, a)
	c, ctx := dial(t, path), t.Context()
	if err := c.Register(ctx, job()); err != nil {
		t.Fatal(err)
	}
	// The deadline of a call that the agent gets passes when the agent hangs; the calls between are not made.
	timeout := func() context.Context {
		end := expiring{ctx, make(chan struct{})}
		go func() { <-a.hangs; close(end.passed) }()
		return end
	}
	o := socket.Outcome{Ended: time.Now()}
	for _, err := range []error{c.Snapshot(timeout(), id), c.Snapshot(ctx, id), c.End(timeout(), id, o), c.Status(ctx, new(any))} {
		if !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("an agent that hangs: %v", err)
		}
	}
	if want, did := []string{"register " + id, "snapshot", "end " + id}, a.done(); !slices.Equal(did, want) {
		t.Errorf("the agent got the calls %q, want %q", did, want)
	}
	// Another job waits in it as the agent ends.
	late := make(chan error, 1)
	go func() { late <- dial(t, path).Snapshot(ctx, id) }()
	<-a.hangs
	// The client's own timeout passes whether the agent gets the call or not.
	hasty := dial(t, path)
	hasty.Hurry(time.Millisecond, 0)
	if err := hasty.Snapshot(ctx, id); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("within a millisecond: %v", err)
	}
	stop() // ends, though the agent hangs
	if err := <-late; !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("as the agent ended: %v", err)
	}
}

// An expiring context has a deadline that passes when the channel is closed.
type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.passed }

func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func (a *fakeAgent) done() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.did)
}

// TestRestart checks that a job survives its agent: the next agent learns of the job from the job's
// next call.
func TestRestart(t *testing.T) {
	path := filepath.Join(dir(t), "agent.sock")
	_, stop := listen(t, path, &fakeAgent{})
	c, ctx := dial(t, path), t.Context()
	if err := c.Register(ctx, job()); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := c.Snapshot(ctx, id); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("without an agent: %v", err)
	}
	a := &fakeAgent{}
	listen(t, path, a)
	if err := c.End(ctx, id, socket.Outcome{Ended: time.Now(), Exit: 3}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"register " + id, "end " + id}; !slices.Equal(a.did, want) || a.job.Name != "nightly" {
		t.Errorf("the new agent got the calls %q, for the job %q", a.did, a.job.Name)
	}
}

// TestPaths checks where agents are looked for.
func TestPaths(t *testing.T) {
	for _, x := range []struct {
		env  map[string]string
		uid  int
		path string
		all  []string
	}{
		{nil, 0, "/run/mete/agent.sock", []string{"/run/mete/agent.sock"}},
		{map[string]string{"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/mete/agent.sock", []string{"/run/mete/agent.sock"}},
		{nil, 1000, "", []string{"/run/mete/agent.sock"}},
		{map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000, "/run/user/1000/mete/agent.sock", []string{"/run/mete/agent.sock", "/run/user/1000/mete/agent.sock"}},
		{map[string]string{"XDG_RUNTIME_DIR": "tmp"}, 1000, "", []string{"/run/mete/agent.sock"}},
		{map[string]string{"METE_SOCKET": "/tmp/s", "XDG_RUNTIME_DIR": "/run/user/1000"}, 1000, "/tmp/s", []string{"/tmp/s"}},
	} {
		getenv := func(k string) string { return x.env[k] }
		if got := socket.Path(getenv, x.uid); got != x.path {
			t.Errorf("Path(%v, %d) = %q, want %q", x.env, x.uid, got, x.path)
		}
		if got := socket.Paths(getenv, x.uid); !slices.Equal(got, x.all) {
			t.Errorf("Paths(%v, %d) = %q, want %q", x.env, x.uid, got, x.all)
		}
	}
}

// TestJobsOfOthers checks that a user other than root is shown their own open jobs only.
func TestJobsOfOthers(t *testing.T) {
	path := filepath.Join(dir(t), "agent.sock")
	s, _ := listen(t, path, &fakeAgent{})
	s.AddNamed("01m8bbv84mrbx1gh178pvz8s15", 1234, "of 1234")
	s.AddNamed("01m8bbv9y28bykrgtcqnahb50w", 65534, "of 65534")
	for uid, want := range map[uint32][]string{0: {"of 1234", "of 65534"}, 1234: {"of 1234"}, 65534: {"of 65534"}, 7: {}} {
		got := []string{}
		for _, n := range s.JobsFor(socket.Peer{UID: uid}) {
			got = append(got, n.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("user %d is shown %q, want %q", uid, got, want)
		}
	}
}

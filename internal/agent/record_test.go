package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/faultfs"
	"mete.dev/mete/internal/testkit/hosttest"
)

// openLong opens an agent whose windows only store closes.
func openLong(t *testing.T, fs *faultfs.FS, server *taker) *bench {
	t.Helper()
	return openWith(t, fs, server, time.Hour)
}

// sample takes a tick.
func (b *bench) sample(t *testing.T) {
	t.Helper()
	if _, err := b.Machine.Tick(); err != nil {
		t.Fatal(err)
	}
}

// store takes a tick, closes the window and stores it.
func (b *bench) store(t *testing.T) {
	t.Helper()
	b.sample(t)
	var w usage.Window
	b.Machine.Accounts().CloseWindow(&w)
	b.storeWindow(&w)
}

// reopen kills the agent, and opens another one on what is durable.
func (b *bench) reopen(t *testing.T, fs *faultfs.FS) *bench {
	t.Helper()
	b.close(t, true)
	fs.Crash()
	next := openLong(t, fs, b.server)
	next.restoreTexts()
	return next
}

// TestRecordStart checks that the very first tick is durable before a window is, with its gaps: an
// agent that is killed in its first window resumes there.
func TestRecordStart(t *testing.T) {
	hosttest.Need(t, "procfs")
	fs := faultfs.New(func(int) int { return 0 })
	b := openLong(t, fs, &taker{})
	*b.Machine.Accounts() = *attribute.NewAfterLoss("n", "for a test")
	b.sample(t)
	at := b.Machine.Snapshot().At
	if err := b.record(nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b = b.reopen(t, fs)
	}
	b.store(t)
	if err := b.Sender.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := b.server.windows; len(w) == 0 || w[0].Start != at || w[0].StartReason != usage.StartResumed {
		t.Errorf("%d windows, want the first one to resume at %d", len(w), at)
	}
	var why []usage.Reason
	for _, g := range b.server.gaps {
		why = append(why, g.Reason)
	}
	if want := []usage.Reason{usage.Unwatched, usage.StateLost}; !slices.Equal(why, want) {
		t.Errorf("gaps %v, want %v", why, want)
	}
	b.close(t, false)
}

// TestRecordJobs checks that registered and ended jobs survive a kill, until a window has their
// names.
func TestRecordJobs(t *testing.T) {
	hosttest.Need(t, "procfs")
	fs := faultfs.New(func(int) int { return 0 })
	b := openLong(t, fs, &taker{})
	b.sample(t)
	if err := b.record(nil); err != nil {
		t.Fatal(err)
	}
	// That of the start, and one more if a group of this machine ended in the tick.
	started := b.Spool.Stats().Notes
	exit := 3
	for _, id := range []string{jobA, jobB} {
		if _, err := (jobHooks{b.Agent}).Register(id, socket.Job{ID: id, Name: "n" + id, User: "u", Project: "p", Labels: map[string]string{"k": "v"}, Started: noon}); err != nil {
			t.Fatal(err)
		}
	}
	n := b.openJobs[jobA]
	n.Ended, n.Exit = noon.Add(time.Minute), &exit
	b.jobNames[jobA] = n
	if err := b.record(nil); err != nil || b.Spool.Stats().Notes != started {
		t.Errorf("a name alone: %v, %d notes, want the %d of the start", err, b.Spool.Stats().Notes, started)
	}
	if err := b.record([]string{jobA}); err != nil {
		t.Fatal(err)
	}
	notes := b.Spool.Stats().Notes
	if err := b.record(nil); err != nil || b.Spool.Stats().Notes != notes {
		t.Errorf("nothing new: %v, %d notes, want %d", err, b.Spool.Stats().Notes, notes)
	}
	b = b.reopen(t, fs)
	if s := b.State(); s.Jobs != 1 {
		t.Errorf("%d jobs are open, want the one that has not ended", s.Jobs)
	}
	got := b.jobNames[jobA]
	if got.Exit == nil || *got.Exit != 3 || !got.Ended.Equal(n.Ended) || got.Job != "n"+jobA || got.User != "u" || got.Project != "p" || got.Labels["k"] != "v" || !got.Started.Equal(noon) {
		t.Errorf("the ended job's name is %+v", got)
	}
	b.applyJobNames(time.Now().Add(-nameDelay))
	if err := b.record(nil); err != nil || b.Spool.Stats().Notes != 1 {
		t.Errorf("a name that waits: %v, %d notes, want one", err, b.Spool.Stats().Notes)
	}
	b = b.reopen(t, fs)
	if got := b.jobNames[jobB]; got.Name != "n"+jobB || !got.Ended.IsZero() {
		t.Errorf("the other job's name is %+v", got)
	}
	b.close(t, false)
}

// TestWindowsKeepJobs checks that an agent that is killed after a window knows the jobs that are registered: the row with
// the end of a job's group comes in a later one.
func TestWindowsKeepJobs(t *testing.T) {
	hosttest.Need(t, "procfs")
	fs := faultfs.New(func(int) int { return 0 })
	b := openLong(t, fs, &taker{})
	register := func(id string) {
		t.Helper()
		if _, err := (jobHooks{b.Agent}).Register(id, socket.Job{ID: id, Name: "n" + id, User: "u", Started: noon}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(ids ...string) {
		t.Helper()
		b = b.reopen(t, fs)
		var got []string
		for key, job := range b.jobNames {
			if job.Name != "n"+key || job.Job != "n"+key || job.User != "u" || b.openJobs[key].Name != job.Name {
				t.Errorf("%s: %+v, open: %+v", key, job, b.openJobs[key])
			}
			got = append(got, key)
		}
		if slices.Sort(got); !slices.Equal(got, ids) {
			t.Errorf("the agent knows %v, want %v", got, ids)
		}
	}
	register(jobA)
	b.store(t)
	check(jobA)
	b.store(t) // the first window of this agent has all jobs, the next ones what changes
	b.store(t)
	check(jobA)
	b.store(t)
	register(jobB)
	b.store(t)
	check(jobA, jobB)
	b.store(t)
	b.names.jobs[jobA].seen = time.Now().Add(-jobTimeout)
	b.store(t)
	if texts := len(b.Spool.Texts()); texts != 1 {
		t.Errorf("%d texts, want that of the first window: nothing changed", texts)
	}
	b.store(t)
	check(jobB)
	b.close(t, false)
}

// TestEndIsRecorded checks that the answer to the end of a job follows its note.
func TestEndIsRecorded(t *testing.T) {
	hosttest.Need(t, "procfs")
	b := openLong(t, faultfs.New(func(int) int { return 0 }), &taker{})
	b.Machine.OnBooked(b.record)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Machine.Run(ctx, nil, b.storeWindow) }()
	h := jobHooks{b.Agent}
	if _, err := h.Register(jobA, socket.Job{ID: jobA, Name: "a", Started: noon}); err != nil {
		t.Fatal(err)
	}
	if err := h.End(ctx, jobA, socket.Outcome{Ended: noon.Add(time.Minute), Exit: 3}); err != nil {
		t.Error(err)
	}
	if notes := b.Spool.Texts(); !slices.ContainsFunc(notes, func(n []byte) bool { return strings.Contains(string(n), `"exit":3`) }) {
		t.Errorf("notes %q, want one with the end of the job", notes)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.close(t, false)
}

// TestRecordFullDisk checks that a full disk stops neither measuring nor windows, that the status says
// what is not recorded, and that ends are recorded again after the next window.
func TestRecordFullDisk(t *testing.T) {
	hosttest.Need(t, "procfs")
	fs := faultfs.New(func(int) int { return 0 })
	b := openLong(t, fs, &taker{})
	b.sample(t)
	if err := b.record(nil); err != nil {
		t.Fatal(err)
	}
	fs.SetFree(0)
	if _, err := (jobHooks{b.Agent}).Register(jobA, socket.Job{ID: jobA, Name: "a", Started: noon}); err != nil {
		t.Fatal(err)
	}
	err := b.record([]string{jobA})
	if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "is not on disk") {
		t.Errorf("the job gets %v", err)
	}
	for range 3 {
		b.sample(t)
		_ = b.record([]string{jobA}) // it tries again
		_ = b.record(nil)
	}
	if s := b.State(); !strings.Contains(s.Unrecorded, "no checkpoint since the last failed write") {
		t.Errorf("status %q", s.Unrecorded)
	}
	if n := strings.Count(b.log.String(), "not recorded at once"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, b.log)
	}
	b.store(t) // the window does not fit either
	if b.unsaved == nil {
		t.Fatal("a window on a full disk")
	}
	if err := b.record([]string{jobA}); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("while windows are held: %v", err)
	}
	fs.SetFree(-1)
	b.store(t)
	if s := b.State(); s.Unrecorded != "" || s.Failing != "" {
		t.Errorf("status %+v", s)
	}
	b.sample(t)
	if err := b.record([]string{jobA}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(b.log.String(), "recorded at once again") {
		t.Errorf("log:\n%s", b.log)
	}
	b.close(t, false)
}

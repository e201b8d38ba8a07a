package storage

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// A walk measures one workload, in turns.
type walk struct {
	x       *target
	sign    Sign  // at its start
	started int64 // ns of CLOCK_BOOTTIME
	l       locator
	logs    string            // of x
	pods    map[string]string // of the containers whose logs to look for first; nil for none
	found   *found
	tree    *tree // of a part; nil between two
	next    int   // part
	bytes   int64
	files   int
	base    string // what the present turn reads
}

// A turn is what a walk did in one.
type turn struct {
	files int
	done  bool
	logs  map[string]string // see walk.pods
	err   error
}

var (
	errHung    = fmt.Errorf("the file system does not answer: %w", fault.ErrUnavailable)
	errClaimed = fmt.Errorf("the writable layer is another container's: %w", fault.ErrConflict)
	errOld     = fmt.Errorf("the walk takes longer than a figure holds: %w", fault.ErrUnavailable)
	errFull    = fmt.Errorf("too many large directories are walked: %w", fault.ErrUnavailable)
)

// run walks until Close.
func (t *Table) run() {
	defer close(t.ended)
	defer t.closeWalks()
	for {
		w, wait := t.nextTurn()
		changed := t.changed
		if w != nil {
			began := time.Now()
			files, ok := t.take(w)
			if !ok {
				return
			}
			wait, changed = max(time.Duration(files)*time.Second/time.Duration(t.cfg.Rate), restShare*time.Since(began)), nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-t.stop:
			timer.Stop()
			return
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// nextTurn returns the walk that has the next turn: a short one and the long ones alternate. Without any it returns how long to
// wait.
func (t *Table) nextTurn() (*walk, time.Duration) {
	t.turns++
	long := t.nextLong()
	if long != nil && t.turns%2 == 0 {
		return long, 0
	}
	if t.short != nil {
		return t.short, 0
	}
	wait := t.begin()
	if t.short != nil {
		return t.short, 0
	}
	return long, wait
}

// nextLong returns the long walk that has the next turn, nil if there is none: in turn the one that has looked at the fewest files, so that
// a huge one does not keep smaller ones waiting, and the oldest, so that several huge ones do not keep each other from ending. Walks
// wait while a file system that they read does not answer.
func (t *Table) nextLong() (next *walk) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.long { // the oldest first
		switch {
		case t.hung[w.base] > 0:
		case next == nil, t.turns%4 < 2 && w.files < next.files:
			next = w
		}
	}
	return next
}

// begin begins the walk that is due first. If none is, it returns how long to wait.
func (t *Table) begin() time.Duration {
	now, err := t.host.Boottime()
	if err != nil {
		return minPause
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := map[string]bool{} // pods with a long walk: each has one at once
	for _, w := range t.long {
		busy[w.x.tenant()] = true
	}
	var x *target
	first := now + int64(minPause)
	for _, one := range t.bySlot {
		if one == nil || one.busy || one.large && (len(t.long) == maxLong || busy[one.tenant()]) {
			continue
		}
		if due := one.due(); due < first {
			x, first = one, due
		}
	}
	if x == nil || first > now || t.hangs >= maxHung {
		return max(time.Duration(first-now), time.Second)
	}
	x.busy = true
	w := &walk{x: x, sign: x.sign, started: now, logs: x.logs}
	w.l = locator{cfg: t.cfg, host: t.host, enter: func(base string) error { return t.enter(w, base) }}
	if x.Pod != "" && x.logs == "" && (!x.looked || now-t.logsAt > int64(logsPause)) {
		t.logsAt, w.pods = now, map[string]string{}
		for _, one := range t.bySlot {
			if one != nil && one.Pod != "" && one.logs == "" {
				w.pods[one.Key], one.looked = one.Pod, true
			}
		}
	}
	t.short = w
	return 0
}

// enter notes what a walk reads, and keeps it away from a file system that does not answer.
func (t *Table) enter(w *walk, base string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.base = base
	if t.hung[base] > 0 {
		return fmt.Errorf("%s: %w", base, errHung)
	}
	return nil
}

// take takes a turn of a walk, and returns how many files it looked at, false if Close ended it.
func (t *Table) take(w *walk) (files int, ok bool) {
	done := make(chan turn, 1)
	go func() { done <- w.step() }()
	timer := time.NewTimer(t.patience)
	defer timer.Stop()
	select {
	case is := <-done:
		t.follow(w, is)
		return is.files, true
	case <-timer.C:
		t.log.Warn("disk space is not measured, as a file system does not answer", "directory", t.abandon(w, done))
		return turnFiles, true
	case <-t.stop:
		select {
		case <-done:
		case <-time.After(closeTime):
			t.remove(w) // its files stay open until the turn ends
		}
		return 0, false
	}
}

// closeWalks closes the files of all walks.
func (t *Table) closeWalks() {
	for _, w := range append(t.long, t.short) {
		if w == nil {
			continue
		}
		if err := w.close(); err != nil {
			t.log.Debug("disk space", "path", w.x.Path, "err", err)
		}
	}
	t.short, t.long = nil, nil
}

// follow does what follows from a turn.
func (t *Table) follow(w *walk, is turn) {
	now, err := t.host.Boottime()
	if err != nil {
		now = w.started
	}
	w.files += is.files
	if !t.settle(w, &is, now) {
		return
	}
	// Not while the tick may wait: to close the last descriptor of a directory that was removed takes the disk.
	if err := errors.Join(is.err, w.close()); err != nil {
		t.log.Debug("disk space", "path", w.x.Path, "err", err)
	}
}

// settle books what a turn did, and reports whether it was the last one of its walk.
func (t *Table) settle(w *walk, is *turn, now int64) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.bySlot {
		if x != nil && is.logs[x.Key] != "" {
			x.logs = is.logs[x.Key]
		}
	}
	x := w.x
	large := w.files > t.shortFiles
	switch {
	case is.err != nil, is.done:
	case x.gone:
		is.err = errReplaced
	case now-w.started > int64(maxAge):
		is.err = errOld
	case w == t.short && large && len(t.long) == maxLong:
		is.err = errFull
	case w == t.short && large:
		t.short, t.long = nil, append(t.long, w)
		return false
	default:
		return false
	}
	if is.err == nil {
		is.err = t.book(w, now)
	}
	t.remove(w)
	x.busy, x.large, x.tried = false, large, now
	if is.err != nil {
		x.pause = min(max(2*x.pause, retryPause), maxPause)
	}
	x.pause = max(x.pause, restWalks*time.Duration(now-w.started))
	return true
}

// book makes the result of a walk the figure of its workload, unless the writable layer is that of another one.
func (t *Table) book(w *walk, now int64) error {
	x := w.x
	if x.gone || x.hadVolumes && w.found.id == (fileID{}) {
		return errReplaced
	}
	x.hadVolumes = x.Kind == workload.Pod && w.found.id != fileID{}
	if id := w.found.id; w.found.process != nil && id != x.claim {
		if t.claims[id] != nil {
			return errClaimed
		}
		delete(t.claims, x.claim)
		x.claim, t.claims[id] = id, x
	}
	x.pause = min(2*x.pause, maxPause)
	if x.at == 0 || w.bytes != x.bytes {
		x.pause = minPause
	}
	x.bytes, x.at, x.walked = w.bytes, now, w.sign
	return nil
}

// remove removes a walk from those that have turns.
func (t *Table) remove(w *walk) {
	if t.short == w {
		t.short = nil
	}
	t.long = slices.DeleteFunc(t.long, func(one *walk) bool { return one == w })
}

// abandon leaves a walk whose turn does not end, and returns what it reads. Once it ends, the workload has its next walk.
func (t *Table) abandon(w *walk, done <-chan turn) (base string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	base = w.base
	t.hung[base]++
	t.hangs++
	t.remove(w)
	go func() {
		<-done
		err := w.close()
		now, clockErr := t.host.Boottime()
		if err := errors.Join(err, clockErr); err != nil {
			t.log.Debug("disk space", "path", w.x.Path, "err", err)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.hung[base]--; t.hung[base] == 0 {
			delete(t.hung, base)
		}
		t.hangs--
		w.x.busy, w.x.tried, w.x.pause = false, now, maxPause
	}()
	return base
}

// step takes one turn.
func (w *walk) step() (is turn) {
	if w.found == nil {
		is.files = locateCost
		is.logs, is.err = w.locate()
		return is
	}
	var buf [4096]byte
	for is.files < turnFiles {
		if w.tree == nil {
			if w.next == len(w.found.parts) {
				is.done, is.err = true, w.l.check(w.found, &w.x.Target)
				return is
			}
			p := &w.found.parts[w.next]
			if is.err = w.l.enter(p.base); is.err != nil {
				return is
			}
			fd := p.fd
			p.fd = -1
			if w.tree, is.err = newTree(fd, p.logs); is.err != nil {
				return is
			}
			w.next++
		}
		n, done, err := w.tree.step(turnFiles-is.files, buf[:])
		is.files += n
		if err != nil {
			is.err = err
			return is
		}
		if done {
			w.bytes += w.tree.bytes
			err := w.tree.close()
			if w.tree = nil; err != nil {
				is.err = err
				return is
			}
		}
	}
	return is
}

// locate finds the directories, and the logs of some containers first.
func (w *walk) locate() (logs map[string]string, err error) {
	if w.pods != nil {
		logs, err = w.l.findLogs(w.pods)
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			return nil, err
		}
		w.logs, w.pods = logs[w.x.Key], nil
	}
	w.found, err = w.l.locate(&w.x.Target, w.logs)
	return logs, err
}

func (w *walk) close() error {
	var errs []error
	if w.tree != nil {
		errs = append(errs, w.tree.close())
	}
	if w.found != nil {
		errs = append(errs, w.found.close())
	}
	return errors.Join(errs...)
}

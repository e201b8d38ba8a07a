package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// Port is the name of the virtio port over which the guest's init is told what
// to do: a line of JSON for each [Request], and one for each [Reply].
const Port = "mete.control"

// A Request is what the guest's init is asked. It answers those that come later
// without waiting for those before.
type Request struct {
	ID int    `json:"id"`
	Do string `json:"do"` // start, signal, wait, read, write, get
	// Path is of a file to read or write, or the URL to get.
	Path string `json:"path,omitempty"`
	Data []byte `json:"data,omitempty"`
	// What to start: Args[0] is the program. It writes to the console.
	Args  []string `json:"args,omitempty"`
	Env   []string `json:"env,omitempty"`
	Group string   `json:"group,omitempty"` // control group to be in, made if need be
	PID   int      `json:"pid,omitempty"`   // to signal, or to wait for
	Sig   int      `json:"sig,omitempty"`
}

// A Reply is what the guest's init answers.
type Reply struct {
	ID   int    `json:"id"`
	PID  int    `json:"pid,omitempty"`
	Code int    `json:"code,omitempty"` // exit code; -1 for a signal
	Data []byte `json:"data,omitempty"`
	Err  string `json:"err,omitempty"`
}

// Settings are what the guest's init finds in the file [SettingsFile].
type Settings struct {
	Name    string   // of the host
	Modules []string // files, in the order in which they are loaded
	Shares  []Share  // to mount
}

// SettingsFile is where Settings are in the guest.
const SettingsFile = "/etc/mete-init.json"

// patience is how long the guest may take to answer what it can do at once.
const patience = 30 * time.Second

// A control is the connection to the guest's init.
type control struct {
	c    net.Conn
	mu   sync.Mutex
	last int
	wait map[int]chan Reply
	err  error
}

// newControl waits until the guest's init says something.
func newControl(c net.Conn) (*control, error) {
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		return nil, fmt.Errorf("the guest's init says nothing: %w", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	k := &control{c: c, wait: map[int]chan Reply{}}
	go k.read(r)
	return k, nil
}

// read hands replies to those who wait for them.
func (k *control) read(r io.Reader) {
	d := json.NewDecoder(r)
	for {
		var a Reply
		err := d.Decode(&a)
		k.mu.Lock()
		if err != nil {
			k.err = fmt.Errorf("the guest is gone: %w", err)
			for _, w := range k.wait {
				close(w)
			}
			k.wait = nil
			k.mu.Unlock()
			return
		}
		if w := k.wait[a.ID]; w != nil {
			delete(k.wait, a.ID)
			w <- a
		}
		k.mu.Unlock()
	}
}

// ask asks, and waits for the reply.
func (k *control) ask(q Request, limit time.Duration) (Reply, error) {
	k.mu.Lock()
	if k.err != nil {
		k.mu.Unlock()
		return Reply{}, k.err
	}
	k.last++
	q.ID = k.last
	w := make(chan Reply, 1)
	k.wait[q.ID] = w
	b, err := json.Marshal(q)
	if err == nil {
		_, err = k.c.Write(append(b, '\n'))
	}
	k.mu.Unlock()
	if err != nil {
		return Reply{}, err
	}
	select {
	case a, ok := <-w:
		if !ok {
			return a, k.err
		}
		if a.Err != "" {
			return a, fmt.Errorf("in the guest: %s %s%v: %w", q.Do, q.Path, q.Args, errors.New(a.Err))
		}
		return a, nil
	case <-time.After(limit):
		return Reply{}, fmt.Errorf("in the guest: %s %s%v: no answer within %v: %w", q.Do, q.Path, q.Args, limit, fault.ErrUnavailable)
	}
}

// Start starts a program of the guest, with an environment besides init's, in a
// control group of the guest where that is not "".
func (m *Machine) Start(group string, env []string, args ...string) (pid int, err error) {
	a, err := m.control.ask(Request{Do: "start", Args: args, Env: env, Group: group}, patience)
	return a.PID, err
}

// Signal sends a signal to a program that was started.
func (m *Machine) Signal(pid, sig int) error {
	_, err := m.control.ask(Request{Do: "signal", PID: pid, Sig: sig}, patience)
	return err
}

// Wait waits for the end of a program that was started. Its exit code is -1 where
// a signal ended it.
func (m *Machine) Wait(pid int, limit time.Duration) (code int, err error) {
	a, err := m.control.ask(Request{Do: "wait", PID: pid}, limit)
	return a.Code, err
}

// Read reads a file of the guest.
func (m *Machine) Read(path string) ([]byte, error) {
	a, err := m.control.ask(Request{Do: "read", Path: path}, patience)
	return a.Data, err
}

// Write writes a file of the guest.
func (m *Machine) Write(path string, data []byte) error {
	_, err := m.control.ask(Request{Do: "write", Path: path, Data: data}, patience)
	return err
}

// Get fetches a page from within the guest.
func (m *Machine) Get(url string) ([]byte, error) {
	a, err := m.control.ask(Request{Do: "get", Path: url}, patience)
	return a.Data, err
}

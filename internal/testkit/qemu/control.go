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

// Port is the name of the virtio port to the guest's init. Each [Request] and each [Reply]
// is a line of JSON.
const Port = "mete.control"

// A Request is a request to the guest's init, which handles requests concurrently.
type Request struct {
	ID int    `json:"id"`
	Do string `json:"do"` // start, signal, wait, read, write, get
	// Path of a file to read or write, or the URL to get.
	Path string `json:"path,omitempty"`
	Data []byte `json:"data,omitempty"`
	// The command to start: Args[0] is the program. It writes to the console.
	Args  []string `json:"args,omitempty"`
	Env   []string `json:"env,omitempty"`
	Group string   `json:"group,omitempty"` // control group to run in, created if needed
	PID   int      `json:"pid,omitempty"`   // to signal or to wait for
	Sig   int      `json:"sig,omitempty"`
}

// A Reply is a reply of the guest's init.
type Reply struct {
	ID   int    `json:"id"`
	PID  int    `json:"pid,omitempty"`
	Code int    `json:"code,omitempty"` // exit code; -1 for a signal
	Data []byte `json:"data,omitempty"`
	Err  string `json:"err,omitempty"`
}

// Settings is the content of [SettingsFile], for the guest's init.
type Settings struct {
	Name    string   // hostname
	Modules []string // files, in loading order
	Shares  []Share  // to mount
	Root    string   // device with the root file system; "" if init serves in the initramfs alone
}

// SettingsFile is the path of the Settings in the guest.
const SettingsFile = "/etc/mete-init.json"

// patience is how long the guest may take for a request that it can answer at once.
const patience = 30 * time.Second

// A control is the connection to the guest's init.
type control struct {
	c    net.Conn
	mu   sync.Mutex
	last int
	wait map[int]chan Reply
	err  error
}

// newControl waits for the first line of the guest's init.
func newControl(c net.Conn) (*control, error) {
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		return nil, fmt.Errorf("no line from the guest's init: %w", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	k := &control{c: c, wait: map[int]chan Reply{}}
	go k.read(r)
	return k, nil
}

// read passes replies to the waiting callers.
func (c *control) read(r io.Reader) {
	d := json.NewDecoder(r)
	for {
		var a Reply
		err := d.Decode(&a)
		c.mu.Lock()
		if err != nil {
			c.err = fmt.Errorf("the guest has ended: %w", err)
			for _, w := range c.wait {
				close(w)
			}
			c.wait = nil
			c.mu.Unlock()
			return
		}
		if w := c.wait[a.ID]; w != nil {
			delete(c.wait, a.ID)
			w <- a
		}
		c.mu.Unlock()
	}
}

// ask sends a request and waits for its reply.
func (c *control) ask(q Request, limit time.Duration) (Reply, error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return Reply{}, c.err
	}
	c.last++
	q.ID = c.last
	w := make(chan Reply, 1)
	c.wait[q.ID] = w
	b, err := json.Marshal(q)
	if err == nil {
		_, err = c.c.Write(append(b, '\n'))
	}
	c.mu.Unlock()
	if err != nil {
		return Reply{}, err
	}
	select {
	case a, ok := <-w:
		if !ok {
			return a, c.err
		}
		if a.Err != "" {
			return a, fmt.Errorf("in the guest: %s %s%v: %w", q.Do, q.Path, q.Args, errors.New(a.Err))
		}
		return a, nil
	case <-time.After(limit):
		return Reply{}, fmt.Errorf("in the guest: %s %s%v: no answer within %v: %w", q.Do, q.Path, q.Args, limit, fault.ErrUnavailable)
	}
}

// Start starts a program in the guest, with additional environment variables, in a control
// group of the guest unless group is "".
func (m *Machine) Start(group string, env []string, args ...string) (pid int, err error) {
	a, err := m.control.ask(Request{Do: "start", Args: args, Env: env, Group: group}, patience)
	return a.PID, err
}

// Signal sends a signal to a started program.
func (m *Machine) Signal(pid, sig int) error {
	_, err := m.control.ask(Request{Do: "signal", PID: pid, Sig: sig}, patience)
	return err
}

// Wait waits for the end of a started program. Its exit code is -1 if a signal ended it.
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

// Get fetches a URL from within the guest.
func (m *Machine) Get(url string) ([]byte, error) {
	a, err := m.control.ask(Request{Do: "get", Path: url}, patience)
	return a.Data, err
}

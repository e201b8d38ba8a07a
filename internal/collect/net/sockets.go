package net

import (
	"errors"
	"fmt"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// counter counts packets with BPF programs at the root of cgroup v2.
type counter struct {
	k  *bpf.Kernel
	at *bpf.Attachment
}

// openSockets attaches the counter.
func openSockets(h *hostfs.FS, k *bpf.Kernel, v2 hostfs.Hierarchy) (sockets, error) {
	if k == nil {
		return nil, fmt.Errorf("no BPF: %w", fault.ErrUnsupported)
	}
	if err := k.Err(bpf.Net); err != nil {
		return nil, err
	}
	dir, err := h.Open(v2.Mount)
	if err != nil {
		return nil, err
	}
	at, err := k.AttachNet(dir.Fd())
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	return &counter{k, at}, nil
}

func (c *counter) each(f func(group uint64, n Count)) {
	for n := range c.k.Counts() {
		// Ids of groups in other hierarchies are independent.
		if n.Hierarchy == 0 && n.ID != 0 {
			f(n.ID, Count{int64(n.RxBytes), int64(n.TxBytes), int64(n.RxPackets), int64(n.TxPackets)})
		}
	}
}

func (c *counter) close() error { return c.at.Close() }

package replica

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/workload"
)

// Mask replaces all names in a page. Names by which rows are grouped get a pseudonym, which is the
// same for the same name of one kind and cannot be reversed or tested without the secret; paths,
// keys, labels and free text are removed. So do addresses of peers: their pseudonyms are addresses for documentation (2001:db8::/32),
// which no machine has. Ids stay: they are random, or hashes of random values. So
// do kinds, the names of idle and system, and that a workload only has what a pod reserves.
func (p *Page) Mask(secret []byte) {
	m := masker(secret)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		n.Cluster, n.Name, n.Pool = m.mask("cluster", n.Cluster), m.mask("node", n.Name), m.mask("pool", n.Pool)
		n.MachineID, n.Boot = m.mask("machine", n.MachineID), m.mask("boot", n.Boot)
	}
	for i := range p.Workloads {
		w := &p.Workloads[i]
		w.Namespace, w.Pod, w.Container = m.mask("namespace", w.Namespace), m.mask("pod", w.Pod), m.mask("container", w.Container)
		w.Run.Name = m.mask("run", w.Run.Name)
		if w.Name == nil {
			continue
		}
		n := *w.Name
		key := ""
		if n.Reserves() {
			key = "/"
		}
		if n.Kind != workload.Idle && n.Kind != workload.System {
			name, reserved := strings.CutSuffix(n.Name, batch.ReservedSuffix)
			if n.Name = m.mask("name", name); reserved {
				n.Name += batch.ReservedSuffix
			}
		}
		n.Job, n.User, n.Project = m.mask("job", n.Job), m.mask("user", n.User), m.mask("project", n.Project)
		n.Key, n.Path, n.Labels = key, "", nil
		w.Name = &n
	}
	for i := range p.Gaps {
		p.Gaps[i].Detail = ""
	}
	for i := range p.Shifts {
		p.Shifts[i].Boot = m.mask("boot", p.Shifts[i].Boot)
	}
	for i := range p.Connections {
		c := &p.Connections[i]
		s := &connection.Sketch{Entries: slices.Clone(c.Sketch.Entries), Missed: c.Sketch.Missed}
		for j := range s.Entries {
			s.Entries[j].Peer = m.maskPeer(s.Entries[j].Peer)
		}
		slices.SortFunc(s.Entries, func(a, b connection.Entry) int { return a.Compare(b.Edge) })
		c.Sketch = s
	}
}

// Pseudonym returns what Mask makes of a name of some kind.
func Pseudonym(secret []byte, kind, name string) string { return masker(secret).mask(kind, name) }

type masker []byte

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// mask returns a pseudonym, or "" for an empty name, which reveals nothing.
func (m masker) mask(kind, name string) string {
	if name == "" {
		return ""
	}
	return "p-" + letters.EncodeToString(m.hash(kind, name)[:10]) // 80 bits: no collisions among a billion names
}

// maskPeer returns a pseudonym of an address.
func (m masker) maskPeer(peer netip.Addr) netip.Addr {
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	copy(a[4:], m.hash("peer", peer.String()))
	return netip.AddrFrom16(a)
}

func (m masker) hash(kind, name string) []byte {
	h := hmac.New(sha256.New, m)
	h.Write([]byte(kind + "\x00" + name))
	return h.Sum(nil)
}

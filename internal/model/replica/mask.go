package replica

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
)

// Mask replaces all names in a page. Names by which rows are grouped get a pseudonym, which is the
// same for the same name of one kind and cannot be reversed or tested without the secret; paths,
// keys, labels and free text are removed. Ids stay: they are random, or hashes of random values. So
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
	h := hmac.New(sha256.New, m)
	h.Write([]byte(kind + "\x00" + name))
	return "p-" + letters.EncodeToString(h.Sum(nil)[:10]) // 80 bits: no collisions among a billion names
}

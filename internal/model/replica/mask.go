package replica

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"

	"mete.dev/mete/internal/model/workload"
)

// Mask takes all names out of a page. What rows are grouped by gets a pseudonym,
// which is the same for the same name wherever it stands as such, and which
// nobody can turn back or try out without the secret; what a name was made of,
// labels and free text go altogether. Ids stay: they are random, or hashes over
// what is random. So do kinds, and the names of idle and system.
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
		if w.Name == nil {
			continue
		}
		n := *w.Name
		if n.Kind != workload.Idle && n.Kind != workload.System {
			n.Name = m.mask("name", n.Name)
		}
		n.Job, n.User, n.Project = m.mask("job", n.Job), m.mask("user", n.User), m.mask("project", n.Project)
		n.Key, n.Path, n.Labels = "", "", nil
		w.Name = &n
	}
	for i := range p.Gaps {
		p.Gaps[i].Detail = ""
	}
	for i := range p.Shifts {
		p.Shifts[i].Boot = m.mask("boot", p.Shifts[i].Boot)
	}
}

// Pseudonym is what Mask makes of a name of some kind.
func Pseudonym(secret []byte, kind, name string) string { return masker(secret).mask(kind, name) }

type masker []byte

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// mask leaves empty what is: that there is no name says nothing of anyone.
func (m masker) mask(kind, name string) string {
	if name == "" {
		return ""
	}
	h := hmac.New(sha256.New, m)
	h.Write([]byte(kind + "\x00" + name))
	return "p-" + letters.EncodeToString(h.Sum(nil)[:10]) // 80 bits: no two of a billion are alike
}

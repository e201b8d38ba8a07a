package wire

import (
	"fmt"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// HeaderReads is the header of every answer of a server in which it states the
// Format that it reads.
const HeaderReads = "Mete-Reads"

// ErrNewer says that a sender is newer than this server: its batch can be read
// once the server is upgraded. It wraps fault.ErrUnavailable, so that the sender
// keeps the batch.
var ErrNewer = fmt.Errorf("the sender is newer than this server: %w", fault.ErrUnavailable)

// A Format is a layout of batches and the resources in them: what a server reads,
// or what a batch uses.
type Format struct {
	Layout   int            `json:"layout"`   // the highest layout
	Resource usage.Resource `json:"resource"` // the highest resource number
}

// BaseFormat is the format of a server that does not state one: of those made before
// servers did.
func BaseFormat() Format { return Format{Layout: 1, Resource: usage.EnergyIdle} }

// LatestFormat is the format that this program reads.
func LatestFormat() Format { return Format{Layout: layoutVersion, Resource: usage.Limit - 1} }

// CanRead reports whether a server of this format reads what uses the other one.
func (f Format) CanRead(used Format) bool {
	return used.Layout <= f.Layout && used.Resource <= f.Resource
}

// String writes the format as HeaderReads has it: "layout=1; resource=30".
func (f Format) String() string { return fmt.Sprintf("layout=%d; resource=%d", f.Layout, f.Resource) }

// ParseFormat reads what String wrote; false is something else.
func ParseFormat(s string) (f Format, ok bool) {
	_, err := fmt.Sscanf(s, "layout=%d; resource=%d", &f.Layout, &f.Resource)
	return f, err == nil && f.Layout >= 1
}

// FormatOf returns the format that a batch uses.
func FormatOf(b *batch.Batch) Format {
	var used usage.Set
	for i := range b.Windows {
		w := &b.Windows[i]
		used |= w.Total.Present
		for j := range w.Rows {
			used |= w.Rows[j].Usage.Present | w.Rows[j].Has
		}
	}
	f := Format{Layout: layoutVersion}
	used.Each(func(r usage.Resource) { f.Resource = max(f.Resource, r) })
	return f
}

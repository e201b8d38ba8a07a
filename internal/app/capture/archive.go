package capture

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// An archive holds files and links of a machine by path, without the leading slash.
type archive struct {
	files map[string][]byte
	links map[string]string
}

func newArchive() *archive {
	return &archive{map[string][]byte{}, map[string]string{}}
}

// put adds a file.
func (a *archive) put(path string, data []byte) { a.files[strings.TrimPrefix(path, "/")] = data }

// link adds a symbolic link.
func (a *archive) link(path, to string) { a.links[strings.TrimPrefix(path, "/")] = to }

// goneFile, in a later tick, lists removed files, one path per line.
const goneFile = "mete/gone"

// later adds to a the state of the n-th tick: what differs in next from prev, the state of the
// previous tick, and what is gone.
func (a *archive) later(n int, prev, next *archive) {
	prefix := fmt.Sprintf("tick%d/", n)
	var gone []string
	for p := range prev.files {
		if _, ok := next.files[p]; !ok {
			gone = append(gone, p)
		}
	}
	for p := range prev.links {
		if _, ok := next.links[p]; !ok {
			gone = append(gone, p)
		}
	}
	for p, data := range next.files {
		if old, ok := prev.files[p]; !ok || !bytes.Equal(old, data) {
			a.files[prefix+p] = data
		}
	}
	for p, to := range next.links {
		if prev.links[p] != to {
			a.links[prefix+p] = to
		}
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		a.files[prefix+goneFile] = []byte(strings.Join(gone, "\n") + "\n")
	}
}

// write writes the archive in the txtar format: a comment, then each file after its name; a link is
// a name without content.
func (a *archive) write(w io.Writer, comment string) error {
	var b bytes.Buffer
	b.WriteString(comment)
	names := slices.Collect(maps.Keys(a.files))
	names = slices.AppendSeq(names, maps.Keys(a.links))
	slices.Sort(names)
	for _, name := range names {
		if to, ok := a.links[name]; ok {
			fmt.Fprintf(&b, "-- %s -> %s --\n", name, to)
			continue
		}
		data := a.files[name]
		fmt.Fprintf(&b, "-- %s --\n%s", name, data)
		if len(data) > 0 && data[len(data)-1] != '\n' {
			b.WriteByte('\n')
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

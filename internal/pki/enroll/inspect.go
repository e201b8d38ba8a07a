package enroll

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// A Stored is what an agent's state directory says of its identity.
type Stored struct {
	Path                  string // of the file
	Node, Cluster, Server string
	Certificate           *x509.Certificate
	Renew                 time.Time // when a running agent renews the certificate
}

// Inspect reads the identity with a certificate that is stored in a directory, and changes nothing.
// The error is that of the file, such as fs.ErrNotExist, or fault.ErrInvalid.
func Inspect(dir string) (Stored, error) {
	i := &Identity{cfg: Config{Dir: dir}}
	out := Stored{Path: filepath.Clean(i.path())}
	f, err := readFile[identityFile](i.path())
	if err != nil {
		return out, err
	}
	s, err := i.load(f)
	if err != nil {
		return out, fmt.Errorf("%s: %w: %w", out.Path, err, fault.ErrInvalid)
	}
	out.Node, out.Cluster, out.Server, out.Certificate, out.Renew = s.node, s.cluster, f.Server, s.leaf, s.renewalTime()
	return out, nil
}

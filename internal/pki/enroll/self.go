package enroll

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/atomicfile"
)

// SelfPath is the URL path at which a server answers a job about its own use.
const SelfPath = "/v1/self"

// Self returns the access of a job to its own use. It is empty if the server gave no job
// key, as older servers do, and if this machine is not that node.
func (i *Identity) Self(node string, id workload.ID) token.SelfAccess {
	s := i.state.Load()
	if s == nil || s.node != node {
		return token.SelfAccess{}
	}
	text := s.jobs.Sign(token.Job{Workload: id, Node: node, Ends: time.Now().Add(token.JobLife)})
	if text == "" {
		return token.SelfAccess{}
	}
	v := token.SelfAccess{URL: i.base.String() + SelfPath, Token: text}
	if !i.local {
		v.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Raw}))
	}
	return v
}

// JobClient returns a client that sends a job's token to the server at a URL and to no
// other. ca is the certificate of the server's authority in PEM; it may be "" for a
// server on the loopback interface without TLS.
func JobClient(server, text, ca string) (*http.Client, error) {
	base, local, err := parseServer(server)
	if err != nil {
		return nil, err
	}
	var check verifier
	if !local {
		block, _ := pem.Decode([]byte(ca))
		if block == nil {
			return nil, fault.WithHint(fmt.Errorf("%s: no certificate of its authority: %w", server, fault.ErrInvalid), "set METE_SELF_CA to the file that holds it")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate of the authority of %s: %w: %w", server, err, fault.ErrInvalid)
		}
		check = verifyRoot(c)
	}
	return newClient(jobTokenTransport{newTransport(check, nil, nil), text, base.Host}), nil
}

// jobTokenTransport sends a job's token to one host.
type jobTokenTransport struct {
	*http.Transport
	text, host string
}

// RoundTrip implements http.RoundTripper.
func (t jobTokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == t.host {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.text)
	}
	return t.Transport.RoundTrip(r)
}

// SelfBase returns the address of the server from the URL of its SelfPath.
func SelfBase(self string) (string, error) {
	u, err := url.Parse(self)
	if err != nil || u.Host == "" || !strings.HasSuffix(u.Path, SelfPath) {
		return "", fmt.Errorf("METE_SELF_URL %q: %w", self, fault.ErrInvalid)
	}
	u.Path = strings.TrimSuffix(u.Path, SelfPath)
	return u.String(), nil
}

// WriteCA writes the certificate of a server's authority, in PEM, to a world-readable
// file in dir and returns its path. It keeps an existing file with this content.
func WriteCA(dir, ca string) (path string, err error) {
	sum := sha256.Sum256([]byte(ca))
	path = filepath.Join(dir, "ca-"+hex.EncodeToString(sum[:8])+".pem")
	const mode = 0o644
	if b, err := os.ReadFile(path); err == nil && string(b) == ca {
		// The process that wrote it may have been killed before the chmod.
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == mode {
			return path, nil
		}
	} else if err := atomicfile.Replace(path, []byte(ca)); err != nil {
		return "", err
	}
	return path, os.Chmod(path, mode)
}

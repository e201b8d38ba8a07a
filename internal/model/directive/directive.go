// Package directive describes directives: what a server tells an agent. They consist of sections, which are named by the hashes
// of their contents, so that all agents for which a section holds share it and no agent takes one twice.
package directive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// Limits of what an agent takes.
const (
	MaxSections = 64
	MaxList     = 64 << 10 // bytes of a [List] as JSON
	MaxContent  = 4 << 20  // bytes of a section's content
)

// Names of sections.
const (
	// NetworkClasses is the classes of the addresses of other machines: [Classes] as JSON.
	NetworkClasses = "network-classes"
	// NetworkNode is the same of the addresses of the agent's own machine, which precede the others.
	NetworkNode = "network-node"
)

// A List is the sections that hold for an agent. A section that it lacks stays until it expires: a server that was restored
// from a backup may not know it yet.
type List struct {
	Sections []Section `json:"sections"`
}

// A Section is a part of the directives of an agent that it takes or refuses as a whole.
type Section struct {
	Name string `json:"name"`
	// Hash is the SHA-256 of the content, in hexadecimal digits.
	Hash string `json:"hash"`
	// Epoch rises with each change. An agent does not go back to a lower one: the server that has it is outdated.
	Epoch int64 `json:"epoch"`
	// Life is how long the section holds after the server said so last, in seconds of CLOCK_BOOTTIME.
	Life int64 `json:"life_s"`
}

var (
	sectionName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	hash        = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// maxLife in seconds is ten years.
const maxLife = 10 * 366 * 24 * 3600

// ParseList parses a list. The error wraps fault.ErrInvalid. Fields that a newer server adds are left out.
func ParseList(b []byte) (l List, err error) {
	if err := json.Unmarshal(b, &l); err != nil {
		return List{}, fmt.Errorf("list of directives: %w: %w", err, fault.ErrInvalid)
	}
	if l.Sections == nil || len(l.Sections) > MaxSections {
		return List{}, fmt.Errorf("list of directives with %d sections: %w", len(l.Sections), fault.ErrInvalid)
	}
	seen := map[string]bool{}
	for _, s := range l.Sections {
		if !sectionName.MatchString(s.Name) || !IsHash(s.Hash) || s.Epoch <= 0 || s.Life <= 0 || s.Life > maxLife || seen[s.Name] {
			return List{}, fmt.Errorf("section %.70q of the directives: %w", s.Name, fault.ErrInvalid)
		}
		seen[s.Name] = true
	}
	return l, nil
}

// IsHash reports whether a text can be the hash of a content.
func IsHash(text string) bool { return hash.MatchString(text) }

// HashOf returns the hash of a content.
func HashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Lifetime returns the life of the section.
func (s Section) Lifetime() time.Duration { return time.Duration(s.Life) * time.Second }

// decode decodes JSON without unknown fields and without anything after it.
func decode(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more than one value")
	}
	return nil
}

package wire

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/proto"
)

func nameMessage(n *batch.Name) (*proto.Name, error) {
	id, ok := n.ID.Bytes()
	if !ok {
		return nil, invalid("id %q is malformed", n.ID)
	}
	c := cleanName(n)
	m := &proto.Name{Id: id[:], Kind: c.Kind.String(), Key: c.Key, Name: c.Name, Path: c.Path, Job: c.Job, User: c.User, Project: c.Project, Labels: c.Labels}
	if n.Parent != "" {
		parent, ok := n.Parent.Bytes()
		if !ok {
			return nil, invalid("parent %q is malformed", n.Parent)
		}
		m.Parent = parent[:]
	}
	if n.Exit != nil {
		code := int32(*n.Exit)
		m.Exit = &code
	}
	var err error
	if m.Started, err = unixNanos(n.Started); err != nil {
		return nil, fmt.Errorf("started: %w", err)
	}
	if m.Ended, err = unixNanos(n.Ended); err != nil {
		return nil, fmt.Errorf("ended: %w", err)
	}
	return m, nil
}

func nameFrom(m *proto.Name, l Limits) (n batch.Name, err error) {
	if len(m.Id) != 16 || len(m.Parent) != 16 && len(m.Parent) != 0 {
		return n, invalid("an id of %d and a parent of %d bytes, not 16", len(m.Id), len(m.Parent))
	}
	n = batch.Name{ID: workload.IDFromBytes([16]byte(m.Id)), Key: m.Key, Name: m.Name, Path: m.Path,
		Started: timeFromNanos(m.Started), Ended: timeFromNanos(m.Ended), Job: m.Job, User: m.User, Project: m.Project, Labels: m.Labels}
	if len(m.Parent) > 0 {
		n.Parent = workload.IDFromBytes([16]byte(m.Parent))
	}
	// A newer agent's word leaves workload.Unknown. It is for display: the id is made already.
	_ = n.Kind.UnmarshalText([]byte(m.Kind))
	if len(m.Labels) > l.Labels {
		return n, invalid("%d labels, more than %d", len(m.Labels), l.Labels)
	}
	texts := []string{n.Key, n.Name, n.Path, n.Job, n.User, n.Project}
	for key, value := range m.Labels {
		texts = append(texts, key, value)
	}
	if err := checkTexts(l, texts...); err != nil {
		return n, err
	}
	// An agent of an earlier version sends longer names; its batch must be booked nevertheless.
	fitName(&n, l.Name)
	if m.Exit != nil {
		code := int(*m.Exit)
		n.Exit = &code
	}
	return n, nil
}

// cleanName returns a copy of n whose texts Decode takes with the limits of Default.
func cleanName(n *batch.Name) batch.Name {
	c := *n
	for _, text := range []*string{&c.Key, &c.Name, &c.Path, &c.Job, &c.User, &c.Project} {
		*text = cleanText(*text)
	}
	for i, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if i == 0 {
			c.Labels = map[string]string{}
		}
		if i < Default().Labels {
			c.Labels[cleanText(key)] = cleanText(n.Labels[key])
		}
	}
	fitName(&c, Default().Name)
	return c
}

// fitName makes the texts of a name fit into most bytes. It cuts the texts, in the order of
// their use for grouping, and leaves out labels that do not fit, Kubernetes's own last.
func fitName(n *batch.Name, most int) {
	for _, text := range []*string{&n.Key, &n.Name, &n.Job, &n.User, &n.Project, &n.Path} {
		*text = cutText(*text, most)
		most -= len(*text)
	}
	const own = "io.kubernetes."
	keys := slices.Sorted(maps.Keys(n.Labels))
	kept := map[string]string{}
	for _, first := range [...]bool{true, false} {
		for _, key := range keys {
			if size := len(key) + len(n.Labels[key]); strings.HasPrefix(key, own) == first && size <= most {
				kept[key] = n.Labels[key]
				most -= size
			}
		}
	}
	n.Labels = kept
	if len(kept) == 0 {
		n.Labels = nil
	}
}

func gapMessage(g *usage.Gap) (*proto.Gap, error) {
	from, err := unixNanos(g.From)
	if err != nil {
		return nil, fmt.Errorf("from: %w", err)
	}
	to, err := unixNanos(g.To)
	if err != nil {
		return nil, fmt.Errorf("to: %w", err)
	}
	return &proto.Gap{From: from, To: to, Reason: g.Reason.String(), Detail: cleanText(g.Detail)}, nil
}

func gapFrom(m *proto.Gap, l Limits) (usage.Gap, error) {
	return usage.Gap{From: timeFromNanos(m.From), To: timeFromNanos(m.To), Reason: usage.ParseReason(m.Reason), Detail: m.Detail}, checkTexts(l, m.Detail)
}

// unixNanos writes a time as ns since 1970; the zero time is 0.
func unixNanos(t time.Time) (int64, error) {
	const most = math.MaxInt64/int64(time.Second) - 1
	switch s := t.Unix(); {
	case t.IsZero():
		return 0, nil
	case s > most || s < -most:
		return 0, invalid("time %v", t)
	}
	return t.UnixNano(), nil
}

func timeFromNanos(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// cleanText makes s a text that Decode takes with the limits of Default.
func cleanText(s string) string {
	return cutText(strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD"), Default().Text)
}

// cutText cuts s to most bytes, at the start of a character.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// checkTexts refuses texts that are too long or hold a NUL.
func checkTexts(l Limits, texts ...string) error {
	for _, s := range texts {
		switch {
		case len(s) > l.Text:
			return invalid("%.32q... is of %d bytes, more than %d", s, len(s), l.Text)
		case strings.Contains(s, "\x00"):
			return invalid("%.32q... has a NUL", s)
		}
	}
	return nil
}

package server_test

import (
	"errors"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
)

// TestFollowServer checks the way of directives from the ledger over TLS to an agent's machine.
func TestFollowServer(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	id := b.enrollAs(t, registry.Agent, "1", "alpha")
	base, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	h := directives.NewHTTP(base, id.Client())
	l, tag, changed, err := h.Directives(t.Context(), "", 0, nil)
	if err != nil || !changed || len(l.Sections) != 0 {
		t.Fatalf("%+v, %q, %t, %v", l, tag, changed, err)
	}
	if _, again, changed, err := h.Directives(t.Context(), tag, 0, []string{directive.NetworkNode}); err != nil || changed || again != tag {
		t.Errorf("%q, %t, %v", again, changed, err)
	}
	type answer struct {
		l       directive.List
		changed bool
		err     error
	}
	got := make(chan answer, 1)
	go func() {
		l, _, changed, err := h.Directives(t.Context(), tag, 5*time.Minute, nil)
		got <- answer{l, changed, err}
	}()
	ctx, now := t.Context(), time.Now()
	lease, err := b.Ledger.LeasePods(ctx, pod.Lease{Cluster: "lab", Holder: "x"}, now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix("10.1.2.0/24")
	if err := b.Ledger.BookTopology(ctx, lease, pod.Topology{"alpha": {Prefixes: []netip.Prefix{prefix}}}, now); err != nil {
		t.Fatal(err)
	}
	x := <-got
	if x.err != nil || !x.changed || len(x.l.Sections) != 2 {
		t.Fatalf("%+v", x)
	}
	for _, s := range x.l.Sections {
		content, err := h.Section(ctx, s.Hash)
		if err != nil || directive.HashOf(content) != s.Hash {
			t.Fatalf("%s, %v", content, err)
		}
		classes, err := directive.DecodeClasses(content)
		if _, ok := classes[prefix]; err != nil || !ok || len(classes) != 1 {
			t.Errorf("%s: %v, %v", s.Name, classes, err)
		}
	}
	// Viewers and servers below get nothing.
	if _, err := h.Section(ctx, directive.HashOf(nil)); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("unknown section: %v", err)
	}
	if _, _, _, err := directives.NewHTTP(base, b.viewer(t, "")).Directives(ctx, "", 0, nil); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a viewer: %v", err)
	}
	if _, _, _, err := h.Directives(ctx, "", 0, nil); err != nil {
		t.Error(err)
	}
	up := b.enrollAs(t, registry.Upstream, "2", "beta")
	if _, err := directives.NewHTTP(base, up.Client()).Section(ctx, x.l.Sections[0].Hash); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a server: %v", err)
	}
	// In the same process.
	in := b.Transport(id.Node())
	if l, _, changed, err := in.Directives(ctx, "", 0, nil); err != nil || !changed || len(l.Sections) != 2 || l.Sections[0] != x.l.Sections[0] {
		t.Errorf("%+v, %t, %v", l, changed, err)
	}
	if content, err := in.Section(ctx, x.l.Sections[0].Hash); err != nil || directive.HashOf(content) != x.l.Sections[0].Hash {
		t.Errorf("%s, %v", content, err)
	}
	if err := b.Authority.RevokeNode(ctx, id.Node()); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := in.Directives(ctx, "", 0, nil); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a revoked node: %v", err)
	}
	if _, err := in.Section(ctx, x.l.Sections[0].Hash); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a revoked node: %v", err)
	}
}

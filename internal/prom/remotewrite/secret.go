package remotewrite

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// A hider replaces the URLs of receivers, which may hold secrets, by their hosts.
type hider struct {
	mu       sync.Mutex
	urls     []*url.URL
	replacer *strings.Replacer
}

// add hides a URL from now on. The earlier ones of a receiver stay hidden.
func (h *hider) add(u *url.URL) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.urls, func(o *url.URL) bool { return *o == *u }) {
		return // as at each reload
	}
	h.urls = append(h.urls, u)
	var pairs []string
	for _, u := range h.urls {
		pairs = append(pairs, u.String(), u.Host)
	}
	for _, u := range h.urls { // what a receiver says about its own path
		for _, part := range []string{u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery} {
			if len(part) > 4 {
				pairs = append(pairs, part, "...")
			}
		}
	}
	h.replacer = strings.NewReplacer(pairs...)
}

func (h *hider) replace(text string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replacer == nil {
		return text
	}
	return h.replacer.Replace(text)
}

// A hidingHandler keeps URLs of receivers out of log lines of Prometheus's packages.
type hidingHandler struct {
	slog.Handler
	hide *hider
}

func (h hidingHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, h.hide.replace(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.hidden(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

func (h hidingHandler) WithAttrs(as []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(as))
	for i, a := range as {
		out[i] = h.hidden(a)
	}
	return hidingHandler{h.Handler.WithAttrs(out), h.hide}
}

func (h hidingHandler) WithGroup(name string) slog.Handler {
	return hidingHandler{h.Handler.WithGroup(name), h.hide}
}

// hidden returns an attribute without secrets. A value is text then, if it is not a number or
// another simple one.
func (h hidingHandler) hidden(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, h.hide.replace(v.String()))
	case slog.KindAny:
		return slog.String(a.Key, h.hide.replace(fmt.Sprint(v.Any())))
	case slog.KindGroup:
		var list []any
		for _, one := range v.Group() {
			list = append(list, h.hidden(one))
		}
		return slog.Group(a.Key, list...)
	}
	return a
}

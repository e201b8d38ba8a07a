package server

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/replicate"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/settings"
)

// upstreamSettings are the settings of upstream servers.
type upstreamSettings struct {
	urls, tokens, resolutions []string
	pseudonyms                bool
}

func (u *upstreamSettings) add(s *settings.Set) {
	s.List(&u.urls, "upstream", "URL", "https://HOST:PORT of a server above this one, to which its rows go; may be repeated").SecretURL("the token belongs into --upstream-token")
	s.List(&u.tokens, "upstream-token", "TOKEN", "token of the role upstream, or @FILE with it: the first for the first --upstream, and so on; once enrolled none is needed (or METE_UPSTREAM_TOKEN)").WithEnv("").Secret()
	s.List(&u.resolutions, "upstream-resolution", "RESOLUTION", "1m or 1h: what goes up is never finer; for several servers as with --upstream-token, the last for all that follow (default 1m)").OneOf("1m", "1h")
	s.Switch(&u.pseudonyms, "upstream-pseudonyms", "send pseudonyms instead of names of nodes, workloads, jobs, users and projects; labels and paths stay here")
}

// configs returns what the settings configure.
func (u *upstreamSettings) configs() (all []replicate.Config, err error) {
	for _, list := range []struct {
		flag   string
		values []string
	}{{"--upstream-token", u.tokens}, {"--upstream-resolution", u.resolutions}} {
		if len(list.values) > len(u.urls) {
			return nil, fault.WithHint(fmt.Errorf("%d times %s for %d servers: %w", len(list.values), list.flag, len(u.urls), fault.ErrInvalid),
				"name each server with an --upstream of its own")
		}
	}
	if u.pseudonyms && len(u.urls) == 0 {
		return nil, fault.WithHint(fmt.Errorf("--upstream-pseudonyms: no upstream server: %w", fault.ErrInvalid), "name one with --upstream")
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	finest := replica.Minute
	for i, url := range u.urls {
		if i < len(u.resolutions) {
			switch u.resolutions[i] {
			case "1m":
				finest = replica.Minute
			case "1h":
				finest = replica.Hour
			default:
				return nil, fault.WithHint(fmt.Errorf("--upstream-resolution %q: %w", u.resolutions[i], fault.ErrInvalid), "use 1m or 1h")
			}
		}
		c := replicate.Default()
		c.URL, c.Name, c.Finest, c.Pseudonyms = url, host, finest, u.pseudonyms
		text := ""
		if i < len(u.tokens) {
			text = u.tokens[i]
		}
		if i == 0 {
			text = cmp.Or(text, os.Getenv(secretenv.Upstream))
		}
		c.Token = func() (token.Token, error) { return readToken(text) }
		if _, err := c.Token(); err != nil && !errors.Is(err, fault.ErrNotFound) {
			return nil, fmt.Errorf("--upstream-token of %s: %w", url, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// readToken returns a token given as text, or as @FILE. It reads the file on each call, because it
// may be replaced.
func readToken(text string) (token.Token, error) {
	if path, ok := strings.CutPrefix(text, "@"); ok {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return token.Token{}, fmt.Errorf("%s: %w", path, fault.ErrNotFound)
		}
		if err != nil {
			return token.Token{}, err
		}
		text = string(b)
	}
	if strings.TrimSpace(text) == "" {
		return token.Token{}, fmt.Errorf("no token: %w", fault.ErrNotFound)
	}
	return token.Parse(text)
}

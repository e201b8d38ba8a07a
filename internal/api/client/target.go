package client

import (
	"os"

	"github.com/spf13/pflag"

	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/secretenv"
)

// A Target is the server that a user names.
type Target struct {
	URL   string // "" is $METE_SERVER, else the default
	Token string // "" is $METE_TOKEN
}

// Flags adds --server and --token.
func (s *Target) Flags(f *pflag.FlagSet) {
	f.StringVar(&s.URL, "server", "", "ask the server at `URL` (default: $METE_SERVER, else "+Default+")")
	s.TokenFlag(f)
}

// TokenFlag adds --token alone.
func (s *Target) TokenFlag(f *pflag.FlagSet) {
	f.StringVar(&s.Token, "token", "", "show this viewer's `TOKEN` to the server, which one on another machine wants (default: $METE_TOKEN, which others cannot see in the list of processes)")
}

// Open returns a client of the server. Nothing is sent yet. The error wraps
// fault.ErrInvalid or fault.ErrDenied.
func (s *Target) Open() (*Client, error) {
	url, text := s.URL, s.Token
	if url == "" {
		url = os.Getenv("METE_SERVER")
	}
	if url == "" {
		url = Default
	}
	if text == "" {
		text = os.Getenv(secretenv.Token)
	}
	var t token.Token
	if text != "" {
		var err error
		if t, err = token.Parse(text); err != nil {
			return nil, err
		}
	}
	return New(url, t)
}

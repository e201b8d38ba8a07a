package client

import (
	"context"
	"fmt"
	"os"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/secretenv"
)

// ForJob returns a client of the server whose ledger has the job that this program is
// part of: it may ask for Self only. The error wraps fault.ErrInvalid where the program
// is part of no job. Nothing is sent yet.
func ForJob(getenv func(string) string) (*Client, error) {
	self := token.SelfAccess{URL: getenv(secretenv.SelfURL), Token: getenv(secretenv.SelfToken)}
	if self.URL == "" || self.Token == "" {
		return nil, fault.WithHint(fmt.Errorf("%s and %s are not set: this is no job of mete run that an agent or a server knows of: %w", secretenv.SelfURL, secretenv.SelfToken, fault.ErrInvalid),
			"run it by mete run, where an agent of this machine sends to a server, mete up runs, or --server is given")
	}
	if path := getenv(secretenv.SelfCA); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", secretenv.SelfCA, err, fault.ErrInvalid)
		}
		self.CA = string(b)
	}
	return ForSelf(self)
}

// ForSelf is ForJob with what the environment of the job says.
func ForSelf(self token.SelfAccess) (*Client, error) {
	base, err := enroll.SelfBase(self.URL)
	if err != nil {
		return nil, err
	}
	c, err := enroll.JobClient(base, self.Token, self.CA)
	if err != nil {
		return nil, err
	}
	return &Client{base, c}, nil
}

// Self asks what the calling job itself used.
func (c *Client) Self(ctx context.Context) (*v1.Self, error) {
	return read[v1.Self](ctx, c, "/v1/self", nil)
}

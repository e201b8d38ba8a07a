package client

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"mete.dev/mete/internal/ask"
	"mete.dev/mete/internal/enrol"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/tally"
	"mete.dev/mete/internal/token"
)

// ForJob returns a client of the server that keeps the ledger of the job that this
// program is part of: it can ask for Self, and for nothing else. The error wraps
// fault.ErrInvalid where it is part of none. Nothing is sent yet.
func ForJob(getenv func(string) string) (*Client, error) {
	self := token.Self{URL: getenv(token.SelfURL), Token: getenv(token.SelfToken)}
	if self.URL == "" || self.Token == "" {
		return nil, fault.WithHint(fmt.Errorf("%s and %s are not set: this is no job of mete run that an agent or a server knows of: %w", token.SelfURL, token.SelfToken, fault.ErrInvalid),
			"run it by mete run, where an agent of this machine sends to a server, mete up runs, or --server is given")
	}
	if path := getenv(token.SelfCA); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", token.SelfCA, err, fault.ErrInvalid)
		}
		self.CA = string(b)
	}
	return ForSelf(self)
}

// ForSelf is ForJob by what a job was given.
func ForSelf(self token.Self) (*Client, error) {
	base, err := enrol.SelfBase(self.URL)
	if err != nil {
		return nil, err
	}
	c, err := enrol.JobReader(base, self.Token, self.CA)
	if err != nil {
		return nil, err
	}
	return &Client{base, c}, nil
}

// Self asks for what the job that asks used itself. The text is the answer as it
// came, in which is also what it uses at present.
func (c *Client) Self(ctx context.Context) (self *query.Self, text []byte, err error) {
	self, err = get(ctx, c, func() (*http.Request, error) { return ask.NewSelfRequest(c.base+"/", nil) }, func(body []byte) (*query.Self, error) {
		text = body
		return tally.ParseSelf(body)
	})
	return self, text, err
}

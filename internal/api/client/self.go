package client

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"mete.dev/mete/internal/api/ask"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/secretenv"
)

// ForJob returns a client of the server that keeps the ledger of the job that this
// program is part of: it can ask for Self, and for nothing else. The error wraps
// fault.ErrInvalid where it is part of none. Nothing is sent yet.
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

// ForSelf is ForJob by what a job was given.
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

// Self asks for what the job that asks used itself. The text is the answer as it
// came, in which is also what it uses at present.
func (c *Client) Self(ctx context.Context) (self *query.Self, text []byte, err error) {
	self, err = get(ctx, c, func() (*http.Request, error) { return ask.NewSelfRequest(c.base+"/", nil) }, func(body []byte) (*query.Self, error) {
		text = body
		return v1.ParseSelf(body)
	})
	return self, text, err
}

package client

import (
	"context"
	"fmt"
	"os"
	"strings"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/secretenv"
)

// ForJob returns a client of the server whose ledger contains the job of this program, or its pod. The
// client may request only Self. ForJob sends nothing. If the program has no access of a job or pod in its
// environment, the error wraps fault.ErrInvalid.
func ForJob(getenv func(string) string) (*Client, error) {
	self := token.SelfAccess{URL: getenv(secretenv.SelfURL), Token: getenv(secretenv.SelfToken)}
	if path := getenv(secretenv.SelfTokenFile); self.Token == "" && path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", secretenv.SelfTokenFile, err, fault.ErrInvalid)
		}
		self.Token = strings.TrimSpace(string(b))
	}
	if self.URL == "" || self.Token == "" {
		return nil, fault.WithHint(fmt.Errorf("%s and %s are not set: this program does not run in a job of mete run that an agent or a server knows: %w", secretenv.SelfURL, secretenv.SelfToken, fault.ErrInvalid),
			"start it with mete run, with an agent that sends to a server or mete up on this machine, or with --server; in a pod of Kubernetes see docs/guide/kubernetes.md")
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

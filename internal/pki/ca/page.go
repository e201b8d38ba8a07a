package ca

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// pageCodeLife is how long a link to the page is valid.
const pageCodeLife = time.Hour

// maxPageCodes is how many links are valid at once; a newer one replaces the oldest.
const maxPageCodes = 64

// pageTokenPrefix begins the tokens of browsers.
const pageTokenPrefix = "metepage_"

// pageLogins are the browsers that show the page of a server without TLS. A code, in a link that
// the server prints, is exchanged once for a token, which the browser sends from then on. Both
// are random and are valid until the server ends: another user may listen at its address then.
type pageLogins struct {
	mu     sync.Mutex
	codes  map[[sha256.Size]byte]time.Time // hash of a code: its end
	tokens map[[sha256.Size]byte]bool      // hashes of tokens
}

// NewPageCode returns a code for one browser. It is valid for an hour.
func (a *Authority) NewPageCode() string {
	p := &a.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.codes == nil {
		p.codes = map[[sha256.Size]byte]time.Time{}
	}
	if len(p.codes) >= maxPageCodes {
		var oldest [sha256.Size]byte // one that has ended, if there is any
		for c, end := range p.codes {
			if first, ok := p.codes[oldest]; !ok || end.Before(first) {
				oldest = c
			}
		}
		delete(p.codes, oldest)
	}
	code := rand.Text()
	p.codes[sha256.Sum256([]byte(code))] = time.Now().Add(pageCodeLife)
	return code
}

// exchange returns a new token for a code, which is not valid any more; ok is false if it was
// not.
func (p *pageLogins) exchange(code string) (token string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := sha256.Sum256([]byte(code))
	end, ok := p.codes[sum]
	delete(p.codes, sum)
	if !ok || time.Now().After(end) {
		return "", false
	}
	token = pageTokenPrefix + rand.Text()
	if p.tokens == nil {
		p.tokens = map[[sha256.Size]byte]bool{}
	}
	p.tokens[sha256.Sum256([]byte(token))] = true
	return token, true
}

// admits reports whether a token is that of a browser. The time of looking up a hash tells
// nothing about the token.
func (p *pageLogins) admits(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tokens[sha256.Sum256([]byte(token))]
}

func isPageToken(text string) bool { return strings.HasPrefix(text, pageTokenPrefix) }

// PageHandler answers POST /v1/page-token: it exchanges the code of a link for a token.
func (a *Authority) PageHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := a.servePageToken(w, r)
		if err != nil {
			a.writeProblem(w, r, err)
			return
		}
		httpx.WriteJSON(w, http.StatusOK, map[string]string{"token": text})
	})
}

func (a *Authority) servePageToken(w http.ResponseWriter, r *http.Request) (string, error) {
	if err := httpx.CheckMethod(w, r, http.MethodPost); err != nil {
		return "", err
	}
	if err := httpx.CheckMediaType(r, "application/json"); err != nil {
		return "", err
	}
	if !isLocal(r) && !a.isOnLoopback(r) {
		return "", fmt.Errorf("a link to the page is for this machine only: %w", fault.ErrDenied)
	}
	var sent struct {
		Code string `json:"code"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPageRequest))
	if err == nil {
		err = json.Unmarshal(body, &sent)
	}
	if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); err != nil && !isTooLarge {
		return "", fmt.Errorf("body: %w: %w", err, fault.ErrInvalid)
	}
	if err != nil {
		return "", err
	}
	text, ok := a.pages.exchange(sent.Code)
	if !ok {
		return "", fault.WithHint(fmt.Errorf("this link was used before, has ended, or is of an earlier start: %w", fault.ErrDenied), "mete token link makes a new one")
	}
	return text, nil
}

const maxPageRequest = 1 << 10 // bytes

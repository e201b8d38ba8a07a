package replicate_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/replicate"
	_ "mete.dev/mete/internal/testkit/wirewarm"
)

// anyStore takes every page.
type anyStore struct{}

func (anyStore) StatesMark(context.Context, replica.Source) (m replica.Mark, err error) { return }

func (anyStore) TakeStates(context.Context, replica.Source, *replica.Page, time.Time) (m replica.Mark, err error) {
	return
}

// TestSlowPages checks that servers whose pages come slowly keep no other from being served.
func TestSlowPages(t *testing.T) {
	sent, err := wire.EncodeStates(nil, &replica.Page{})
	if err == nil {
		_, err = wire.DecodeStates(sent, wire.Default()) // the decoders live on, outside the bubble
	}
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := replicate.NewReceiver(anyStore{}, func(r *http.Request) (replica.Source, error) { return replica.Source{ID: r.Header.Get("Source")}, nil }, quiet).Handler()
		post := func(source string, body io.Reader) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/states", body)
			r.Header.Set("Source", source)
			r.Header.Set("Content-Type", wire.MediaTypeStates)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		stalled, end := io.Pipe()
		for i := range 4 {
			go post(fmt.Sprint("slow", i), stalled)
		}
		synctest.Wait()
		if w := post("other", bytes.NewReader(sent)); w.Code != http.StatusOK {
			t.Errorf("beside slow pages: %d %s", w.Code, w.Body)
		}
		_ = end.Close()
	})
}

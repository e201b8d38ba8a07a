package api

import (
	"net/http/httptest"
	"testing"
	"time"
)

// A deadlineWriter records the deadline of each write.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	until  time.Time
	pieces []int
	left   []time.Duration
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

func (w *deadlineWriter) Write(b []byte) (int, error) {
	w.pieces, w.left = append(w.pieces, len(b)), append(w.left, time.Until(w.until))
	return w.ResponseRecorder.Write(b)
}

// TestAnswerNeedsProgress checks that each piece of an answer has a deadline of its own, and none a later one than the
// answer: a reader that takes nothing must not keep its turn.
func TestAnswerNeedsProgress(t *testing.T) {
	for _, c := range []struct {
		end  time.Duration
		most time.Duration
	}{{time.Hour, writeProgress}, {time.Second, time.Second}} {
		to := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
		w := &statusWriter{ResponseWriter: to, end: time.Now().Add(c.end)}
		if n, err := w.Write(make([]byte, 2*writePiece+5)); n != 2*writePiece+5 || err != nil || to.Body.Len() != n {
			t.Errorf("%d bytes written, %d arrived, %v", n, to.Body.Len(), err)
		}
		if n, err := w.Write(nil); n != 0 || err != nil {
			t.Errorf("nothing: %d, %v", n, err)
		}
		if len(to.pieces) != 4 || to.pieces[0] != writePiece || to.pieces[2] != 5 {
			t.Errorf("pieces of %v bytes", to.pieces)
		}
		for _, left := range to.left {
			if left > c.most || to.until.IsZero() {
				t.Errorf("a piece has %v, want %v at most", left, c.most)
			}
		}
	}
}

package spool

import (
	"encoding/json"
	"errors"
	"fmt"

	"mete.dev/mete/internal/x/failpoint"
)

// A noteHead is the head of a note, a record of the log of windows. Its body is a checkpoint, or
// what happened to the books since.
type noteHead struct {
	After uint64          `json:"after"` // number of the last window
	Full  bool            `json:"full,omitempty"`
	Text  json.RawMessage `json:"text,omitempty"`
}

// A note as it was read.
type note struct {
	noteHead
	body []byte
}

// maxNotes is how many bytes a segment may be longer than its size by notes: they never begin a
// segment, which begins with a whole checkpoint.
const maxNotes = 16 << 20

// errNoBase says that a note would follow no checkpoint.
var errNoBase = errors.New("no checkpoint since the last failed write; the next window has one")

var errNoJSON = errors.New("the text is not JSON")

// Begin makes a full checkpoint durable before there is a window, so that an agent that is killed
// in its first one knows where counting began. text is JSON for Texts, nil for none.
func (s *Spool) Begin(text, checkpoint []byte) error {
	return s.note(noteHead{Full: true, Text: text}, func() []byte { return checkpoint })
}

// AppendNote makes durable what happened since the last window, until the next window is. text is
// JSON for Texts, nil for none; body returns what Checkpoint returns after the checkpoint. It is
// called once, or not at all where nothing can be written. After an error nothing of the note is in
// the spool.
func (s *Spool) AppendNote(text []byte, body func() []byte) error {
	return s.note(noteHead{Text: text}, body)
}

func (s *Spool) note(head noteHead, body func() []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if err := s.appendNote(head, body); err != nil {
		return fmt.Errorf("spool: note: %w", err)
	}
	return nil
}

func (s *Spool) appendNote(head noteHead, body func() []byte) error {
	if len(head.Text) > 0 && !json.Valid(head.Text) {
		return errNoJSON
	}
	begin := false
	switch {
	case head.Full:
		begin = s.windows.isFull()
	case s.windows.file == nil || len(s.checkpoints)+len(s.notes) == 0 || s.windows.last().size > s.windows.size+maxNotes:
		return errNoBase
	}
	head.After = s.lastWindow
	payload := pack(head, body())
	if err := s.makeRoom(int64(len(payload))); err != nil {
		return err
	}
	p, err := s.windows.append(kindNote, payload, begin)
	if err != nil {
		return err
	}
	failpoint.At("spool.note-synced")
	if head.Full {
		s.checkpoints, s.notes = nil, nil
	}
	s.notes = append(s.notes, p)
	s.stats.Notes++
	return nil
}

// Texts returns the texts of the windows since the last full one, and of the notes since, in order.
func (s *Spool) Texts() (texts [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.eachCheckpoint(func(text json.RawMessage, _ []byte) {
		if text != nil {
			texts = append(texts, text)
		}
	})
	if err != nil {
		s.log.Warn("texts of windows are lost", "err", err)
	}
	for _, n := range s.readNotes() {
		if n.Text != nil {
			texts = append(texts, n.Text)
		}
	}
	return texts
}

// readNotes reads the notes since the last window, up to one that is unreadable.
func (s *Spool) readNotes() (all []note) {
	for _, p := range s.notes {
		var n note
		payload, err := s.windows.read(p)
		if err == nil {
			n.body, err = unpack(payload, &n.noteHead)
		}
		if err != nil {
			s.log.Warn("notes since the last window are lost", "err", err)
			return all
		}
		all = append(all, n)
	}
	return all
}

// eachCheckpoint reads what the records of windows have of the last checkpoint, up to an unreadable one.
func (s *Spool) eachCheckpoint(f func(text json.RawMessage, books []byte)) error {
	for _, p := range s.checkpoints {
		payload, err := s.windows.read(p)
		if err != nil {
			return err
		}
		var head windowRecord
		body, err := unpack(payload, &head)
		if err != nil {
			return err
		}
		f(head.Text, body[head.Wire:])
	}
	return nil
}

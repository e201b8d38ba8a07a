package remotewrite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"mete.dev/mete/internal/model/unit"
)

const (
	maxRaw = 32 << 20 // bytes of a request, uncompressed
	// maxUnpacked is the number of bytes that the messages of a request may take in memory, by
	// estimateSize. 20,000 series of 20 labels take about half of it.
	maxUnpacked = 128 << 20
)

// A refusal is the error of a request that is not processed any further, and the status code of
// its answer.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

func newRefusal(status int, format string, args ...any) error {
	return refusal{status, fmt.Sprintf(format, args...)}
}

// malformed returns the refusal of a request that is not a message of its version.
func malformed(why string) error {
	return newRefusal(http.StatusBadRequest, "the request is not a message of remote write: %s", why)
}

// readBody reads the compressed body of a request. Its error is a refusal.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	sent, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, newRefusal(http.StatusRequestEntityTooLarge, "a request has at most %s as it is sent: send fewer samples at once", unit.Bytes(maxBody))
	}
	if err != nil {
		return nil, newRefusal(http.StatusBadRequest, "the request cannot be read: %v", err)
	}
	return sent, nil
}

// formatOf returns the message that a request has by its headers, and the one Content-Type by
// which Prometheus's handler decodes it as that message.
func formatOf(h http.Header) (spec messageSpec, mediaType string, err error) {
	const media = "application/x-protobuf"
	if packing := h.Get("Content-Encoding"); packing != "" && packing != "snappy" {
		return nil, "", newRefusal(http.StatusUnsupportedMediaType, "Content-Encoding %.100q is not taken: send snappy", packing)
	}
	given := h.Get("Content-Type")
	if given == "" {
		given = media
	}
	got, params, err := mime.ParseMediaType(given)
	if err == nil && got == media {
		switch name := params["proto"]; name {
		case "", string(versions["1.0"]):
			return request1, media, nil
		case string(versions["2.0"]):
			return request2, media + ";proto=" + name, nil
		}
	}
	return nil, "", newRefusal(http.StatusUnsupportedMediaType, "Content-Type %.100q is not taken: send %s with proto=%s or proto=%s", given, media, versions["1.0"], versions["2.0"])
}

// checkSize returns a refusal of a request that may take more than maxUnpacked to unpack, or has
// too many samples or series; now is the time in ms since 1970.
func checkSize(sent []byte, of messageSpec, now int64) error {
	n, err := snappy.DecodedLen(sent)
	if err != nil {
		return malformed("it is not packed by snappy")
	}
	if n > maxRaw {
		return newRefusal(http.StatusRequestEntityTooLarge, "a request has at most %s as snappy unpacks it, and this has %s: send fewer samples at once", unit.Bytes(maxRaw), unit.Bytes(float64(n)))
	}
	raw, err := snappy.Decode(nil, sent)
	if err != nil {
		return malformed("it is not packed by snappy")
	}
	return estimateSize(raw, of, now)
}

// A fieldSpec is a field of a message.
type fieldSpec struct {
	kind   fieldKind
	size   int         // bytes of one element of the list; 0 if the field is not a list
	fields messageSpec // of the message
	// How much one field counts toward the limits.
	series, samples int
}

type messageSpec map[protowire.Number]fieldSpec

// fieldKind is what a field holds.
type fieldKind uint8

const (
	messageField fieldKind = iota
	textField
	numberField // as varints, packed or not
	doubleField // packed or not
	refField    // the places of texts among the symbols
	timeField   // milliseconds
)

// Sizes are those of Prometheus's structs, which a test compares. A field that is not here is
// a number in its struct, or unknown.
var (
	text            = fieldSpec{kind: textField}
	label           = fieldSpec{size: 64, fields: messageSpec{1: text, 2: text}}
	span            = fieldSpec{size: 40, fields: messageSpec{}}
	histogramFields = messageSpec{8: span, 9: {kind: numberField, size: 8}, 10: {kind: doubleField, size: 8}, 11: span, 12: {kind: numberField, size: 8}, 13: {kind: doubleField, size: 8},
		15: {kind: timeField}, 16: {kind: doubleField, size: 8}}
	sampleFields = messageSpec{2: {kind: timeField}}

	// request1 is prometheus.WriteRequest.
	request1 = messageSpec{
		1: {size: 128, series: 1, fields: messageSpec{
			1: label, 2: {size: 48, samples: 1, fields: sampleFields}, 3: {size: 72, fields: messageSpec{1: label}}, 4: {size: 272, samples: 1, fields: histogramFields},
		}},
		3: {size: 88, fields: messageSpec{2: text, 4: text, 5: text}},
	}
	// request2 is io.prometheus.write.v2.Request. A reference is 4 bytes, and 16 in the list
	// of labels that it becomes.
	request2 = messageSpec{
		symbols: {kind: textField, size: 16},
		5: {size: 176, series: 1, fields: messageSpec{
			1: {kind: refField, size: 20}, 2: {size: 56, samples: 1, fields: sampleFields}, 3: {size: 280, samples: 1, fields: histogramFields},
			4: {size: 72, fields: messageSpec{1: {kind: refField, size: 20}}}, 5: {fields: messageSpec{}},
		}},
	}
)

// symbols is the number of the field that holds them in request2.
const symbols protowire.Number = 4

// A sizeEstimate is what was found in a request so far.
type sizeEstimate struct {
	series, samples int
	bytes           int     // in memory, at most about
	lengths         []int32 // of the symbols
	latest          int64   // milliseconds; a sample that is later is refused
	refs            int
	refBytes        int // bytes of the texts that references name
	future          int // samples that are later
}

// estimateSize adds up what a request would take in memory, before any of it is given. An empty
// histogram takes two bytes in a request and 280 here, and a reference of one byte stands for a
// text of any length. Prometheus's handler would unpack all of it before it counts
// anything; docs/decisions/0019-hand-made.md has what that allocates.
//
// Elements of lists count twice, as lists have room to grow; texts by their length and 16 bytes
// around them; what is not known twice by its length and ten bytes, as it is kept. A text that is named by a
// reference counts four times, as it is in the labels of a series and in the error of a series that
// cannot be taken, and once more for each sample of it of the future, as each has its own error.
func estimateSize(raw []byte, of messageSpec, now int64) error {
	w := sizeEstimate{latest: now + maxAhead.Milliseconds()}
	if of[symbols].kind == textField {
		// They may come after what names them.
		err := eachField(raw, func(n protowire.Number, _ protowire.Type, value []byte) error {
			if n != symbols {
				return nil
			}
			w.lengths = append(w.lengths, int32(len(value))) // below maxRaw
			return w.add(of[n], value)
		})
		if err != nil {
			return err
		}
		w.bytes = 0
	}
	return w.addMessage(raw, of)
}

// addMessage adds what is in a message.
func (w *sizeEstimate) addMessage(raw []byte, of messageSpec) error {
	before := w.refs
	err := eachField(raw, func(n protowire.Number, typ protowire.Type, value []byte) error {
		p, known := of[n]
		switch {
		case !known:
			w.bytes += 2 * (len(value) + 10)
			return w.check()
		case p.kind == messageField && typ != protowire.BytesType:
			return malformed(fmt.Sprintf("field %d is not a message", n))
		}
		return w.add(p, value)
	})
	if err == nil && (w.refs-before)%2 != 0 {
		return malformed("a label has a name and no value")
	}
	return err
}

// add adds a field that is known.
func (w *sizeEstimate) add(p fieldSpec, value []byte) error {
	w.series += p.series
	w.samples += p.samples
	switch p.kind {
	case messageField:
		w.bytes += 2 * p.size
		named, ahead := w.refBytes, w.future
		if err := w.check(); err != nil {
			return err
		}
		if err := w.addMessage(value, p.fields); err != nil {
			return err
		}
		if p.series > 0 {
			w.bytes += 4 * (w.refBytes - named) * (1 + w.future - ahead)
		}
	case textField:
		w.bytes += 2*p.size + 16 + len(value)
	case numberField:
		for _, b := range value {
			if b < 0x80 { // the last byte of one
				w.bytes += 2 * p.size
			}
		}
	case doubleField:
		w.bytes += len(value) / 8 * 2 * p.size
	case refField:
		return w.addRefs(p, value)
	case timeField:
		if at, n := protowire.ConsumeVarint(value); n > 0 && int64(at) > w.latest {
			w.future++
		}
	}
	return w.check()
}

// addRefs adds references to symbols.
func (w *sizeEstimate) addRefs(p fieldSpec, value []byte) error {
	for len(value) > 0 {
		ref, n := protowire.ConsumeVarint(value)
		if n < 0 {
			return malformed(protowire.ParseError(n).Error())
		}
		value = value[n:]
		if ref >= uint64(len(w.lengths)) {
			return malformed(fmt.Sprintf("it names symbol %d, and has %d", ref, len(w.lengths)))
		}
		w.refs++
		w.refBytes += int(w.lengths[ref])
		w.bytes += 2 * p.size
		if err := w.check(); err != nil {
			return err
		}
	}
	return nil
}

// check says which limit a request is over.
func (w *sizeEstimate) check() error {
	switch {
	case w.series > maxSeries, w.samples > maxSamples:
		return newRefusal(http.StatusRequestEntityTooLarge, "too much in one request: at most %d samples of %d series: send fewer samples at once", maxSamples, maxSeries)
	case w.bytes > maxUnpacked, w.refBytes > maxUnpacked:
		return newRefusal(http.StatusRequestEntityTooLarge, "too much in one request: its labels, samples, buckets and exemplars take more than %s of memory: send fewer samples at once", unit.Bytes(maxUnpacked))
	}
	return nil
}

// eachField calls f with each field of a message; of what has a length before it, value is what
// comes after that.
func eachField(raw []byte, f func(n protowire.Number, typ protowire.Type, value []byte) error) error {
	for len(raw) > 0 {
		number, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return malformed(protowire.ParseError(n).Error())
		}
		size := protowire.ConsumeFieldValue(number, typ, raw[n:])
		if size < 0 {
			return malformed(protowire.ParseError(size).Error())
		}
		value := raw[n : n+size]
		raw = raw[n+size:]
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if err := f(number, typ, value); err != nil {
			return err
		}
	}
	return nil
}

// newBody returns a body that reads sent.
func newBody(sent []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(sent)) }

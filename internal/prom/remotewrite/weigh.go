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
	maxRaw = 32 << 20 // bytes of a request as snappy unpacks it
	// maxUnpacked is how many bytes the messages of a request may take in memory, as weigh
	// estimates it. 20,000 series of 20 labels take about half of it.
	maxUnpacked = 128 << 20
)

// A refusal is why a request is not looked at any further, and the status code that says so.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

func refused(status int, format string, args ...any) error {
	return refusal{status, fmt.Sprintf(format, args...)}
}

// broken is the error of what is no message of its version.
func broken(why string) error {
	return refused(http.StatusBadRequest, "the request is no message of remote write: %s", why)
}

// body reads a request as it was sent.
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	sent, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, refused(http.StatusRequestEntityTooLarge, "a request has at most %s as it is sent: send fewer samples at once", unit.Bytes(maxBody))
	}
	if err != nil {
		return nil, refused(http.StatusBadRequest, "the request cannot be read: %v", err)
	}
	return sent, nil
}

// message is the message that a request has by its headers, and the content type by which the
// handler takes it for nothing else.
func message(h http.Header) (of parts, kind string, err error) {
	const media = "application/x-protobuf"
	if packing := h.Get("Content-Encoding"); packing != "" && packing != "snappy" {
		return nil, "", refused(http.StatusUnsupportedMediaType, "Content-Encoding %.100q is not taken: send snappy", packing)
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
	return nil, "", refused(http.StatusUnsupportedMediaType, "Content-Type %.100q is not taken: send %s with proto=%s or proto=%s", given, media, versions["1.0"], versions["2.0"])
}

// modest reports a request that may take more than maxUnpacked to unpack, or has too many
// samples or series; now is the time in milliseconds.
func modest(sent []byte, of parts, now int64) error {
	n, err := snappy.DecodedLen(sent)
	if err != nil {
		return broken("it is not packed by snappy")
	}
	if n > maxRaw {
		return refused(http.StatusRequestEntityTooLarge, "a request has at most %s as snappy unpacks it, and this has %s: send fewer samples at once", unit.Bytes(maxRaw), unit.Bytes(float64(n)))
	}
	raw, err := snappy.Decode(nil, sent)
	if err != nil {
		return broken("it is not packed by snappy")
	}
	return weigh(raw, of, now)
}

// A part is a field of a message.
type part struct {
	holds holds
	size  int   // bytes of one in the list of them; 0 where there is no list
	of    parts // what is in a message
	// Of which limit it is one.
	series, samples int
}

type parts map[protowire.Number]part

// holds is what a field holds.
type holds uint8

const (
	messages holds = iota
	texts
	numbers // as varints, packed or not
	doubles // packed or not
	refs    // the places of texts among the symbols
	when    // milliseconds
)

// Sizes are those of Prometheus's structs, which a test compares. What is not named here is a
// number in its struct, or nothing that is known.
var (
	text   = part{holds: texts}
	label  = part{size: 64, of: parts{1: text, 2: text}}
	span   = part{size: 40, of: parts{}}
	native = parts{8: span, 9: {holds: numbers, size: 8}, 10: {holds: doubles, size: 8}, 11: span, 12: {holds: numbers, size: 8}, 13: {holds: doubles, size: 8},
		15: {holds: when}, 16: {holds: doubles, size: 8}}
	sample = parts{2: {holds: when}}

	// request1 is prometheus.WriteRequest.
	request1 = parts{
		1: {size: 128, series: 1, of: parts{
			1: label, 2: {size: 48, samples: 1, of: sample}, 3: {size: 72, of: parts{1: label}}, 4: {size: 272, samples: 1, of: native},
		}},
		3: {size: 88, of: parts{2: text, 4: text, 5: text}},
	}
	// request2 is io.prometheus.write.v2.Request. A reference is 4 bytes, and 16 in the list
	// of labels that it becomes.
	request2 = parts{
		symbols: {holds: texts, size: 16},
		5: {size: 176, series: 1, of: parts{
			1: {holds: refs, size: 20}, 2: {size: 56, samples: 1, of: sample}, 3: {size: 280, samples: 1, of: native},
			4: {size: 72, of: parts{1: {holds: refs, size: 20}}}, 5: {of: parts{}},
		}},
	}
)

// symbols is the number of the field that holds them in request2.
const symbols protowire.Number = 4

// A weight is what was found in a request so far.
type weight struct {
	series, samples int
	bytes           int     // in memory, at most about
	lengths         []int32 // of the symbols
	latest          int64   // milliseconds; a sample that is later is refused
	refs            int
	named           int // bytes of the texts that references name
	ahead           int // samples that are later
}

// weigh adds up what a request would take in memory, before any of it is given. An empty
// histogram takes two bytes in a request and 280 here, and a reference of one byte stands for a
// text of any length.
//
// Elements of lists count twice, as lists have room to grow; texts by their length and 16 bytes
// around them; what is not known twice by its length and ten bytes, as it is kept. A text that is named by a
// reference counts four times, as it is in the labels of a series and in the error of a series that
// cannot be taken, and once more for each sample of it of the future, as each has its own error.
func weigh(raw []byte, of parts, now int64) error {
	w := weight{latest: now + maxAhead.Milliseconds()}
	if of[symbols].holds == texts {
		// They may come after what names them.
		err := each(raw, func(n protowire.Number, _ protowire.Type, value []byte) error {
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
	return w.message(raw, of)
}

// message adds what is in a message.
func (w *weight) message(raw []byte, of parts) error {
	before := w.refs
	err := each(raw, func(n protowire.Number, typ protowire.Type, value []byte) error {
		p, known := of[n]
		switch {
		case !known:
			w.bytes += 2 * (len(value) + 10)
			return w.over()
		case p.holds == messages && typ != protowire.BytesType:
			return broken(fmt.Sprintf("field %d is no message", n))
		}
		return w.add(p, value)
	})
	if err == nil && (w.refs-before)%2 != 0 {
		return broken("a label has a name and no value")
	}
	return err
}

// add adds a field that is known.
func (w *weight) add(p part, value []byte) error {
	w.series += p.series
	w.samples += p.samples
	switch p.holds {
	case messages:
		w.bytes += 2 * p.size
		named, ahead := w.named, w.ahead
		if err := w.over(); err != nil {
			return err
		}
		if err := w.message(value, p.of); err != nil {
			return err
		}
		if p.series > 0 {
			w.bytes += 4 * (w.named - named) * (1 + w.ahead - ahead)
		}
	case texts:
		w.bytes += 2*p.size + 16 + len(value)
	case numbers:
		for _, b := range value {
			if b < 0x80 { // the last byte of one
				w.bytes += 2 * p.size
			}
		}
	case doubles:
		w.bytes += len(value) / 8 * 2 * p.size
	case refs:
		return w.names(p, value)
	case when:
		if at, n := protowire.ConsumeVarint(value); n > 0 && int64(at) > w.latest {
			w.ahead++
		}
	}
	return w.over()
}

// names adds references to symbols.
func (w *weight) names(p part, value []byte) error {
	for len(value) > 0 {
		ref, n := protowire.ConsumeVarint(value)
		if n < 0 {
			return broken(protowire.ParseError(n).Error())
		}
		value = value[n:]
		if ref >= uint64(len(w.lengths)) {
			return broken(fmt.Sprintf("it names symbol %d, and has %d", ref, len(w.lengths)))
		}
		w.refs++
		w.named += int(w.lengths[ref])
		w.bytes += 2 * p.size
		if err := w.over(); err != nil {
			return err
		}
	}
	return nil
}

// over says which limit a request is over.
func (w *weight) over() error {
	switch {
	case w.series > maxSeries, w.samples > maxSamples:
		return refused(http.StatusRequestEntityTooLarge, "too much in one request: at most %d samples of %d series: send fewer samples at once", maxSamples, maxSeries)
	case w.bytes > maxUnpacked, w.named > maxUnpacked:
		return refused(http.StatusRequestEntityTooLarge, "too much in one request: its labels, samples, buckets and exemplars take more than %s of memory: send fewer samples at once", unit.Bytes(maxUnpacked))
	}
	return nil
}

// each calls f with each field of a message; of what has a length before it, value is what
// comes after that.
func each(raw []byte, f func(n protowire.Number, typ protowire.Type, value []byte) error) error {
	for len(raw) > 0 {
		number, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return broken(protowire.ParseError(n).Error())
		}
		size := protowire.ConsumeFieldValue(number, typ, raw[n:])
		if size < 0 {
			return broken(protowire.ParseError(size).Error())
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

// again is a request to be read once more.
func again(sent []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(sent)) }

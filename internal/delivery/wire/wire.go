// Package wire turns batches into the bytes that agents send, and back.
//
// A batch is a message of proto/mete.proto in one zstd frame. The rows of all
// its windows are stored by columns, one for each resource, without the values
// that a reader can predict. docs/formats/wire.md describes the format for
// authors of other agents.
package wire

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	pb "mete.dev/mete/proto"
)

// MediaType is the Content-Type of a batch in a request. The compression is a
// part of it: the hash of a batch is that of the compressed bytes.
const MediaType = "application/vnd.mete.batch"

// Headers of the request that carries a batch: the sender's clocks as it sends
// (batch.Clock), its program's version, how full its spool is (FormatSpool), and what it
// holds of earlier boots (FormatBoots). The last two may be absent.
const (
	HeaderBoot     = "Mete-Boot"
	HeaderBoottime = "Mete-Boottime-Ns"
	HeaderWall     = "Mete-Wall-Ns"
	HeaderVersion  = "Mete-Version"
	HeaderSpool    = "Mete-Spool"
	HeaderBoots    = "Mete-Boots"
)

// FormatSpool writes the bytes of a spool, and how many it holds at most.
func FormatSpool(bytes, limit int64) string {
	return strconv.FormatInt(bytes, 10) + "/" + strconv.FormatInt(limit, 10)
}

// ParseSpool reads what FormatSpool wrote; false is something else.
func ParseSpool(s string) (bytes, limit int64, ok bool) {
	a, b, _ := strings.Cut(s, "/")
	bytes, err := strconv.ParseInt(a, 10, 64)
	limit, err2 := strconv.ParseInt(b, 10, 64)
	return bytes, limit, err == nil && err2 == nil && bytes >= 0 && limit > 0
}

// maxBoots is how many earlier boots a request states at most: the latest ones.
const maxBoots = 64

// FormatBoots writes what a sender holds of earlier boots, as ID=END/OFFSET, ID=END/OFFSET. A boot
// whose id is not of letters, digits, - and _ is left out.
func FormatBoots(boots []batch.BootEnd) string {
	boots = boots[max(0, len(boots)-maxBoots):]
	texts := make([]string, 0, len(boots))
	for _, b := range boots {
		if isBootID(b.Boot) {
			texts = append(texts, b.Boot+"="+strconv.FormatInt(b.End, 10)+"/"+strconv.FormatInt(b.Offset, 10))
		}
	}
	return strings.Join(texts, ", ")
}

// ParseBoots reads what FormatBoots wrote; of something else it returns none.
func ParseBoots(s string) (boots []batch.BootEnd) {
	if s == "" {
		return nil
	}
	for text := range strings.SplitSeq(s, ",") {
		boot, rest, _ := strings.Cut(strings.TrimSpace(text), "=")
		end, offset, _ := strings.Cut(rest, "/")
		b := batch.BootEnd{Boot: boot}
		var err, err2 error
		b.End, err = strconv.ParseInt(end, 10, 64)
		b.Offset, err2 = strconv.ParseInt(offset, 10, 64)
		if err != nil || err2 != nil || !isBootID(boot) || len(boots) == maxBoots {
			return nil
		}
		boots = append(boots, b)
	}
	return boots
}

func isBootID(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == ""
}

// layoutVersion is that of the layout. A reader refuses a higher one: see Format.
const layoutVersion = 1

// Encode appends b to dst as it is sent. The same batch gives the same bytes.
//
// It fails only if the ID of a name or of a guest is malformed, or a time in ns since
// 1970 does not fit an int64. Text is for display, so it never stops a batch: Encode
// clips text that is longer than the limit of Default, and labels in excess; bytes
// that are not UTF-8, and NUL, which databases do not hold, become U+FFFD. Of more figures of
// volumes, or of more edges of connections, than the limit the latest ones stay.
func Encode(dst []byte, b *batch.Batch) ([]byte, error) {
	m, err := batchMessage(b)
	if err != nil {
		return dst, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	raw, err := marshal.Marshal(m)
	if err != nil {
		return dst, fmt.Errorf("batch %d: %w", b.Number, err)
	}
	return compress(dst, raw), nil
}

var marshal = proto.MarshalOptions{Deterministic: true}

// Decode reads what Encode wrote, or another agent. Errors wrap
// fault.ErrInvalid, or ErrNewer.
//
// Fields that it does not know are ignored. Resources and layouts that it does
// not know are refused with ErrNewer: to skip them would lose use silently. Amounts
// and totals are never negative; windows follow each other without overlap
// where they are of one boot.
func Decode(src []byte, l Limits) (*batch.Batch, error) {
	raw, err := decompress(src, l)
	if err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	if err := checkMessageCounts(raw, l); err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	var m pb.Batch
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("batch: %w: %w", err, fault.ErrInvalid)
	}
	b, err := fromMessage(&m, l)
	if err != nil {
		return nil, fmt.Errorf("batch %d: %w", m.Number, err)
	}
	return b, nil
}

// invalid is an error of the sender's.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, fault.ErrInvalid)...)
}

// unknownResource refuses a resource by its number: one behind the list is a newer
// program's, another one has no place there.
func unknownResource(number int64) error {
	if number < usage.Limit {
		return invalid("resource %d is unknown here", number)
	}
	return newerError("resource %d is unknown", number)
}

// checkPresent refuses resources that are not known.
func checkPresent(s usage.Set) error {
	if strange := s &^ usage.All; strange != 0 {
		return unknownResource(int64(bits.TrailingZeros64(uint64(strange))))
	}
	return nil
}

// newerError is the error of what only a newer program knows.
func newerError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrNewer)...)
}

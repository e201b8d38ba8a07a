package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

// Limits bound what Decode takes. Whatever the bytes say, it allocates no more
// than some 16 times Size and 600 bytes a row.
type Limits struct {
	Sent    int // bytes as they are sent
	Size    int // bytes in the frame
	Windows int
	Rows    int // of all windows together
	Names   int
	Gaps    int
	Labels  int // of one name
	Text    int // bytes of one text
	Name    int // bytes of all texts of one name: what is longer is cut, not refused

	Handovers int // of all windows together, and guests
	Shares    int // of all handovers together
}

// Default is what both sides use.
func Default() Limits {
	return Limits{Sent: 4 << 20, Size: 8 << 20, Windows: 4096, Rows: 100_000, Names: 10_000, Gaps: 4096, Labels: batch.MaxLabels, Text: 4096, Name: 8 << 10,
		Handovers: 20_000, Shares: 400_000}
}

// checkMessageCounts counts the messages in a batch before memory is given to them: an
// empty one takes two bytes there, and a hundred here.
func checkMessageCounts(raw []byte, l Limits) error {
	most := map[protoreflect.Name]int{
		"Name": l.Names, "LabelsEntry": l.Names * l.Labels, "Gap": l.Gaps, "Window": l.Windows,
		"Handovers": 1, "Guest": l.Handovers, "Table": 2, "Shape": l.Rows, "Column": 2 * usage.Limit, "Balances": 1,
	}
	return countMessages(raw, proto.File_mete_proto.Messages().ByName("Batch"), most)
}

// countMessages takes off most what is in one message, up to a part that cannot be read: to decode the
// message ends there too, with an error.
func countMessages(raw []byte, of protoreflect.MessageDescriptor, most map[protoreflect.Name]int) error {
	fields := of.Fields()
	for len(raw) > 0 {
		number, typ, size := protowire.ConsumeField(raw)
		if size < 0 {
			return nil
		}
		_, _, n := protowire.ConsumeTag(raw)
		value := raw[n:size]
		raw = raw[size:]
		field := fields.ByNumber(number)
		if field == nil || field.Message() == nil || typ != protowire.BytesType {
			continue
		}
		child := field.Message()
		if most[child.Name()]--; most[child.Name()] < 0 {
			return invalid("too many of %s", field.FullName())
		}
		inner, _ := protowire.ConsumeBytes(value)
		if err := countMessages(inner, child, most); err != nil {
			return err
		}
	}
	return nil
}

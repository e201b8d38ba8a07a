package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

// Limits bound the batches that Decode accepts. For any input, Decode allocates at
// most about 16 times Size plus 600 bytes for each of Rows.
type Limits struct {
	Sent    int // bytes, compressed
	Size    int // bytes, decompressed
	Windows int
	Rows    int // of all windows together
	Names   int
	Gaps    int
	Labels  int // of one name
	Text    int // bytes of one text
	Name    int // bytes of all texts of one name; longer ones are cut, not refused

	Handovers int // of all windows together; also the maximum number of guests
	Shares    int // of all handovers together
	Volumes   int // figures of volumes, of all windows together
	Edges     int // of connections, of all rows together
}

// Default returns the limits that agents and servers use.
func Default() Limits {
	return Limits{Sent: 4 << 20, Size: 8 << 20, Windows: 4096, Rows: 100_000, Names: 10_000, Gaps: 4096, Labels: batch.MaxLabels, Text: 4096, Name: 8 << 10,
		Handovers: 20_000, Shares: 400_000, Volumes: 20_000, Edges: 200_000}
}

// checkMessageCounts counts the messages in a batch before they are decoded: an empty
// message has two bytes in the batch, and takes about a hundred when it is decoded.
func checkMessageCounts(raw []byte, l Limits) error {
	// A batch has two tables, its rows and the machine's, with a column for each resource.
	most := map[protoreflect.Name]int{
		"Name": l.Names, "LabelsEntry": l.Names * l.Labels, "Gap": l.Gaps, "Window": l.Windows,
		"Handovers": 1, "Guest": l.Handovers, "Table": 2, "Shape": l.Rows, "Column": 2 * usage.Limit, "Balances": 1,
		"VolumeUse": l.Volumes, "Connections": 1,
	}
	return countMessages(raw, proto.File_mete_proto.Messages().ByName("Batch"), most)
}

// countMessages subtracts the messages in raw from most, their maximum numbers by type, and fails if
// there are more. raw is a message of type of. At a part that cannot be read it ends without an error:
// the decoder fails there.
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

package vsockdev

import "encoding/binary"

// A packet is a packet of Virtio 1.2, section 5.10.6: a header and the data of a stream.
type packet struct {
	srcCID, dstCID   uint64
	srcPort, dstPort uint32
	kind             uint16
	op               op
	flags            uint32
	room             uint32 // size of the sender's receive buffer for this stream
	forwarded        uint32 // total bytes that the sender has read from it
	data             []byte
}

// op is the operation of a packet.
type op uint16

const (
	opRequest op = iota + 1
	opResponse
	opReset
	opShutdown
	opData
	opCredit
	opAsk // requests an opCredit
)

const (
	headSize = 44
	stream   = 1 // kind
	// Flags of opShutdown.
	noReceive = 1
	noSend    = 2
)

// decode parses a packet, whose data aliases b.
func decode(b []byte) (p packet, ok bool) {
	le := binary.LittleEndian
	if len(b) < headSize {
		return p, false
	}
	n := le.Uint32(b[24:])
	if uint64(n) > uint64(len(b)-headSize) {
		return p, false
	}
	return packet{
		srcCID: le.Uint64(b), dstCID: le.Uint64(b[8:]), srcPort: le.Uint32(b[16:]), dstPort: le.Uint32(b[20:]),
		kind: le.Uint16(b[28:]), op: op(le.Uint16(b[30:])), flags: le.Uint32(b[32:]), room: le.Uint32(b[36:]), forwarded: le.Uint32(b[40:]),
		data: b[headSize:][:n],
	}, true
}

// append appends the encoded packet to b.
func (p *packet) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, p.srcCID)
	b = le.AppendUint64(b, p.dstCID)
	b = le.AppendUint32(b, p.srcPort)
	b = le.AppendUint32(b, p.dstPort)
	b = le.AppendUint32(b, uint32(len(p.data)))
	b = le.AppendUint16(b, p.kind)
	b = le.AppendUint16(b, uint16(p.op))
	b = le.AppendUint32(b, p.flags)
	b = le.AppendUint32(b, p.room)
	b = le.AppendUint32(b, p.forwarded)
	return append(b, p.data...)
}

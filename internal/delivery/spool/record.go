package spool

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// A segment is a file: a header, then records. Numbers are little endian.
// docs/formats/spool.md describes it.
const (
	magic          = "mtsp"
	version        = 1
	headerSize     = 4 + 2 + 2 + 5*8 + 4
	recordHeadSize = 4 + 1 + 4 + 4 // of a record
	// maxPayload limits a record's payload; a record with a longer one is invalid.
	maxPayload = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A header is the beginning of a segment.
type header struct {
	number uint64 // the number in the file's name
	// through is the last segment that this one replaces; number if it was not rewritten.
	through uint64
	// before and length are the number and the valid length of the previous segment, which
	// may end with a failed write; 0 without one.
	before, length uint64
	rewritten      uint64 // number of rewrites
}

func (h header) append(b []byte) []byte {
	from := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = append(b, 0, 0)
	for _, v := range [...]uint64{h.number, h.through, h.before, h.length, h.rewritten} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

// parseHeader parses the header of the segment with this number. ok is false if it is
// invalid.
func parseHeader(b []byte, number uint64) (h header, ok bool) {
	if len(b) < headerSize || string(b[:4]) != magic || binary.LittleEndian.Uint16(b[4:]) != version {
		return header{}, false
	}
	body := b[:headerSize-4]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[headerSize-4:]) {
		return header{}, false
	}
	v := func(i int) uint64 { return binary.LittleEndian.Uint64(body[8+8*i:]) }
	h = header{v(0), v(1), v(2), v(3), v(4)}
	return h, h.number == number && h.through >= number && h.before < number
}

// checksumSeed returns the initial value of the checksums of record heads. It depends on the
// number of the segment, so that records are invalid in other segments.
func checksumSeed(number uint64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], number)
	return crc32.Checksum(b[:], castagnoli)
}

// appendRecord appends a record for the segment with this seed.
func appendRecord(b []byte, seed uint32, kind byte, payload []byte) []byte {
	from := len(b)
	b = slices.Grow(b, recordHeadSize+len(payload))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(seed, castagnoli, b[from:]))
	return append(b, payload...)
}

// parseRecord parses the record at the start of b. ok is false if there is no valid one.
func parseRecord(b []byte, seed uint32) (kind byte, payload []byte, ok bool) {
	if len(b) < recordHeadSize {
		return kind, nil, false
	}
	n := int64(binary.LittleEndian.Uint32(b))
	if n > maxPayload || n > int64(len(b)-recordHeadSize) ||
		crc32.Update(seed, castagnoli, b[:recordHeadSize-4]) != binary.LittleEndian.Uint32(b[recordHeadSize-4:]) {
		return kind, nil, false
	}
	payload = b[recordHeadSize : recordHeadSize+n]
	return b[4], payload, crc32.Checksum(payload, castagnoli) == binary.LittleEndian.Uint32(b[5:])
}

// scanRecords calls visit for each valid record of a segment's bytes, in order, with its
// offset. It skips invalid bytes up to the next valid record. It returns the end of the last
// record and the number of invalid parts before it.
func scanRecords(b []byte, number uint64, visit func(at int64, kind byte, payload []byte)) (end int64, corrupt int) {
	at, seed := 0, checksumSeed(number)
	if _, ok := parseHeader(b, number); ok {
		at = headerSize
	}
	end = int64(at)
	for at+recordHeadSize <= len(b) {
		kind, payload, ok := parseRecord(b[at:], seed)
		if !ok {
			at++
			continue
		}
		if int64(at) != end {
			corrupt++
		}
		visit(int64(at), kind, payload)
		at += recordHeadSize + len(payload)
		end = int64(at)
	}
	return end, corrupt
}

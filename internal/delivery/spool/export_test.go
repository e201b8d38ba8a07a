package spool

// Segment returns a segment with these records.
func Segment(kind byte, payloads ...[]byte) []byte {
	b := header{number: 1, through: 1}.append(nil)
	for _, p := range payloads {
		b = appendRecord(b, checksumSeed(1), kind, p)
	}
	return b
}

// Payloads returns the payloads of the records of a segment with number 1.
func Payloads(segment []byte) (all [][]byte) {
	scanRecords(segment, 1, func(_ int64, _ byte, payload []byte) { all = append(all, payload) })
	return all
}

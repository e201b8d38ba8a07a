package wire

import (
	"sync"

	"github.com/klauspost/compress/zstd"
)

// windowSize is how far back a frame refers at most. An agent's memory is small,
// and a batch is hardly larger.
const windowSize = 256 << 10

// One encoder and one decoder serve the process: their tables are the larger
// part of what this package holds. Neither keeps anything between two calls.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(windowSize), zstd.WithLowerEncoderMem(true), zstd.WithSingleSegment(true),
			zstd.WithEncoderCRC(false)) // TLS and the hashes have seen to it
		if err != nil {
			panic("wire: " + err.Error())
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			panic("wire: " + err.Error())
		}
		return d
	})
)

// compress appends raw to dst as one frame that says its content's size.
func compress(dst, raw []byte) []byte { return encoder().EncodeAll(raw, dst) }

// ExpandedSize is how many bytes a batch is once it is expanded, by what it says of
// itself: a hint, which costs next to nothing. It is 0 where it says nothing.
func ExpandedSize(sent []byte) uint64 {
	var h zstd.Header
	if h.Decode(sent) != nil || !h.HasFCS {
		return 0
	}
	return h.FrameContentSize
}

// decompress reads one frame. It trusts the size that the frame says of itself only
// in so far as it gives no more memory than that.
func decompress(src []byte, l Limits) ([]byte, error) {
	if len(src) > l.Sent {
		return nil, invalid("%d bytes, more than %d", len(src), l.Sent)
	}
	var h zstd.Header
	switch {
	case h.Decode(src) != nil || h.Skippable || !h.HasFCS:
		return nil, invalid("zstd: the frame does not say its content's size")
	case h.FrameContentSize > uint64(l.Size):
		return nil, invalid("zstd: %d bytes in the frame, more than %d", h.FrameContentSize, l.Size)
	}
	raw, err := decoder().DecodeAll(src, make([]byte, 0, h.FrameContentSize))
	if err != nil {
		return nil, invalid("zstd: %w", err)
	}
	return raw, nil
}

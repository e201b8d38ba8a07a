package wire

import (
	"math"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

func volumesMessage(windows []usage.Window) (list []*proto.VolumeUse) {
	for i := range windows {
		w := &windows[i]
		for _, v := range w.Volumes {
			list = append(list, &proto.VolumeUse{Window: uint32(i), Pod: cleanText(v.Pod), Volume: cleanText(v.Volume), Used: uint64(max(0, v.Used)), Size: uint64(max(0, v.Size)),
				At: uint64(min(max(v.At, w.Start), w.End) - w.Start)})
		}
	}
	return list[max(0, len(list)-Default().Volumes):]
}

func volumesFrom(windows []usage.Window, list []*proto.VolumeUse, l Limits) error {
	last := uint32(0)
	for i, m := range list {
		switch {
		case int64(m.Window) >= int64(len(windows)):
			return invalid("%d is of window %d of %d", i, m.Window, len(windows))
		case m.Window < last:
			return invalid("%d is of window %d, after one of window %d", i, m.Window, last)
		case m.Used > math.MaxInt64 || m.Size > math.MaxInt64:
			return invalid("%d has %d of %d bytes", i, m.Used, m.Size)
		case m.At > uint64(windows[m.Window].End-windows[m.Window].Start):
			return invalid("%d is of %d ns after the start of window %d", i, m.At, m.Window)
		}
		if err := checkTexts(l, m.Pod, m.Volume); err != nil {
			return err
		}
		last = m.Window
		w := &windows[m.Window]
		w.Volumes = append(w.Volumes, usage.VolumeUse{Pod: m.Pod, Volume: m.Volume, At: w.Start + int64(m.At), Used: int64(m.Used), Size: int64(m.Size)})
	}
	return nil
}

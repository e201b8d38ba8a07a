package wire

import (
	"math"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

func volumesMessage(windows []usage.Window) (list []*proto.VolumeUse) {
	for i := range windows {
		for _, v := range windows[i].Volumes {
			list = append(list, &proto.VolumeUse{Window: uint32(i), Pod: cleanText(v.Pod), Volume: cleanText(v.Volume), Used: uint64(max(0, v.Used))})
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
		case m.Used > math.MaxInt64:
			return invalid("%d has %d bytes", i, m.Used)
		}
		if err := checkTexts(l, m.Pod, m.Volume); err != nil {
			return err
		}
		last = m.Window
		w := &windows[m.Window]
		w.Volumes = append(w.Volumes, usage.VolumeUse{Pod: m.Pod, Volume: m.Volume, Used: int64(m.Used)})
	}
	return nil
}

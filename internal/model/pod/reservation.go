package pod

// A Reservation is what a container of a pod reserves and is limited to. One without a name is what the pod does beyond
// its containers: its overhead, its own resources, and those of its init containers that exceed the sum of the others.
type Reservation struct {
	Container string
	Levels
}

// Levels are what is reserved at a time.
type Levels struct {
	CPU         int64 // thousandths of a CPU
	CPULimit    int64 // the same; NoLimit
	Memory      int64 // bytes
	MemoryLimit int64 // the same; NoLimit
	Storage     int64 // bytes of local storage, or of a volume
	GPU         int64 // thousandths of an accelerator
}

// NoLimit is the limit of a container that has none.
const NoLimit = -1

const (
	// maxThousandths and maxBytes limit levels, so that those of a day fit a row: 100,000 CPUs, and 64 TiB.
	maxThousandths = 100_000 * 1000
	maxBytes       = 1 << 46
)

// Cap returns the levels within what a row can hold. No machine has more, but any specification can say so.
func (l Levels) Cap() Levels {
	for v, most := range map[*int64]int64{&l.CPU: maxThousandths, &l.CPULimit: maxThousandths, &l.GPU: maxThousandths,
		&l.Memory: maxBytes, &l.MemoryLimit: maxBytes, &l.Storage: maxBytes} {
		*v = min(*v, most)
	}
	l.CPU, l.Memory, l.Storage, l.GPU = max(l.CPU, 0), max(l.Memory, 0), max(l.Storage, 0), max(l.GPU, 0)
	l.CPULimit, l.MemoryLimit = max(l.CPULimit, NoLimit), max(l.MemoryLimit, NoLimit)
	return l
}

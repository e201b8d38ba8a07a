// Package power holds the types of measuring energy: where it is booked (Domain), what a meter
// covers (Level, Kind, Meter), what it showed (Reading), and a machine's power by load (Curve).
//
// Energy is in microjoules, power in microwatts, time in nanoseconds of CLOCK_BOOTTIME, and
// fractions and relative errors in parts per million.
package power

// PPM is one, in parts per million.
const PPM = 1_000_000

// A Domain is where energy is booked. All energy is in exactly one domain.
type Domain uint8

const (
	// Package is the CPU packages: their cores, caches and memory controllers. It includes what a
	// meter of cores alone shows.
	Package Domain = iota + 1
	// DRAM is the memory. It is separate from Package, although powercap nests its zone in the
	// package's.
	DRAM
	// GPU is the accelerators.
	GPU
	// Rest is what no finer meter shows: losses of the power supply, fans, disks. It is the whole
	// machine if only that is metered, or nothing is.
	Rest

	// DomainLimit is one more than the highest domain.
	DomainLimit
)

var domainNames = [DomainLimit]string{"unknown", "package", "dram", "gpu", "rest"}

// String returns the domain's name.
func (d Domain) String() string { return domainNames[d] }

// A Level says how much of a machine a meter covers. A higher level includes the lower ones.
type Level uint8

const (
	// Part is one package, its memory, or one accelerator.
	Part Level = iota + 1
	// Board is the main board: RAPL's psys, or the board's own sensors.
	Board
	// Box is the machine at its plug: a management controller or a power strip.
	Box

	// LevelLimit is one more than the highest level.
	LevelLimit
)

var levelNames = [LevelLimit]string{"unknown", "part", "board", "box"}

// String returns the level's name.
func (l Level) String() string { return levelNames[l] }

// A Kind is the type of a meter's values.
type Kind uint8

const (
	// Energy values are cumulative, in uJ.
	Energy Kind = iota + 1
	// Power values are present levels, in uW.
	Power
)

var kindNames = [...]string{"unknown", "energy", "power"}

// String returns the kind's name.
func (k Kind) String() string { return kindNames[k] }

// An Origin is the interface through which a meter is read.
type Origin uint8

const (
	Powercap Origin = iota + 1 // RAPL, by the kernel's powercap files
	Hwmon                      // sensors, by the kernel's hwmon files
	IPMI                       // the management controller
	NVML                       // NVIDIA's library
	Host                       // the host of this virtual machine
	Model                      // none: computed from the load

	// OriginLimit is one more than the highest origin.
	OriginLimit
)

var originNames = [OriginLimit]string{"unknown", "powercap", "hwmon", "ipmi", "nvml", "host", "model"}

// String returns the origin's name.
func (o Origin) String() string { return originNames[o] }

// A Meter is a source of energy or power readings. It does not change while it is read.
type Meter struct {
	Name  string // unique on its machine: "rapl/package-0"
	Level Level
	// Domain is where a Part's energy is booked. Higher levels have Rest, which gets what a meter
	// shows beyond the parts inside it.
	Domain Domain
	Kind   Kind
	From   Origin
	// Wrap is the modulus of an Energy counter in uJ; 0 means that it does not wrap.
	Wrap int64
	// Step is the resolution of the meter, in the unit of its values.
	Step int64
	// Every is the meter's update interval in ns, and so the maximum age of a value. A Power value
	// is the mean or the present level of that time. 0 is unknown.
	Every int64
	// ErrorPPM is the meter's class: its error relative to the value.
	ErrorPPM int64
	// Most is the highest power that it can show, in uW. 0 is unknown.
	Most int64
}

// A Reading is what a meter showed at an instant.
type Reading struct {
	Meter int    // index in the list of meters
	At    int64  // ns of CLOCK_BOOTTIME
	Value int64  // uJ or uW, by the meter's Kind
	Err   string // why there is no value, or ""
	// Share is the share from which Value was taken, for a meter with Origin Host. It is immutable.
	Share *Share
}

// A Share is what a host gave one of its virtual machines since an epoch began, up to one of the
// host's ticks. Amounts only grow within an epoch, unless the host was killed and resumed a little
// earlier.
type Share struct {
	Guest string // UUID of the virtual machine, in lower case with dashes
	// Epoch is the unguessable id of a series of shares. Every restart of counting has a new one.
	Epoch string
	// N is the share's number within its epoch. It grows with each tick of the host, and is never
	// reused with other amounts.
	N  int64
	At int64 // of the tick, ns of the host's CLOCK_BOOTTIME
	// Active is the energy of the virtual machine's activity, and Idle its part of the host's idle
	// energy, in uJ.
	Active, Idle int64
	Error        int64 // of the sum of both, in uJ
	Modelled     int64 // part of the sum that no meter showed, in uJ
}

// Energy returns the total, in uJ.
func (s *Share) Energy() int64 { return s.Active + s.Idle }

// A Curve is the power of a machine, or of its packages, by load.
type Curve struct {
	// Domain is Package for the packages alone, Rest for the whole machine.
	Domain Domain
	// Threads is the number of hardware threads that the curve describes; 0 is unknown.
	Threads int
	// Points are in rising order of load. Power is linear between points, and constant before the
	// first and after the last.
	Points []Point
	// ErrorPPM is the error of the power, relative to the curve.
	ErrorPPM int64
	// IdleErrorPPM is the error at idle, which is harder to predict; 0 means ErrorPPM.
	IdleErrorPPM int64
	// Source describes the origin of the curve for people.
	Source string
}

// A Point is the power at one load.
type Point struct {
	Load  int64 // ppm of the available CPU time
	Power int64 // uW
}

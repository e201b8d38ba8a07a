// Package power holds the nouns of measuring energy: where it is booked
// (Domain), what a meter sees (Level, Kind, Meter), what it showed (Reading),
// and the power of a machine by its load (Curve).
//
// Energy is in microjoules, power in microwatts, time in nanoseconds of
// CLOCK_BOOTTIME, and a share or a relative error in parts per million.
package power

// PPM is the whole, in parts per million.
const PPM = 1_000_000

// A Domain is where energy is booked. All energy is in exactly one.
type Domain uint8

const (
	// Package is the CPU packages: their cores, caches and memory controllers.
	// What a meter of cores alone shows is inside it.
	Package Domain = iota + 1
	// DRAM is the memory. It stands beside Package, although powercap shows its
	// zone below the package's.
	DRAM
	// GPU is the accelerators.
	GPU
	// Rest is what no finer meter shows: what the power supply loses, fans,
	// disks. Where only the machine as a whole is metered, or nothing is, it
	// is the whole machine.
	Rest

	// DomainLimit is one more than the highest domain.
	DomainLimit
)

var domainNames = [DomainLimit]string{"unknown", "package", "dram", "gpu", "rest"}

// String returns the domain's name.
func (d Domain) String() string { return domainNames[d] }

// A Level says how much of a machine a meter sees. A higher level holds all
// that is seen at the lower ones.
type Level uint8

const (
	// Part is one package, its memory, or one accelerator.
	Part Level = iota + 1
	// Board is what the main board carries: RAPL's psys, a board's own sensors.
	Board
	// Box is the machine at its plug: a management controller, a power strip.
	Box

	// LevelLimit is one more than the highest level.
	LevelLimit
)

var levelNames = [LevelLimit]string{"unknown", "part", "board", "box"}

// String returns the level's name.
func (l Level) String() string { return levelNames[l] }

// A Kind says what the values of a meter are.
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

// An Origin says through what a meter is read.
type Origin uint8

const (
	Powercap Origin = iota + 1 // RAPL, by the kernel's powercap files
	Hwmon                      // sensors, by the kernel's hwmon files
	IPMI                       // the management controller
	NVML                       // NVIDIA's library
	Host                       // what the host gives this virtual machine
	Model                      // nothing: computed from the load

	// OriginLimit is one more than the highest origin.
	OriginLimit
)

var originNames = [OriginLimit]string{"unknown", "powercap", "hwmon", "ipmi", "nvml", "host", "model"}

// String returns the origin's name.
func (o Origin) String() string { return originNames[o] }

// A Meter is one thing that shows energy or power. It does not change while it
// is read.
type Meter struct {
	Name  string // unique on its machine: "rapl/package-0"
	Level Level
	// Domain is where a Part's energy is booked. Above parts it is Rest, which
	// takes what a meter shows beyond all that is inside it.
	Domain Domain
	Kind   Kind
	From   Origin
	// Wrap is where an Energy meter starts again: it counts modulo Wrap uJ. 0
	// is never.
	Wrap int64
	// Step is the smallest change that the meter can show, in its values' unit.
	Step int64
	// Every is how old a value can be when it is read, in ns: the time between
	// two updates of the meter. A Power value is the mean or the present level
	// of that time. 0 is not known.
	Every int64
	// ErrorPPM is the meter's class: by how much it may be off, of what it shows.
	ErrorPPM int64
	// Most is the highest power that it can possibly show, in uW. 0 is not known.
	Most int64
}

// A Reading is what a meter showed at an instant.
type Reading struct {
	Meter int    // index in the list of meters that are read
	At    int64  // ns of CLOCK_BOOTTIME
	Value int64  // uJ or uW, as the meter's Kind says
	Err   string // why there is no value; "" where there is one
	// Share is, of a meter whose Origin is Host, what Value was taken from. It
	// does not change once it was read.
	Share *Share
}

// A Share is what a host gave one of its virtual machines since an epoch began,
// up to one of the host's ticks. Amounts only grow within an epoch, but for what a
// host that was killed booked anew when it was back.
type Share struct {
	Guest string // UUID of the virtual machine, in lower case with dashes
	// Epoch names the beginning of the count: a text that nobody can guess, and
	// another one whenever counting began anew.
	Epoch string
	// N is the share's number within its epoch. It grows with each tick of the
	// host, and is never used again with other amounts.
	N  int64
	At int64 // of the tick, ns of the host's CLOCK_BOOTTIME
	// Active is what the virtual machine's activity used, and Idle its part of
	// what the host draws anyway, in uJ.
	Active, Idle int64
	Error        int64 // by how much the two together may be off, in uJ
	Modelled     int64 // how much of the two together no meter showed, in uJ
}

// Energy is all that was given, in uJ.
func (s *Share) Energy() int64 { return s.Active + s.Idle }

// A Curve is the power of a machine, or of its packages, by its load.
type Curve struct {
	// Domain is Package for the packages alone, Rest for the whole machine.
	Domain Domain
	// Threads is how many hardware threads what it describes has. 0 is not known.
	Threads int
	// Points are in rising order of load. Between two of them power is a
	// straight line; before the first and after the last it is theirs.
	Points []Point
	// ErrorPPM is by how much the power may be off, of what the curve says.
	ErrorPPM int64
	// IdleErrorPPM is the same of the machine that does nothing, which is the
	// harder one to know; 0 is ErrorPPM.
	IdleErrorPPM int64
	// Source says where the curve is from, as people are shown it.
	Source string
}

// A Point is the power at one load.
type Point struct {
	Load  int64 // ppm of the CPU time that there is
	Power int64 // uW
}

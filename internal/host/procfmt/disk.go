package procfmt

import "bytes"

// IO is a group's use of one block device, in bytes and requests.
type IO struct {
	ReadBytes, WrittenBytes, DiscardedBytes int64
	Reads, Writes, Discards                 int64
}

// IOStat reads io.stat of v2 and calls f for each device with counters. Kernels before 5.13
// could write a device without its newline, so that two device numbers are on one line: the
// last one counts.
func IOStat(b []byte, f func(dev Dev, c IO)) error {
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		var dev Dev
		var c IO
		known, counted := false, false
		for field, rest := cutField(line); len(field) > 0; field, rest = cutField(rest) {
			key, value, ok := bytes.Cut(field, []byte{'='})
			if !ok {
				if d, ok := device(field); ok {
					dev, known = d, true
				}
				continue
			}
			into := c.field(key)
			if into == nil {
				continue
			}
			if !put(value, 1, into) {
				return invalid("io.stat", field)
			}
			counted = true
		}
		if counted && !known {
			return invalid("io.stat", line)
		}
		if counted {
			f(dev, c)
		}
	}
	return nil
}

func (c *IO) field(key []byte) *int64 {
	switch string(key) {
	case "rbytes":
		return &c.ReadBytes
	case "wbytes":
		return &c.WrittenBytes
	case "dbytes":
		return &c.DiscardedBytes
	case "rios":
		return &c.Reads
	case "wios":
		return &c.Writes
	case "dios":
		return &c.Discards
	}
	return nil
}

// BlkioServiceBytes reads blkio.throttle.io_service_bytes of v1, its _recursive form, or
// the io_serviced files, which hold requests instead of bytes. It calls f once per device
// and returns the number of devices: 0 means either no I/O or that the kernel does not
// count here.
func BlkioServiceBytes(b []byte, f func(dev Dev, read, written int64)) (devices int, err error) {
	var dev Dev
	var read, written int64
	flush := func() {
		if devices > 0 {
			f(dev, read, written)
		}
		read, written = 0, 0
	}
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		name, rest := cutField(line)
		d, ok := device(name)
		if !ok {
			if len(name) > 0 && string(name) != "Total" {
				return devices, invalid("blkio device", line)
			}
			continue
		}
		if devices == 0 || d != dev {
			flush()
			dev = d
			devices++
		}
		op, rest := cutField(rest)
		switch string(op) {
		case "Read":
			ok = put(rest, 1, &read)
		case "Write":
			ok = put(rest, 1, &written)
		}
		if !ok {
			return devices, invalid("blkio", line)
		}
	}
	flush()
	return devices, nil
}

// DiskIO is the traffic of a block device or partition since boot. Its requests are those that the
// device completed. MergedReads and MergedWrites are requests that the kernel made parts of others
// before.
type DiskIO struct {
	IO
	MergedReads, MergedWrites int64
}

// Diskstats reads /proc/diskstats and calls f for each device and partition.
func Diskstats(b []byte, f func(dev Dev, name string, c DiskIO)) error {
	// Documentation/admin-guide/iostats.rst: a sector is always 512 bytes.
	const sector = 512
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		major, rest := cutField(line)
		if len(major) == 0 {
			continue
		}
		minor, rest := cutField(rest)
		name, rest := cutField(rest)
		var d Dev
		var okMajor, okMinor bool
		d.Major, okMajor = small(major)
		d.Minor, okMinor = small(minor)
		// reads, merged, sectors, ms, then the same of writes
		var v [8]int64
		_, ok := numbers(rest, v[:])
		if !ok || !okMajor || !okMinor {
			return invalid("diskstats", line)
		}
		c := DiskIO{IO: IO{Reads: v[0], Writes: v[4]}, MergedReads: v[1], MergedWrites: v[5]}
		var okRead, okWritten bool
		c.ReadBytes, okRead = scale(v[2], sector)
		c.WrittenBytes, okWritten = scale(v[6], sector)
		if !okRead || !okWritten || min(c.Reads, c.Writes, c.MergedReads, c.MergedWrites) < 0 {
			return invalid("diskstats", line)
		}
		f(d, string(name), c)
	}
	return nil
}

// A Driver is a block driver and one of its major numbers.
type Driver struct {
	Major uint32
	Name  string
}

// Devices reads the block drivers from /proc/devices; one may have several majors.
func Devices(b []byte) ([]Driver, error) {
	var ds []Driver
	block := false
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		if bytes.HasSuffix(line, []byte("devices:")) {
			block = bytes.HasPrefix(line, []byte("Block"))
			continue
		}
		field, rest := cutField(line)
		if !block || len(field) == 0 {
			continue
		}
		major, ok := small(field)
		name := bytes.TrimSpace(rest)
		if !ok || len(name) == 0 {
			return nil, invalid("devices", line)
		}
		ds = append(ds, Driver{major, string(name)})
	}
	return ds, nil
}

// Device reads a device number, as in /sys/block/*/dev.
func Device(b []byte) (Dev, error) {
	d, ok := device(bytes.TrimSpace(b))
	if !ok {
		return Dev{}, invalid("device number", b)
	}
	return d, nil
}

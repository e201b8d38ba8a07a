package procfmt

// CPU holds the values of cpu.stat. The Has fields mark those that a kernel or group lacks:
// v1 has no Usage, User and System; the root group and groups without the cpu controller
// have no throttling.
type CPU struct {
	Usage, User, System int64 // ns
	Periods             int64 // enforcement periods that passed
	Throttled           int64 // periods in which the group was throttled
	ThrottledTime       int64 // ns

	HasUsage, HasUser, HasSystem               bool
	HasPeriods, HasThrottled, HasThrottledTime bool
}

// CPUStat reads cpu.stat of v2, whose times are in microseconds, or of v1, whose only time
// is in nanoseconds.
func CPUStat(b []byte) (CPU, error) {
	var c CPU
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		key, rest := cutField(line)
		var into *int64
		var has *bool
		by := int64(1)
		switch string(key) {
		case "usage_usec":
			into, has, by = &c.Usage, &c.HasUsage, 1000
		case "user_usec":
			into, has, by = &c.User, &c.HasUser, 1000
		case "system_usec":
			into, has, by = &c.System, &c.HasSystem, 1000
		case "nr_periods":
			into, has = &c.Periods, &c.HasPeriods
		case "nr_throttled":
			into, has = &c.Throttled, &c.HasThrottled
		case "throttled_usec":
			into, has, by = &c.ThrottledTime, &c.HasThrottledTime, 1000
		case "throttled_time":
			into, has = &c.ThrottledTime, &c.HasThrottledTime
		default:
			continue
		}
		if !put(rest, by, into) {
			return CPU{}, invalid(string(key), rest)
		}
		*has = true
	}
	return c, nil
}

// put stores the single number in b times by, and reports whether it is well formed.
func put(b []byte, by int64, into *int64) bool {
	f, rest := cutField(b)
	v, ok := number(f)
	if !ok {
		return false
	}
	if extra, _ := cutField(rest); len(extra) > 0 {
		return false
	}
	*into, ok = scale(v, by)
	return ok
}

// CPUAcctStat reads cpuacct.stat of v1: CPU ns in user mode and in the kernel. The kernel
// scales the two to sum to the scheduler's time, and then rounds each down to 10 ms.
func CPUAcctStat(b []byte) (user, system int64, err error) {
	seen := 0
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		key, rest := cutField(line)
		switch string(key) {
		case "user":
			if !put(rest, tick, &user) {
				return 0, 0, invalid("user", rest)
			}
			seen |= 1
		case "system":
			if !put(rest, tick, &system) {
				return 0, 0, invalid("system", rest)
			}
			seen |= 2
		}
	}
	if seen != 3 {
		return 0, 0, invalid("cpuacct.stat without user and system", nil)
	}
	return user, system, nil
}

// Schedstat reads /proc/PID/schedstat: for how many ns the task ran, and for how many it
// was runnable and waited.
func Schedstat(b []byte) (run, wait int64, err error) {
	line, _ := cutLine(b)
	var v [2]int64
	if _, ok := numbers(line, v[:]); !ok || v[0] < 0 || v[1] < 0 {
		return 0, 0, invalid("schedstat", line)
	}
	return v[0], v[1], nil
}

// Pressure reads a pressure file: the ns in which some task waited, and in which all did.
// Older kernels have no full line for the CPU; full is then -1.
func Pressure(b []byte) (some, full int64, err error) {
	some, full = -1, -1
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		kind, rest := cutField(line)
		var into *int64
		switch string(kind) {
		case "some":
			into = &some
		case "full":
			into = &full
		default:
			continue
		}
		if !total(rest, into) {
			return 0, 0, invalid(string(kind), rest)
		}
	}
	if some < 0 {
		return 0, 0, invalid("pressure without some", nil)
	}
	return some, full, nil
}

// total finds total= among the fields of a pressure line.
func total(b []byte, into *int64) bool {
	const key = "total="
	for f := []byte(nil); ; {
		if f, b = cutField(b); len(f) == 0 {
			return false
		}
		if len(f) > len(key) && string(f[:len(key)]) == key {
			return put(f[len(key):], 1000, into)
		}
	}
}

// CPUMax reads cpu.max of v2: the quota of CPU time per period, in microseconds. It returns
// ns; quota 0 is unlimited ("max").
func CPUMax(b []byte) (quota, period int64, err error) {
	line, _ := cutLine(b)
	first, rest := cutField(line)
	second, _ := cutField(rest)
	ok := true
	if string(first) != "max" {
		var v int64
		if v, ok = number(first); ok {
			quota, ok = scale(v, 1000)
		}
		ok = ok && quota > 0
	}
	if v, good := number(second); ok && good && v > 0 {
		if period, ok = scale(v, 1000); ok {
			return quota, period, nil
		}
	}
	return 0, 0, invalid("cpu.max", b)
}

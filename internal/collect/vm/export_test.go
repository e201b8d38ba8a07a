package vm

import "encoding/json"

// Exports for external tests.

// P is a process for Alone.
type P struct {
	PID, Parent  int32
	Name         string
	QEMU, Kernel bool
}

func Alone(them ...P) (pid int32, why string) {
	var in []groupProcess
	for _, p := range them {
		in = append(in, groupProcess{p.PID, p.Parent, p.Name, p.QEMU, p.Kernel})
	}
	return soleVM(in)
}

var (
	RoleOf     = roleOf
	IsQEMU     = isQEMU
	VCPUs      = vcpus
	Speak      = queryStats
	ParseStats = func(b json.RawMessage) (Exits, error) { return parseStats(b) }
)

const (
	Settled = maxChecks
	OneIn   = recheckEvery
)

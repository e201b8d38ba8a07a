// Package v1 is the version 1 of the API: it reads queries out of URL parameters
// and JSON, and writes and reads answers as JSON and CSV.
//
// It is pure: the server's and the client's side of each form stand together,
// so that neither can drift from the other. Keys name their unit and are those
// of the reports of mete run wherever the meaning is the same.
//
// [Fleet] presents the machines that a server knows as one, in the order
// cluster, node, workload.
package v1

import (
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// MaxGroups is how many groups one answer may have.
const MaxGroups = 10_000

// AdminSocket is the name of the socket in the state directory on which a server
// takes orders of this machine's administrator: who may open it may give them.
const AdminSocket = "admin.sock"

// dimensions are what usage can be grouped and filtered by, in the order in
// which people read of them; labels come besides.
var dimensions = []query.Dimension{query.ByJob, query.ByWorkload, query.ByNode, query.ByCluster, query.ByKind, query.ByUser,
	query.ByProject, query.ByNamespace, query.ByPod, query.ByContainer}

// Dimensions names all dimensions; the last one stands for all labels.
func Dimensions() []string {
	var names []string
	for _, d := range dimensions {
		names = append(names, string(d))
	}
	return append(names, string(query.ByLabel)+"KEY")
}

// parseDimension reads the name of a dimension.
func parseDimension(s string) (query.Dimension, error) {
	key, label := strings.CutPrefix(s, string(query.ByLabel))
	if label && key != "" || slices.Contains(dimensions, query.Dimension(s)) {
		return query.Dimension(s), nil
	}
	return "", invalid("it is one of "+strings.Join(Dimensions(), ", "), "dimension %q", s)
}

// IsMachineDimension reports whether a dimension is about machines: what is idle belongs
// to one of them, while for all other dimensions it is a group of its own.
func IsMachineDimension(d query.Dimension) bool { return d == query.ByNode || d == query.ByCluster }

// invalid is an error about what was asked, with what would be right.
func invalid(hint, format string, a ...any) error {
	return fault.WithHint(fmt.Errorf(format+": %w", append(a, fault.ErrInvalid)...), hint)
}

// A figure is one amount of a group as it is written.
type figure struct {
	key  string
	unit unit.Unit
	res  usage.Resource // of resourceAmount and LevelAverage
	kind FigureKind
}

// A FigureKind is what a figure is made of.
type FigureKind uint8

const (
	resourceAmount  FigureKind = iota // of the resource
	LevelAverage                      // the resource's level over the length of the answer
	EnergySum                         // of all domains
	idleEnergy                        // energy of idle machines, where that was divided
	idleEnergyError                   // by how much that may be off
	PowerAverage                      // both energies over the length of the answer; uJ a second are uW
)

// figures are all of them, in the order in which they are written.
var figures = allFigures()

func allFigures() (all []figure) {
	for r := usage.Resource(1); r < usage.Limit; r++ {
		d := r.Detail()
		if d.Kind == usage.Integral && d.Level == unit.Byte {
			all = append(all, figure{d.Name + "_average_bytes", unit.Byte, r, LevelAverage})
		}
		if r == usage.EnergyPackage {
			all = append(all, figure{"energy_joules", unit.Microjoule, 0, EnergySum},
				figure{"energy_idle_joules", unit.Microjoule, 0, idleEnergy}, figure{"energy_idle_error_joules", unit.Microjoule, 0, idleEnergyError},
				figure{"energy_average_watts", unit.Microjoule, 0, PowerAverage})
		}
		all = append(all, figure{figureKey(d), d.Unit, r, resourceAmount})
	}
	return all
}

// figureKey names an amount with its base unit. Idle energy that was booked to a row is
// part of its energy; what --idle gave to it is beside it, and is another figure.
func figureKey(d usage.Detail) string {
	switch base := d.Unit.Base(); {
	case d.Name == usage.EnergyIdle.String():
		return d.Name + "_booked_" + base
	case base != "":
		if strings.HasSuffix(d.Name, "_"+base) {
			return d.Name
		}
		return d.Name + "_" + base
	case d.Kind == usage.Integral:
		return d.Name + "_seconds" // things held over time
	}
	return d.Name
}

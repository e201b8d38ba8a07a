// Package v1 is version 1 of the API: the parameters of queries, and answers as JSON
// and CSV.
//
// Each entity is one struct, which the server makes from a value of the model with a
// constructor such as [NodeOf], and which the client reads with encoding/json. [JSON]
// and [CSV] write any of them. Keys name their unit and are those of the reports of
// mete run wherever the meaning is the same.
//
// [Fleet] presents the nodes of a server as one machine, in the order cluster, node,
// workload.
package v1

import (
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// MaxGroups is the largest number of groups in one answer.
const MaxGroups = 10_000

// AdminSocket is the name of the socket in the state directory on which a server accepts
// administrative requests. Any process that can open the socket may send them.
const AdminSocket = "admin.sock"

// dimensions are the dimensions, besides labels, for grouping and filtering, in the order of
// help texts and errors.
var dimensions = []query.Dimension{query.ByJob, query.ByWorkload, query.ByNode, query.ByCluster, query.ByKind, query.ByUser,
	query.ByProject, query.ByNamespace, query.ByPod, query.ByContainer}

// Dimensions returns the names of all dimensions; the last one stands for all labels.
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

// invalid is an error about a parameter, with a hint that says what is valid.
func invalid(hint, format string, a ...any) error {
	return fault.WithHint(fmt.Errorf(format+": %w", append(a, fault.ErrInvalid)...), hint)
}

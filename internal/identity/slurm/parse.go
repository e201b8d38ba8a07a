package slurm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/slurm"
	"mete.dev/mete/internal/x/text"
)

// A record is a job as a command of Slurm prints it: texts of which users chose some.
type record struct {
	id, arrayID, arrayTask, state, submit, start, end, user, uid, partition, nodes, account, name string
	array, het                                                                                    string // as "3_1" and "9+1"
	restarts                                                                                      int
	exit                                                                                          *int
}

// queueFields are the fields of squeue in the order of record's, in the letters of --format.
const queueFields = "AFKTVSeuUPNaj"

// queueFormat is the format of squeue. Names and accounts may hold any text, also what looks like a record, but not the
// separator: it is drawn for each call.
func queueFormat(separator string) string {
	var b strings.Builder
	for _, f := range queueFields {
		b.WriteString(separator + "%" + string(f))
	}
	return b.String() + separator
}

// historyFields are the fields of sacct. It ends each with the separator.
var historyFields = []string{"JobIDRaw", "JobID", "State", "Submit", "Start", "End", "User", "UID", "Partition", "NodeList", "Account", "ExitCode", "JobName"}

var errFormat = fmt.Errorf("the output is not as requested: %w", fault.ErrInvalid)

// cutRecords cuts an output into records of a number of fields. leading says that a separator begins each record.
func cutRecords(out, separator string, fields int, leading bool) (records [][]string, err error) {
	if strings.TrimSpace(out) == "" {
		return nil, nil
	}
	parts := strings.Split(out, separator)
	if leading {
		if parts[0] != "" {
			return nil, errFormat
		}
		parts = parts[1:]
		for len(parts) > fields {
			if parts[fields] != "\n" {
				return nil, errFormat
			}
			records, parts = append(records, parts[:fields]), parts[fields+1:]
		}
	} else {
		for len(parts) > fields {
			parts[0] = strings.TrimPrefix(parts[0], "\n")
			records, parts = append(records, parts[:fields]), parts[fields:]
		}
		if len(parts) > 0 && parts[0] == "\n" {
			parts = parts[1:]
		}
	}
	if len(parts) > 0 {
		return nil, errFormat
	}
	return records, nil
}

// parseQueue parses the output of squeue in queueFormat.
func parseQueue(out, separator string) ([]record, error) {
	rows, err := cutRecords(out, separator, len(queueFields), true)
	if err != nil {
		return nil, err
	}
	var records []record
	for _, f := range rows {
		r := record{id: f[0], arrayID: f[1], arrayTask: f[2], state: f[3], submit: f[4], start: f[5], end: f[6], user: f[7], uid: f[8], partition: f[9], nodes: f[10], account: f[11], name: f[12]}
		if isNumber(r.arrayTask) {
			r.array = r.arrayID + "_" + r.arrayTask
		}
		records = append(records, r)
	}
	return records, nil
}

// exitFormat has the fields of squeue for parseExits, none of which a user chooses: numbers in columns.
const exitFormat = "JobID:24,exit_code:24,RestartCnt:24,HetJobID:24,HetJobOffset:24"

// addExits adds the output of squeue in exitFormat to records.
func addExits(records []record, out string) {
	rows := map[string][]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 3 {
			rows[f[0]] = f
		}
	}
	for i := range records {
		r := &records[i]
		f := rows[r.id]
		if f == nil {
			continue
		}
		r.exit = exitOf(f[1])
		r.restarts, _ = strconv.Atoi(f[2])
		if len(f) >= 5 && isNumber(f[3]) && isNumber(f[4]) && f[3] != "0" {
			r.het = f[3] + "+" + f[4]
		}
	}
}

// parseHistory parses the output of sacct. A job that was requeued has a record for each start: it becomes one, which began
// with the first and is as the last one says.
func parseHistory(out, separator string) ([]record, error) {
	rows, err := cutRecords(out, separator, len(historyFields), false)
	if err != nil {
		return nil, err
	}
	var records []record
	for _, f := range rows {
		r := record{id: f[0], state: f[2], submit: f[3], start: f[4], end: f[5], user: f[6], uid: f[7], partition: f[8], nodes: f[9], account: f[10], exit: exitOf(f[11]), name: f[12]}
		if strings.Contains(f[1], "_") {
			r.array = f[1]
		} else if strings.Contains(f[1], "+") {
			r.het = f[1]
		}
		records = append(records, r)
	}
	return records, nil
}

// An expander returns the names of machines of Slurm's expression of nodes.
type expander func(nodes string) []string

// Limits of texts in bytes: the ledger keeps them for each job.
const maxName, maxText = 200, 100

// job returns what the ledger keeps of a record; false if it has not started, or is not that of a job.
func (r *record) job(hosts expander) (j slurm.Job, ok bool) {
	id, err := strconv.ParseUint(strings.TrimSpace(r.id), 10, 32)
	j.ID = int64(id)
	j.Submitted, j.Started = instant(r.submit), instant(r.start)
	state, _, _ := strings.Cut(strings.TrimSpace(r.state), " ") // "CANCELLED by 1000"
	if err != nil || id == 0 || j.Submitted.IsZero() || j.Started.IsZero() || state == "PENDING" || state == "REVOKED" || j.Started.Before(j.Submitted.Add(-maxBackward)) {
		return j, false
	}
	j.Name, j.Account = shown(r.name, maxName), shown(r.account, maxText)
	j.User = cmp.Or(shown(r.user, maxText), shown(r.uid, maxText))
	j.Restarts = max(0, r.restarts)
	j.Labels = map[string]string{slurm.LabelJob: strconv.FormatUint(id, 10), slurm.LabelPartition: shown(r.partition, maxText), slurm.LabelArray: shown(r.array, maxText), slurm.LabelHet: shown(r.het, maxText)}
	if nodes := strings.TrimSpace(r.nodes); !strings.Contains(nodes, " ") { // "None assigned"
		if nodes = shown(nodes, maxName); nodes != "" {
			j.Labels[slurm.LabelNodes] = nodes
			j.Hosts = hosts(strings.TrimSpace(r.nodes))
		}
	}
	if isFinal(state) {
		j.Ended = instant(r.end)
		j.Labels[slurm.LabelState] = shown(state, maxText)
		// Slurm ends a job without giving it an exit code: 0 would be success.
		if r.exit != nil && (*r.exit != 0 || state == "COMPLETED") {
			j.Exit = r.exit
		}
	}
	maps.DeleteFunc(j.Labels, func(_, v string) bool { return v == "" })
	return j, true
}

// maxBackward is how much earlier than its submission a job may have started, by a clock that was set.
const maxBackward = 24 * time.Hour

// isFinal reports whether a job in a state has ended and has an end. A requeued one has not: it starts again.
func isFinal(state string) bool {
	return slices.Contains([]string{"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}, state)
}

// mergeRestarts makes one job of those that are starts of one requeued job, with the first start and the last end.
func mergeRestarts(jobs []slurm.Job) (out []slurm.Job) {
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b slurm.Job) int { return cmp.Or(cmp.Compare(a.ID, b.ID), a.Submitted.Compare(b.Submitted)) })
	for _, j := range jobs {
		if n := len(out) - 1; n >= 0 && out[n].ID == j.ID && out[n].User == j.User && out[n].Submitted.Before(j.Submitted) && startsAgain(&out[n]) {
			j.Started, j.Restarts = out[n].Started, out[n].Restarts+1
			j.Hosts = append(slices.Clone(out[n].Hosts), j.Hosts...)
			out[n] = j
			continue
		}
		out = append(out, j)
	}
	return out
}

// startsAgain reports whether a job that sacct has once more with a later submission was requeued.
func startsAgain(j *slurm.Job) bool {
	return j.Ended.IsZero() || slices.Contains([]string{"NODE_FAIL", "PREEMPTED"}, j.Labels[slurm.LabelState])
}

// shown returns a text in a form that is safe for a terminal and short; "" for Slurm's words for none.
func shown(s string, limit int) string {
	s = text.Cut(text.Clean(strings.TrimSpace(s)), limit)
	if s == "(null)" || s == "N/A" || s == "None" || s == "Unknown" {
		return ""
	}
	return s
}

// instant parses a time: seconds since 1970, as requested, or Slurm's own form in UTC. Zero is none.
func instant(s string) time.Time {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n <= 0 || n >= 1<<33 {
			return time.Time{}
		}
		return time.Unix(n, 0).UTC()
	}
	t, err := time.Parse("2006-01-02T15:04:05", s)
	if err != nil || t.Year() < 1971 || t.Year() > 2200 {
		return time.Time{}
	}
	return t
}

// exitOf parses an exit code: "code:signal", or the status of wait(2). One by a signal is 128 more than its number.
func exitOf(s string) *int {
	s = strings.TrimSpace(s)
	code, signal, isPair := strings.Cut(s, ":")
	c, err := strconv.ParseUint(code, 10, 31)
	if err != nil {
		return nil
	}
	n := int(c)
	sig := 0
	if isPair {
		v, err := strconv.ParseUint(signal, 10, 16)
		if err != nil {
			return nil
		}
		sig = int(v)
	} else {
		sig, n = n&0x7f, n>>8&0xff
	}
	if sig != 0 {
		n = 128 + sig
	}
	return &n
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

// maxNodes limits the nodes of an expression.
const maxNodes = 1 << 16

var errNodes = errors.New("not an expression of nodes")

// expand returns the nodes of Slurm's expression, as of "n[1-3,07],gpu[1-2]x[0-1]".
func expand(s string) (nodes []string, err error) {
	for s != "" {
		// One item ends at a comma outside brackets.
		depth, end := 0, len(s)
		for i := range len(s) {
			switch s[i] {
			case '[':
				depth++
			case ']':
				depth--
			case ',':
				if depth == 0 {
					end = i
				}
			}
			if end <= i {
				break
			}
		}
		if nodes, err = expandItem(nodes, "", s[:end]); err != nil {
			return nil, err
		}
		s = strings.TrimPrefix(s[end:], ",")
	}
	return nodes, nil
}

func expandItem(nodes []string, before, s string) ([]string, error) {
	prefix, rest, hasRange := strings.Cut(s, "[")
	if !hasRange {
		if len(nodes) >= maxNodes || before+s == "" || strings.Contains(s, "]") {
			return nil, errNodes
		}
		return append(nodes, before+s), nil
	}
	ranges, rest, ok := strings.Cut(rest, "]")
	if !ok {
		return nil, errNodes
	}
	for r := range strings.SplitSeq(ranges, ",") {
		from, to, isRange := strings.Cut(r, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 32)
		b, err2 := strconv.ParseUint(to, 10, 32)
		if err1 != nil || err2 != nil || b < a || b-a >= maxNodes {
			return nil, errNodes
		}
		for n := a; n <= b; n++ {
			var err error
			if nodes, err = expandItem(nodes, before+prefix+fmt.Sprintf("%0*d", len(from), n), rest); err != nil {
				return nil, err
			}
		}
	}
	return nodes, nil
}

// parseNodes parses the output of sinfo: the machine of each node.
func parseNodes(out []byte) map[string]string {
	hosts := map[string]string{}
	for line := range bytes.Lines(out) {
		if f := strings.Fields(string(line)); len(f) == 2 {
			hosts[f[0]] = slurm.Host(f[1])
		}
	}
	return hosts
}

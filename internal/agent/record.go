package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A noteText is what a window or a note in the spool says besides the accounts.
type noteText struct {
	Jobs []jobText   `json:"jobs,omitempty"`
	Gone []string    `json:"gone,omitempty"` // keys of jobs that are forgotten
	Gaps []usage.Gap `json:"gaps,omitempty"` // of the first window
}

// A jobText is what a job registered, and how it ended.
type jobText struct {
	Key     string            `json:"key"`
	Name    string            `json:"name"`
	User    string            `json:"user,omitempty"`
	Project string            `json:"project,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Started time.Time         `json:"started"`
	Ended   time.Time         `json:"ended,omitzero"`
	Exit    *int              `json:"exit,omitempty"`
}

func textOfJob(key string, n *batch.Name) jobText {
	return jobText{key, n.Name, n.User, n.Project, n.Labels, n.Started, n.Ended, n.Exit}
}

func (j *jobText) batchName() batch.Name {
	return batch.Name{Name: j.Name, Job: j.Name, User: j.User, Project: j.Project, Labels: j.Labels, Started: j.Started, Ended: j.Ended, Exit: j.Exit}
}

// encode returns the text as JSON, nil if it says nothing.
func (n noteText) encode() ([]byte, error) {
	if len(n.Jobs)+len(n.Gone)+len(n.Gaps) == 0 {
		return nil, nil
	}
	return json.Marshal(n)
}

// restoreTexts takes over the jobs that an earlier agent knew, and what it noted after its last window.
func (a *Agent) restoreTexts() {
	for _, b := range a.Spool.Texts() {
		var n noteText
		if err := json.Unmarshal(b, &n); err != nil {
			a.log.Warn("names of jobs are lost: a text in the spool cannot be read", "err", err)
			continue
		}
		for _, key := range n.Gone {
			delete(a.jobNames, key)
			delete(a.openJobs, key)
		}
		a.gaps = append(a.gaps, n.Gaps...)
		for i := range n.Jobs {
			job := n.Jobs[i].batchName()
			a.jobNames[n.Jobs[i].Key] = job
			if delete(a.openJobs, n.Jobs[i].Key); job.Ended.IsZero() {
				a.openJobs[n.Jobs[i].Key] = job
			}
		}
	}
}

// record makes durable, after a tick, what cannot wait for the end of the window, since a killed
// agent could not find it again: the ends of groups, what jobs registered, and the last values of
// ending jobs, whose makers then remove their groups. After the very first tick it makes durable
// where counting began. The error says why an ending job's is not durable; measuring goes on, and the
// next tick tries again.
func (a *Agent) record(ending []string) error {
	if !a.asked {
		a.asked = true
		a.Machine.Accounts().EachLiving(a.containers.Want)
	}
	err := a.recordStart()
	if err == nil {
		err = a.recordEnds(ending)
	}
	a.reportRecord(err)
	if err != nil {
		return fmt.Errorf("the end of the job is not on disk: %w: %w", err, fault.ErrUnavailable)
	}
	return nil
}

// recordStart makes the first checkpoint durable.
func (a *Agent) recordStart() error {
	acc := a.Machine.Accounts()
	if a.started = a.started || !acc.IsFirst(); a.started {
		return nil
	}
	a.started = true
	text, err := noteText{Gaps: acc.Gaps()}.encode()
	if err == nil {
		err = a.Spool.Begin(text, acc.Checkpoint(nil, true))
	}
	if err == nil {
		acc.MarkSaved()
	}
	return err
}

// nameDelay is for how long a name may wait for a note that is written anyway: that of a short job's
// end has its name too. mete run registers again where the agent forgot a job.
const nameDelay = time.Second

func (a *Agent) recordEnds(ending []string) error {
	now := time.Now()
	a.applyJobNames(now)
	acc := a.Machine.Accounts()
	if a.unsaved != nil || !acc.CanRecordEnds() {
		if len(ending) == 0 {
			return a.recordError // nothing was tried
		}
		return errors.New("windows cannot be stored")
	}
	keys := make(map[string]bool, len(ending))
	for _, key := range ending {
		keys[key] = true
	}
	jobs, since := a.names.unrecorded()
	text := noteText{Jobs: jobs}
	body := acc.Ends(nil, func(w *workload.Workload) bool { return keys[w.Key] })
	switch due := len(jobs) > 0 && now.Sub(since) >= nameDelay; {
	case len(body) > 0 || due || len(ending) > 0 && len(jobs) > 0:
	case len(ending) > 0:
		return nil // the last window has it all
	default:
		return a.recordError // nothing was tried
	}
	b, err := text.encode()
	if err == nil {
		err = a.Spool.AppendNote(b, func() []byte { return body })
	}
	if err != nil {
		return err
	}
	acc.MarkEndsSaved()
	a.names.markRecorded()
	return nil
}

// reportRecord logs when ends begin to be recorded late, and when they are recorded at once again.
func (a *Agent) reportRecord(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && a.recordError == nil:
		a.log.Warn("ends of jobs and groups are not recorded at once: if the agent is killed, their use since the last window will be without their names", "err", err, "hint", fault.Hint(err))
	case err == nil && a.recordError != nil:
		a.log.Info("ends of jobs and groups are recorded at once again")
	}
	a.recordError = err
}
